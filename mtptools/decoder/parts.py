"""Stored rows on their way into a weight: which rows, in which order, under which transform.

The two tensor maps (`weights_hf`, `weights_gguf`) answer in parts; `fill` decodes them in float32, chunk by
chunk, and rounds once into the weight's dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from mtptools.codecs import decode
from mtptools.errors import CorruptError
from mtptools.tensors import Tensor
from mtptools.vocab.maps import DraftVocabulary

__all__ = ["Codes", "Form", "Part", "Scope", "WeightSource", "check_fit", "cut", "fill", "loaded", "not_finite"]

CHUNK_VALUES: Final = 1 << 19
"""Values decoded at a time: 2 MB of float32, which stay in the cache until they are where they belong."""

Scope = tuple[str, int]
"""("top", 0), ("layer", n) of the trunk, or ("head", d)."""


@dataclass(frozen=True, slots=True)
class Form:
    """How a kernel reads values: the kind of slab, values under one scale, the type of scales where it is open."""

    kind: str
    group: int = 0
    scales: str = ""


@dataclass(frozen=True, slots=True)
class Codes:
    """What the values of a computed tensor are made from.

    rows  arrays of rows [start, stop) as the kind's slab is made of: see `kernels.apart`
    """

    form: Form
    rows: Callable[[int, int], tuple[NDArray[Any], ...]]


@dataclass(frozen=True, slots=True)
class Part:
    """Rows [start, stop) of a tensor whose leading dimensions are flattened.

    to_row  source row r belongs at row to_row[r] of the part; None keeps the order
    take    column c of the part is source column take[c]; None takes all in order
    value   what to do with the float32 values
    codes   of a computed tensor, where kernels read them
    """

    tensor: Tensor
    start: int
    stop: int
    to_row: NDArray[np.int64] | None = None
    take: NDArray[np.int64] | None = None
    value: Callable[[NDArray[np.float32]], NDArray[np.float32]] | None = None
    codes: Codes | None = None

    @classmethod
    def whole(cls, tensor: Tensor) -> Part:
        return cls(tensor, 0, tensor.n_rows)

    @property
    def n_rows(self) -> int:
        return self.stop - self.start

    @property
    def n_cols(self) -> int:
        """Columns of the part; 0 when `take` asks for some that are not there."""
        width = self._width
        if self.take is None:
            return width
        return len(self.take) if not len(self.take) or self.take.max() < width else 0

    @property
    def _width(self) -> int:
        return self.tensor.shape[-1] if self.tensor.shape else 1

    def rows(self, start: int, stop: int) -> Part:
        """Some of the part's rows; only of a part that keeps their order."""
        assert self.to_row is None
        return replace(self, start=self.start + start, stop=self.start + stop)


class WeightSource(Protocol):
    """A tensor map: the decoder's roles to parts of one checkpoint, values in the form the formulas use."""

    head_depth: int
    """MTP layers that are there (not: declared)."""

    where: Path

    used: set[str]
    """Names that were asked for."""

    sidecar: bool
    """There is no trunk in it: a sidecar."""

    def vocabulary(self) -> DraftVocabulary | None:
        """What the head is reduced to; None where it is not. Raises CorruptError, InputError."""

    def has(self, scope: Scope, role: str) -> bool: ...

    def parts(self, scope: Scope, role: str) -> list[Part]:
        """One under the other. "expert_gate_up": gate 0, up 0, gate 1, up 1 …; "expert_down": down 0, down 1 …"""

    def gguf_names(self, scope: Scope, role: str) -> tuple[str, ...]:
        """The tensors of a GGUF that hold a role: of this one, or of the one a converter would make."""

    def leftover(self, kind: str) -> list[str]:
        """Names of text tensors, of the trunk ("layer") or the head ("head"), that were never asked for."""


def fill(out: torch.Tensor, parts: Sequence[Part], where: object) -> None:
    """Decode `parts`, one under the other, into `out` [rows, columns].

    Raises CorruptError when shapes disagree or a value is not finite, CodecError when a type has no decoder.
    """
    check_fit(parts, (out.shape[0], out.shape[1]), where)
    at = 0
    for part in parts:
        step = max(1, CHUNK_VALUES // max(part.n_cols, 1))
        for start in range(0, part.n_rows, step):
            stop = min(start + step, part.n_rows)
            values = decode(part.tensor, part.start + start, part.start + stop)
            if part.value is not None:
                values = part.value(values)
            if not np.isfinite(values).all():
                raise not_finite(part.tensor, where)
            if part.take is not None:
                values = values[:, part.take]
            block = torch.from_numpy(np.ascontiguousarray(values))
            if part.to_row is None:
                out[at + start : at + stop].copy_(block)
            else:
                rows = torch.from_numpy(part.to_row[start:stop] + at).to(out.device)
                out[rows] = block.to(out.device, out.dtype)
        at += part.n_rows


def loaded(
    parts: Sequence[Part], shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, where: object
) -> torch.Tensor:
    """A tensor of `shape`, whose rows are those of `parts`. Raises what `fill` raises."""
    out = torch.empty(shape, dtype=dtype, device=device)
    fill(out.view(-1, shape[-1]), parts, where)
    return out


def not_finite(tensor: Tensor, where: object) -> CorruptError:
    return CorruptError(
        f"tensor {tensor.name} holds values that are not finite",
        where=where,
        hint="the file is damaged or was converted badly; download or convert it again",
    )


def cut(parts: Sequence[Part], start: int, stop: int) -> tuple[Part, ...]:
    """The rows [start, stop) of parts that stand one under the other."""
    out, at = [], 0
    for part in parts:
        low, high = max(start - at, 0), min(stop - at, part.n_rows)
        if low < high:
            out.append(part if high - low == part.n_rows else part.rows(low, high))
        at += part.n_rows
    return tuple(out)


def check_fit(parts: Sequence[Part], shape: tuple[int, int], where: object) -> None:
    """Are `parts`, one under the other, a matrix of that shape? Raises CorruptError."""
    at = 0
    for part in parts:
        at += part.n_rows
        ordered = part.to_row is None or len(part.to_row) == part.n_rows
        if not ordered or part.n_cols != shape[1] or at > shape[0]:
            raise _misfit(part, shape, where)
    if at != shape[0]:
        raise _misfit(parts[-1], shape, where)


def _misfit(part: Part, shape: tuple[int, int], where: object) -> CorruptError:
    return CorruptError(
        f"tensor {part.tensor.name} has shape {list(part.tensor.shape)}, which does not fit the "
        f"{list(shape)} that the configuration asks for",
        where=where,
        hint=f"mtptools validate {where}",
    )
