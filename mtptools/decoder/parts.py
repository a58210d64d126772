"""Stored rows on their way into a weight: which rows, in which order, under which transform.

The two tensor maps (`weights_hf`, `weights_gguf`) answer in parts; `fill` decodes them in float32, chunk by
chunk, and rounds once into the weight's dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from mtptools.codecs import decode
from mtptools.errors import CorruptError
from mtptools.tensors import Tensor

__all__ = ["Part", "Scope", "WeightSource", "fill", "role_shape"]

CHUNK_VALUES: Final = 8 << 20
"""Values decoded at a time: 32 MB of float32."""

Scope = tuple[str, int]
"""("top", 0), ("layer", n) of the trunk, or ("head", d)."""


@dataclass(frozen=True, slots=True)
class Part:
    """Rows [start, stop) of a tensor whose leading dimensions are flattened.

    to_row  source row r belongs at row to_row[r] of the part; None keeps the order
    take    column c of the part is source column take[c]; None keeps the order
    value   what to do with the float32 values
    """

    tensor: Tensor
    start: int
    stop: int
    to_row: NDArray[np.int64] | None = None
    take: NDArray[np.int64] | None = None
    value: Callable[[NDArray[np.float32]], NDArray[np.float32]] | None = None

    @classmethod
    def whole(cls, tensor: Tensor) -> Part:
        return cls(tensor, 0, tensor.n_rows)

    @property
    def n_rows(self) -> int:
        return self.stop - self.start

    @property
    def n_cols(self) -> int:
        return self.tensor.shape[-1] if self.tensor.shape else 1

    def rows(self, start: int, stop: int) -> Part:
        """Some of the part's rows; only of a part that keeps their order."""
        assert self.to_row is None
        return replace(self, start=self.start + start, stop=self.start + stop)


class WeightSource(Protocol):
    """A tensor map: the decoder's roles to parts of one checkpoint, values in the form the formulas use."""

    head_depth: int
    """MTP layers that are there (not: declared)."""

    where: object

    def has(self, scope: Scope, role: str) -> bool: ...

    def part(self, scope: Scope, role: str) -> Part: ...

    def leftover(self, kind: str) -> list[str]:
        """Names of layer tensors, of the trunk ("layer") or the head ("head"), that were never asked for."""

    def experts(self, scope: Scope, role: str) -> list[Part]:
        """`role` "expert_gate_up": rows gate 0, up 0, gate 1, up 1 …; "expert_down": down 0, down 1 …"""


def role_shape(parts: Sequence[Part]) -> tuple[int, int]:
    """(rows, columns) of the parts one under the other; columns of the first."""
    return sum(part.n_rows for part in parts), parts[0].n_cols


def fill(out: torch.Tensor, parts: Sequence[Part], where: object) -> None:
    """Decode `parts`, one under the other, into `out` [rows, columns].

    Raises CorruptError when shapes disagree or a value is not finite, CodecError when a type has no decoder.
    """
    at = 0
    for part in parts:
        orders = ((part.to_row, part.n_rows), (part.take, part.n_cols))
        ordered = all(order is None or len(order) == size for order, size in orders)
        if not ordered or part.n_cols != out.shape[1] or at + part.n_rows > out.shape[0]:
            raise _misfit(part, out, where)
        step = max(1, CHUNK_VALUES // max(part.n_cols, 1))
        for start in range(0, part.n_rows, step):
            stop = min(start + step, part.n_rows)
            values = decode(part.tensor, part.start + start, part.start + stop)
            if part.value is not None:
                values = part.value(values)
            if not np.isfinite(values).all():
                raise CorruptError(
                    f"tensor {part.tensor.name} holds values that are not finite",
                    where=where,
                    hint="the file is damaged or was converted badly; download or convert it again",
                )
            if part.take is not None:
                values = values[:, part.take]
            block = torch.from_numpy(np.ascontiguousarray(values))
            if part.to_row is None:
                out[at + start : at + stop].copy_(block)
            else:
                rows = torch.from_numpy(part.to_row[start:stop] + at).to(out.device)
                out[rows] = block.to(out.device, out.dtype)
        at += part.n_rows
    if at != out.shape[0]:
        raise _misfit(parts[-1], out, where)


def _misfit(part: Part, out: torch.Tensor, where: object) -> CorruptError:
    return CorruptError(
        f"tensor {part.tensor.name} has shape {list(part.tensor.shape)}, which does not fit the "
        f"{list(out.shape)} that the configuration asks for",
        where=where,
        hint=f"mtptools validate {where}",
    )
