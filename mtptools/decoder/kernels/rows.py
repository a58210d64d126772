# mypy: disable-error-code="import-untyped"
"""What is done to rows between their products, in one launch each: the way from torch into its programs.

A row's bits are its own: the number of rows, where they lie in memory and how far apart they are choose no program.
"""

from __future__ import annotations

from typing import Any, Final

import triton
from torch import Tensor, float32, int32

from mtptools.decoder.kernels import programs_rows as programs
from mtptools.decoder.kernels.launch import current
from mtptools.decoder.settings import Routing

__all__ = ["BLOCK", "SHARE", "gate", "mix", "norm", "norm_sum", "route"]

BLOCK: Final = 512
"""Columns of a program whose arithmetic is of single values: bits do not depend on it."""

SHARE: Final = 16
"""Values of a normed row that a thread has, up to 512 threads: the order of its sum depends on it."""

_LANES: Final = 32


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / rms(x) * weight over the last dimension: float32 of x's shape, contiguous.

    x       float32 [rows, width] or [rows, groups, width], rows and groups any way apart
    weight  float32 [width], of all groups, or [groups, width]
    """
    return _normed(x, None, weight, eps)[1]


def norm_sum(x: Tensor, y: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x + y, and the norm of it, of float32 [rows, width] each: the bits are those of adding, then `norm`."""
    return _normed(x, y, weight, eps)


def _normed(x: Tensor, y: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    out, x, width = _new(x, x.shape), _close(x), x.shape[-1]
    total = out if y is None else _new(x, x.shape)
    rows, groups = x.shape[0], x.shape[1] if x.dim() == 3 else 1
    if rows and groups:
        y, weight = None if y is None else _close(y), _close(weight)
        with current(x.device):
            programs.norm[(rows, groups)](
                *(x, y, weight, total, out),
                *(x.stride(0), _between(x), 0 if y is None else y.stride(0), _between(weight, 2), eps),
                **_normed_by(width),
            )
    return total, out


def gate(x: Tensor, limit: float = 0.0) -> Tensor:
    """silu(gate) * up: float32 [rows, F].

    x      float32 [rows, 2F] = [gate | up], rows any way apart
    limit  gate above it, and up beyond +- it, are cut first; 0 for none
    """
    x, half = _close(x), x.shape[1] // 2
    out = _new(x, (x.shape[0], half))
    if out.numel():
        with current(x.device):
            programs.gate[(x.shape[0], _blocks(half))](x, out, x.stride(0), half=half, limit=limit, **_singly())
    return out


def route(logits: Tensor, routing: Routing, bias: Tensor | None, switch: bool) -> tuple[Tensor, Tensor]:
    """Numbers int32 [rows, used] and weights float32 [rows, used (+ 1)] of each row's experts, best first.

    logits  float32 [rows, n_experts (+ 1)], rows any way apart
    bias    float32 [n_experts], which selects and does not weigh; or None
    switch  the last logit is the shared expert's, its sigmoid the last weight

    Formulas: see `mtptools.decoder.routing`. Of experts that are equally good the one of the lowest number comes first
    (torch says nothing of ties), and so it is with groups, which have two experts or more each.
    """
    logits, rows = _close(logits), logits.shape[0]
    experts = logits.new_empty((rows, routing.used), dtype=int32)
    weights = _new(logits, (rows, routing.used + switch))
    if rows:
        bias = None if bias is None else bias.contiguous()
        with current(logits.device):
            programs.route[(rows,)](
                *(logits, bias, experts, weights, logits.stride(0)),
                **_routed_by(logits.shape[1] - switch, routing, switch),
            )
    return experts, weights


def mix(parts: Tensor, weights: Tensor, shared: Tensor | None, switch: bool) -> Tensor:
    """Sum of each row's parts times their weights, in rank order, and the shared expert's last: float32 [rows, hidden].

    parts    float32 [rows, used, hidden]
    weights  float32 [rows, used (+ 1)]; with `switch` the last one is what `shared` is multiplied by
    shared   float32 [rows, hidden], or None

    Each product and each sum is rounded: the bits are those of the same in torch.
    """
    rows, used, hidden = parts.shape
    out = _new(parts, (rows, hidden))
    if out.numel():
        with current(parts.device):
            programs.mix[(rows, _blocks(hidden))](
                *(parts.contiguous(), weights.contiguous(), None if shared is None else shared.contiguous(), out),
                hidden=hidden,
                used=used,
                switch=switch,
                **_singly(),
            )
    return out


def _new(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    return x.new_empty(shape, dtype=float32)


def _close(x: Tensor) -> Tensor:
    """x, or a copy of it, with values of a row beside each other."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _between(x: Tensor, dims: int = 3) -> int:
    """From one group to the next, of a tensor that may be one for all."""
    return x.stride(-2) if x.dim() == dims else 0


def _blocks(n: int) -> int:
    return -(-n // BLOCK)


def _normed_by(width: int) -> dict[str, Any]:
    """What chooses the program of a norm."""
    padded = max(_LANES, int(triton.next_power_of_2(width)))
    warps = min(16, max(1, padded // (_LANES * SHARE)))
    return {"width": width, "padded": padded, "num_warps": warps, "enable_fp_fusion": False}


def _singly() -> dict[str, Any]:
    return {"block": BLOCK, "num_warps": 4, "enable_fp_fusion": False}


def _routed_by(n: int, routing: Routing, switch: bool) -> dict[str, Any]:
    """One warp: its reductions need no shared memory, and there are some for each expert that is chosen."""
    power = triton.next_power_of_2
    return {
        "n": n,
        "scoring": routing.scoring,
        "used": routing.used,
        "groups": routing.groups,
        "groups_used": routing.groups_used,
        "normalized": routing.normalized,
        "scale": routing.scale,
        "switch": switch,
        "tile_groups": int(power(routing.groups)),
        "tile_members": int(power(n // routing.groups)),
        "slots": int(power(routing.used)),
        "num_warps": 1,
        "enable_fp_fusion": False,
    }
