"""extract: the head alone, as a sidecar. strip: the trunk alone, declaring no head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mtptools.checkpoint import Checkpoint
from mtptools.codecs import CODECS
from mtptools.containers.safetensors import INDEX_NAME
from mtptools.errors import MissingHeadError
from mtptools.gguf_blocks import trunk_blocks
from mtptools.head import find_trunk, head_names
from mtptools.ops.declare import (
    changes_between,
    gguf_changes,
    gguf_with_depth,
    hf_with_depth,
    shard_metadata,
    to_json_bytes,
)
from mtptools.ops.donor import complete_head, require_trunk
from mtptools.ops.folder import NOT_INDEXED, index_json, left_out, loose_facts, side_files
from mtptools.ops.quant_own import is_own, own_config
from mtptools.ops.shards import gguf_shards, keep, safetensors_shards, unindexed
from mtptools.plan import Dropped, Entry, Input, OutFile, Plan
from mtptools.quantized import COMPANIONS

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
        arch, n_trunk = source.family.gguf_arch, trunk_blocks(source)
        metadata = gguf_with_depth(source.metadata, arch, n_trunk, len(heads), source.metadata, n_trunk)
        metadata = shard_metadata(metadata, 0, 1, len(entries))
        file = OutFile(out_name, "gguf", metadata, entries, source.files[0].alignment)
        changes = tuple(gguf_changes(source, metadata))
        return Plan("extract", inputs, (file,), dropped=dropped, changes=changes, facts=facts)
    config = hf_with_depth(source.config, source.family, len(heads))
    if "quantization_config" in config and all(CODECS[e.source.codec].kind == "float" for e in entries):
        del config["quantization_config"]
        facts += ("quantization_config is left out: every tensor of the sidecar is float",)
    facts += tuple(left_out(source))
    file = OutFile("model.safetensors", "safetensors", {"format": "mlx" if source.dialect == "mlx" else "pt"}, entries)
    made = {"config.json": to_json_bytes(config)}
    # hf_quant_config.json is read where config.json says nothing: a float sidecar must not bring it.
    unwanted = {INDEX_NAME} | ({"hf_quant_config.json"} if "quantization_config" not in config else set())
    side = tuple(s for s in side_files(source, made) if s.name not in unwanted)
    changes = tuple(changes_between(source.config, config))
    return Plan("extract", inputs, (file,), side, dropped, changes, facts, folder=True)


def _shared(source: Checkpoint) -> tuple[str, ...]:
    """Names of what a runtime loads beside a head, scales included."""
    if source.dialect == "gguf":
        return GGUF_SHARED
    wanted = ("token_embd.weight", "output.weight")
    shared = (found for role, layer, found in find_trunk(source) if layer is None and role.name in wanted)
    return tuple(name for found in shared if found is not None for name in found.names)


def strip(source: Checkpoint, out_name: str, *, link: bool = False) -> Plan:
    """Plan a checkpoint without its head, declaring none. A declared head that is missing is undeclared.

    link  files in which nothing changes become hard links to the source's
    """
    require_trunk(source)
    head = set(head_names(source))
    if not head and not source.hparams.depth:
        raise MissingHeadError(
            "no head to strip: none is declared and none is there", where=source.path, hint="it is a trunk already"
        )
    dropped = {name: "head" for name in source if name in head}
    if source.dialect == "gguf":
        return _strip_gguf(source, dropped, out_name, link=link)
    loose = [name for name in unindexed(source) if name not in head]
    dropped |= dict.fromkeys(loose, NOT_INDEXED)
    facts = loose_facts(loose)
    files = safetensors_shards(source, "source", dropped, facts, indexed=source.index is not None, link=link)
    config = hf_with_depth(source.config, source.family, 0)
    if source.dialect == "hf" and is_own(source) and any(name.endswith(COMPANIONS) for name in head):
        config = own_config(config, {}, ())
        facts.append("quantization_config is left out: it was the head's alone")
    made = {"config.json": to_json_bytes(config)}
    if source.index is not None:
        made[INDEX_NAME] = index_json(source.index, files)
    return Plan(
        verb="strip",
        inputs=(Input("source", source),),
        files=tuple(files),
        side=side_files(source, made),
        dropped=_gone(dropped),
        changes=tuple(changes_between(source.config, config)),
        facts=(*facts, *left_out(source)),
        folder=True,
    )


def _gone(dropped: Mapping[str, str]) -> tuple[Dropped, ...]:
    return tuple(Dropped("source", name, why) for name, why in dropped.items())


def _strip_gguf(source: Checkpoint, dropped: Mapping[str, str], out_name: str, *, link: bool) -> Plan:
    metadata = gguf_with_depth(source.metadata, source.family.gguf_arch, trunk_blocks(source), 0)
    kept = [(file, keep(source, "source", [n for n in file.names if n not in dropped])) for file in source.files]
    # A shard that held nothing but the head goes; the first one stays whatever it holds: it has the metadata.
    groups = [(file, entries) for file, entries in kept if entries or file is source.files[0]]
    facts: list[str] = []
    return Plan(
        verb="strip",
        inputs=(Input("source", source),),
        files=gguf_shards(source, groups, metadata, out_name, facts, link=link),
        dropped=_gone(dropped),
        changes=tuple(gguf_changes(source, metadata)),
        facts=tuple(facts),
    )
