"""How stored values relate to canonical ones: named, typed, invertible.

Two kinds. A *value* convention changes numbers one by one (a norm stored as `w` or as `1 + w`). A *layout*
convention changes which tensors hold a role's rows (experts one by one, stacked, or gate and up fused); it moves
bytes and never decodes them, so it is exact for every codec.

Canonical is what GGUF stores: the effective norm weight, stacked experts, gate and up apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mtptools.errors import CorruptError
from mtptools.tensors import Tensor, pick_rows, stack

__all__ = ["LAYOUTS", "VALUES", "Layout", "Value", "convert_values"]

Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Value:
    """A value convention: float32 in, float32 out, `to_canonical(from_canonical(x)) == x` up to one rounding."""

    name: str
    to_canonical: Callable[[Array], Array]
    from_canonical: Callable[[Array], Array]


def _same(values: Array) -> Array:
    return values


_ONE: Final = np.float32(1)

VALUES: Final[Mapping[str, Value]] = {
    value.name: value
    for value in (
        Value("plain", _same, _same),
        # RMSNorm multiplies by 1 + w; the file holds w (Gemma, Qwen3-Next, Qwen3.5, Step in HF dialect).
        Value("unit_offset", lambda w: w + _ONE, lambda w: w - _ONE),
    )
}


def convert_values(values: Array, source: str, target: str) -> Array:
    """Values stored under convention `source`, as `target` would store them; float32, rounded once per step."""
    if source == target:
        return values
    return VALUES[target].from_canonical(VALUES[source].to_canonical(values))


@dataclass(frozen=True, slots=True)
class Layout:
    """A layout convention: the canonical tensor of a role from what the dialect stores under one name pattern.

    per_expert  the pattern has `{e}` and stands for one tensor per expert
    gather      (tensors found, name) -> canonical tensor
    """

    name: str
    per_expert: bool
    gather: Callable[[list[Tensor], str], Tensor]


def _whole(found: list[Tensor], name: str) -> Tensor:
    return found[0].renamed(name)


def _half(which: int) -> Callable[[list[Tensor], str], Tensor]:
    """One half of the rows of each expert of a fused [experts, gate + up, hidden]."""

    def gather(found: list[Tensor], name: str) -> Tensor:
        fused = found[0]
        if len(fused.shape) != 3 or fused.shape[1] % 2:
            raise CorruptError(
                f"{fused.name} has shape {list(fused.shape)}, not [experts, 2 * ffn, hidden]",
                where=fused.blobs[0].path,
                hint="the fused experts of this release are damaged: download them again",
            )
        experts, both, hidden = fused.shape
        ffn = both // 2
        ranges = [(e * both + which * ffn, e * both + which * ffn + ffn) for e in range(experts)]
        return pick_rows(fused, ranges, (experts, ffn, hidden), name)

    return gather


LAYOUTS: Final[Mapping[str, Layout]] = {
    layout.name: layout
    for layout in (
        Layout("whole", False, _whole),
        Layout("stack_experts", True, stack),
        Layout("gate_half", False, _half(0)),
        Layout("up_half", False, _half(1)),
    )
}
