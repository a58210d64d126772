"""Ways to hold a matrix, by name: what `load_model(weights=…)` chooses among. The values are the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from mtptools.decoder.kernels import unavailable
from mtptools.decoder.offload import offloaded
from mtptools.decoder.packed import Packed, Weight
from mtptools.decoder.packing import check_decoded, check_finite, resident
from mtptools.decoder.parts import Part, loaded
from mtptools.decoder.resident import Resident

__all__ = ["HOW", "hold"]

HOW: Final = {
    "loaded": "a tensor of the values, in the model's dtype",
    "stored": "in the file, decoded at every use: `packed.py`",
    "resident": "packed on the device, multiplied by kernels: `resident.py`",
    "offloaded": "packed (where no kernel is: loaded) in the host's memory, copied ahead: `offload.py`, `ahead.py`",
}

_HOST: Final = torch.device("cpu")


def hold(
    how: str, parts: Sequence[Part], shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, where: object
) -> Weight:
    """A matrix [N, K] or stack [n, N, K] of parts that stand one under the other.

    Raises CorruptError when shapes disagree or a value is not finite (of "stored": at the use), CodecError when a type
    has no decoder, SystemFailure when kernels decode it to other values than the file's decoder.
    """
    if how == "stored":
        return Packed(tuple(parts), shape, dtype, device, where)
    home = _HOST if how == "offloaded" else device
    if how == "loaded" or unavailable(device) is not None:
        weight: Tensor | Resident = loaded(parts, shape, dtype, home, where)
    else:
        weight = resident(parts, shape, dtype, home, where)
        check_finite(weight, parts, device, where)
        check_decoded(weight, parts, device, where)
    return offloaded(weight, device) if how == "offloaded" else weight
