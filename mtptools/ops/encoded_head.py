"""The entries of a head in encodings of safetensors, for `graft` and `quantize` alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Final

from mtptools.checkpoint import Checkpoint
from mtptools.codecs import CODECS
from mtptools.errors import CodecError, ConventionError, UsageError
from mtptools.families import Role
from mtptools.head import Found, Head, head_names
from mtptools.ops.declare import modelopt_config
from mtptools.ops.donor import renamed
from mtptools.ops.quant_config import Module, head_modules
from mtptools.ops.quant_fit import Fit, encoding_for, fit_of
from mtptools.ops.quant_own import own_config
from mtptools.ops.quant_pins import float_in_trunk, joined, pins_of
from mtptools.ops.render import FLOATS, as_stored, place_of, safetensors_entries
from mtptools.ops.style import Style
from mtptools.plan import Entry
from mtptools.quantized import COMPANIONS, Encoding, block_of, encoded, encoding_of, mlx_layout

__all__ = ["asks_encodings", "encoded_head", "quantized_entries", "roles_of"]

_EXPERTS: Final = "_exps.weight"
_TYPED: Final = ("matrix", "embedding", "output")  # kinds of roles that a float type is asked for
_WILD: Final = frozenset("*?[")


@dataclass(frozen=True)
class _Asked:
    """What was asked, as encodings that runtimes read beside the trunk."""

    style: Style
    trunk: Checkpoint
    fit: Fit | None

    @classmethod
    def of(cls, style: Style, trunk: Checkpoint) -> _Asked:
        return cls(style, trunk, fit_of(trunk) if trunk.dialect == "hf" else None)

    def wanted(self, role: Role) -> Encoding | None:
        """The encoding of a role, None where nothing was asked of it. Raises UsageError, CodecError."""
        text = self.style.wanted(role.name) if role.kind in _TYPED else None
        found = None if text is None else encoding_for(text, self.trunk, self.fit)
        if found is None or found.is_float or role.kind == "matrix":
            return found
        if self.named(role) is None:
            return None
        if self.trunk.dialect == "mlx":
            return found
        raise UsageError(
            f"{role.name.removesuffix('.weight')} is no matrix that runtimes quantize",
            where="--role",
            hint="leave it out",
        )

    def named(self, role: Role) -> str | None:
        """The pattern of --role that names this role and no other."""
        short = role.name.removesuffix(".weight")
        return next((p for p, _ in self.style.roles if not _WILD & set(p) and fnmatchcase(short, p)), None)


def asks_encodings(style: Style) -> bool:
    """Is more asked of a head in safetensors than one float type for all of its matrices?"""
    return bool(style.roles) or style.matrices not in (None, *FLOATS) or style.own_output is not None


def encoded_head(
    donor: Checkpoint, heads: Sequence[Head], trunk: Checkpoint, style: Style, facts: list[str], *, label: str = "donor"
) -> list[Entry]:
    """Entries of these heads in `trunk`'s dialect, each matrix in what `style` asks for it.

    A matrix that is stored as asked keeps its bytes; one in another encoding is decoded first, which `facts` say.
    Raises UsageError, CodecError (what the trunk's configuration does not read, rows that are not whole groups),
    ConventionError.
    """
    _require(style, trunk)
    roles = {found.role.name: found.role for head in heads for found in head.roles.values()}
    style.require_roles([name for name, role in roles.items() if role.kind in _TYPED])
    asked = _Asked.of(style, trunk)
    place = place_of(trunk, len(heads))
    stays = _staying(donor, heads, asked)
    by_name = _by_name(heads)
    names = renamed(donor, place) if donor.dialect == trunk.dialect else []
    kinds = {name: role.kind for name, role in by_name.items()}
    entries = as_stored(donor, [pair for pair in names if pair[0] in stays], kinds, Style(norms=style.norms), label)
    coded = [f for head in heads for f in head.roles.values() if not set(f.names) <= stays and f.scaled]
    if coded:
        facts.append(f"{len(coded)} matrices were quantized otherwise: decoded first, and their scales left out")
    rest = [replace(head, roles={n: f for n, f in head.roles.items() if not set(f.names) <= stays}) for head in heads]
    encodes = any((e := asked.wanted(f.role)) is not None and not e.is_float for h in rest for f in h.roles.values())
    if encodes and trunk.dialect == "hf" and style.experts == "fused":
        raise UsageError("quantized experts stand one by one", where="--experts", hint="leave it out")
    experts = "single" if encodes and trunk.dialect == "hf" else style.experts
    entries += safetensors_entries(donor, rest, place, Style(norms=style.norms, experts=experts), label=label)
    made = quantized_entries(entries, roles_of(entries, heads), style, trunk, facts)
    order = {name: number for number, name in enumerate(donor)}
    return sorted(made, key=lambda entry: order[entry.names[0]])


def roles_of(entries: Sequence[Entry], heads: Sequence[Head]) -> dict[str, Role]:
    """Name of an entry -> the role that it, or the first of what it is made of, had in these heads."""
    by_name = _by_name(heads)
    return {entry.name: by_name[entry.names[0]] for entry in entries}


def _by_name(heads: Sequence[Head]) -> dict[str, Role]:
    return {name: found.role for head in heads for found in head.roles.values() for name in found.names}


def _require(style: Style, trunk: Checkpoint) -> None:
    if style.own_output is not None:
        raise ConventionError(
            f"an output matrix of the head's own has no name in the {trunk.dialect} dialect of {trunk.family.name}",
            where="--own-output",
            hint="it can be stored in GGUF only: mtptools convert to GGUF first",
        )


def _staying(donor: Checkpoint, heads: Sequence[Head], asked: _Asked) -> set[str]:
    """Names of the tensors that need not be laid out anew: their matrices are stored as they are wanted."""
    if donor.dialect != asked.trunk.dialect:
        return set()
    every = [found for head in heads for found in head.roles.values()]
    wanted = {found.role.name: asked.wanted(found.role) for found in every}
    moved = [f for f in every if not _as_wanted(donor, f, wanted[f.role.name], asked)]
    moved += _sharing(every, [f for f in moved if (e := wanted[f.role.name]) is not None and e.shared])
    if any(f.role.name.endswith(_EXPERTS) for f in moved):  # runtimes want all experts alike
        moved += [f for f in every if f.role.name.endswith(_EXPERTS) and not f.scaled]
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


def _as_wanted(donor: Checkpoint, found: Found, wanted: Encoding | None, asked: _Asked) -> bool:
    if asked.style.experts is not None and found.role.name.endswith(_EXPERTS):
        return False
    if wanted is None:
        return not found.scaled or donor is asked.trunk
    if wanted.is_float:
        return not found.scaled
    block = block_of(donor.config)
    for one in found.stored:
        layout = mlx_layout(donor.config, one.tensor.name.removesuffix(".weight")) if ".scales" in one.scales else None
        if encoding_of(one.tensor, one.scales, block=block, layout=layout) != wanted.name:
            return False
    return True


def quantized_entries(
    entries: Sequence[Entry], roles: Mapping[str, Role], style: Style, trunk: Checkpoint, facts: list[str]
) -> list[Entry]:
    """The same head with each matrix as the tensors of the encoding that `style` asks for.

    entries  of the head as floats would be written, and what passes as it is stored
    roles    name of an entry -> its role
    trunk    the checkpoint whose configuration says how runtimes read the head

    Raises UsageError for a role named in `style` that stays float whatever is asked; CodecError.
    """
    asked = _Asked.of(style, trunk)
    chosen: dict[str, Encoding] = {}
    for entry in entries:
        encoding = asked.wanted(roles[entry.name])
        values = CODECS[entry.codec].kind == "float" and not entry.name.endswith(COMPANIONS)
        if encoding is not None and values:
            chosen[entry.name] = encoding
    coded = {name: encoding for name, encoding in chosen.items() if not encoding.is_float}
    if asked.fit is not None and coded:
        coded = _without_pinned(entries, roles, coded, asked, facts)
    partners = _partners(entries, coded)
    out: list[Entry] = []
    for entry in entries:
        if entry.name in coded:
            out += _encoded(entry, roles[entry.name], coded[entry.name], asked, partners[entry.name])
        else:
            kind = chosen.get(entry.name)
            out.append(replace(entry, codec=kind.name) if kind is not None and kind.is_float else entry)
    facts += _facts(coded, partners)
    return out


def _without_pinned(
    entries: Sequence[Entry],
    roles: Mapping[str, Role],
    coded: Mapping[str, Encoding],
    asked: _Asked,
    facts: list[str],
) -> dict[str, Encoding]:
    """What of `coded` runtimes read quantized. Raises UsageError, CodecError."""
    trunk = asked.trunk
    standing = head_modules({e.name: (e.codec, len(e.source.shape)) for e in entries})
    modules = [Module(m.name, m.quantized or f"{m.name}.weight" in coded) for m in standing]
    small = {name.removesuffix(".weight") for name, role in roles.items() if role.kind != "matrix"}
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
        pin, role = pins.get(name.removesuffix(".weight")), roles[name]
        named = asked.named(role) is not None
        if pin is not None and named and not pin.by_choice:
            raise UsageError(
                f"{role.name.removesuffix('.weight')} cannot be {encoding.name}: {pin.why}",
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
    _require_alike([m for m in standing if m.name not in small], out)
    facts += [f"stays float: {', '.join(names[:3])}{' …' * (len(names) > 3)}: {why}" for why, names in pinned.items()]
    return out


def _require_alike(modules: Sequence[Module], coded: Mapping[str, Encoding]) -> None:
    """Refuse types that differ within what runtimes join to one matrix. Raises UsageError."""
    stored = {m.name for m in modules if m.quantized}
    for whole, parts in joined(modules):
        kinds = {part: coded[f"{part}.weight"].name for part in parts if f"{part}.weight" in coded}
        floats = [part for part in parts if part not in kinds and part not in stored]
        if len(set(kinds.values())) > 1 or (floats and len(floats) < len(parts)):
            few = ", ".join(f"{part.rpartition('.')[2]} {kinds.get(part, 'as it was')}" for part in parts[:4])
            raise UsageError(
                f"runtimes join the parts of {whole}, which must be of one type: {few}",
                where="--role",
                hint="name all of them, or none",
            )


def _partners(entries: Sequence[Entry], coded: Mapping[str, Encoding]) -> dict[str, list[Entry]]:
    """For each encoded matrix, those that share its second scale: itself, and what runtimes join with it."""
    by_name = {entry.name: entry for entry in entries if entry.name in coded}
    out = {name: [entry] for name, entry in by_name.items()}
    for _, parts in joined([Module(name.removesuffix(".weight"), True) for name in by_name], experts=False):
        together = [by_name[f"{part}.weight"] for part in parts]
        if all(coded[entry.name].shared for entry in together):
            out |= {entry.name: together for entry in together}
    return out


def _encoded(entry: Entry, role: Role, encoding: Encoding, asked: _Asked, partners: Sequence[Entry]) -> list[Entry]:
    short = role.name.removesuffix(".weight")
    try:
        made = encoded(
            entry.source,
            encoding,
            entry.name,
            dtype=entry.codec,
            scales=asked.fit.scales if asked.fit is not None else "F32",
            fused=[one.source for one in partners],
        )
    except CodecError as error:
        fits = f"{error.hint}: --role {short}=TYPE" if asked.fit is None else f"--role {short}=BF16"
        raise CodecError(error.what, where=error.where, hint=fits) from error
    origin = entry.source.codec
    return [
        replace(entry, name=part.name, source=part, codec=part.codec, encoding=encoding.name, origin=origin)
        for part in made
    ]


def _facts(coded: Mapping[str, Encoding], partners: Mapping[str, Sequence[Entry]]) -> list[str]:
    counts: dict[str, int] = {}
    for encoding in coded.values():
        counts[encoding.name] = counts.get(encoding.name, 0) + 1
    out = [f"{count} matrices of the head become {name}" for name, count in counts.items()]
    if any(len(group) > 1 for group in partners.values()):
        out.append(
            "one global scale for matrices that runtimes join (q, k and v; gate and up), as llm-compressor has it"
        )
    return out
