# mypy: disable-error-code="import-untyped"
"""From attention's first product to its queries and its cache in one launch: the way from torch into its programs.

Slots and rotary positions are read on the device: nothing on the host knows them.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from mtptools.decoder.kernels import programs_heads as programs
from mtptools.decoder.kernels.launch import TYPES, current, placed, power

__all__ = ["place", "write"]

_OPTIONS: Final[dict[str, Any]] = {"num_warps": 1, "num_stages": 1, "enable_fp_fusion": False}


def write(rows: Tensor, pages: Tensor, positions: Tensor, dtype: torch.dtype) -> None:
    """Keep rows in a cache: `KVCache.append`, to slots that the device knows.

    rows       float32 [rows, n_kv_heads, width], keys before values
    pages      int64 [chunks], of which those that are written to are there: `KVCache.pages`
    positions  int64 [rows]: the slot of each row, no two the same
    dtype      the cache's: float32, bfloat16 or float16
    """
    (count, kv_heads, width) = rows.shape
    if not count:
        return
    if rows.stride(2) != 1 or rows.data_ptr() % 16:
        rows = placed(rows)
    with current(rows.device):
        programs.write[(count, kv_heads)](
            *(rows, pages, positions.contiguous(), rows.stride(0), rows.stride(1)), **_writing(width, dtype), **_OPTIONS
        )


def place(
    fused: Tensor,
    norm: Tensor | None,
    table: Tensor,
    pages: Tensor,
    positions: Tensor,
    *,
    offset: int,
    eps: float,
    scale: float,
    n_heads: int,
    n_kv_heads: int,
    dim: int,
    pairs: str,
    dtype: torch.dtype,
) -> Tensor:
    """Queries, normed, turned and scaled, float32 [rows, n_heads, head_dim]; keys and values are written to the cache.

    fused      float32 [rows, heads, head_dim]: n_heads queries, n_kv_heads keys …, n_kv_heads values
    norm       float32 [n_heads + n_kv_heads, head_dim]: factors of the q and k norms, with their eps; None: no norm
    table      float32 [2, capacity, dim / 2], as of `Rope`: the first `dim` values of a head turn, in pairs "halves" or
               "adjacent". It must reach up to the last position, which is not checked
    pages      int64 [chunks], of which those that are written to are there; each is [n_kv_heads, 64, 2 * head_dim]
    positions  int64 [rows]: the slot of each row, no two the same; its rotary position is `offset` more
    dtype      the cache's: float32, bfloat16 or float16

    Without a norm the bits are those of `Rope.rotate` and `KVCache.append`.
    """
    rows, total, head_dim = fused.shape
    queries = fused.new_empty((rows, n_heads, head_dim))
    if not rows:
        return queries
    factors, table = None if norm is None else placed(norm), placed(table)
    with current(fused.device):
        programs.place[(rows, n_heads + n_kv_heads)](
            *(placed(fused), factors, table, queries, pages, positions.contiguous(), offset, table[0].numel()),
            *(float(eps), float(scale)),
            **_placing(total, head_dim, n_heads, n_kv_heads, dim, pairs, dtype),
            **_OPTIONS,
        )
    return queries


def _writing(width: int, dtype: torch.dtype) -> dict[str, Any]:
    """What chooses the program, all of it the model's; so with the next."""
    return {"cached": TYPES[dtype], "width": width, "padded": power(width)}


def _placing(
    total: int, head_dim: int, n_heads: int, n_kv_heads: int, dim: int, pairs: str, dtype: torch.dtype
) -> dict[str, Any]:
    return {
        "cached": TYPES[dtype],
        "heads": n_heads,
        "kv_heads": n_kv_heads,
        "total": total,
        "head_dim": head_dim,
        "dim": dim,
        "adjacent": pairs == "adjacent",
        "padded": power(head_dim),
    }
