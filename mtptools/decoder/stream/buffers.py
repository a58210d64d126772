"""Memory for decoded matrices, used again and again.

Pages that a system hands out anew must be cleared first, which takes longer than decoding into them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import prod
from threading import Lock
from typing import Any, Final
from weakref import finalize

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mtptools.decoder.ops import ALIGNMENT

__all__ = ["Buffers"]

Bytes = NDArray[np.uint8]


class Buffers:
    """Lends tensors; what nobody refers to any more comes back by itself.

    limit  bytes, lent and idle: idle memory of another size is let go before there is more
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._idle: dict[int, list[Bytes]] = {}
        self._back: deque[Bytes] = deque()  # filled wherever a tensor ends, in any thread: nothing is locked there
        self._lock: Final = Lock()
        self.held = 0
        """Bytes, lent and idle."""

    def lend(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A tensor on torch's alignment, with any values. Raises MemoryError."""
        nbytes = prod(shape) * dtype.itemsize
        with self._lock:
            raw = self._found(nbytes)
        start = -raw.ctypes.data % ALIGNMENT
        lent = raw[start : start + nbytes]
        finalize(lent, self._back.append, raw).atexit = False  # torch holds `lent` as long as any tensor is on it
        return torch.from_numpy(lent).view(dtype).view(*shape)

    def _found(self, nbytes: int) -> Bytes:
        while self._back:
            raw = self._back.popleft()
            self._idle.setdefault(raw.nbytes, []).append(raw)
        size = nbytes + ALIGNMENT
        if self._idle.get(size):
            return self._idle[size].pop()
        while self.held + size > self.limit and any(self._idle.values()):
            largest = max(one for one, there in self._idle.items() if there)
            self._idle[largest].pop()
            self.held -= largest
        made: NDArray[Any] = np.empty(size, np.uint8)
        self.held += size
        return made
