"""Roles found in a checkpoint: which tensors are the head, which the trunk, what is missing, what is left over."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

from mtptools.checkpoint import Checkpoint
from mtptools.conventions import LAYOUTS
from mtptools.errors import CorruptError
from mtptools.families import Family, Role
from mtptools.families.blocks import GGUF_FUSED
from mtptools.tensors import Tensor

__all__ = [
    "Found",
    "Head",
    "block_of",
    "find_head",
    "find_trunk",
    "gguf_blocks",
    "head_blocks",
    "head_names",
    "hf_prefix",
    "is_sidecar",
    "missing_blocks",
    "trunk_blocks",
    "trunk_layers",
]

_BLOCK: Final = re.compile(r"^blk\.(\d+)\.(.+)$")
_WRAPPERS: Final = ("", "model.", "language_model.", "model.language_model.")


@dataclass(frozen=True)
class Found:
    """One role in one checkpoint: the stored tensors it is made of, and how their rows make the canonical one."""

    role: Role
    parts: tuple[Tensor, ...]
    layout: str = "whole"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(part.name for part in self.parts)

    @cached_property
    def tensor(self) -> Tensor:
        """In canonical layout. Raises CorruptError when the parts do not fit together."""
        return LAYOUTS[self.layout].gather(list(self.parts), self.role.name)


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
        return sum(found.tensor.nbytes for found in self.roles.values())


def block_of(name: str) -> tuple[int, str] | None:
    """(block number, role) of a GGUF tensor name, or None outside of blocks."""
    match = _BLOCK.match(name)
    return (int(match[1]), match[2]) if match else None


@lru_cache(maxsize=8)
def gguf_blocks(ckpt: Checkpoint) -> dict[int, tuple[str, ...]]:
    """Roles by block number of a GGUF."""
    blocks: dict[int, list[str]] = {}
    for name in ckpt:
        if (at := block_of(name)) is not None:
            blocks.setdefault(at[0], []).append(at[1])
    return {number: tuple(roles) for number, roles in sorted(blocks.items())}


def head_blocks(ckpt: Checkpoint) -> tuple[int, ...]:
    """Blocks of a GGUF from the first one with a `nextn.` tensor on. Only that tells a head's block from a trunk's."""
    blocks = gguf_blocks(ckpt)
    first = next((n for n, roles in blocks.items() if any(role.startswith("nextn.") for role in roles)), None)
    return () if first is None else tuple(n for n in blocks if n >= first)


def trunk_blocks(ckpt: Checkpoint) -> int:
    """How many blocks the trunk of a GGUF has: the number of the first head block, else all blocks.

    What is declared plays no part; `missing_blocks` tells which of them are not there.
    """
    head = head_blocks(ckpt)
    return head[0] if head else max(gguf_blocks(ckpt), default=-1) + 1


def missing_blocks(ckpt: Checkpoint) -> tuple[int, ...]:
    """Trunk blocks of a GGUF that are not there, as counted and as declared. All of them in a sidecar."""
    blocks = gguf_blocks(ckpt)
    count = trunk_blocks(ckpt)
    if not head_blocks(ckpt):
        count = max(count, ckpt.hparams.n_layers)
    return tuple(n for n in range(count) if n not in blocks)


@lru_cache(maxsize=8)
def head_names(ckpt: Checkpoint) -> tuple[str, ...]:
    """Names of every tensor that belongs to a head, known or not."""
    if ckpt.dialect == "gguf":
        blocks = set(head_blocks(ckpt))
        return tuple(name for name in ckpt if (at := block_of(name)) is not None and at[0] in blocks)
    prefixes = tuple(wrapper + ckpt.family.hf_head for wrapper in _WRAPPERS)
    return tuple(name for name in ckpt if name.startswith(prefixes))


@lru_cache(maxsize=8)
def hf_prefix(ckpt: Checkpoint) -> str:
    """What stands before `layers.N.` and `embed_tokens` in this HF checkpoint."""
    for prefix in ckpt.family.hf_prefixes:
        if any(name.startswith((f"{prefix}layers.", f"{prefix}embed_tokens.")) for name in ckpt):
            return prefix
    return ckpt.family.hf_prefixes[0] if "text_config" in ckpt.config else ckpt.family.hf_prefixes[-1]


def _head_prefix(ckpt: Checkpoint, names: tuple[str, ...]) -> str:
    used = {w + ckpt.family.hf_head for w in _WRAPPERS for name in names if name.startswith(w + ckpt.family.hf_head)}
    if len(used) > 1:
        raise CorruptError(f"head tensors stand under several prefixes: {', '.join(sorted(used))}", where=ckpt.path)
    return used.pop() if used else ckpt.family.hf_head


def find_head(ckpt: Checkpoint, layer: int = 0) -> Head | None:
    """MTP layer `layer` of the head, or None when the checkpoint holds no head tensor at all."""
    names = head_names(ckpt)
    if not names:
        return None
    if ckpt.dialect == "gguf":
        return _gguf_head(ckpt, trunk_blocks(ckpt) + layer)
    prefix = _head_prefix(ckpt, names)
    layers = [_hf_layer(ckpt, prefix, number) for number in range(max(ckpt.hparams.depth, layer + 1))]
    claimed = {name for roles in layers for found in roles.values() for name in found.names}
    missing = tuple(role.name for role in ckpt.family.head if role.required and role.name not in layers[layer])
    unknown = tuple(name for name in names if name not in claimed)
    return Head(ckpt.hparams.n_layers + layer, layers[layer], missing, unknown)


def _hf_layer(ckpt: Checkpoint, prefix: str, layer: int) -> dict[str, Found]:
    found = {role.name: _hf_role(ckpt, role, prefix, d=layer) for role in ckpt.family.head}
    return {name: one for name, one in found.items() if one is not None}


def _gguf_head(ckpt: Checkpoint, block: int) -> Head:
    stored = {at[1]: ckpt[name] for name in ckpt if (at := block_of(name)) is not None and at[0] == block}
    known = {role.name: role for role in ckpt.family.head}
    roles = {n: Found(known[n], (t,)) for n, t in stored.items() if n in known}
    unknown = []
    covered: set[str] = set()
    for name, tensor in stored.items():
        if name in GGUF_FUSED and name not in known:
            covered.update(GGUF_FUSED[name])
            roles[name] = Found(Role(name, (), ()), (tensor,))
        elif name not in known:
            unknown.append(tensor.name)
    missing = [n for n, role in known.items() if role.required and n not in roles and n not in covered]
    return Head(block, roles, tuple(missing), tuple(unknown))


def _hf_role(ckpt: Checkpoint, role: Role, prefix: str, **numbers: int) -> Found | None:
    for source in role.hf:
        layout = LAYOUTS[source.layout]
        pattern = source.pattern
        if pattern[0] in "^~":
            pattern = prefix + pattern[1:]
        experts = range(ckpt.hparams.n_experts) if layout.per_expert else (0,)
        names = tuple(pattern.format(e=e, **numbers) for e in experts)
        tensors = [ckpt[name] for name in names if name in ckpt]
        if tensors and len(tensors) == len(names):
            return Found(role, tuple(tensors), source.layout)
    return None


def trunk_layers(ckpt: Checkpoint) -> int:
    """Layers of the trunk: counted in a GGUF, whose block_count may or may not include a head; declared in HF."""
    return trunk_blocks(ckpt) if ckpt.dialect == "gguf" and gguf_blocks(ckpt) else ckpt.hparams.n_layers


def is_sidecar(ckpt: Checkpoint) -> bool:
    """A head and not one trunk layer."""
    if ckpt.dialect == "gguf":
        return bool(head_blocks(ckpt)) and set(gguf_blocks(ckpt)) == set(head_blocks(ckpt))
    layers = f"{hf_prefix(ckpt)}layers."
    return bool(head_names(ckpt)) and not any(name.startswith(layers) for name in ckpt)


def find_trunk(ckpt: Checkpoint) -> Iterator[tuple[Role, int | None, Found | None]]:
    """Every trunk role of the family with its layer (None outside of layers) and what was found of it."""
    family: Family = ckpt.family
    for role in family.trunk["all"]:
        yield role, None, _trunk_role(ckpt, role, None)
    for n, kind in enumerate(ckpt.hparams.layer_types):
        for role in family.trunk[kind]:
            yield role, n, _trunk_role(ckpt, role, n)


def _trunk_role(ckpt: Checkpoint, role: Role, layer: int | None) -> Found | None:
    if ckpt.dialect != "gguf":
        numbers = {} if layer is None else {"n": layer}
        return _hf_role(ckpt, role, hf_prefix(ckpt), **numbers)
    stem = "" if layer is None else f"blk.{layer}."
    name = stem + role.name
    if name in ckpt:
        return Found(role, (ckpt[name],))
    for fused, parts in GGUF_FUSED.items():
        if role.name in parts and stem + fused in ckpt:
            return Found(Role(fused, (), ()), (ckpt[stem + fused],))
    return None
