"""A file or folder that holds a head and what stands beside one: the form that extract and prune-vocab write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from mtptools.checkpoint import Checkpoint
from mtptools.codecs import CODECS
from mtptools.containers.safetensors import INDEX_NAME
from mtptools.gguf_blocks import trunk_blocks
from mtptools.head import find_trunk
from mtptools.ops.declare import (
    changes_between,
    gguf_changes,
    gguf_with_depth,
    hf_with_depth,
    shard_metadata,
    to_json_bytes,
)
from mtptools.ops.folder import left_out, side_files
from mtptools.plan import Dropped, Entry, Input, OutFile, Plan
from mtptools.vocab.maps import DraftVocabulary
from mtptools.vocab.stored import D2T, SIZE_KEY, T2D

__all__ = ["declares", "head_alone", "shared_names"]

# What llama.cpp loads beside the head's block from a file given with -md (qwen35.cpp: token_embd and output_norm are
# required, output where it is not tied).
GGUF_SHARED: Final = ("token_embd.weight", "output_norm.weight", "output.weight")
TRUNK: Final = "trunk"


def shared_names(source: Checkpoint) -> tuple[str, ...]:
    """Names of what a runtime loads beside a head, scales included."""
    if source.dialect == "gguf":
        return GGUF_SHARED
    wanted = ("token_embd.weight", "output.weight")
    shared = (found for role, layer, found in find_trunk(source) if layer is None and role.name in wanted)
    return tuple(name for found in shared if found is not None for name in found.names)


def head_alone(
    verb: str,
    source: Checkpoint,
    depth: int,
    entries: Sequence[Entry],
    out_name: str,
    facts: Sequence[str],
    *,
    gone: Mapping[str, str] | None = None,
    vocabulary: DraftVocabulary | None = None,
) -> Plan:
    """Plan these entries of `source` as a sidecar, with its metadata or configuration and tokenizer.

    depth       MTP layers of the head
    gone        why tensors are left out, where it is not that they are the trunk's
    vocabulary  what the head drafts, when it is reduced
    """
    used = {name for entry in entries for name in entry.names}
    why = gone or {}
    dropped = tuple(Dropped("source", name, why.get(name, TRUNK)) for name in source if name not in used)
    inputs, facts = (Input("source", source),), tuple(facts)
    if source.dialect == "gguf":
        n_trunk = trunk_blocks(source)
        metadata = gguf_with_depth(source.metadata, source.family.gguf_arch, n_trunk, depth, source.metadata, n_trunk)
        metadata = shard_metadata(metadata, 0, 1, len(entries))
        file = OutFile(out_name, "gguf", metadata, tuple(entries), source.files[0].alignment)
        changes = tuple(gguf_changes(source, metadata))
        return Plan(verb, inputs, (file,), dropped=dropped, changes=changes, facts=facts)
    config = declares(hf_with_depth(source.config, source.family, depth), vocabulary)
    if "quantization_config" in config and all(
        CODECS[e.codec].kind == "float" for e in entries if e.name not in (D2T, T2D)
    ):
        del config["quantization_config"]
        facts += ("quantization_config is left out: every tensor of the sidecar is float",)
    facts += tuple(left_out(source))
    style = "mlx" if source.dialect == "mlx" else "pt"
    file = OutFile("model.safetensors", "safetensors", {"format": style}, tuple(entries))
    made = {"config.json": to_json_bytes(config)}
    # hf_quant_config.json is read where config.json says nothing: a float sidecar must not bring it.
    unwanted = {INDEX_NAME} | ({"hf_quant_config.json"} if "quantization_config" not in config else set())
    side = tuple(s for s in side_files(source, made) if s.name not in unwanted)
    changes = tuple(changes_between(source.config, config))
    return Plan(verb, inputs, (file,), side, dropped, changes, facts, folder=True)


def declares(config: dict[str, Any], vocabulary: DraftVocabulary | None) -> dict[str, Any]:
    """config.json of a sidecar with this draft vocabulary, or without one: said wherever vocab_size is."""
    trees = [config] + ([config["text_config"]] if isinstance(config.get("text_config"), dict) else [])
    for tree in trees:
        if vocabulary is None:
            tree.pop(SIZE_KEY, None)
            continue
        if "vocab_size" in tree or tree is config:
            tree[SIZE_KEY] = len(vocabulary)
        if "tie_word_embeddings" in tree:
            tree["tie_word_embeddings"] = False  # its output matrix is a tensor of its own
    return config
