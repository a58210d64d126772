"""What holds of rows' arithmetic; the faults that are put in on purpose must break it.

The exact results are in float64, from the formulas, and know nothing of blocks, masks or the order of sums.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Final

import torch
from torch import Tensor

from mtptools.decoder.kernels import rows
from mtptools.decoder.ops import Arithmetic
from mtptools.decoder.routing import choose_experts
from mtptools.decoder.settings import Routing
from tests.kernels.checks_attention import CPU, EPS

NORM: Final = 32 * EPS
"""A thread adds 16 values, at most 32, then there are 9 sums of two; half of that, and some single roundings."""

ROUTINGS: Final = {
    "softmax": (60, Routing("softmax", 6), False, True),
    "softmax as it is": (33, Routing("softmax", 1, normalized=False), False, False),
    "sigmoid": (64, Routing("sigmoid", 5, scale=2.5), True, False),
    "groups": (15, Routing("sigmoid", 4, 3, 2, scale=2.5), True, True),  # neither is a power of two
    "softplus": (40, Routing("sqrtsoftplus", 6, scale=1.5), True, False),
}
"""Name -> experts, routing, is there a bias, is there a switch?"""


def noise(*shape: int, seed: int = 0, device: torch.device = CPU) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device)


def apart(x: Tensor, gap: int = 5, more: int = 4) -> Tensor:
    """x at an odd address, its rows, and what is in them, further apart: between stands NaN."""
    *outer, width = x.shape
    wide = x.new_full((outer[0] + more, *(n + 2 for n in outer[1:]), 3 + width + gap), float("nan"))
    part = wide[: outer[0], 1 : 1 + outer[1], 3 : 3 + width] if len(outer) == 2 else wide[: outer[0], 3 : 3 + width]
    return part.copy_(x)


def is_near(got: Tensor, want: Tensor, bound: Tensor | float) -> None:
    """Relative to the exact result; an exponential that overflows takes what is not worth mentioning with it."""
    assert got.dtype == torch.float32
    assert got.is_contiguous()
    assert got.shape == want.shape
    assert ((got.double() - want).abs() <= bound * want.abs() + 1e-33).all()


def off(x: Tensor) -> Tensor:
    """How far the exponential of x may be from its own, relative to it."""
    return 8 * EPS + x.double().abs() * 2 * EPS


def torch_forms(device: torch.device) -> Arithmetic:
    """Without kernels."""
    return replace(Arithmetic.on(device), kernels=False)


def norm_is_near(width: int, groups: int | None = None, n: int = 3, device: torch.device = CPU) -> None:
    """Rows whose size is that of eps, and rows that it is nothing to; a weight for each group, and one for all."""
    inner = (width,) if groups is None else (groups, width)
    scale = torch.logspace(-3, 3, n, device=device).view(-1, *(1 for _ in inner))
    x, weights = noise(n, *inner, seed=width, device=device) * scale, noise(*inner, seed=1, device=device)
    wide = x.double()
    for weight in (weights,) if groups is None else (weights, weights[1]):
        want = wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()
        is_near(rows.norm(apart(x, width), weight, 1e-6), want, NORM)
        is_near(torch_forms(device).rms_norm(x, weight, 1e-6), want, NORM)


def norm_of_a_sum_is_that(width: int, n: int = 3, device: torch.device = CPU) -> None:
    """Bit for bit what adding and `norm` give."""
    x, y = (noise(n, width, seed=seed, device=device) for seed in (1, 2))
    weight = noise(width, seed=3, device=device)
    for a, b in ((x, y), (apart(x), apart(y, 7))):
        total, normed = rows.norm_sum(a, b, weight, 1e-5)
        assert same(total, x + y)
        assert same(normed, rows.norm(x + y, weight, 1e-5))


def gate_is_near(half: int, limit: float, n: int = 3, device: torch.device = CPU) -> None:
    x = noise(n, 2 * half, seed=half, device=device) * torch.logspace(-2, 2, n, device=device)[:, None]
    a, b = x[:, :half].double(), x[:, half:].double()
    if limit:
        a, b = a.clamp(max=limit), b.clamp(-limit, limit)
    want, bound = a * torch.sigmoid(a) * b, off(a) + 4 * EPS
    is_near(rows.gate(apart(x), limit), want, bound)
    is_near(torch_forms(device).silu_gate(x, limit), want, bound)


def score_of(routing: Routing, logits: Tensor) -> Tensor:
    """float64 [rows, n]."""
    wide = logits.double()
    if routing.scoring == "softmax":
        return torch.softmax(wide, -1)
    return torch.sigmoid(wide) if routing.scoring == "sigmoid" else (torch.exp(wide).log1p()).sqrt()


def chosen(routing: Routing, ranked: list[float]) -> list[int]:
    """Of one row, by sorting: the best first, of equals the lowest number."""
    n, size = len(ranked), len(ranked) // routing.groups
    groups = range(routing.groups)
    if routing.groups > 1:
        worth = [sum(sorted(ranked[g * size : (g + 1) * size])[-2:]) for g in groups]
        groups = sorted(groups, key=lambda g: (-worth[g], g))[: routing.groups_used]
    found = [e for e in range(n) if e // size in groups]
    return sorted(found, key=lambda e: (-ranked[e], e))[: routing.used]


def route_is_near(
    n: int, routing: Routing, biased: bool, switch: bool, count: int = 3, device: torch.device = CPU
) -> None:
    """Numbers are those of exact scores, and of torch's own choice; weights are near."""
    logits = 3 * noise(count, n + switch, seed=n, device=device)
    bias = 0.3 * noise(n, seed=1, device=device) if biased else None
    experts, weights = rows.route(apart(logits), routing, bias, switch)
    assert experts.dtype == torch.int32
    found = score_of(routing, logits[:, :n])
    ranked = found if bias is None else found + bias.double()
    index = torch.tensor([chosen(routing, row.tolist()) for row in ranked], device=device)
    assert torch.equal(experts.long(), index)
    want = found.gather(1, index)
    if routing.normalized:
        want = want / (want.sum(-1, keepdim=True) + 1e-20)
    want = want * routing.scale
    if switch:
        want = torch.cat((want, torch.sigmoid(logits[:, n:].double())), 1)
    # A score's error counts in it and in the sum it is divided by; softmax has another sum, of n.
    bound = 4 * float(off(logits.max() - logits.min())) + 64 * EPS
    is_near(weights, want, bound)
    other, shares = choose_experts(routing, logits[:, :n], bias)
    assert torch.equal(other, index)
    is_near(weights[:, : routing.used].contiguous(), shares.double(), 2 * bound)


def ties_go_to_the_lowest(device: torch.device = CPU) -> None:
    """Logits of few values, whose scores are equal whatever they are: experts and groups."""
    few = torch.randint(0, 3, (3, 24), generator=torch.Generator().manual_seed(5)).float()
    few = torch.cat((few, torch.zeros(1, 24))).to(device)
    for routing in (Routing("softmax", 24), Routing("sigmoid", 5, 4, 2), Routing("sqrtsoftplus", 7)):
        experts, _ = rows.route(few, routing, None, False)
        assert experts.tolist() == [chosen(routing, row) for row in few.tolist()]


def softplus_is_near(device: torch.device = CPU) -> None:
    """Its root, which half of the errors are left of, from where it is e^x to where it is x."""
    x = torch.linspace(-40, 40, 33, device=device)[:, None]
    _, weights = rows.route(x, Routing("sqrtsoftplus", 1, normalized=False), None, False)
    is_near(weights, score_of(Routing("sqrtsoftplus", 1), x), off(x) / 2 + 4 * EPS)


def broken_logits_stay_in_range(device: torch.device = CPU) -> None:
    """NaN is chosen and seen in the weights; numbers are those of experts, and each is there once."""
    logits = noise(5, 13, device=device)
    logits[1, 4] = float("nan")
    logits[2] = float("nan")
    logits[3] = -inf
    logits[4, 3] = inf
    for routing in (Routing("softmax", 6), Routing("sigmoid", 6, 3, 2), Routing("sqrtsoftplus", 12)):
        experts, weights = rows.route(logits, routing, None, True)
        for row in experts.tolist():
            assert len(set(row)) == routing.used
            assert set(row) <= set(range(12))
        assert weights[1, : routing.used].isnan().any()
        assert weights[2].isnan().all()
        assert experts[1, 0] == 4 or routing.scoring == "softmax"  # there one makes all of them NaN
        assert experts[4, 0] == 3 or routing.scoring == "softmax"
        assert weights[0].isfinite().all()


def mix_is_exact(used: int, hidden: int, n: int = 3, device: torch.device = CPU) -> None:
    """Bit for bit what torch makes of single products and sums, as at the end of `Moe.forward`."""
    parts, shared = noise(n, used, hidden, device=device), noise(n, hidden, seed=1, device=device)
    weights = noise(n, used + 1, seed=2, device=device)
    mixed = parts[:, 0] * weights[:, :1]
    for rank in range(1, used):
        mixed = mixed + parts[:, rank] * weights[:, rank : rank + 1]
    assert same(rows.mix(parts, weights, shared, True), mixed + shared * weights[:, used:])
    assert same(rows.mix(apart(parts), apart(weights), apart(shared), True), mixed + shared * weights[:, used:])
    assert same(rows.mix(parts, weights[:, :used], shared, False), mixed + shared)
    assert same(rows.mix(parts, weights[:, :used], None, False), mixed)


def same(a: Tensor, b: Tensor) -> bool:
    """Bit for bit, of float32; NaN too."""
    return a.shape == b.shape and torch.equal(a.contiguous().view(torch.int32), b.contiguous().view(torch.int32))


Rows = Callable[[Tensor], Tensor]
"""[rows, width] to [rows, …], each from its own row."""


def arithmetic(width: int, device: torch.device = CPU) -> dict[str, tuple[int, Rows]]:
    """Everything as functions of rows: name -> width of a row, function."""
    weight = noise(width, seed=7, device=device)
    both = weight.repeat(2).view(2, width)
    groups, bias = Routing("sigmoid", 2, 3, 2, scale=2.5), noise(12, seed=8, device=device)

    def routed(logits: Tensor) -> Tensor:
        return torch.cat([part.float() for part in rows.route(logits, groups, bias, True)], 1)

    def mixed(x: Tensor) -> Tensor:
        return rows.mix(x[:, : 3 * width].unflatten(1, (3, width)), x[:, -4:], x[:, 3 * width : 4 * width], True)

    return {
        "norm": (width, lambda x: rows.norm(x, weight, 1e-6)),
        "norm of groups": (2 * width, lambda x: rows.norm(x.unflatten(1, (2, width)), both, 1e-6)),
        "norm of a sum": (2 * width, lambda x: rows.norm_sum(x[:, :width], x[:, width:], weight, 1e-6)[1]),
        "gate": (2 * width, lambda x: rows.gate(x, 2.0)),
        "route": (13, routed),
        "mix": (4 * width + 4, mixed),
    }


def at_every_place(width: int, fn: Rows, count: int = 33, device: torch.device = CPU) -> None:
    """A row has the bits that it has alone, at each place of many, among large rows and others; near and far apart."""
    row = noise(1, width, seed=2, device=device)
    others = 1e3 * noise(count, width, seed=3, device=device)
    others[::3] = 0
    alone = fn(row)[0]
    for shift, layout in enumerate((Tensor.clone, apart)):
        x = others.clone()
        x[shift::2] = row
        out = fn(layout(x))[shift::2]
        assert all(same(one, alone) for one in out), f"row {shift} of every second of {count}"
