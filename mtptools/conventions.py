"""How stored values relate to canonical ones: named, typed, invertible.

Two kinds. A *value* convention changes numbers one by one (a norm stored as `w` or as `1 + w`). A *layout*
convention says which stored tensors a role's rows are in (experts one by one, stacked, or gate and up fused).

Canonical is what GGUF stores: the effective norm weight, stacked experts, gate and up apart, k_b and v_b apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mtptools.errors import CorruptError
from mtptools.tensors import Tensor
from mtptools.views import join_columns, join_rows, pick_columns, pick_rows, reshaped, stack, transposed

__all__ = ["LAYOUTS", "VALUES", "Layout", "Sizes", "Value", "convert_values"]

Array = NDArray[np.float32]
Sizes = Callable[[str], int]  # a size expression of a role table -> its value in this model


@dataclass(frozen=True, slots=True)
class Value:
    """A value convention: float32 in, float32 out, `to_canonical(from_canonical(x)) == x` up to one rounding."""

    name: str
    to_canonical: Callable[[Array], Array]
    from_canonical: Callable[[Array], Array]


def _same(values: Array) -> Array:
    return values


def _neg_exp(values: Array) -> Array:
    # In float64 and rounded once: numpy's float32 exponential is off by a bit where torch's, the converter's, is not.
    return (-np.exp(values.astype(np.float64))).astype(np.float32)


def _log_neg(values: Array) -> Array:
    return np.log(-values.astype(np.float64)).astype(np.float32)


_ONE: Final = np.float32(1)

VALUES: Final[Mapping[str, Value]] = {
    value.name: value
    for value in (
        Value("plain", _same, _same),
        # RMSNorm multiplies by 1 + w; the file holds w (Gemma, Qwen3-Next, Qwen3.5, Step in HF dialect).
        Value("unit_offset", lambda w: w + _ONE, lambda w: w - _ONE),
        # The decay of a recurrent layer: HF holds A_log, GGUF -exp(A_log).
        Value("neg_exp", _neg_exp, _log_neg),
    )
}


def convert_values(values: Array, source: str, target: str) -> Array:
    """Values stored under convention `source`, as `target` would store them; float32, rounded once per step."""
    if source == target:
        return values
    return VALUES[target].from_canonical(VALUES[source].to_canonical(values))


@dataclass(frozen=True, slots=True)
class Layout:
    """A layout convention between stored tensors and canonical roles, both ways.

    gather      (stored tensors, size of an expression, sizes of the source's parts) -> the canonical tensor
    scatter     (canonical tensors of the group's roles, size, sizes) -> the stored tensors, in pattern order
    group       layouts whose roles stand in one stored tensor, in the order `scatter` wants them
    per_expert  the pattern has `{e}` and stands for one tensor per expert
    by_rank     a release may have cut the tensor by tensor-parallel rank; it is gathered from [ranks, rows, columns]
    """

    name: str
    gather: Callable[[list[Tensor], Sizes, Sequence[str]], Tensor]
    scatter: Callable[[list[Tensor], Sizes, Sequence[str]], list[Tensor]]
    group: tuple[str, ...] = ()
    per_expert: bool = False
    by_rank: bool = False


def _whole(found: list[Tensor], size: Sizes, sizes: Sequence[str]) -> Tensor:
    return found[0]


def _itself(roles: list[Tensor], size: Sizes, sizes: Sequence[str]) -> list[Tensor]:
    return roles


def _stack(found: list[Tensor], size: Sizes, sizes: Sequence[str]) -> Tensor:
    return stack(found, found[0].name)


def _unstack(roles: list[Tensor], size: Sizes, sizes: Sequence[str]) -> list[Tensor]:
    experts, *shape = roles[0].shape
    rows = roles[0].n_rows // experts
    return [pick_rows(roles[0], [(e * rows, (e + 1) * rows)], tuple(shape), roles[0].name) for e in range(experts)]


def _half(which: int) -> Callable[[list[Tensor], Sizes, Sequence[str]], Tensor]:
    """One half of the rows of each expert of a fused [experts, gate + up, hidden]."""

    def gather(found: list[Tensor], size: Sizes, sizes: Sequence[str]) -> Tensor:
        fused = found[0]
        if len(fused.shape) != 3 or fused.shape[1] % 2:
            raise CorruptError(
                f"{fused.name} has shape {list(fused.shape)}, not [experts, 2 * ffn, hidden]",
                where=fused.blobs[0].path,
                hint="the fused experts of this release are damaged: download them again",
            )
        experts, both, hidden = fused.shape
        ffn = both // 2
        ranges = [(e * both + which * ffn, e * both + which * ffn + ffn) for e in range(experts)]
        return pick_rows(fused, ranges, (experts, ffn, hidden), fused.name)

    return gather


def _fuse_halves(roles: list[Tensor], size: Sizes, sizes: Sequence[str]) -> list[Tensor]:
    """[experts, ffn, hidden] twice -> [experts, gate + up, hidden]."""
    experts, ffn, hidden = roles[0].shape
    both = [_unstack([role], size, sizes) for role in roles]
    parts = [half[e] for e in range(experts) for half in both]
    return [join_rows(parts, (experts, 2 * ffn, hidden), roles[0].name)]


def _of_kv_b(found: list[Tensor], size: Sizes) -> tuple[Tensor, int, int, int]:
    """kv_b [heads * (nope + value), rank]: multi-head latent attention's expansion, keys and values of each head."""
    kv_b, heads, nope = found[0], size("n_heads"), size("qk_nope_head_dim")
    each = nope + size("v_head_dim")
    if kv_b.n_rows != heads * each:
        raise CorruptError(
            f"{kv_b.name} has {kv_b.n_rows} rows, not {heads} heads of {nope} for keys and {each - nope} for values",
            where=kv_b.blobs[0].path,
            hint="config.json and the weights are of different models",
        )
    return kv_b, heads, nope, each


def _k_b(found: list[Tensor], size: Sizes, sizes: Sequence[str]) -> Tensor:
    """[heads, rank, nope]: each head's key rows, transposed (llama.cpp, conversion of DeepSeek-V2)."""
    kv_b, heads, nope, each = _of_kv_b(found, size)
    ranges = [(h * each, h * each + nope) for h in range(heads)]
    return transposed(pick_rows(kv_b, ranges, (heads, nope, kv_b.shape[-1]), kv_b.name), kv_b.name)


def _v_b(found: list[Tensor], size: Sizes, sizes: Sequence[str]) -> Tensor:
    """[heads, value, rank]: each head's value rows."""
    kv_b, heads, nope, each = _of_kv_b(found, size)
    ranges = [(h * each + nope, (h + 1) * each) for h in range(heads)]
    return pick_rows(kv_b, ranges, (heads, each - nope, kv_b.shape[-1]), kv_b.name)


def _kv_b(roles: list[Tensor], size: Sizes, sizes: Sequence[str]) -> list[Tensor]:
    keys, values = transposed(roles[0], roles[0].name), roles[1]
    heads, nope, rank = keys.shape
    parts = [
        half for pair in zip(_unstack([keys], size, ()), _unstack([values], size, ()), strict=True) for half in pair
    ]
    return [join_rows(parts, (heads * (nope + values.shape[1]), rank), roles[0].name)]


def _rows(found: list[Tensor], size: Sizes, sizes: Sequence[str]) -> Tensor:
    return join_rows(found, (sum(part.shape[0] for part in found), *found[0].shape[1:]), found[0].name)


def _split_rows(roles: list[Tensor], size: Sizes, sizes: Sequence[str]) -> list[Tensor]:
    counts = [size(one) for one in sizes]
    ends = list(accumulate(counts))
    tail = roles[0].shape[1:]
    if not tail:  # a vector is one row: its values are cut
        return [pick_columns(roles[0], slice(end - n, end), roles[0].name) for n, end in zip(counts, ends, strict=True)]
    return [pick_rows(roles[0], [(e - n, e)], (n, *tail), roles[0].name) for n, e in zip(counts, ends, strict=True)]


def _qkv_of_ranks(found: list[Tensor], size: Sizes, sizes: Sequence[str]) -> Tensor:
    """q, k and v, one below the other, of a matrix that may have [q, k, v] of each rank below each other."""
    cut, counts = found[0], [size(one) for one in sizes]
    ranks = cut.shape[0] if len(cut.shape) == 3 else 1
    if cut.n_rows != sum(counts) or any(count % ranks for count in counts):
        raise CorruptError(
            f"{cut.name} has {cut.n_rows} rows in {ranks} part(s), the config says {' + '.join(map(str, counts))}",
            where=cut.blobs[0].path,
            hint="config.json and the weights are of different models",
        )
    each = cut.n_rows // ranks
    ends = list(accumulate(count // ranks for count in counts))
    ranges = [
        (r * each + end - count // ranks, r * each + end)
        for count, end in zip(counts, ends, strict=True)
        for r in range(ranks)
    ]
    return pick_rows(cut, ranges, (cut.n_rows, cut.shape[-1]), cut.name)


def _columns(found: list[Tensor], size: Sizes, sizes: Sequence[str]) -> Tensor:
    return join_columns(found, found[0].name)


def _split_columns(roles: list[Tensor], size: Sizes, sizes: Sequence[str]) -> list[Tensor]:
    counts = [size(one) for one in sizes]
    ends = list(accumulate(counts))
    return [pick_columns(roles[0], slice(e - n, e), roles[0].name) for n, e in zip(counts, ends, strict=True)]


def _flat(found: list[Tensor], size: Sizes, sizes: Sequence[str]) -> Tensor:
    """A vector stored as a matrix of one row or one column, or the other way round."""
    return reshaped(found[0], tuple(n for n in found[0].shape if n != 1), found[0].name)


LAYOUTS: Final[Mapping[str, Layout]] = {
    layout.name: layout
    for layout in (
        Layout("whole", _whole, _itself),
        Layout("squeezed", _flat, _itself),
        Layout("stack_experts", _stack, _unstack, per_expert=True),
        Layout("gate_half", _half(0), _fuse_halves, ("gate_half", "up_half")),
        Layout("up_half", _half(1), _fuse_halves, ("gate_half", "up_half")),
        Layout("k_of_kv_b", _k_b, _kv_b, ("k_of_kv_b", "v_of_kv_b")),
        Layout("v_of_kv_b", _v_b, _kv_b, ("k_of_kv_b", "v_of_kv_b")),
        Layout("rows", _rows, _split_rows),
        Layout("columns", _columns, _split_columns),
        Layout("qkv_of_ranks", _qkv_of_ranks, _itself, by_rank=True),
    )
}
