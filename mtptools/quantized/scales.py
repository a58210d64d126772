"""Scales laid over a weight, and the values that codes and scales make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from mtptools.codecs import decode, fp4
from mtptools.errors import CorruptError
from mtptools.quantized.names import value_name
from mtptools.quantized.schemes import Scheme
from mtptools.tensors import Tensor
from mtptools.views import computed, reshaped

__all__ = ["Scales", "lay", "rows_of", "scaled", "spread", "unfit"]

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Scales:
    """Scales laid over the flat rows of a weight: `each` of the `rows` of a matrix, and `width` columns, under one."""

    tensor: Tensor
    rows: int
    each: int
    width: int

    def at(self, start: int, stop: int) -> Floats:
        """The scales of rows [start, stop): [stop - start, scales a row]."""
        index = rows_of(start, stop, self.rows, self.each)[0]
        low = int(index[0])
        values: Floats = decode(self.tensor, low, int(index[-1]) + 1)[index - low]
        return values


def rows_of(start: int, stop: int, rows: int, each: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of flat rows [start, stop): which run of `each` rows of a matrix of `rows` one is in, and where in the run."""
    matrix, row = np.divmod(np.arange(start, stop), rows)
    return matrix * -(-rows // each) + row // each, row % each


def unfit(weight: Tensor, other: Tensor, shape: tuple[int, ...], how: str) -> CorruptError:
    return CorruptError(
        f"scales {list(other.shape)} do not fit values {list(shape)} {how}",
        where=f"{weight.name}, {other.name}",
        hint="compare the sizes that config.json states, or download the release again",
    )


def lay(weight: Tensor, shape: tuple[int, ...], scale: Tensor, group: int | None, block: tuple[int, int]) -> Scales:
    """How a tensor of scales lies over a weight of logical `shape`. Raises CorruptError when it does not.

    group  values of a row under one scale; None: the scales' shape says (tensor, matrix, row, or `block`)
    """
    *lead, r, c = shape if len(shape) > 1 else (1, *shape)
    total = prod(lead) * r
    # shape of the scales: rows of a matrix, rows and columns under one scale
    fits: dict[tuple[int, ...], tuple[int, int, int]]
    if group is not None:
        fits = {(*lead, r, -(-c // group)): (r, 1, group)}
    else:
        fits = {
            (): (total, total, c),
            (1,): (total, total, c),
            tuple(lead): (r, r, c) if lead else (total, total, c),
            (*lead, 1): (r, r, c),
            (*lead, 1, 1): (r, r, c),
            (*lead, r): (r, 1, c),
            (*lead, r, 1): (r, 1, c),
            (*lead, -(-r // block[0]), -(-c // block[1])): (r, *block),
        }
    if scale.shape not in fits or 0 in shape:
        raise unfit(weight, scale, shape, f"in groups of {group}" if group else f"in blocks of {block[0]}x{block[1]}")
    rows, each, width = fits[scale.shape]
    n_rows = total // rows * -(-rows // each)
    return Scales(reshaped(scale, (n_rows, -(-c // width)), scale.name), rows, each, width)


def scaled(weight: Tensor, used: Mapping[str, Tensor], scheme: Scheme, block: tuple[int, int]) -> Tensor:
    """The values of a weight in a scheme of the table. Raises CorruptError when shapes do not fit each other."""
    shape = (*weight.shape[:-1], 2 * weight.shape[-1]) if scheme.packed else weight.shape
    scale = used[scheme.scale]
    if scale.codec == "U8":
        scale = replace(scale, codec="F8_E8M0")
    first = lay(weight, shape, scale, scheme.group, block)
    second = None
    if scheme.second is not None:  # one a matrix
        second = lay(weight, shape, used[scheme.second], None, (prod(shape[:-1]) or 1, shape[-1] or 1))

    def rows(start: int, stop: int) -> Floats:
        factor = first.at(start, stop)
        if second is not None:
            factor = factor / second.at(start, stop) if scheme.divides else factor * second.at(start, stop)
        if scheme.packed:
            size = weight.row_bytes
            values = fp4.decode(weight.read(start * size, (stop - start) * size)).reshape(-1, shape[-1])
        else:
            values = decode(weight, start, stop)
        return _times(values, factor, first.width)

    return computed(value_name(weight.name), shape, "F32", rows)


def spread(values: Floats, width: int, columns: int) -> Floats:
    """[n, ceil(columns / width)], one a run of `width` columns, as [n, columns]."""
    return np.repeat(values, width, axis=1)[:, :columns]


def _times(values: Floats, factor: Floats, width: int) -> Floats:
    """values [n, c] times the factor [n, ceil(c / width)] of each run of `width` columns."""
    n, c = values.shape
    if c % width:
        return values * spread(factor, width, c)
    return (values.reshape(n, -1, width) * factor[:, :, None]).reshape(n, c)
