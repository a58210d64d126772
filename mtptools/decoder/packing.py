"""From stored parts to a matrix whose packed bytes lie on a device: no value is decoded on the way.

Parts of one kind that stand one under the other become one slab. What no kernel reads is decoded as loading would have
it, and held as floats of the model's dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from mtptools.decoder.kernels.apart import f8_slab, fp4_slab, mlx_slab
from mtptools.decoder.kernels.layouts import FLOATS, KINDS, Slab, slab_of
from mtptools.decoder.parts import CHUNK_VALUES, Form, Part, check_fit, cut, loaded, not_finite
from mtptools.decoder.resident import Resident, kernels
from mtptools.errors import SystemFailure

__all__ = ["check_decoded", "check_finite", "resident"]

_HOST: Final = torch.device("cpu")
_DTYPES: Final = {name: dtype for dtype, name in FLOATS.items()}

_Segments = tuple[tuple[Form, int], ...]
"""What the slabs of a matrix are, from the top, and their rows."""

_APART: Final[dict[str, Callable[..., Slab]]] = {
    "F8_BLOCK": lambda form, device, codes, scales: f8_slab(codes, scales, form.group, device),
    "FP4_E8M0": lambda form, device, codes, exponents: fp4_slab(codes, exponents, device),
    "MLX_4": lambda form, device, *arrays: _mlx(arrays, 4, form, device),
    "MLX_8": lambda form, device, *arrays: _mlx(arrays, 8, form, device),
}
"""Kinds whose codes and scales are stored apart, and what makes slabs of them."""


def resident(
    parts: Sequence[Part], shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, where: object
) -> Resident:
    """A matrix [N, K] or stack [n, N, K]. Raises CorruptError when shapes disagree."""
    height, width = shape[-2:]
    n = shape[0] if len(shape) == 3 else 1
    check_fit(parts, (n * height, width), where)
    order, parts = _common_order(parts, width)
    matrices = [cut(parts, at * height, (at + 1) * height) for at in range(n)]
    found = {_segments(matrix, dtype) for matrix in matrices}
    segments = found.pop() if len(found) == 1 else ((Form(FLOATS[dtype]), height),)
    slabs, at = [], 0
    for form, rows in segments:
        under = [part for matrix in matrices for part in cut(matrix, at, at + rows)]
        slabs.append(_slab(form, under, (n * rows, width), dtype, device, where))
        at += rows
    return Resident(tuple(slabs), shape, dtype, None if order is None else torch.from_numpy(order).to(device))


def _common_order(parts: Sequence[Part], width: int) -> tuple[NDArray[np.int64] | None, list[Part]]:
    """The one permutation of columns that all parts have, and the parts without it; else none, and as they are."""
    takes = [part.take for part in parts]
    first = takes[0]
    if first is None or not np.array_equal(np.sort(first), np.arange(width)):
        return None, list(parts)
    if not all(take is not None and np.array_equal(take, first) for take in takes):
        return None, list(parts)
    return np.argsort(first), [replace(part, take=None) for part in parts]


def _segments(matrix: Sequence[Part], dtype: torch.dtype) -> _Segments:
    runs = groupby(matrix, lambda part: _form(part, dtype))
    return tuple((form, sum(part.n_rows for part in run)) for form, run in runs)


def _form(part: Part, dtype: torch.dtype) -> Form:
    return _as_stored(part, dtype) or Form(FLOATS[dtype])


def _as_stored(part: Part, dtype: torch.dtype) -> Form | None:
    """None where no kernel reads it, or where floats of the model take less."""
    tensor = part.tensor
    if part.value is not None or part.take is not None:
        return None
    if part.codes is not None:
        return part.codes.form
    packed = tensor.stored and tensor.codec in KINDS and tensor.row_bytes <= part.n_cols * dtype.itemsize
    return Form(tensor.codec) if packed else None


def _slab(
    form: Form, parts: Sequence[Part], shape: tuple[int, int], dtype: torch.dtype, device: torch.device, where: object
) -> Slab:
    if any(_as_stored(part, dtype) != form for part in parts):
        floats = loaded(parts, shape, dtype, _HOST, where)
        return slab_of(form.kind, floats.view(torch.uint8).numpy(), shape[1], device)
    arrays = _under(parts, shape[0])
    if form.kind in _APART:
        return _APART[form.kind](form, device, *arrays)
    return slab_of(form.kind, arrays[0], shape[1], device)


def _mlx(arrays: tuple[NDArray[Any], ...], bits: int, form: Form, device: torch.device) -> Slab:
    words, scales, biases = arrays
    return mlx_slab(words, scales, biases, _DTYPES[form.scales], bits, form.group, device)


def _under(parts: Sequence[Part], n_rows: int) -> tuple[NDArray[Any], ...]:
    """What the rows of parts are stored as, one part under the other."""
    out: tuple[NDArray[Any], ...] = ()
    at = 0
    for part in parts:
        arrays = _stored(part)
        out = out or tuple(np.empty((n_rows, array.shape[1]), array.dtype) for array in arrays)
        for to, array in zip(out, arrays, strict=True):
            to[slice(at, at + part.n_rows) if part.to_row is None else part.to_row + at] = array
        at += part.n_rows
    return out


def _stored(part: Part) -> tuple[NDArray[Any], ...]:
    if part.codes is not None:
        return part.codes.rows(part.start, part.stop)
    size = part.tensor.row_bytes
    return (np.frombuffer(part.tensor.read(part.start * size, part.n_rows * size), np.uint8).reshape(-1, size),)


def check_decoded(weight: Resident, parts: Sequence[Part], device: torch.device, where: object) -> None:
    """Do kernels on `device` make the values that the decoder of files makes, bit for bit? Some rows of every kind.

    Once for a kind, a width and a type of values. Raises SystemFailure.
    """
    n, width = (weight.shape[0], weight.shape[2]) if len(weight.shape) == 3 else (1, weight.shape[1])
    at = 0
    for slab in weight.slabs:
        first, rows = at, min(_SOME, slab.shape[0] // n)
        at += slab.shape[0] // n
        key = (slab.kind, slab.group, width, weight.dtype, device)
        if key in _DECODED or _reordered(parts, first, rows):
            continue
        some = weight.matrix(0) if len(weight.shape) == 3 else weight
        some = some.chosen(slice(first, first + rows)).over(lambda plane: plane.to(device))
        some = some if some.order is None else replace(some, order=some.order.to(device))
        wanted = loaded(cut(parts, first, first + rows), (rows, width), weight.dtype, _HOST, where)
        if not torch.equal(some.dense().cpu().view(torch.uint8), wanted.view(torch.uint8)):
            raise SystemFailure(
                f"kernels on {device} do not decode {slab.kind} to the file's values",
                where=where,
                hint="--device cpu decodes them; please report the machine and `python -m torch.utils.collect_env`",
            )
        _DECODED.add(key)


_SOME: Final = 16
"""Rows."""

_DECODED: Final[set[tuple[object, ...]]] = set()


def _reordered(parts: Sequence[Part], first: int, rows: int) -> bool:
    """Does one of these rows belong to a part whose rows change places, which cannot be cut?"""
    at = 0
    for part in parts:
        if part.to_row is not None and at < first + rows and first < at + part.n_rows:
            return True
        at += part.n_rows
    return False


def check_finite(weight: Resident, parts: Sequence[Part], device: torch.device, where: object) -> None:
    """Decode all of it on `device`, a part of the rows at a time. Raises CorruptError, as loading does."""
    step = max(1, CHUNK_VALUES // weight.shape[-1])
    for slab in weight.slabs:
        for start in range(0, slab.shape[0], step):
            rows = slab.rows(start, min(start + step, slab.shape[0])).to(device)
            if not bool(kernels().values(rows, torch.float32).isfinite().all()):
                raise _culprit(parts, where)


def _culprit(parts: Sequence[Part], where: object) -> Exception:
    """The tensor that is not finite, by the decoder of files."""
    for part in parts:
        try:
            loaded([part], (part.n_rows, part.n_cols), torch.float32, _HOST, where)
        except Exception as error:
            return error
    return not_finite(parts[0].tensor, where)
