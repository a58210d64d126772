"""Blocks of a GGUF: which are the trunk's and which the head's, counted from the tensors, whatever is declared."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from mtptools.checkpoint import Checkpoint
from mtptools.errors import CorruptError
from mtptools.hparams import MAX_LAYERS

__all__ = ["block_of", "gguf_blocks", "head_blocks", "missing_blocks", "trunk_blocks"]

_BLOCK: Final = re.compile(r"^blk\.(\d+)\.(.+)$")


def block_of(name: str) -> tuple[int, str] | None:
    """(block number, role) of a GGUF tensor name, or None outside of blocks."""
    match = _BLOCK.match(name)
    return (int(match[1]), match[2]) if match else None


@lru_cache(maxsize=8)
def gguf_blocks(ckpt: Checkpoint) -> dict[int, tuple[str, ...]]:
    """Roles by block number of a GGUF."""
    blocks: dict[int, list[str]] = {}
    for name in ckpt:
        if (at := block_of(name)) is not None:
            if at[0] >= MAX_LAYERS:
                raise CorruptError(f"{name}: no model has so many blocks", where=ckpt.path, hint="download it again")
            blocks.setdefault(at[0], []).append(at[1])
    return {number: tuple(roles) for number, roles in sorted(blocks.items())}


def head_blocks(ckpt: Checkpoint) -> tuple[int, ...]:
    """Blocks of a GGUF from the first one with a `nextn.` tensor on. Only that tells a head's block from a trunk's."""
    blocks = gguf_blocks(ckpt)
    first = next((n for n, roles in blocks.items() if any(role.startswith("nextn.") for role in roles)), None)
    return () if first is None else tuple(n for n in blocks if n >= first)


def trunk_blocks(ckpt: Checkpoint) -> int:
    """How many blocks the trunk of a GGUF has: the number of the first head block, else all blocks.

    What is declared plays no part; `missing_blocks` tells which of them are not there.
    """
    head = head_blocks(ckpt)
    return head[0] if head else max(gguf_blocks(ckpt), default=-1) + 1


def missing_blocks(ckpt: Checkpoint) -> tuple[int, ...]:
    """Trunk blocks of a GGUF that are not there, as counted and as declared. All of them in a sidecar."""
    blocks = gguf_blocks(ckpt)
    count = trunk_blocks(ckpt)
    if not head_blocks(ckpt):
        count = max(count, ckpt.hparams.n_layers)
    return tuple(n for n in range(count) if n not in blocks)
