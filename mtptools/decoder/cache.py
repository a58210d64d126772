"""What a decoder remembers of the tokens it has seen, and how it forgets rejected ones.

Attention keeps keys and values in chunks of 64 slots: forgetting is a smaller length. A recurrent layer keeps
its state after each token of the current pass (tensors are never written in place, so this copies nothing):
forgetting is taking an earlier one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol

import torch
from torch import Tensor

from mtptools.decoder.ring import Ring

__all__ = [
    "CHUNK",
    "BranchCache",
    "Cache",
    "Fixed",
    "KVCache",
    "LayerCache",
    "RecurrentCache",
    "RecurrentState",
    "RingCache",
    "slots",
]

CHUNK: Final = 64
"""Keys per attention chunk. Fixed, so that no decoding mode sees another chunk boundary."""

_HALF_MAX: Final = 65504.0

_PAGES: Final = 128
"""Chunks that a table of addresses has room for at first."""

_SLOTS: Final = 2
"""States that a ring has room for at first: that before a pass and that after."""


@lru_cache(maxsize=8)
def slots(first: int, rows: int, device: torch.device) -> Tensor:
    """int64 [rows] from `first` on; made once for all layers of a pass."""
    return torch.arange(first, first + rows, device=device)


class LayerCache(Protocol):
    """One layer's memory."""

    def start(self, length: int) -> None:
        """`length` tokens are behind it: remember enough from here on to forget any suffix of what follows."""

    def rollback(self, length: int) -> None:
        """Keep the first `length` tokens. `length` is at or after the last `start`."""


@dataclass(frozen=True)
class Fixed:
    """Where a recorded pass finds what changes from one replay to the next: see `replay.py`.

    positions  int64 [rows]: the slots of the pass's rows
    at         int64 [1]: the slot of a ring that holds the state before the pass
    until      slots that attention looks through, at least the last row's and one
    """

    positions: Tensor
    at: Tensor
    until: int


class KVCache:
    """Keys and values of one attention layer: chunks [n_kv_heads, 64, width], unwritten slots zero.

    width is key_dim + value_dim; with value_dim 0 the values are the first `shared` columns of the keys (latent
    attention). A slot beyond `length` may hold a forgotten value; it is finite and masked.
    """

    def __init__(
        self, n_kv_heads: int, key_dim: int, value_dim: int, dtype: torch.dtype, device: torch.device, shared: int = 0
    ) -> None:
        self.shape = (n_kv_heads, CHUNK, key_dim + value_dim)
        self.key_dim, self.value_dim, self.shared = key_dim, value_dim, shared
        self.dtype = dtype
        self.device = device
        self.chunks: list[Tensor] = []
        self.length = 0
        self.fixed: Fixed | None = None
        self._pages: Tensor | None = None
        self._paged = 0

    def append(self, rows: Tensor) -> None:
        """Write rows [rows, n_kv_heads, width], keys before values, after the last one."""
        rows = self.stored(rows)
        self.make_room(rows.shape[0])
        done = 0
        while done < rows.shape[0]:
            chunk, slot = divmod(self.length, CHUNK)
            count = min(rows.shape[0] - done, CHUNK - slot)
            self.chunks[chunk][:, slot : slot + count] = rows[done : done + count].transpose(0, 1)
            self.length += count
            done += count

    def make_room(self, rows: int) -> None:
        """Chunks for so many rows after the last one."""
        while len(self.chunks) * CHUNK < self.length + rows:
            self.chunks.append(torch.zeros(self.shape, dtype=self.dtype, device=self.device))

    def advance(self, rows: int) -> None:
        """So many rows were written by somebody else."""
        self.length += rows

    def mark(self) -> int:
        """Where a pass starts: what `back` takes."""
        return self.length

    def back(self, mark: int) -> None:
        self.length = mark

    def written(self, mark: int) -> Iterator[Tensor]:
        """The keys and values that passes since `mark` left, a slot each."""
        for slot in range(mark, self.length):
            yield self.chunks[slot // CHUNK][:, slot % CHUNK]

    def forget(self) -> None:
        """Be as new, in the same memory."""
        self.length = 0

    def read(self, chunk: int) -> tuple[Tensor, Tensor]:
        """Float32 keys [n_kv_heads, 64, key_dim] and values [n_kv_heads, 64, value_dim]."""
        return self.parted(self.chunks[chunk].float())

    @property
    def pages(self) -> Tensor:
        """int64 [chunks or more]: their addresses, for a kernel that reads them where they are: a chunk never moves.

        The table moves when it has to grow, to twice the size.
        """
        if self._pages is None or len(self._pages) < len(self.chunks):
            self._pages = torch.zeros(max(_PAGES, 2 * len(self.chunks)), dtype=torch.int64, device=self.device)
            self._paged = 0
        if self._paged < len(self.chunks):
            fresh = [chunk.data_ptr() for chunk in self.chunks[self._paged :]]
            self._pages[self._paged : len(self.chunks)] = torch.tensor(fresh, device=self.device)
            self._paged = len(self.chunks)
        return self._pages

    def positions(self, rows: int) -> Tensor:
        """int64 [rows] on the device: the slots of the next rows."""
        return slots(self.length, rows, self.device) if self.fixed is None else self.fixed.positions

    def until(self, rows: int) -> int:
        """Slots that attention of the next rows looks through."""
        return self.length + rows if self.fixed is None else self.fixed.until

    def stored(self, rows: Tensor) -> Tensor:
        """Rows as they are kept."""
        rows = rows.to(self.dtype)
        if self.dtype == torch.float16:  # a slot that is forgotten and masked must still be finite
            rows = rows.clamp(-_HALF_MAX, _HALF_MAX)
        return rows

    def parted(self, both: Tensor) -> tuple[Tensor, Tensor]:
        """[…, width] as keys and values."""
        keys = both[..., : self.key_dim]
        return keys, both[..., : self.shared] if self.shared else both[..., self.key_dim :]

    def branch(self, lag: int = 0) -> BranchCache:
        """Texts that leave this one at every slot."""
        return BranchCache(self, lag)

    def start(self, length: int) -> None:
        pass

    def rollback(self, length: int) -> None:
        self.length = length


class BranchCache(KVCache):
    """One text's keys and values, and branches that leave it at every slot: branch r is slots up to r - lag, then more.

    Every append gives each branch one more key: row r is branch r's. Later appends may have fewer rows: branches end.
    `length` stays at -lag, so that row r is taken for the one that may see the text up to slot r - lag.
    """

    def __init__(self, text: KVCache, lag: int) -> None:
        super().__init__(text.shape[0], text.key_dim, text.value_dim, text.dtype, text.device, text.shared)
        self.chunks = text.chunks
        self.length = -lag
        self.own: list[Tensor] = []

    def append(self, rows: Tensor) -> None:
        self.own.append(self.stored(rows))

    @property
    def ahead(self) -> int:
        """Slots that every branch is beyond the text's."""
        return len(self.own)

    def branches(self, start: int, stop: int) -> list[tuple[Tensor, Tensor]]:
        """Per append, float32 keys [rows, n_kv_heads, key_dim] and values of branches start … stop - 1."""
        return [self.parted(rows[start:stop].float()) for rows in self.own]


@dataclass(frozen=True, slots=True)
class RecurrentState:
    """conv: the last kernel-1 inputs [kernel - 1, channels]; memory: [n_v_heads, k_dim, v_dim]. Both float32."""

    conv: Tensor
    memory: Tensor


class RecurrentCache:
    """State of one DeltaNet layer, and the states after each token since `start`."""

    def __init__(self, initial: RecurrentState) -> None:
        self.state = initial
        self.history: list[RecurrentState] = []
        self.recording = False
        self.base = 0

    def push(self, state: RecurrentState) -> None:
        """The state after one more token."""
        self.state = state
        if self.recording:
            self.history.append(state)

    def start(self, length: int) -> None:
        self.base = length
        self.history = [self.state]
        self.recording = True

    def rollback(self, length: int) -> None:
        self.state = self.history[length - self.base]
        self.history = []
        self.recording = False


class RingCache:
    """State of one DeltaNet layer on a device where a kernel keeps it: slots of one tensor, written in a ring.

    A pass leaves the slot that it started from as it was, and since `start` those of every token.
    """

    def __init__(self, initial: RecurrentState) -> None:
        self.conv = initial.conv.unsqueeze(0).repeat(_SLOTS, 1, 1)
        self.memory = initial.memory.unsqueeze(0).repeat(_SLOTS, 1, 1, 1)
        self.at = 0
        self.recording = False
        self.base = self.first = self.since = 0
        self.fixed: Fixed | None = None

    def make_room(self, rows: int) -> None:
        """Slots for so many rows more. Where there are too few, states move to a larger ring."""
        slots = self.since + rows + 1 if self.recording else _SLOTS
        if slots <= len(self.conv):
            return
        order = [(self.first + i) % len(self.conv) for i in range(self.since + 1)]
        for name in ("conv", "memory"):
            old: Tensor = getattr(self, name)
            new = old.new_zeros((slots, *old.shape[1:]))
            new[: len(order)] = old[order]
            setattr(self, name, new)
        self.first, self.at = 0, self.since

    def kept(self, rows: int) -> int:
        """Rows of the next pass whose states are kept."""
        return rows if self.recording else 1

    def ring(self) -> Ring:
        return Ring(
            self.conv, self.memory, slots(self.at, 1, self.conv.device) if self.fixed is None else self.fixed.at
        )

    def advance(self, rows: int) -> None:
        """A pass of so many rows was made."""
        kept = self.kept(rows)
        self.at = (self.at + kept) % len(self.conv)
        self.since += kept if self.recording else 0

    def mark(self) -> tuple[int, int]:
        """Where a pass starts: what `back` takes."""
        return self.at, self.since

    def back(self, mark: tuple[int, int]) -> None:
        self.at, self.since = mark

    def written(self, mark: tuple[int, int]) -> Iterator[Tensor]:
        """The states that passes since `mark` left."""
        slots = [(mark[0] + 1 + i) % len(self.conv) for i in range((self.at - mark[0]) % len(self.conv))]
        for slot in slots:
            yield self.conv[slot]
            yield self.memory[slot]

    def forget(self) -> None:
        """Be as new, in the same memory."""
        self.conv.zero_()
        self.memory.zero_()
        self.at, self.recording = 0, False

    def start(self, length: int) -> None:
        self.base, self.first, self.since, self.recording = length, self.at, 0, True

    def rollback(self, length: int) -> None:
        self.at, self.recording = (self.first + length - self.base) % len(self.conv), False


class Cache:
    """One memory per trunk layer; `length` tokens are behind it."""

    def __init__(self, layers: Sequence[LayerCache]) -> None:
        self.layers = list(layers)
        self.length = 0

    def start(self) -> None:
        """Remember enough from here on to forget any suffix of what follows."""
        for layer in self.layers:
            layer.start(self.length)

    def rollback(self, length: int) -> None:
        """Keep the first `length` tokens. `length` is at or after the last `start`."""
        self.length = length
        for layer in self.layers:
            layer.rollback(length)
