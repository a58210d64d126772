"""A head in the dialect of an output: names, layout, value conventions and types of every tensor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from mtptools.checkpoint import Checkpoint
from mtptools.conventions import LAYOUTS
from mtptools.errors import CodecError, ConventionError, UsageError
from mtptools.families import Family, Role, Source
from mtptools.families.blocks import GGUF_FUSED
from mtptools.head import Found, Head, Stored, head_prefix, hf_prefix
from mtptools.hparams import HParams
from mtptools.ops.head_types import SMALL, HeadTypes
from mtptools.ops.packed import FP4, as_fp4, as_mxfp4
from mtptools.ops.style import EXPERTS, Style
from mtptools.plan import Entry
from mtptools.tensors import Tensor
from mtptools.views import reshaped, same_values

__all__ = [
    "Place",
    "as_stored",
    "gguf_entries",
    "named",
    "place_of",
    "safetensors_entries",
]

FLOATS: Final = ("F32", "F16", "BF16")


@dataclass(frozen=True)
class Place:
    """Where a head goes in safetensors: whose names, under which prefixes.

    trunk   prefix of the trunk's names, for roles shared with it
    layers  prefix of each MTP layer's names
    """

    dialect: Literal["hf", "mlx"]
    family: Family
    hparams: HParams
    trunk: str
    layers: tuple[str, ...]

    def spelled(self, pattern: str, layer: int, expert: int = 0) -> str:
        lead = {"~": self.layers[layer], "^": self.trunk}.get(pattern[:1])
        text = pattern if lead is None else lead + pattern[1:]
        return text.format(d=layer, n=self.hparams.n_layers + layer, e=expert)


def place_of(ckpt: Checkpoint, depth: int) -> Place:
    """The place of a head of `depth` layers in this checkpoint."""
    dialect: Literal["hf", "mlx"] = "mlx" if ckpt.dialect == "mlx" else "hf"
    layers = tuple(head_prefix(ckpt, layer) for layer in range(depth))
    return Place(dialect, ckpt.family, ckpt.hparams, hf_prefix(ckpt), layers)


def gguf_entries(
    donor: Checkpoint, heads: Sequence[Head], first_block: int, types: HeadTypes, *, label: str = "donor"
) -> list[Entry]:
    """Entries of these heads' blocks, the first one numbered `first_block`. Raises CodecError."""
    entries: list[Entry] = []
    wrong: list[CodecError] = []
    for layer, head in enumerate(heads):
        for name, found in head.roles.items():
            full = name if found.role.root else f"blk.{first_block + layer}.{name}"
            try:
                entries.append(gguf_entry(donor, found, full, types, label=label, head=True))
            except CodecError as error:
                wrong.append(error)
    if wrong:
        raise _together(wrong)
    return _once(entries)


def _together(wrong: Sequence[CodecError]) -> CodecError:
    """What is wrong with the first matrix, and the names of the others: they are mended in one go."""
    first, *rest = wrong
    if not rest:
        return first
    names = ", ".join(str(error.where) for error in rest)
    return CodecError(first.what, where=first.where, hint=f"{first.hint}; the same goes for {names}")


def _once(entries: Sequence[Entry]) -> list[Entry]:
    """Tensors that several MTP layers share stand once. Raises ConventionError when the layers' values differ."""
    kept: dict[str, Entry] = {}
    for entry in entries:
        other = kept.setdefault(entry.name, entry)
        if other is entry:
            continue
        if other.names != entry.names and not same_values(other.source, entry.source):
            raise ConventionError(
                f"{entry.name} is shared by all MTP layers, and {other.names[0]} and {entry.names[0]} differ",
                hint="this head cannot be written in that dialect",
            )
        names = tuple(dict.fromkeys((*other.names, *entry.names)))
        kept[entry.name] = replace(other, names=names)
    return list(kept.values())


def gguf_entry(
    donor: Checkpoint, found: Found, name: str, types: HeadTypes, *, label: str = "donor", head: bool = False
) -> Entry:
    """One role as GGUF stores it: canonical, norms and routers in F32."""
    wanted = types.wanted(found, name)
    if wanted in (None, "MXFP4") and (same := as_mxfp4(found)) is not None:
        return Entry(name, same, "MXFP4", label, found.names, head=head)
    values = (found.role.convention(donor.dialect), "plain")
    codec = found.tensor.codec
    if types.pinned(found):
        codec = "F32" if donor.dialect != "gguf" or wanted is not None else codec
    elif wanted is not None:
        codec = wanted
    elif found.scaled:
        codec = "BF16"  # dequantized values have no type of their own
    if codec != found.tensor.codec or values[0] != values[1]:
        types.require(found, name, codec)
    return Entry(
        name=name,
        source=found.tensor,
        codec=codec,
        input=label,
        names=found.names,
        values=values if values[0] != values[1] else None,
        head=head,
        importance=types.weights(name, found.tensor, codec),
    )


def safetensors_entries(
    donor: Checkpoint, heads: Sequence[Head], place: Place, style: Style, *, label: str = "donor"
) -> list[Entry]:
    """Entries of these heads under the names, layout and conventions of `place`.

    Raises ConventionError for a role that has no name there, UsageError for a type safetensors cannot hold here.
    """
    _require_floats(style)
    entries: list[Entry] = []
    for layer, head in enumerate(heads):
        entries += named(donor, head.roles.values(), place, style, layer, label=label, head=True)
    return _once(entries)


def named(
    donor: Checkpoint,
    roles: Iterable[Found],
    place: Place,
    style: Style,
    layer: int = 0,
    *,
    label: str = "donor",
    head: bool = False,
) -> list[Entry]:
    """Entries of roles that stand beside each other, several of which may share one stored tensor."""
    found = {one.role.name: one for each in roles for one in _taken_apart(each, place)}
    floats = _float_type(found.values(), style)
    entries: list[Entry] = []
    done: set[str] = set()
    for name, one in found.items():
        if name in done:
            continue
        source = _chosen(one.role, place, style)
        members = [one]
        for layout in LAYOUTS[source.layout].group:
            if layout != source.layout:
                members.append(_partner(found, source, layout, place))
        order = LAYOUTS[source.layout].group
        members.sort(key=lambda m: order.index(_source_at(m.role, source.pattern, place).layout) if order else 0)
        done |= {member.role.name for member in members}
        entries += _entries(
            donor,
            members,
            source,
            place,
            layer,
            _types(members, floats, style, keeps=donor.dialect != "gguf"),
            label,
            head,
        )
    return entries


# Layouts by which a fused GGUF role holds the roles it is fused of.
_HALVES: Final = {
    "ffn_gate_up_exps.weight": ("gate_half", "up_half"),
    "attn_kv_b.weight": ("k_of_kv_b", "v_of_kv_b"),
}


def _taken_apart(found: Found, place: Place) -> list[Found]:
    """A role that GGUF holds fused, as the roles it is fused of; any other as it is."""
    parts = GGUF_FUSED.get(found.role.name)
    known = {role.name: role for role in place.family.head}
    if parts is None or found.role.name in known or not all(name in known for name in parts):
        return [found]
    if found.role.name in _HALVES:
        layouts = _HALVES[found.role.name]
        return [
            replace(found, role=known[name], source=Source("", layout))
            for name, layout in zip(parts, layouts, strict=True)
        ]
    sizes = tuple(str(known[name].shape[0]) for name in parts)
    cut = LAYOUTS["rows"].scatter([found.tensor], place.hparams.size, sizes)
    return [
        Found(known[name], (Stored(part.renamed(found.names[0])),), size=place.hparams.size)
        for name, part in zip(parts, cut, strict=True)
    ]


def _source_at(role: Role, pattern: str, place: Place) -> Source:
    return next(source for source in role.sources(place.dialect) if source.pattern == pattern)


def _partner(found: dict[str, Found], source: Source, layout: str, place: Place) -> Found:
    for one in found.values():
        if any(s.pattern == source.pattern and s.layout == layout for s in one.role.sources(place.dialect)):
            return one
    raise ConventionError(f"{source.pattern} needs a role with layout {layout}, which the head does not have")


def _chosen(role: Role, place: Place, style: Style) -> Source:
    sources = role.sources(place.dialect)
    if not sources:
        raise ConventionError(
            f"{role.name} has no name in the {place.dialect} dialect of {place.family.name}",
            where=place.family.name,
            hint="a private embedding or output matrix of this family can be stored in GGUF only",
        )
    layouts = {source.layout for source in sources}
    if style.experts is not None and "stack_experts" in layouts and len(layouts) > 1:
        return next(source for source in sources if source.layout in EXPERTS[style.experts])
    return sources[0]


def _float_type(roles: Iterable[Found], style: Style) -> str:
    """The float type of a head in safetensors: what was asked, else the fusion's, else BF16."""
    if style.matrices is not None:
        return style.matrices
    codecs = {one.tensor.codec for one in roles if one.role.kind == "matrix" and not one.scaled}
    return "F32" if codecs == {"F32"} else "F16" if codecs == {"F16"} else "BF16"


def _types(members: Sequence[Found], floats: str, style: Style, *, keeps: bool) -> str:
    """Type of the stored tensors of these roles; `keeps`: the donor's own types are those of releases."""
    first = members[0]
    if first.role.kind in SMALL:
        if style.norms is not None and first.role.kind == "norm":
            return style.norms
        if keeps and first.tensor.codec in FLOATS:
            return first.tensor.codec
        return "F32" if first.role.f32 else floats
    if style.matrices is None and not first.scaled and first.tensor.codec in FLOATS:
        return first.tensor.codec
    return floats


def _entries(
    donor: Checkpoint,
    members: Sequence[Found],
    source: Source,
    place: Place,
    layer: int,
    codec: str,
    label: str,
    head: bool,
) -> list[Entry]:
    """The stored tensors that `source` names, made of the canonical tensors of its roles."""
    layout = LAYOUTS[source.layout]
    canonical = [_as_shaped(member, place) for member in members]
    made = layout.scatter(canonical, place.hparams.size, source.sizes)
    patterns = (source.pattern, *source.also)
    spelled = (
        [place.spelled(source.pattern, layer, e) for e in range(len(made))]
        if layout.per_expert
        else [place.spelled(pattern, layer) for pattern in patterns]
    )
    role = members[0].role
    taken = tuple(dict.fromkeys(name for member in members for name in member.names))
    if role.scheme == FP4 and made[0].codec == "MXFP4" and made[0].stored:
        return [entry for pair in zip(spelled, made, strict=True) for entry in _fp4_entries(*pair, label, taken, head)]
    values = (role.convention(donor.dialect), role.convention(place.dialect))
    return [
        Entry(name, tensor, codec, label, taken, values if values[0] != values[1] else None, head)
        for name, tensor in zip(spelled, made, strict=True)
    ]


def _fp4_entries(name: str, tensor: Tensor, label: str, taken: tuple[str, ...], head: bool) -> list[Entry]:
    codes, scales = as_fp4(tensor)
    beside = name.removesuffix(".weight") + ".scale"
    return [
        Entry(name, codes, codes.codec, label, taken, head=head),
        Entry(beside, scales, scales.codec, label, taken, head=head),
    ]


def _as_shaped(found: Found, place: Place) -> Tensor:
    """A canonical tensor in the shape its role states: older GGUF files keep a matrix of one row as a vector."""
    tensor, shape = found.tensor, found.role.shape
    if not shape or any(size == "" for size in shape):
        return tensor
    wanted = tuple(place.hparams.size(size) for size in shape)
    same = [n for n in wanted if n != 1] == [n for n in tensor.shape if n != 1]
    return reshaped(tensor, wanted, tensor.name) if same and wanted != tensor.shape else tensor


def as_stored(
    donor: Checkpoint,
    names: Sequence[tuple[str, str]],
    kinds: Mapping[str, str],
    style: Style,
    label: str = "donor",
) -> list[Entry]:
    """Tensors under other names: bytes unchanged, but for float matrices and norms of which a type is asked for.

    names  (name in the donor, name in the output)
    kinds  kind of the role of each tensor that holds values; codes and scales are never touched
    """
    _require_floats(style)
    wanted = {"matrix": style.matrices, "embedding": style.matrices, "output": style.matrices, "norm": style.norms}
    entries = []
    for old, new in names:
        tensor = donor[old]
        codec = wanted.get(kinds.get(old, ""))
        entries.append(Entry(new, tensor, codec or tensor.codec, label, (old,), head=True))
    return entries


def _require_floats(style: Style) -> None:
    for option, value in (("--head-type", style.matrices), ("--norm-type", style.norms)):
        if value is not None and value not in FLOATS:
            raise UsageError(f"{value} is not a float type of safetensors", where=option, hint=", ".join(FLOATS))
