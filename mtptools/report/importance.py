"""An importance matrix in few lines: what was seen of each block, and what was not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mtptools.importance import Entry, Importance

__all__ = ["HEADER", "rows", "to_json", "unused_note"]

HEADER: Final = ("", "tensors", "rows", "experts without a row", "smallest mean", "largest mean")


def _block(name: str) -> str:
    """`blk.40.attn_q.weight` is of `blk.40`; what is of no block stands for itself."""
    parts = name.split(".", 2)
    return ".".join(parts[:2]) if parts[0] == "blk" and len(parts) == 3 else name


def _order(name: str) -> tuple[int, str]:
    number = _block(name).removeprefix("blk.")
    return (int(number) if number.isdecimal() else -1, name)


def _by_block(matrix: Importance) -> dict[str, dict[str, Entry]]:
    blocks: dict[str, dict[str, Entry]] = {}
    for name in sorted(matrix.entries, key=_order):
        blocks.setdefault(_block(name), {})[name] = matrix.entries[name]
    return blocks


def _unused(entries: Mapping[str, Entry]) -> tuple[int, int]:
    """(experts without a row, experts)"""
    return max(((entry.unused, len(entry.counts)) for entry in entries.values()), key=lambda both: both[::-1])


def _row(name: str, entries: Mapping[str, Entry]) -> tuple[object, ...]:
    without, experts = _unused(entries)
    most = max(int(entry.counts.max()) for entry in entries.values())
    means = [entry.mean[entry.counts > 0] for entry in entries.values() if entry.counts.any()]
    smallest = min((float(mean.min()) for mean in means), default=1.0)
    largest = max((float(mean.max()) for mean in means), default=1.0)
    of = f"{without} of {experts}" if experts > 1 else ""
    return name, len(entries), f"{most:,}", of, f"{smallest:.3g}", f"{largest:.3g}"


def rows(matrix: Importance, verbose: bool = False) -> list[tuple[object, ...]]:
    """A row of HEADER's columns for each block, with `verbose` for each tensor."""
    groups = {name: {name: entry} for name, entry in matrix.entries.items()} if verbose else _by_block(matrix)
    return [_row(name, groups[name]) for name in sorted(groups, key=_order)]


def unused_note(matrix: Importance) -> str:
    """What it means that experts got no row; "" where all got one."""
    lost = [block for block, entries in _by_block(matrix).items() if any(entry.unused for entry in entries.values())]
    if not lost:
        return ""
    why = "an expert without a row is quantized as if all its columns mattered alike; more text may reach it"
    return f"{', '.join(lost)}: {why}"


def to_json(matrix: Importance) -> dict[str, Any]:
    """Everything but the sums: those are in the file."""
    tensors = {
        name: {
            "shape": list(entry.sums.shape),
            "rows": int(entry.counts.max()),
            "experts_without_rows": entry.unused,
            "smallest_mean": float(entry.mean.min()),
            "largest_mean": float(entry.mean.max()),
        }
        for name, entry in sorted(matrix.entries.items(), key=lambda item: _order(item[0]))
    }
    told = {"datasets": list(matrix.datasets), "chunks": matrix.chunks, "chunk_size": matrix.chunk_size}
    return {**told, "tensors": tensors}
