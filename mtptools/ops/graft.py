"""graft: a trunk and a donor's head become one checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from mtptools.checkpoint import Checkpoint, File
from mtptools.codecs import CODECS
from mtptools.containers.gguf import Metadata
from mtptools.containers.safetensors import INDEX_NAME
from mtptools.errors import IncompatibleError, InputError, UsageError, typed
from mtptools.gguf_blocks import trunk_blocks
from mtptools.head import Head, head_names, trunk_layers
from mtptools.importance import Importance
from mtptools.ops.compatible import require_match
from mtptools.ops.declare import (
    MODELOPT_FILE,
    changes_between,
    gguf_changes,
    gguf_with_depth,
    hf_with_depth,
    modelopt_config,
    stated_by,
    to_json_bytes,
)
from mtptools.ops.donor import complete_head, head_entries, is_quantized, require_trunk
from mtptools.ops.draft_loaders import loads
from mtptools.ops.encoded_head import asks_encodings, encoded_head
from mtptools.ops.exact import require_lossless, statement
from mtptools.ops.folder import NOT_INDEXED, index_json, left_out, loose_facts, side_files
from mtptools.ops.head_types import HeadTypes, mixture_of, type_facts, used_by
from mtptools.ops.mlx_config import with_head
from mtptools.ops.own_output import OUTPUT, own_outputs
from mtptools.ops.quant_config import Module, cover_modelopt
from mtptools.ops.quantize_hf import declared
from mtptools.ops.reduced import map_entries, with_outputs
from mtptools.ops.shards import gguf_shards, keep, safetensors_shards, unindexed
from mtptools.ops.style import Experts, Style
from mtptools.plan import Dropped, Entry, Input, OutFile, Plan
from mtptools.vocab.maps import DraftVocabulary
from mtptools.vocab.stored import draft_vocabulary, map_names

__all__ = ["graft"]

HEAD_FILE: Final = "model-mtp.safetensors"  # mlx-lm loads model*.safetensors and nothing else
HEAD_FILES: Final = (HEAD_FILE, *(f"model-mtp-{n}.safetensors" for n in range(1, 100)))


def graft(
    trunk: Checkpoint,
    donor: Checkpoint,
    out_name: str,
    *,
    head_type: str | None = None,
    norm_type: str | None = None,
    experts: Experts | None = None,
    roles: Sequence[str] = (),
    own_output: str | None = None,
    importance: Importance | None = None,
    lossless: bool = False,
    link: bool = False,
    allow: Sequence[str] = (),
) -> Plan:
    """Plan one checkpoint from `trunk` and the head of `donor`.

    out_name   file name of the output (its folder does not matter to a plan)
    head_type  type of the head's matrices. By default a GGUF donor's bytes are kept, and an HF head becomes Q8_0 on
               a quantized GGUF trunk, BF16 on a float one. Norms and routers are F32 in GGUF.
    norm_type  type of the head's norms in safetensors; by default that of the matrices, as releases have them
    experts    "single" or "fused" experts in HF; by default the donor's layout, or the family's where it has none
    roles      "ROLE=TYPE" for matrices that get another type than the rest
    own_output type of an output matrix of the head's own, made from the trunk's: GGUF only
    importance weights of columns for GGUF types that take them
    lossless   refuse when any bit of the head could not be had back
    link       files of the trunk in which nothing changes become hard links to it
    allow      ids of mismatches to accept, see `mtptools.ops.compatible.FINDINGS`

    Raises MissingHeadError, MissingRoleError, InputError (the trunk has a head), IncompatibleError, CodecError.
    """
    heads = complete_head(donor)
    require_trunk(trunk)
    standing = (*head_names(trunk), *map_names(trunk))
    if standing:
        raise InputError(
            f"the trunk has a head already ({len(standing)} tensors, {standing[0]} …)",
            where=trunk.path,
            hint=f"mtptools strip {typed(trunk.path)} -o trunk{trunk.path.suffix}, then graft onto that",
        )
    facts = require_match(trunk, donor, allow)
    if trunk.family.generic:
        facts.append(
            f"generic: {trunk.family.name} is not known here; not checked: the head's roles and shapes, the "
            "conventions of its norms, its wiring, and per-layer metadata of its own"
        )
    if trunk.hparams.depth:
        facts.append(f"the trunk declared {trunk.hparams.depth} MTP layer(s) it did not hold; now it holds them")
    vocabulary = _reduced(trunk, donor, facts)
    if vocabulary is not None:
        heads = with_outputs(donor, heads)
    style = Style.asked(head_type, norm_type, experts, roles=roles, own_output=own_output)
    if experts is not None and trunk.dialect != "hf":
        raise UsageError(f"{trunk.dialect} stacks experts", where="--experts", hint="leave it out")
    if trunk.dialect == "gguf":
        plan = _gguf(trunk, donor, heads, out_name, style, importance, facts, vocabulary, link=link)
    else:
        if importance is not None:
            raise UsageError("types of safetensors take no importance", where="--imatrix", hint="leave it out")
        plan = _hf(trunk, donor, heads, style, facts, link=link)
    if lossless:
        require_lossless([entry for entry in plan.entries if entry.head])
    return plan


def _dropped(donor: Checkpoint, used: Sequence[Entry]) -> tuple[Dropped, ...]:
    taken = {name for entry in used if entry.input == "donor" for name in entry.names}
    return tuple(Dropped("donor", name, "not part of the head") for name in donor if name not in taken)


def _gguf(
    trunk: Checkpoint,
    donor: Checkpoint,
    heads: list[Head],
    out_name: str,
    style: Style,
    importance: Importance | None,
    facts: list[str],
    vocabulary: DraftVocabulary | None,
    *,
    link: bool,
) -> Plan:
    _require_block(trunk, heads)
    if style.norms is not None:
        raise UsageError("GGUF holds norms in F32", where="--norm-type", hint="leave it out")
    n_trunk = trunk_blocks(trunk)
    if style.matrices is None and donor.dialect != "gguf":
        matrices, why = _default_type(trunk, heads)
        style = replace(style, matrices=matrices)
        facts.append(f"head type {matrices}: the donor is {donor.dialect.upper()} and {why}")
    names = [*trunk, *(f"blk.{n_trunk + n}.{name}" for n, head in enumerate(heads) for name in head.roles)]
    types = HeadTypes(style, mixture_of(trunk, names, n_trunk + len(heads)), importance)
    style.require_roles([*types.matrices(heads), *([OUTPUT] if style.own_output else [])])
    head = head_entries(donor, heads, trunk, n_trunk, types)
    if style.own_output is not None:
        own = {entry.name: entry for entry in own_outputs(trunk, donor, heads, n_trunk, types)}
        head = [*(entry for entry in head if entry.name not in own), *own.values()]
    facts += type_facts(heads, head, importance)
    if vocabulary is not None:
        head += map_entries("gguf", vocabulary, "donor", map_names(donor))
    if not all(entry.passes for entry in head):
        facts += statement(head)
    metadata = gguf_with_depth(
        trunk.metadata, trunk.family.gguf_arch, n_trunk, len(heads), stated_by(donor), trunk_layers(donor)
    )
    groups: list[tuple[File | None, Sequence[Entry]]] = [(f, keep(trunk, "trunk", f.names)) for f in trunk.files]
    if len(groups) > 1:
        groups.append((None, head))
    else:
        groups = [(trunk.files[0], (*groups[0][1], *head))]
    files = gguf_shards(trunk, groups, metadata, out_name, facts, link=link)
    return Plan(
        verb="graft",
        inputs=(Input("trunk", trunk), Input("donor", donor)),
        files=files,
        dropped=_dropped(donor, head),
        changes=tuple(gguf_changes(trunk, files[0].metadata)) if isinstance(files[0].metadata, Metadata) else (),
        facts=tuple(facts),
        used=used_by(head, importance),
    )


def _reduced(trunk: Checkpoint, donor: Checkpoint, facts: list[str]) -> DraftVocabulary | None:
    """What a reduced head of the donor drafts. Raises InputError where the trunk's file has no place for it."""
    vocabulary = draft_vocabulary(donor)
    if vocabulary is None:
        return None
    if trunk.dialect != "gguf" or all(role.name != OUTPUT for role in trunk.family.head):
        raise InputError(
            f"the donor's head drafts {len(vocabulary)} of {vocabulary.size} tokens, and a trunk's file of "
            f"{trunk.family.title} in the {trunk.dialect} dialect has no place for its matrix",
            where=donor.path,
            hint="graft the head it was made from, or give it back: prune-vocab --restore DONOR",
        )
    if vocabulary.size != trunk.hparams.vocab_size:
        what = f"vocabulary size: trunk {trunk.hparams.vocab_size}, draft map of the donor {vocabulary.size}"
        raise IncompatibleError("the donor's draft vocabulary is of another model", [what], where=donor.path)
    facts += [
        f"draft vocabulary: {len(vocabulary)} of {vocabulary.size} tokens",
        loads("gguf", trunk.family.gguf_arch, alone=False),
    ]
    return vocabulary


def _require_reader(trunk: Checkpoint, facts: list[str]) -> None:
    """Refuse an MLX trunk that would not load any more; say so where no MLX runtime drafts from the head."""
    family = trunk.family
    if family.mlx == "breaks":
        raise InputError(
            f"MLX no longer loads a {family.title} checkpoint that has a head in it",
            where=trunk.path,
            hint="mtptools convert DONOR -o head --to mlx writes the head into a folder of its own",
        )
    if family.mlx != "drafts":
        facts.append(f"no MLX runtime is known to draft from a head of {family.title}: its trunk loads as before")


def _default_type(trunk: Checkpoint, heads: Sequence[Head]) -> tuple[str, str]:
    """Type of the matrices of a head that has no GGUF type yet, and why."""
    if not is_quantized(trunk):
        return "BF16", "the trunk is float"
    matrices = [found for head in heads for found in head.roles.values() if found.role.kind == "matrix"]
    odd = [f for f in matrices if f.tensor.shape[-1] % CODECS["Q8_0"].block_values]
    if odd:
        return "BF16", f"{odd[0].role.name} has rows of {odd[0].tensor.shape[-1]} values, which Q8_0 cannot hold"
    return "Q8_0", "the trunk is quantized"


def _require_block(trunk: Checkpoint, heads: Sequence[Head]) -> None:
    """Refuse a head that llama.cpp reads from a file of its own only."""
    root = [name for head in heads for name, found in head.roles.items() if found.role.root]
    if root:
        raise InputError(
            f"a head of {trunk.family.title} cannot stand in the trunk's file: {root[0]} is the head's, and the trunk "
            "has one of its own under that name",
            where=trunk.path,
            hint="mtptools convert DONOR -o head.gguf --to gguf, then run llama.cpp with -m TRUNK -md head.gguf",
        )


def _hf(trunk: Checkpoint, donor: Checkpoint, heads: list[Head], style: Style, facts: list[str], *, link: bool) -> Plan:
    if trunk.dialect == "mlx":
        _require_reader(trunk, facts)
    if asks_encodings(style):
        head = encoded_head(donor, heads, trunk, style, facts)
    else:
        head = head_entries(donor, heads, trunk, 0, HeadTypes(style))
    loose = unindexed(trunk)
    facts += loose_facts(loose)
    files = safetensors_shards(trunk, "trunk", loose, facts, indexed=True, link=link)
    taken = {file.name for file in files}
    head_file = next(name for name in HEAD_FILES if name not in taken)
    style_of = "mlx" if trunk.dialect == "mlx" else "pt"
    files.append(OutFile(head_file, "safetensors", {"format": style_of}, tuple(head)))
    facts += left_out(trunk)
    config = hf_with_depth(trunk.config, trunk.family, len(heads))
    modules: list[Module] = []
    if trunk.dialect == "mlx":
        config = with_head(config, donor, head, facts)
    else:
        config, modules = declared(config, trunk, donor, head, heads, facts)
    if not all(entry.passes for entry in head):
        facts += statement(head)
    made = {"config.json": to_json_bytes(config), INDEX_NAME: index_json(trunk.index, files)}
    second = modelopt_config(trunk) if trunk.dialect == "hf" else None
    if second is not None:
        made[MODELOPT_FILE] = to_json_bytes(cover_modelopt(second, config, modules, facts))
    side = side_files(trunk, made)
    return Plan(
        verb="graft",
        inputs=(Input("trunk", trunk), Input("donor", donor)),
        files=tuple(files),
        side=side,
        dropped=(*(Dropped("trunk", name, NOT_INDEXED) for name in loose), *_dropped(donor, head)),
        changes=tuple(changes_between(trunk.config, config)),
        facts=tuple(facts),
        folder=True,
    )
