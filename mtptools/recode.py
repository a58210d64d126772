"""Rows of a tensor in another type and under another convention, a chunk at a time, on several cores."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mtptools.codecs import CODECS, decode, decode_bytes, encode
from mtptools.conventions import convert_values
from mtptools.errors import CodecError
from mtptools.tensors import Tensor

__all__ = ["recoded", "rows_as"]

ROW_VALUES: Final = 1 << 20  # values decoded at a time, by each thread
MOST_THREADS: Final = 8
_F16_MAX: Final = float(np.finfo(np.float16).max)

Floats = NDArray[np.float32]


def recoded(
    source: Tensor, codec: str, values: tuple[str, str] | None, importance: Floats | None = None
) -> Iterator[bytes]:
    """The tensor's bytes as `codec`, with values taken from one convention to another.

    importance  weights of columns, float32 [matrices, columns]: one row for each matrix of a stack, or one for all

    Raises CodecError when a value that is finite does not fit the type, and for values that are not finite where the
    type has none.
    """
    ranges = list(_ranges(source, 1 if importance is None else len(importance)))
    threads = min(len(ranges), MOST_THREADS, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)
    if threads < 2 or CODECS[codec].kind != "block" or codec == source.codec:
        for start, stop in ranges:
            yield rows_as(source, codec, values, importance, start, stop)
        return
    with ThreadPoolExecutor(threads) as pool:
        ahead: deque[Future[bytes]] = deque()
        try:
            for start, stop in ranges:
                ahead.append(pool.submit(rows_as, source, codec, values, importance, start, stop))
                if len(ahead) > threads:  # one waits for its turn to be written while the others are made
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            for left in ahead:
                left.cancel()


def _ranges(source: Tensor, matrices: int) -> Iterator[tuple[int, int]]:
    """Runs of rows, none of which crosses from one matrix of a stack to the next."""
    columns = source.shape[-1] if source.shape else 1
    step = max(1, ROW_VALUES // max(columns, 1))
    size = max(source.n_rows // matrices, 1)
    for first in range(0, source.n_rows, size):
        for start in range(first, first + size, step):
            yield start, min(start + step, first + size)


def rows_as(
    source: Tensor, codec: str, values: tuple[str, str] | None, importance: Floats | None, start: int, stop: int
) -> bytes:
    """Rows [start, stop), of one matrix, as `codec`. Arguments and errors as of `recoded`."""
    if source.packed is not None and codec == source.codec and values is None:
        return source.packed(start, stop)
    rows = decode(source, start, stop)
    if values is not None:
        rows = convert_values(rows, *values)
    weights = None
    if importance is not None:
        weights = importance[start * len(importance) // max(source.n_rows, 1)]
    if codec == "F16":
        _require_f16(rows, source)
    if CODECS[codec].kind != "block":
        return encode(rows, codec)
    largest = np.abs(rows).max(initial=0)  # NaN if any is
    if not np.isfinite(largest):
        raise _not_finite(source, codec)
    with np.errstate(all="ignore"):  # of values too large, which are found below
        try:
            data = encode(rows, codec, weights)
        except CodecError as error:
            raise CodecError(error.what, where=error.where or source.name, hint=error.hint) from error
        # Scales are F16: of a huge value they become infinite, and the block NaN or zero.
        if largest > _F16_MAX and not _holds(data, codec, rows.shape[-1], largest):
            raise CodecError(
                f"a value of {largest:.3g} does not fit {codec}", where=source.name, hint="keep this tensor in BF16"
            )
    return data


def _holds(data: bytes, codec: str, columns: int, largest: float) -> bool:
    back = np.abs(decode_bytes(data, codec, columns))
    return bool(np.isfinite(back).all() and back.max(initial=0) > largest / 2)


def _require_f16(rows: Floats, source: Tensor) -> None:
    largest = np.abs(rows[np.isfinite(rows)]).max(initial=0)
    if largest > _F16_MAX:
        raise CodecError(
            f"a value of {largest:.3g} does not fit F16", where=source.name, hint="another type: BF16 has its range"
        )


def _not_finite(source: Tensor, codec: str) -> CodecError:
    """Says how many there are, in all of the tensor."""
    wrong = sum(int((~np.isfinite(decode(source, *rows))).sum()) for rows in _ranges(source, 1))
    return CodecError(
        f"{wrong} of {source.n_values} values are NaN or infinite: {codec} has neither",
        where=source.name,
        hint="the tensor is damaged: take the head from the release again",
    )
