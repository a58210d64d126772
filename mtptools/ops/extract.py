"""extract: the head alone, as a sidecar. strip: the trunk alone, declaring no head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mtptools.checkpoint import Checkpoint
from mtptools.containers.safetensors import INDEX_NAME
from mtptools.errors import MissingHeadError
from mtptools.gguf_blocks import trunk_blocks
from mtptools.head import head_names, is_sidecar
from mtptools.ops.declare import (
    changes_between,
    gguf_changes,
    gguf_with_depth,
    hf_with_depth,
    to_json_bytes,
)
from mtptools.ops.donor import complete_head, require_trunk
from mtptools.ops.draft_loaders import draft_facts
from mtptools.ops.folder import NOT_INDEXED, index_json, left_out, loose_facts, side_files
from mtptools.ops.head_alone import head_alone, shared_names
from mtptools.ops.prune_vocab import prune_vocab
from mtptools.ops.quant_own import is_own, own_config
from mtptools.ops.reduced import drafts_with
from mtptools.ops.shards import gguf_shards, keep, safetensors_shards, unindexed
from mtptools.plan import Dropped, Input, Plan
from mtptools.quantized import COMPANIONS
from mtptools.vocab.stored import draft_vocabulary, map_names

__all__ = ["extract", "strip"]


def extract(source: Checkpoint, out_name: str, *, bare: bool = False) -> Plan:
    """Plan a sidecar with the head of `source`.

    GGUF  the whole metadata, the head's blocks, and the shared roles llama.cpp loads with `-md`
    HF    a folder with config.json, tokenizer, the head, embeddings and output matrix: a separate draft for vLLM
    bare  the head's own tensors alone: a donor, about a tenth of the size, loadable by nothing

    A reduced head out of a file with a trunk gets the form that reduced sidecars have, see `prune_vocab`.
    """
    heads = complete_head(source)
    vocabulary = draft_vocabulary(source)
    if vocabulary is not None and not bare and not is_sidecar(source):
        return replace(prune_vocab(source, vocabulary, out_name, sidecar=True, keep_embeddings=True), verb="extract")
    names = {name for head in heads for name in head.names} | set(map_names(source))
    if vocabulary is not None:  # the matrix that the map is of, wherever it stands
        names |= {part.name for one in drafts_with(source, heads) for part in one.parts}
    wanted = names | (set() if bare else set(shared_names(source)))
    kept = keep(source, "source", [name for name in source if name in wanted])
    entries = [replace(entry, head=entry.name in names) for entry in kept]
    facts = ["bare: a donor for graft, not loadable by a runtime"] if bare else draft_facts(source, alone=True)
    return head_alone("extract", source, len(heads), entries, out_name, facts, vocabulary=vocabulary)


def strip(source: Checkpoint, out_name: str, *, link: bool = False) -> Plan:
    """Plan a checkpoint without its head, declaring none. A declared head that is missing is undeclared.

    link  files in which nothing changes become hard links to the source's
    """
    require_trunk(source)
    head = {*head_names(source), *map_names(source)}
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
