"""quantize: the head in other types; every byte of the trunk passes through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from mtptools.checkpoint import Checkpoint
from mtptools.codecs import CODECS
from mtptools.containers.gguf import Metadata
from mtptools.containers.gguf_values import scalar_value
from mtptools.errors import UsageError
from mtptools.gguf_blocks import trunk_blocks
from mtptools.head import Found, Head, find_trunk, is_sidecar
from mtptools.importance import Importance
from mtptools.ops.declare import gguf_changes
from mtptools.ops.donor import complete_head, require_shapes
from mtptools.ops.draft_loaders import draft_facts
from mtptools.ops.head_types import HeadTypes, mixture_of, type_facts, used_by
from mtptools.ops.own_output import OUTPUT, own_outputs
from mtptools.ops.quantize_hf import quantize_safetensors
from mtptools.ops.render import gguf_entries, gguf_entry
from mtptools.ops.shards import gguf_shards, with_made
from mtptools.ops.style import Style
from mtptools.plan import Entry, Input, Plan
from mtptools.receipt import KEY_PREFIX
from mtptools.vocab.stored import map_names

__all__ = ["quantize"]

LABEL: Final = "source"
VERSION_KEY: Final = "general.quantization_version"
VERSION: Final = 2  # GGML_QNT_VERSION
OUTPUT_BESIDE: Final = "output.weight"
_SHARED: Final = ("token_embd.weight", OUTPUT_BESIDE)


def quantize(
    source: Checkpoint, out_name: str, style: Style, *, importance: Importance | None = None, link: bool = False
) -> Plan:
    """Plan `source` with its head in the types of `style`.

    importance  weights of columns for types that take them, by GGUF tensor name
    link        files in which nothing changes become hard links to the source's

    In a sidecar the embedding and the output matrix that stand beside the head can be named in `style.roles`
    (`output`, `token_embd`) too; `style.own_output` there is the type of the output matrix.
    Raises MissingHeadError, MissingRoleError, UsageError, CodecError (a type that does not fit a matrix; when written,
    values that are not finite), IncompatibleError (importance of another model), ConventionError.
    """
    heads = complete_head(source)
    require_shapes(source)
    if source.dialect != "gguf":
        if importance is not None:
            raise UsageError("types of safetensors take no importance", where="--imatrix", hint="leave it out")
        return quantize_safetensors(source, heads, style, link=link)
    return _gguf(source, heads, out_name, style, importance, link=link)


def _gguf(
    source: Checkpoint, heads: list[Head], out_name: str, style: Style, importance: Importance | None, *, link: bool
) -> Plan:
    if style.norms is not None:
        raise UsageError("GGUF holds norms in F32", where="--norm-type", hint="leave it out")
    first, facts = trunk_blocks(source), list[str]()
    types = HeadTypes(style, mixture_of(source, list(source), first + len(heads)), importance)
    shared = _shared(source) if is_sidecar(source) else []
    style.require_roles([*types.matrices(heads), *([OUTPUT] * bool(style.own_output)), *(f.role.name for f in shared)])
    entries = {entry.name: entry for entry in gguf_entries(source, heads, first, types, label=LABEL)}
    entries |= {entry.name: entry for entry in _of_sidecar(source, shared, types)}
    if style.own_output and all(found.role.name != OUTPUT_BESIDE for found in shared):
        entries |= {entry.name: entry for entry in own_outputs(source, source, heads, first, types)}
    groups = with_made(source, LABEL, entries)
    head = [entry for _, group in groups for entry in group if entry.name in entries]
    facts += type_facts(heads, head, importance)
    if style.own_output is not None and not map_names(source):
        facts.append(_whose_output(heads, shared))
    facts += draft_facts(source, alone=is_sidecar(source))
    files = gguf_shards(source, groups, _metadata(source, head), out_name, facts, link=link)
    metadata = files[0].metadata
    changes = tuple(gguf_changes(source, metadata)) if isinstance(metadata, Metadata) else ()
    return Plan(
        "quantize", (Input(LABEL, source),), files, changes=changes, facts=tuple(facts), used=used_by(head, importance)
    )


def _whose_output(heads: Sequence[Head], shared: Sequence[Found]) -> str:
    if any(found.role.name == OUTPUT_BESIDE for found in shared):
        return "own output: the sidecar's output.weight, read by the head alone; graft takes the head's block, not it"
    if all(OUTPUT in head.roles for head in heads):
        return "own output: the one that the head has, in another type; it is not made from the trunk's"
    return "own output: made from the trunk's"


def _metadata(source: Checkpoint, head: Sequence[Entry]) -> Metadata:
    """The source's, without an earlier receipt, and with the version of ggml's blocks where there were none."""
    changes = {key: None for key in source.metadata if key.startswith(KEY_PREFIX)}
    coded = any(CODECS[entry.codec].kind == "block" for entry in head)
    if coded and VERSION_KEY not in source.metadata:
        return source.metadata.edited({**changes, VERSION_KEY: scalar_value("u32", VERSION)})
    return source.metadata.edited(dict(changes))


def _shared(source: Checkpoint) -> list[Found]:
    """What stands beside the head in a sidecar and is a matrix."""
    return [
        found
        for role, layer, found in find_trunk(source)
        if found is not None and layer is None and role.name in _SHARED
    ]


def _of_sidecar(source: Checkpoint, shared: Sequence[Found], types: HeadTypes) -> list[Entry]:
    """The embedding and the output matrix in what was asked for them by name; without a word they stay."""
    own, roles = types.style.own_output, types.style.roles
    if own is not None:  # the file's output matrix is read by the head alone
        roles = (("output", own), *roles)
    measured = {OUTPUT_BESIDE: f"blk.{trunk_blocks(source)}.{OUTPUT}"}  # what it takes from the head goes by that name
    only = replace(types, style=Style(roles=roles), measured=measured)
    return [gguf_entry(source, found, found.role.name, only, label=LABEL) for found in shared]
