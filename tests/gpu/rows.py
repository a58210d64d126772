"""Is a row's result its own, wherever it stands and whatever stands beside it?"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tests.kernels.checks_rows import same

__all__ = ["COUNTS", "rows_by_themselves", "same"]

COUNTS = (1, 2, 4, 5, 16, 33)
POSITIONS = 16


def rows_by_themselves(
    fn: Callable[[Tensor], Tensor], width: int, device: torch.device, counts: Sequence[int] = COUNTS
) -> int:
    """Roll a row through `fn` [rows, width] -> [rows, n], 16 positions, between zeros and large rows.

    Returns how often it was compared; raises AssertionError with the place at which a bit moved.
    """
    noise = torch.Generator().manual_seed(2)
    row = torch.randn(1, width, generator=noise).to(device)
    large = 1e3 * torch.randn(max(counts), width, generator=noise).to(device)
    alone = fn(row)[0]
    tried = 0
    for name, filler in {"zeros": torch.zeros_like(large), "large rows": large}.items():
        for count in counts:
            for position in sorted({p * (count - 1) // (POSITIONS - 1) for p in range(POSITIONS)}):
                x = filler[:count].clone()
                x[position] = row[0]
                assert same(fn(x)[position], alone), f"row {position} of {count} among {name}"
                tried += 1
    return tried
