"""Rows of a tensor in another type and under another convention, a chunk at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from mtptools.codecs import decode, encode
from mtptools.conventions import convert_values
from mtptools.errors import CodecError
from mtptools.tensors import Tensor

__all__ = ["recoded"]

ROW_VALUES: Final = 1 << 20  # values decoded at a time


def recoded(source: Tensor, codec: str, values: tuple[str, str] | None) -> Iterator[bytes]:
    """The tensor's bytes as `codec`, with values taken from one convention to another.

    Raises CodecError when a value that is finite does not fit the type.
    """
    columns = source.shape[-1] if source.shape else 1
    step = max(1, ROW_VALUES // max(columns, 1))
    for start in range(0, source.n_rows, step):
        stop = min(start + step, source.n_rows)
        if source.packed is not None and codec == source.codec and values is None:
            yield source.packed(start, stop)
            continue
        rows = decode(source, start, stop)
        if values is not None:
            rows = convert_values(rows, *values)
        if codec == "F16" and np.abs(rows[np.isfinite(rows)]).max(initial=0) > np.finfo(np.float16).max:
            raise CodecError(
                f"a value of {np.abs(rows[np.isfinite(rows)]).max():.3g} does not fit F16",
                where=source.name,
                hint="another type: --head-type BF16 for a head, --outtype BF16 for a whole checkpoint",
            )
        yield encode(rows, codec)
