"""The entries of a head in encodings of safetensors, for `graft` and `quantize` alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mtptools.checkpoint import Checkpoint
from mtptools.codecs import CODECS
from mtptools.errors import CodecError, ConventionError, UsageError
from mtptools.families import Role
from mtptools.head import Found, Head, Stored, head_names
from mtptools.ops.declare import modelopt_config
from mtptools.ops.donor import kinds_of, renamed
from mtptools.ops.head_alike import Group, groups_of, origin, require_alike, sharing
from mtptools.ops.head_asked import EXPERTS, TYPED, Asked
from mtptools.ops.head_roles import as_typed, canonical, roles_of, short_names
from mtptools.ops.quant_config import Module, head_modules
from mtptools.ops.quant_fit import Fit
from mtptools.ops.quant_own import own_config
from mtptools.ops.quant_pins import float_in_trunk, joined, pins_of
from mtptools.ops.render import FLOATS, as_stored, place_of, safetensors_entries
from mtptools.ops.style import Style
from mtptools.plan import Entry
from mtptools.quantized import COMPANIONS, ENCODINGS, Encoding, encoded, fitting
from mtptools.tensors import NOWHERE, Tensor

__all__ = ["asks_encodings", "encoded_head", "quantized_entries"]

Roles = Mapping[str, Sequence[Role]]


def asks_encodings(style: Style) -> bool:
    """Is more asked of a head in safetensors than one float type for all of its matrices?"""
    return bool(style.roles) or style.matrices not in (None, *FLOATS) or style.own_output is not None


def encoded_head(
    donor: Checkpoint,
    heads: Sequence[Head],
    trunk: Checkpoint,
    style: Style,
    facts: list[str],
    *,
    label: str = "donor",
    option: str = "--head-type",
) -> list[Entry]:
    """Entries of these heads in `trunk`'s dialect, each matrix in what `style` asks for it.

    option  where the type of the matrices was typed

    A matrix that is stored as asked keeps its bytes; one in another encoding is decoded first, which `facts` say.
    Raises UsageError, CodecError (what the trunk's configuration does not read, rows that are not whole groups),
    ConventionError.
    """
    _require(style, trunk)
    style.require_roles([role.name for role in _roles(heads, trunk) if role.kind in TYPED])
    asked = Asked.of(style, trunk, option)
    place = place_of(trunk, len(heads))
    stays = _staying(donor, heads, asked)
    names = [pair for pair in renamed(donor, place) if pair[0] in stays] if stays else []
    entries = as_stored(donor, names, kinds_of(list(heads)), Style(norms=style.norms), label)
    coded = [f for head in heads for f in head.roles.values() if not set(f.names) <= stays and f.scaled]
    if coded:
        facts.append(f"{len(coded)} matrices were quantized otherwise: decoded first, and their scales left out")
    rest = [replace(head, roles={n: f for n, f in head.roles.items() if not set(f.names) <= stays}) for head in heads]
    encodes = any((e := asked.wanted(role)) is not None and not e.is_float for role in _roles(rest, trunk))
    if encodes and trunk.dialect == "hf" and style.experts == "fused":
        raise UsageError("quantized experts stand one by one", where="--experts", hint="leave it out")
    experts = "single" if encodes and trunk.dialect == "hf" else style.experts
    entries += safetensors_entries(donor, rest, place, Style(norms=style.norms, experts=experts), label=label)
    made = quantized_entries(entries, heads, style, trunk, facts, option=option)
    order = {name: number for number, name in enumerate(donor)}
    return sorted(made, key=lambda entry: order[entry.names[0]])


def _roles(heads: Sequence[Head], trunk: Checkpoint) -> list[Role]:
    every = (found.role for head in heads for found in head.roles.values())
    return list({one.name: one for role in every for one in canonical(role, trunk.family)}.values())


def _require(style: Style, trunk: Checkpoint) -> None:
    if style.own_output is not None:
        raise ConventionError(
            f"an output matrix of the head's own has no name in the {trunk.dialect} dialect of {trunk.family.name}",
            where="--own-output",
            hint="it can be stored in GGUF only: mtptools convert to GGUF first",
        )


def _staying(donor: Checkpoint, heads: Sequence[Head], asked: Asked) -> set[str]:
    """Names of the tensors that need not be laid out anew: their matrices are stored as they are wanted."""
    if donor.dialect != asked.trunk.dialect:
        return set()
    every = [found for head in heads for found in head.roles.values()]
    moved = [f for f in every if not asked.is_stored(f, keeps=donor is asked.trunk)]
    moved += _sharing(every, [f for f in moved if (e := asked.wanted(f.role)) is not None and e.shared])
    if any(f.role.name.endswith(EXPERTS) for f in moved):  # runtimes want all experts alike
        moved += [f for f in every if f.role.name.endswith(EXPERTS) and not f.scaled]
    names = {name for found in moved for name in found.names}
    return {name for found in every if not names & set(found.names) for name in found.names}


def _sharing(every: Sequence[Found], moved: Sequence[Found]) -> list[Found]:
    """Those that share a second scale with what gets a new one."""

    def stems(found: Found) -> list[str]:
        return [one.tensor.name.rpartition(".weight")[0] for one in found.stored]

    modules = [Module(stem, True) for found in every for stem in stems(found)]
    changed = {stem for found in moved for stem in stems(found)}
    partners = {part for _, parts in joined(modules, experts=False) if changed & set(parts) for part in parts}
    return [found for found in every if partners & set(stems(found))]


def quantized_entries(
    entries: Sequence[Entry],
    heads: Sequence[Head],
    style: Style,
    trunk: Checkpoint,
    facts: list[str],
    *,
    option: str = "--head-type",
) -> list[Entry]:
    """The same head with each matrix as the tensors of the encoding that `style` asks for.

    entries  of the head as floats would be written, and what passes as it is stored
    heads    what they are made of
    trunk    the checkpoint whose configuration says how runtimes read the head
    option   where the type of the matrices was typed

    Raises UsageError for a role named in `style` that stays float whatever is asked, and for types that differ within
    one tensor or within what runtimes join; CodecError.
    """
    asked, roles, stored = Asked.of(style, trunk, option), roles_of(entries, heads, trunk), _stored(heads)
    groups = groups_of(entries, roles)
    chosen: dict[str, Encoding] = {}
    for entry in entries:
        if CODECS[entry.codec].kind == "float" and not entry.name.endswith(COMPANIONS):
            scaled = bool(stored[entry.names[0]].scales)
            encoding = asked.of_entry(entry, roles[entry.name], coded=scaled)
            if encoding is not None:
                chosen[entry.name] = encoding
    coded = {name: encoding for name, encoding in chosen.items() if not encoding.is_float}
    if asked.fit is not None and chosen:
        require_alike(groups, roles, stored, chosen, asked)  # before lists are made of it, which speak of the whole
        coded = _without_pinned(entries, roles, coded, asked, facts) if coded else coded
        chosen = {name: one for name, one in chosen.items() if one.is_float or name in coded}
        require_alike(groups, roles, stored, chosen, asked)
    partners = sharing(entries, coded)
    out: list[Entry] = []
    for entry in entries:
        kind = chosen.get(entry.name)
        if kind is None:
            out.append(entry)
            continue
        before = origin(stored[entry.names[0]])
        if kind.is_float:
            out.append(replace(entry, codec=kind.name, origin=before))
            continue
        fused = [_in_errors(one, stored) for one in sorted(partners[entry.name], key=lambda one: one is not entry)]
        own = Group(entry.name, (entry,), tuple(roles[entry.name]))
        out += [replace(part, origin=before) for part in _encoded(entry, kind, asked.fit, (*groups, own), fused)]
    facts += _facts(coded, partners)
    return out


def _stored(heads: Sequence[Head]) -> dict[str, Stored]:
    """The weight that each tensor of these heads is, or belongs to."""
    every = (one for head in heads for found in head.roles.values() for one in found.stored)
    return {name: one for one in every for name in one.names}


def _in_errors(entry: Entry, stored: Mapping[str, Stored]) -> Tensor:
    """The values of an entry under the name that errors about them give: the output's, and the input's file."""
    paths = {blob.path for name in entry.names for blob in stored[name].tensor.blobs} - {NOWHERE}
    return entry.source.renamed(f"{paths.pop()}, {entry.name}" if len(paths) == 1 else entry.name)


def _without_pinned(
    entries: Sequence[Entry], roles: Roles, coded: Mapping[str, Encoding], asked: Asked, facts: list[str]
) -> dict[str, Encoding]:
    """What of `coded` runtimes read quantized. Raises UsageError, CodecError."""
    trunk = asked.trunk
    standing = head_modules({e.name: (e.codec, len(e.source.shape)) for e in entries})
    modules = [Module(m.name, m.quantized or f"{m.name}.weight" in coded) for m in standing]
    small = {name.removesuffix(".weight") for name, its in roles.items() if its[0].kind != "matrix"}
    config, alike = trunk.config, set[str]()
    if asked.fit is not None and asked.fit.own:
        its = {name.removesuffix(".weight"): encoding.name for name, encoding in coded.items()}
        config = own_config(config, its, [m.name for m in modules])
    else:
        alike = float_in_trunk(trunk, set(head_names(trunk)), modules)
    pins = pins_of(config, modelopt_config(trunk), modules, small, alike)
    out: dict[str, Encoding] = {}
    pinned: dict[str, list[str]] = {}
    for name, encoding in coded.items():
        pin, named = pins.get(name.removesuffix(".weight")), asked.names(roles[name])
        if pin is not None and named and not pin.by_choice:
            raise UsageError(
                f"{short_names(roles[name])} cannot be {encoding.name}: {pin.why}",
                where="--role",
                hint="leave it out: it stays BF16",
            )
        if pin is not None and not named:
            pinned.setdefault(pin.why, []).append(name)
            continue
        if pin is not None:
            facts.append(f"quantized because it was asked for: {name}: {pin.why}")
        out[name] = encoding
    if not out and not any(m.quantized for m in standing):
        why, names = next(iter(pinned.items()))
        raise CodecError(f"every matrix of the head stays float: {names[0]}: {why}", where=trunk.path)
    facts += [f"stays float: {', '.join(names[:3])}{' …' * (len(names) > 3)}: {why}" for why, names in pinned.items()]
    return out


def _encoded(
    entry: Entry, encoding: Encoding, fit: Fit | None, groups: Sequence[Group], fused: Sequence[Tensor]
) -> list[Entry]:
    """fused: values of the matrix, and then of all that share its second scale"""
    scales = fit.scales if fit is not None else "F32"
    try:
        made = encoded(fused[0], encoding, entry.name, dtype=entry.codec, scales=scales, fused=fused)
    except CodecError as error:
        raise CodecError(error.what, where=error.where, hint=_instead(entry, encoding, fit, groups)) from error
    return [replace(entry, name=part.name, source=part, codec=part.codec, encoding=encoding.name) for part in made]


def _instead(entry: Entry, encoding: Encoding, fit: Fit | None, groups: Sequence[Group]) -> str:
    """What to type for a matrix whose rows an encoding does not fit, and for all that must be of one type with it.

    groups  what runtimes join, largest first, and the matrix itself at the end
    """
    if fit is None:
        types = ", ".join(fitting(entry.source.shape[-1], "mlx"))
        return f"types that fit: {types}: {as_typed(groups[-1].roles, 'TYPE')}"
    group = next(one for one in groups if any(part is entry for part in one.entries))
    fits = [name for name in fit.names if all(e.source.shape[-1] % ENCODINGS[name].group == 0 for e in group.entries)]
    like = [name for name in fits if name.partition("-")[0] == encoding.name.partition("-")[0]]
    return as_typed(group.roles, [*like, *fits, "BF16"][0])


def _facts(coded: Mapping[str, Encoding], partners: Mapping[str, Sequence[Entry]]) -> list[str]:
    counts: dict[str, int] = {}
    for encoding in coded.values():
        counts[encoding.name] = counts.get(encoding.name, 0) + 1
    out = [f"{count} matrices of the head become {name}" for name, count in counts.items()]
    if any(len(group) > 1 for group in partners.values()):
        out.append(
            "one global scale for matrices that runtimes join (q, k and v; gate and up), as llm-compressor has it"
        )
    if any(name.startswith("mlx-mxfp") for name in counts):
        out.append("shared exponents are rounded up, as MLX 0.32.4 does (mlx#4353); versions before rounded to nearest")
    return out
