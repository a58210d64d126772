"""Matrices that a release cut by tensor-parallel rank: rows of [q, k, v] of each rank below each other, scales too.

MiMo-V2.5 is cut in 4, V2.5-Pro in 8. Nothing states it; the scales tell, because each rank's rows begin a new row of
128x128 blocks (llama.cpp 0c1e57098, conversion/mimo.py). Without scales the rows are not cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from mtptools.errors import CorruptError
from mtptools.tensors import Tensor
from mtptools.views import reshaped

__all__ = ["RANKS", "by_rank"]

RANKS: Final = (8, 4)
SCALE: Final = ".weight_scale_inv"


def by_rank(weight: Tensor, scales: Mapping[str, Tensor], block: tuple[int, int]) -> tuple[Tensor, dict[str, Tensor]]:
    """Weight [ranks, rows / ranks, columns] and its scales, stacked alike; both as they are where there is no cut.

    Raises CorruptError when the number of rows of scales fits neither.
    """
    scale = scales.get(SCALE)
    if scale is None or len(weight.shape) != 2 or len(scale.shape) != 2:
        return weight, dict(scales)
    (rows, columns), high = weight.shape, block[0]
    for ranks in RANKS:
        each = rows // ranks
        if rows % ranks == 0 and scale.shape[0] == ranks * -(-each // high):
            cut = reshaped(scale, (ranks, scale.shape[0] // ranks, scale.shape[1]), scale.name)
            return replace(weight, shape=(ranks, each, columns)), {**scales, SCALE: cut}
    if scale.shape[0] == -(-rows // high):
        return weight, dict(scales)
    raise CorruptError(
        f"{scale.shape[0]} rows of scales for {rows} rows, cut into {' or '.join(map(str, RANKS))} or not at all",
        where=weight.name,
        hint="download the release again",
    )
