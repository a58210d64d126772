"""Checks of what is declared: depth, block count, per-layer arrays, quantization config, tokenizer."""

from __future__ import annotations

from collections.abc import Iterator

from mtptools.checkpoint import Checkpoint
from mtptools.containers.gguf_values import ARRAY
from mtptools.errors import typed
from mtptools.families.per_layer import FIXED_LENGTH, PER_LAYER, SILENT, TRUNK_ONLY
from mtptools.gguf_blocks import block_of, trunk_blocks
from mtptools.head import head_layers, head_names, is_sidecar, not_a_head
from mtptools.hparams import declared_depth
from mtptools.receipt import load_inside
from mtptools.tokens import tokenizer_facts

Report = Iterator[tuple[str, str, str]]


def _depth_key(ckpt: Checkpoint) -> str:
    if ckpt.dialect == "gguf":
        return f"{ckpt.family.gguf_arch}.nextn_predict_layers"
    inside = isinstance(ckpt.config.get("text_config"), dict)
    key = ckpt.family.hf_depth[0] if ckpt.family.hf_depth else "the number of MTP layers"
    return f"text_config.{key}" if inside else key


def declared_missing(ckpt: Checkpoint) -> Report:
    """The most common defect in the wild: the depth survives a conversion that dropped the tensors."""
    depth = ckpt.hparams.depth
    if not depth or head_names(ckpt):
        return
    note = "" if ckpt.family.ships else f"; no release of {ckpt.family.title} ships one"
    blocks = f", block_count says {depth + ckpt.hparams.n_layers}" if ckpt.dialect == "gguf" else ""
    yield (
        f"a head is declared and missing: {depth} MTP layer(s) declared, no head tensor in the file",
        f"{_depth_key(ckpt)} = {depth}{blocks}; {len(ckpt)} tensors, none of a head{_not_read(ckpt)}{note}",
        ("" if not ckpt.family.ships else f"mtptools graft {typed(ckpt.path)} DONOR -o OUT, or ")
        + f"undeclare it: mtptools strip {typed(ckpt.path)} -o OUT",
    )


def _not_read(ckpt: Checkpoint) -> str:
    """Weights in the folder that no index names: the head may be in there."""
    others = [path.name for path in ckpt.side_files if path.suffix == ".safetensors"]
    return f"; beside it and in no index: {', '.join(others)}" if others else ""


def another_kind(ckpt: Checkpoint) -> Report:
    """Draft stages of another method under the names of an MTP head."""
    sign = not_a_head(ckpt)
    if sign is not None:
        yield (f"no MTP head: {sign.what}", f"{sign.name} is there", sign.hint)


def undeclared(ckpt: Checkpoint) -> Report:
    names = head_names(ckpt)
    silent = ckpt.dialect != "gguf" and declared_depth(ckpt.family, ckpt.config) is None
    if silent and not ckpt.family.depth_stated:  # no release of this family declares it
        return
    if names and not ckpt.hparams.depth:
        key = _depth_key(ckpt)
        yield (
            f"a head is there and not declared: {len(names)} head tensors, depth 0 or absent",
            f"{names[0]} …; {key} is 0, null or absent",
            f"set {key} to 1: strip and graft again, or mtptools extract {typed(ckpt.path)}, then graft that",
        )


def depth_differs(ckpt: Checkpoint) -> Report:
    depth, names = ckpt.hparams.depth, head_names(ckpt)
    if not names or not depth:
        return
    present = len(head_layers(ckpt))
    if present != depth:
        yield (
            f"{depth} MTP layer(s) declared, {present} present",
            f"{_depth_key(ckpt)} = {depth}; head tensors {names[0]} … {names[-1]}",
            "graft the head again from a complete donor",
        )


def block_count(ckpt: Checkpoint) -> Report:
    if ckpt.dialect != "gguf":
        return
    blocks = {at[0] for name in ckpt if (at := block_of(name)) is not None}
    nextn = {at[0] for name in ckpt if (at := block_of(name)) is not None and at[1].startswith("nextn.")}
    stated = ckpt.hparams.n_layers + ckpt.hparams.depth
    highest = max(blocks, default=-1)
    key = f"{ckpt.family.gguf_arch}.block_count"
    if highest >= stated:
        yield (
            f"block_count is {stated}, the highest block is {highest}: it must include the head's blocks",
            f"{key} = {stated}; blk.{highest}.* is there",
            f"mtptools extract {typed(ckpt.path)} -o head.gguf, then mtptools strip and graft: that sets both keys",
        )
    if nextn and trunk_blocks(ckpt) != ckpt.hparams.n_layers and not is_sidecar(ckpt):
        yield (
            f"the head stands at block {min(nextn)}, block_count and depth put it at {ckpt.hparams.n_layers}",
            f"{key} = {stated}, nextn_predict_layers = {ckpt.hparams.depth}",
            "set block_count to trunk blocks + head blocks: strip and graft again",
        )


def arrays(ckpt: Checkpoint) -> Report:
    if ckpt.dialect != "gguf":
        return
    h = ckpt.hparams
    for name in (*PER_LAYER, *TRUNK_ONLY):
        key = f"{ckpt.family.gguf_arch}.{name}"
        stored = ckpt.metadata.stored.get(key)
        blocks = h.n_layers + (0 if name in TRUNK_ONLY else h.depth)
        if stored is not None and stored.type == ARRAY and stored.count != blocks:
            reads = "silently reads 0 for the last block" if name in SILENT else "refuses the file"
            yield (
                f"{key} has {stored.count} entries for {blocks} blocks",
                f"{h.n_layers} trunk blocks and {h.depth} of a head are declared; llama.cpp {reads}",
                f"mtptools strip {typed(ckpt.path)}, then graft again: arrays are extended from the donor",
            )


def fixed_arrays(ckpt: Checkpoint) -> Report:
    for name, length in FIXED_LENGTH.items():
        key = f"{ckpt.family.gguf_arch}.{name}"
        stored = ckpt.metadata.stored.get(key)
        if stored is not None and stored.count != length:
            yield (
                f"{key} has {stored.count} entries, {length} are wanted",
                "llama.cpp reads exactly that many (seen with 3 entries in files of the Ollama registry)",
                "convert the release again with llama.cpp's converter",
            )


def unindexed(ckpt: Checkpoint) -> Report:
    if ckpt.index is None:
        return
    rest = [name for name in ckpt if name not in ckpt.index["weight_map"]]
    if rest:
        yield (
            f"{len(rest)} tensor(s) are in a shard and not in the index: {', '.join(rest[:4])}",
            "transformers does not load them; vLLM loads every tensor of every shard",
            "write the index again: mtptools strip, then mtptools graft",
        )


def index_size(ckpt: Checkpoint) -> Report:
    """Loaders that reserve memory by total_size take a 0, or an old size, at its word."""
    metadata = ckpt.index.get("metadata") if ckpt.index is not None else None
    stated = metadata.get("total_size") if isinstance(metadata, dict) else None
    if stated is None:
        return
    there = sum(tensor.nbytes for tensor in ckpt.values()) if ckpt.known == "values" else None
    if stated == 0 or (there is not None and stated != there):
        yield (
            f"the index says total_size {stated}" + (f", the tensors have {there} bytes" if there is not None else ""),
            "model.safetensors.index.json, metadata.total_size",
            "write the index again: mtptools strip, then mtptools graft",
        )


def tokenizer_size(ckpt: Checkpoint) -> Report:
    tokens = tokenizer_facts(ckpt)
    if tokens is not None and tokens.size > ckpt.hparams.vocab_size:
        yield (
            f"the tokenizer has {tokens.size} tokens, the embedding {ckpt.hparams.vocab_size} rows",
            f"tokenizer sha256 {tokens.digest[:16]}",
            "take tokenizer and weights from one release",
        )


def tokenizer_hash(ckpt: Checkpoint) -> Report:
    tokens, record = tokenizer_facts(ckpt), load_inside(ckpt)
    stated = record.get("tokenizer_sha256") if record is not None else None
    if tokens is not None and stated is not None and stated != tokens.digest:
        yield (
            "the tokenizer is not the one this checkpoint was made with",
            f"receipt {stated[:16]}, now {tokens.digest[:16]} with {tokens.size} tokens",
            "put the trunk's own tokenizer back: token ids mean something else in another one",
        )


def tokenizer_missing(ckpt: Checkpoint) -> Report:
    if tokenizer_facts(ckpt) is None:
        yield (
            "no tokenizer",
            "no tokenizer.json beside the weights" if ckpt.dialect != "gguf" else "no tokenizer.ggml.tokens",
            "put the release's tokenizer beside the weights; verify and generate need it",
        )
