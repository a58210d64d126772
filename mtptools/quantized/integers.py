"""compressed-tensors' integers: (code - zero point) * scale.

    pack-quantized   weight_packed I32: 32 / bits codes a word of a row, the first in the lowest bits, the last word
                     filled up; unsigned, 2 ** (bits - 1) above the code. weight_shape holds the shape before packing
    int-quantized    weight I8, the code itself

    weight_scale       [r, groups], [r, 1], [r] or [1], a float type
    weight_zero_point  as many as scales; I8, or packed as the codes are, but down the rows: I32 [r * bits / 32, groups]
    weight_g_idx       I32 [c]: the group of each column; with a -1 in it, or none: groups of equal columns in order

Stacked tensors have E in front. Source: compressed-tensors 0.20.0 (`PackedQuantizationCompressor`,
`NaiveQuantizationCompressor`), 0.9.4 for `weight_g_idx`; `fixtures/quant/integers.py` keeps what they make. They round
the product to the type of the scales; here it stays float32. Widths that do not divide a word are refused: their
packing is not the same in all releases of the library.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mtptools.codecs.mlx import unpack
from mtptools.errors import CodecError, CorruptError
from mtptools.quantized.names import value_name
from mtptools.quantized.scales import Scales, lay, rows_of, spread, unfit
from mtptools.quantized.schemes import BETTER, FLOAT, INTEGERS
from mtptools.tensors import Rows, Tensor
from mtptools.views import computed

__all__ = ["integers", "is_integers"]

Floats = NDArray[np.float32]

SHAPE, ZERO, GROUPS = INTEGERS
SCALE: Final = ".weight_scale"
_WORD: Final = 32
_WIDTHS: Final = (2, 4, 8)
_AGAIN: Final = "download the release again"


def is_integers(weight: Tensor, used: Mapping[str, Tensor]) -> bool:
    """Are these codes, and what stands beside them, compressed-tensors' integers?"""
    scale = used.get(SCALE)
    if scale is None or scale.codec not in FLOAT or not set(used) <= {SCALE, *INTEGERS}:
        return False
    packed = weight.codec == "I32" and weight.name.endswith(".weight_packed")
    return packed or (weight.codec == "I8" and SHAPE not in used)


def integers(weight: Tensor, used: Mapping[str, Tensor]) -> Tensor:
    """The values of a weight. Raises CorruptError when shapes do not fit each other, CodecError for other widths."""
    shape, bits = _packing(weight, used) if weight.codec == "I32" else (weight.shape, 8)
    scale, order = used[SCALE], used.get(GROUPS)
    groups = scale.shape[-1] if len(scale.shape) > 1 and len(scale.shape) == len(shape) else 1
    if 0 in shape or not groups or shape[-1] % groups:
        raise unfit(weight, scale, shape, "in groups of equal columns")

    def laid(tensor: Tensor) -> Scales:
        return lay(weight, shape, tensor, shape[-1] // groups if groups > 1 else None, (1, shape[-1]))

    factors, codes = laid(scale), _codes(weight, shape[-1], bits)
    zeros = laid(_zeros(weight, used[ZERO], shape, bits, scale)) if ZERO in used else None
    if order is not None and (order.codec, order.shape) != ("I32", shape[-1:]):
        raise _misfit(
            weight, order, f"is {order.codec}{list(order.shape)}, not the group of each of {shape[-1]} columns"
        )

    def rows(start: int, stop: int) -> Floats:
        group = None if order is None else _order(weight, order, groups)

        def over(values: Floats) -> Floats:
            return spread(values, factors.width, shape[-1]) if group is None else values[:, group]

        values = codes(start, stop)
        if zeros is not None:
            values -= over(zeros.at(start, stop))
        values *= over(factors.at(start, stop))
        return values

    return computed(value_name(weight.name), shape, "F32", rows)


def _misfit(weight: Tensor, other: Tensor, what: str) -> CorruptError:
    return CorruptError(f"{other.name.rpartition('.')[2]} {what}", where=f"{weight.name}, {other.name}", hint=_AGAIN)


def _packing(weight: Tensor, used: Mapping[str, Tensor]) -> tuple[tuple[int, ...], int]:
    """(shape, bits) of packed codes."""
    stored = used.get(SHAPE)
    if stored is None:
        raise CorruptError("weight_shape, its shape before packing, is not there", where=weight.name, hint=_AGAIN)
    if stored.codec not in ("I32", "I64") or stored.shape != (len(weight.shape),):
        raise _misfit(weight, stored, f"is {stored.codec}{list(stored.shape)}, not a shape")
    shape = tuple(np.frombuffer(stored.read(), f"<i{stored.nbytes // len(weight.shape)}").tolist())
    words = weight.shape[-1]
    if shape[:-1] != weight.shape[:-1] or not 0 < shape[-1] <= words * _WORD:
        raise _misfit(weight, stored, f"is {list(shape)}, the packed tensor {list(weight.shape)}")
    fits = [bits for bits in range(1, 9) if -(-shape[-1] * bits // _WORD) == words]
    if len(fits) != 1 or fits[0] not in _WIDTHS:
        raise CodecError(
            f"{shape[-1]} integers in {words} words: only widths of {', '.join(map(str, _WIDTHS))} bits are read",
            where=f"{weight.name}, {stored.name}",
            hint=BETTER,
        )
    return shape, fits[0]


def _codes(weight: Tensor, columns: int, bits: int) -> Rows:
    """Makes the signed codes of rows."""
    size = weight.row_bytes

    def rows(start: int, stop: int) -> Floats:
        data = weight.read(start * size, (stop - start) * size)
        if weight.codec == "I8":
            return np.frombuffer(data, np.int8).reshape(-1, columns).astype(np.float32)
        return _signed(unpack(np.frombuffer(data, "<u4").reshape(stop - start, -1), bits)[:, :columns], bits)

    return rows


def _signed(codes: NDArray[Any], bits: int) -> Floats:
    values: Floats = codes.astype(np.float32)
    values -= np.float32(1 << (bits - 1))
    return values


def _zeros(weight: Tensor, zero: Tensor, shape: tuple[int, ...], bits: int, scale: Tensor) -> Tensor:
    """Zero points as a tensor of the scales' shape."""
    n_rows, per_word = shape[-2], _WORD // bits
    packed = zero.codec == "I32"
    wanted = (*shape[:-2], -(-n_rows // per_word), scale.shape[-1]) if packed else scale.shape
    if zero.codec not in ("I8", "I32") or zero.shape != wanted or (packed and len(scale.shape) != len(shape)):
        raise _misfit(weight, zero, f"is {zero.codec}{list(zero.shape)} beside scales {list(scale.shape)}")
    size, columns = zero.row_bytes, zero.shape[-1] if zero.shape else 1

    def plain(start: int, stop: int) -> Floats:
        data = zero.read(start * size, (stop - start) * size)
        return np.frombuffer(data, np.int8).reshape(-1, columns).astype(np.float32)

    def unpacked(start: int, stop: int) -> Floats:
        index, place = rows_of(start, stop, n_rows, per_word)
        low = int(index[0])
        data = zero.read(low * size, (int(index[-1]) + 1 - low) * size)
        words = np.frombuffer(data, "<u4").reshape(-1, columns)[index - low]
        return _signed(words >> (place * bits).astype(np.uint32)[:, None] & np.uint32((1 << bits) - 1), bits)

    return computed(zero.name, scale.shape, "F32", unpacked if packed else plain)


def _order(weight: Tensor, order: Tensor, groups: int) -> NDArray[np.int32] | None:
    """The group of each column; None: in order."""
    group: NDArray[np.int32] = np.frombuffer(order.read(), "<i4")
    if (group == -1).any():  # made, and never filled in
        return None
    if group.min() < 0 or group.max() >= groups:
        raise _misfit(weight, order, f"names groups {group.min()} to {group.max()}, the scales have {groups}")
    return group
