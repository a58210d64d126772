"""Roles found in a checkpoint: which tensors are the head, which the trunk, what is missing, what is left over."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Final, Literal

from mtptools.checkpoint import Checkpoint
from mtptools.codecs import CODECS
from mtptools.conventions import LAYOUTS
from mtptools.errors import CodecError, CorruptError
from mtptools.families import Role, Sign, Source
from mtptools.families.blocks import GGUF_FUSED
from mtptools.gguf_blocks import block_of, gguf_blocks, head_blocks, trunk_blocks
from mtptools.hparams import MAX_DEPTH, lookup, text_config
from mtptools.quantized import beside, logical, mlx_layout, stored_name
from mtptools.quantized import block_of as scale_block
from mtptools.ranks import by_rank
from mtptools.tensors import Tensor

__all__ = [
    "Found",
    "Head",
    "Stored",
    "find_head",
    "find_shared",
    "find_trunk",
    "head_layers",
    "head_names",
    "head_prefix",
    "hf_prefix",
    "is_sidecar",
    "layers_of",
    "not_a_head",
    "present",
    "trunk_layers",
    "within_head",
]

_WRAPPERS: Final = ("", "model.", "language_model.", "model.language_model.", "language_model.model.")
_GGUF_SCALES: Final = (".scale", ".input_scale")  # llama.cpp, per tensor, beside a weight in NVFP4


def _unknown_size(expression: str | int) -> int:
    return 0


@dataclass(frozen=True)
class Stored:
    """One weight as it is stored: its codes or values, and the scales beside them by suffix."""

    tensor: Tensor
    scales: dict[str, Tensor] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        return (self.tensor.name, *(scale.name for scale in self.scales.values()))

    def logical(self, *, cut: bool = False) -> Tensor:
        """Its values. Raises CodecError for an unknown quantization, CorruptError for scales that do not fit.

        cut  the release may have cut it by rank: [ranks, rows, columns] then
        """
        module, block = self.tensor.name.removesuffix(".weight"), scale_block(self.config)
        words = mlx_layout(self.config, module) if ".scales" in self.scales else None
        weight, scales = by_rank(self.tensor, self.scales, block) if cut else (self.tensor, self.scales)
        return logical(weight, scales, block=block, mlx=words)


@dataclass(frozen=True)
class Found:
    """One role in one checkpoint: the weights it is made of, and how their rows make the canonical one.

    size  sizes of the model, for layouts that need them
    """

    role: Role
    stored: tuple[Stored, ...]
    source: Source = field(default_factory=lambda: Source(""))
    size: Callable[[str], int] = _unknown_size

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Every stored tensor it takes, scales included."""
        return tuple(name for one in self.stored for name in one.names)

    @property
    def scaled(self) -> bool:
        """True when values are codes and scales apart."""
        return any(one.scales for one in self.stored)

    @cached_property
    def tensor(self) -> Tensor:
        """In canonical layout, named as the role. Raises CodecError, CorruptError when parts do not fit together."""
        layout = LAYOUTS[self.source.layout]
        parts = [one.logical(cut=layout.by_rank) for one in self.stored]
        return layout.gather(parts, self.size, self.source.sizes).renamed(self.role.name)

    @cached_property
    def problem(self) -> str | None:
        """Why `tensor` cannot be had: a quantization that is not known, parts that do not fit; None when it can."""
        try:
            if CODECS[self.tensor.codec].kind == "int":
                return f"{self.names[0]} is {self.tensor.codec}: whole numbers, and no scale beside them"
        except (CodecError, CorruptError) as error:
            return str(error)
        return None


@dataclass(frozen=True)
class Head:
    """The roles of one MTP layer. `block` is its number among the blocks (trunk first)."""

    block: int
    roles: dict[str, Found]
    missing: tuple[str, ...]
    unknown: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for found in self.roles.values() for name in found.names))

    @property
    def nbytes(self) -> int:
        stored = [one for found in self.roles.values() for one in found.stored]
        sizes = {tensor.name: tensor.nbytes for one in stored for tensor in (one.tensor, *one.scales.values())}
        return sum(sizes.values())


@lru_cache(maxsize=8)
def hf_prefix(ckpt: Checkpoint) -> str:
    """What stands before `layers.N.` and `embed_tokens` in this HF or MLX checkpoint."""
    prefixes = ckpt.family.hf_prefixes
    for prefix in prefixes:
        if any(name.startswith((f"{prefix}layers.", f"{prefix}embed_tokens.")) for name in ckpt):
            return prefix
    return prefixes[0] if "text_config" in ckpt.config else prefixes[-1]


def head_prefix(ckpt: Checkpoint, layer: int, wrapper: str | None = None) -> str:
    """What stands before the names of MTP layer `layer`.

    wrapper  what stands before that; None is the trunk's prefix for a head among the trunk's layers, else nothing
    """
    pattern = ckpt.family.hf_head
    lead = wrapper if wrapper is not None else hf_prefix(ckpt) if pattern.startswith("^") else ""
    return lead + pattern.removeprefix("^").format(d=layer, n=ckpt.hparams.n_layers + layer)


@lru_cache(maxsize=8)
def _head_pattern(ckpt: Checkpoint) -> re.Pattern[str]:
    """Matches the names of a head; groups: wrapper, and number of the layer where the prefix has one."""
    pattern = ckpt.family.hf_head
    leads = ckpt.family.hf_prefixes if pattern.startswith("^") else _WRAPPERS
    wrappers = "|".join(re.escape(lead) for lead in sorted(leads, key=len, reverse=True))
    body = re.escape(pattern.removeprefix("^")).replace(r"\{d\}", r"(?P<d>\d+)").replace(r"\{n\}", r"(?P<n>\d+)")
    return re.compile(rf"^(?P<wrapper>{wrappers}){body}")


def _of_head(ckpt: Checkpoint, name: str) -> re.Match[str] | None:
    match = _head_pattern(ckpt).match(name)
    if match is not None and "n" in match.groupdict() and int(match["n"]) < ckpt.hparams.n_layers:
        return None
    return match


@lru_cache(maxsize=8)
def head_names(ckpt: Checkpoint) -> tuple[str, ...]:
    """Names of every tensor that belongs to a head, known or not."""
    if ckpt.dialect == "gguf":
        blocks = set(head_blocks(ckpt))
        own = tuple(name for name in ckpt if (at := block_of(name)) is not None and at[0] in blocks)
        return (*own, *_root_names(ckpt)) if own and set(gguf_blocks(ckpt)) == blocks else own
    return tuple(name for name in ckpt if _of_head(ckpt, name) is not None)


def _root_names(ckpt: Checkpoint) -> tuple[str, ...]:
    """Roles of the head that a sidecar GGUF keeps outside of blocks."""
    return tuple(role.name for role in ckpt.family.head if role.root and role.name in ckpt)


@lru_cache(maxsize=8)
def head_layers(ckpt: Checkpoint) -> tuple[int, ...]:
    """Numbers, from 0, of the MTP layers of which tensors are there."""
    names = head_names(ckpt)
    found: set[int] = set()
    if ckpt.dialect == "gguf":
        first = trunk_blocks(ckpt)
        found = {block - first for block in head_blocks(ckpt)}
        names = ()
    marks = {s.pattern.split("{d}")[0][1:] for role in ckpt.family.head for s in role.hf if "{d}" in s.pattern}
    for name in names:
        match = _of_head(ckpt, name)
        if match is None:
            continue
        numbers = match.groupdict()
        if "d" in numbers:
            found.add(int(numbers["d"]))
        elif "n" in numbers:
            found.add(int(numbers["n"]) - ckpt.hparams.n_layers)
        elif not marks:  # no name counts heads: there is one (Nemotron-3, whose names count its physical layers)
            found.add(0)
        else:
            rest = name[match.end() :]
            found |= {int(m[1]) for mark in marks if (m := re.match(re.escape(mark) + r"(\d+)\.", rest))}
    if found and max(found) >= MAX_DEPTH:
        raise CorruptError(
            f"a tensor of MTP layer {max(found)}: no head has more than {MAX_DEPTH}",
            where=ckpt.path,
            hint="its name is damaged, or the file is of another architecture",
        )
    return tuple(sorted(found))


def layers_of(ckpt: Checkpoint) -> range:
    """Numbers of the MTP layers that are declared or there; empty without either."""
    there = max(head_layers(ckpt), default=0) + 1 if head_names(ckpt) else 0
    return range(max(ckpt.hparams.depth, there))


def not_a_head(ckpt: Checkpoint) -> Sign | None:
    """The mark by which what stands under the head's names is no MTP head (a DSpark drafter), or None."""
    text = text_config(ckpt.config) if ckpt.config else {}
    for sign in ckpt.family.not_a_head:
        stated = any(lookup(tree, sign.name) is not None for tree in (text, ckpt.config)) if ckpt.config else False
        if stated or any(name.endswith(sign.name) for name in head_names(ckpt)):
            return sign
    return None


def within_head(ckpt: Checkpoint, name: str) -> tuple[int, str]:
    """(MTP layer, the rest of the name) of a head's tensor in safetensors; layer 0 where the prefix has no number."""
    match = _of_head(ckpt, name)
    if match is None:
        raise CorruptError(f"{name} is not of the head", where=ckpt.path)
    numbers = match.groupdict()
    layer = int(numbers["d"]) if "d" in numbers else int(numbers["n"]) - ckpt.hparams.n_layers if "n" in numbers else 0
    return layer, name[match.end() :]


def _wrapper(ckpt: Checkpoint, names: tuple[str, ...]) -> str:
    used = {match["wrapper"] for name in names if (match := _of_head(ckpt, name)) is not None}
    if len(used) > 1:
        shown = ", ".join(sorted(used - {""})) + (" and at the root" if "" in used else "")
        raise CorruptError(f"head tensors stand under several prefixes: {shown}", where=ckpt.path)
    return used.pop() if used else ""


def find_head(ckpt: Checkpoint, layer: int = 0) -> Head | None:
    """MTP layer `layer` of the head, or None when the checkpoint holds no head tensor at all."""
    names = head_names(ckpt)
    if not names:
        return None
    if ckpt.dialect == "gguf":
        return _gguf_head(ckpt, trunk_blocks(ckpt) + layer)
    layers = _hf_layers(ckpt)
    roles = layers[layer] if layer < len(layers) else {}
    claimed = {name for each in layers for found in each.values() for name in found.names}
    missing = tuple(role.name for role in _wanted(ckpt) if role.required and role.name not in roles)
    unknown = tuple(name for name in names if name not in claimed)
    return Head(ckpt.hparams.n_layers + layer, roles, missing, unknown)


def present(ckpt: Checkpoint, role: Role) -> bool:
    """Does this role exist in a model of these hyperparameters?"""
    if not role.when:
        return True
    value = ckpt.hparams.size(role.when.removeprefix("!"))
    return not value if role.when.startswith("!") else bool(value)


def _wanted(ckpt: Checkpoint) -> tuple[Role, ...]:
    return tuple(role for role in ckpt.family.head if present(ckpt, role))


@lru_cache(maxsize=8)
def _hf_layers(ckpt: Checkpoint) -> tuple[dict[str, Found], ...]:
    wrapper = _wrapper(ckpt, head_names(ckpt))
    out = []
    for layer in layers_of(ckpt):
        prefix = head_prefix(ckpt, layer, wrapper)
        number = ckpt.hparams.n_layers + layer
        found = {role.name: _hf_role(ckpt, role, prefix, d=layer, n=number) for role in _wanted(ckpt)}
        out.append({name: one for name, one in found.items() if one is not None})
    return tuple(out)


def _gguf_head(ckpt: Checkpoint, block: int) -> Head:
    stored = {at[1]: ckpt[name] for name in ckpt if (at := block_of(name)) is not None and at[0] == block}
    stored |= {name: ckpt[name] for name in _root_names(ckpt) if name in head_names(ckpt)}
    known = {role.name: role for role in _wanted(ckpt)}
    if ckpt.family.generic:
        known = {name: Role(name, (), (), _kind(name, tensor)) for name, tensor in stored.items()}
    roles, unknown = {}, []
    covered: set[str] = set()
    for name, tensor in stored.items():
        if name in GGUF_FUSED and name not in known:
            covered.update(GGUF_FUSED[name])
        elif name not in known:
            weight = next((name.removesuffix(s) + ".weight" for s in _GGUF_SCALES if name.endswith(s)), "")
            if weight not in known and weight not in GGUF_FUSED:
                unknown.append(tensor.name)
                continue
        role = known.get(name) or Role(name, (), (), _kind(name, tensor))
        roles[name] = Found(role, (Stored(tensor),), size=ckpt.hparams.size)
    missing = [n for n, role in known.items() if role.required and n not in roles and n not in covered]
    return Head(block, roles, tuple(missing), tuple(unknown))


def _kind(name: str, tensor: Tensor) -> Literal["norm", "router", "vector", "matrix"]:
    """What a role that is in no table may be: of an architecture that is not known, or fused of several."""
    if name.endswith("norm.weight"):
        return "norm"
    if name.startswith("ffn_gate_inp"):
        return "router"
    return "vector" if name.endswith((".bias", *_GGUF_SCALES)) or len(tensor.shape) < 2 else "matrix"


def _hf_role(ckpt: Checkpoint, role: Role, prefix: str, **numbers: int) -> Found | None:
    for source in role.sources(ckpt.dialect):
        experts = range(ckpt.hparams.n_experts) if LAYOUTS[source.layout].per_expert else (0,)
        names = [
            _spelled(ckpt, pattern, prefix).format(e=e, **numbers)
            for pattern in (source.pattern, *source.also)
            for e in experts
        ]
        found = [_stored(ckpt, name) for name in names]
        whole = tuple(one for one in found if one is not None)
        if found and len(whole) == len(found):
            return Found(role, whole, source, ckpt.hparams.size)
    return None


def _spelled(ckpt: Checkpoint, pattern: str, prefix: str) -> str:
    if pattern.startswith("~"):
        return prefix + pattern[1:]
    return hf_prefix(ckpt) + pattern[1:] if pattern.startswith("^") else pattern


def _stored(ckpt: Checkpoint, name: str) -> Stored | None:
    stored = stored_name(name, ckpt)
    return Stored(ckpt[stored], beside(stored, ckpt), ckpt.config) if stored in ckpt else None


def trunk_layers(ckpt: Checkpoint) -> int:
    """Layers of the trunk: counted in a GGUF, whose block_count may or may not include a head; declared in HF."""
    return trunk_blocks(ckpt) if ckpt.dialect == "gguf" and gguf_blocks(ckpt) else ckpt.hparams.n_layers


def is_sidecar(ckpt: Checkpoint) -> bool:
    """A head and not one trunk layer."""
    if ckpt.dialect == "gguf":
        return bool(head_blocks(ckpt)) and set(gguf_blocks(ckpt)) == set(head_blocks(ckpt))
    head, layers = set(head_names(ckpt)), f"{hf_prefix(ckpt)}layers."
    return bool(head) and not any(name.startswith(layers) and name not in head for name in ckpt)


def find_trunk(ckpt: Checkpoint) -> Iterator[tuple[Role, int | None, Found | None]]:
    """Every trunk role of the family with its layer (None outside of layers) and what was found of it."""
    tables = ckpt.family.trunk
    for role in tables.get("all", ()):
        yield role, None, _trunk_role(ckpt, role, None)
    for n, kind in enumerate(ckpt.hparams.layer_types):
        for role in tables.get(kind, ()):
            if present(ckpt, role):
                yield role, n, _trunk_role(ckpt, role, n)


def find_shared(ckpt: Checkpoint, role: str) -> Found | None:
    """A role outside of layers, such as `output.weight`, of which there is one for trunk and head; None without it."""
    return next((found for one, layer, found in find_trunk(ckpt) if layer is None and one.name == role), None)


def _trunk_role(ckpt: Checkpoint, role: Role, layer: int | None) -> Found | None:
    if ckpt.dialect != "gguf":
        numbers = {} if layer is None else {"n": layer}
        return _hf_role(ckpt, role, hf_prefix(ckpt), **numbers)
    stem = "" if layer is None else f"blk.{layer}."
    name = stem + role.name
    if name in ckpt:
        return Found(role, (Stored(ckpt[name]),), size=ckpt.hparams.size)
    for fused, parts in GGUF_FUSED.items():
        if role.name in parts and stem + fused in ckpt:
            return Found(Role(fused, (), ()), (Stored(ckpt[stem + fused]),))
    return None
