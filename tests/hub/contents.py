"""What the loopback servers serve: bytes, or a pattern of any size that takes no memory."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Final, Protocol

import numpy as np

BLOCK: Final = np.random.default_rng(7).integers(0, 256, (1 << 20) + 13, dtype=np.uint8).tobytes()
TWICE: Final = BLOCK + BLOCK


class Content(Protocol):
    @property
    def size(self) -> int: ...
    @property
    def sha256(self) -> str: ...
    def read(self, offset: int, n: int) -> bytes | memoryview: ...


@dataclass(frozen=True)
class Bytes:
    data: bytes

    @property
    def size(self) -> int:
        return len(self.data)

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    def read(self, offset: int, n: int) -> bytes:
        return self.data[offset : offset + n]


@dataclass(frozen=True)
class Pattern:
    """`head`, then bytes that follow from their offset alone. A large one's digest is made up: it never comes whole."""

    head: bytes
    size: int

    @cached_property
    def sha256(self) -> str:
        whole = self.head + b"%d" % self.size if self.size > 16 << 20 else self.read(0, self.size)
        return hashlib.sha256(whole).hexdigest()

    def read(self, offset: int, n: int) -> bytes | memoryview:
        n = min(n, self.size - offset)
        if offset < len(self.head):
            front = self.head[offset : offset + n]
            return front + bytes(self.read(offset + len(front), n - len(front))) if len(front) < n else front
        at = offset % len(BLOCK)
        if n <= len(BLOCK):
            return memoryview(TWICE)[at : at + n]
        return (TWICE[at : at + len(BLOCK)] * (n // len(BLOCK) + 1))[:n]


def shard(tensors: Mapping[str, int | tuple[int, ...]]) -> Pattern:
    """A safetensors file of tensors {name: bytes of U8, or shape of BF16}."""
    header, at = {}, 0
    for name, shape in tensors.items():
        dtype, shape, size = ("U8", (shape,), shape) if isinstance(shape, int) else ("BF16", shape, 2 * prod(shape))
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    head = struct.pack("<Q", len(text)) + text
    return Pattern(head, len(head) + at)


def index(shards: Mapping[str, Mapping[str, object]]) -> Bytes:
    names = {name: file for file, tensors in shards.items() for name in tensors}
    return Bytes(json.dumps({"metadata": {}, "weight_map": names}).encode())
