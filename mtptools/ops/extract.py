"""extract: the head alone, as a sidecar. strip: the trunk alone, declaring no head."""

from __future__ import annotations

from typing import Final

from mtptools.checkpoint import Checkpoint, split_name
from mtptools.codecs import CODECS
from mtptools.containers.gguf import Metadata
from mtptools.containers.safetensors import INDEX_NAME
from mtptools.errors import MissingHeadError
from mtptools.head import head_names, hf_prefix, trunk_blocks
from mtptools.ops.declare import (
    changes_between,
    gguf_changes,
    gguf_with_depth,
    hf_with_depth,
    shard_metadata,
    to_json_bytes,
)
from mtptools.ops.donor import complete_head, require_trunk
from mtptools.ops.graft import index_json, left_out, side_files
from mtptools.plan import Dropped, Entry, Input, OutFile, Plan

__all__ = ["extract", "strip"]

# What llama.cpp loads beside the head's block from a file given with -md (qwen35.cpp: token_embd and output_norm are
# required, output where it is not tied).
GGUF_SHARED: Final = ("token_embd.weight", "output_norm.weight", "output.weight")


def extract(source: Checkpoint, out_name: str, *, bare: bool = False) -> Plan:
    """Plan a sidecar with the head of `source`.

    GGUF  the whole metadata, the head's blocks, and the shared roles llama.cpp loads with `-md`
    HF    a folder with config.json, tokenizer, the head, embeddings and output matrix: a separate draft for vLLM
    bare  the head's own tensors alone: a donor, about a tenth of the size, loadable by nothing
    """
    heads = complete_head(source)
    names = {name for head in heads for name in head.names}
    wanted = names | (set() if bare else set(_shared(source)))
    entries = tuple(
        Entry(n, source[n], source[n].codec, "source", (n,), head=n in names) for n in source if n in wanted
    )
    dropped = tuple(Dropped("source", name, "trunk") for name in source if name not in wanted)
    inputs = (Input("source", source),)
    facts: tuple[str, ...] = ("bare: a donor for graft, not loadable by a runtime",) if bare else ()
    if source.dialect == "gguf":
        arch = source.family.gguf_arch
        metadata = gguf_with_depth(source.metadata, arch, trunk_blocks(source), len(heads), source.metadata)
        metadata = shard_metadata(metadata, 0, 1, len(entries))
        file = OutFile(out_name, "gguf", metadata, entries, source.files[0].alignment)
        changes = tuple(gguf_changes(source, metadata))
        return Plan("extract", inputs, (file,), dropped=dropped, changes=changes, facts=facts)
    config = hf_with_depth(source.config, source.family, len(heads))
    if "quantization_config" in config and all(CODECS[e.source.codec].kind == "float" for e in entries):
        del config["quantization_config"]
        facts += ("quantization_config is left out: every tensor of the sidecar is float",)
    facts += tuple(left_out(source))
    file = OutFile("model.safetensors", "safetensors", {"format": "pt"}, entries)
    made = {"config.json": to_json_bytes(config)}
    # hf_quant_config.json is read where config.json says nothing: a float sidecar must not bring it.
    unwanted = {INDEX_NAME} | ({"hf_quant_config.json"} if "quantization_config" not in config else set())
    side = tuple(s for s in side_files(source, made) if s.name not in unwanted)
    changes = tuple(changes_between(source.config, config))
    return Plan("extract", inputs, (file,), side, dropped, changes, facts, folder=True)


def _shared(source: Checkpoint) -> tuple[str, ...]:
    if source.dialect == "gguf":
        return GGUF_SHARED
    roles = {role.name: role for role in source.family.trunk["all"]}
    patterns = [s.pattern for name in ("token_embd.weight", "output.weight") for s in roles[name].hf]
    prefix = hf_prefix(source)
    return tuple(prefix + p[1:] if p.startswith("^") else p for p in patterns)


def strip(source: Checkpoint, out_name: str) -> Plan:
    """Plan a checkpoint without its head, declaring none. A declared head that is missing is undeclared."""
    require_trunk(source)
    names = set(head_names(source))
    if not names and not source.hparams.depth:
        raise MissingHeadError(
            "no head to strip: none is declared and none is there", where=source.path, hint="it is a trunk already"
        )
    dropped = tuple(Dropped("source", name, "head") for name in source if name in names)
    groups = [[n for n in file.names if n not in names] for file in source.files]
    inputs = (Input("source", source),)
    if source.dialect == "gguf":
        return _strip_gguf(source, groups, dropped, out_name, inputs)
    files = tuple(
        OutFile(file.path.name, "safetensors", dict(file.metadata), _kept(source, group))
        for file, group in zip(source.files, groups, strict=True)
        if group
    )
    config = hf_with_depth(source.config, source.family, 0)
    made = {"config.json": to_json_bytes(config)}
    if source.index is not None:
        made[INDEX_NAME] = index_json(source.index, files)
    changes = tuple(changes_between(source.config, config))
    facts = tuple(left_out(source))
    return Plan("strip", inputs, files, side_files(source, made), dropped, changes, facts, folder=True)


def _kept(source: Checkpoint, names: list[str]) -> tuple[Entry, ...]:
    return tuple(Entry(n, source[n], source[n].codec, "source", (n,)) for n in names)


def _strip_gguf(
    source: Checkpoint, groups: list[list[str]], dropped: tuple[Dropped, ...], out_name: str, inputs: tuple[Input, ...]
) -> Plan:
    metadata = gguf_with_depth(source.metadata, source.family.gguf_arch, trunk_blocks(source), 0)
    # A shard that held nothing but the head goes; the first one stays whatever it holds: it has the metadata.
    numbers = [n for n, group in enumerate(groups) if group or n == 0]
    total, count = sum(map(len, groups)), len(numbers)
    files = []
    for position, number in enumerate(numbers):
        own = source.files[number].metadata
        base = metadata if number == 0 or not isinstance(own, Metadata) else own
        name = out_name if count == 1 else split_name(out_name.removesuffix(".gguf"), position + 1, count)
        shard = shard_metadata(base, position, count, total)
        files.append(OutFile(name, "gguf", shard, _kept(source, groups[number]), source.files[number].alignment))
    changes = tuple(gguf_changes(source, metadata))
    return Plan("strip", inputs, tuple(files), dropped=dropped, changes=changes)
