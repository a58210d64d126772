"""What is done to rows between products, by its kernels, interpreted: near the exact, or exact; each row by itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from mtptools.decoder.kernels import programs_rows, rows
from tests.kernels.checks_rows import (
    ROUTINGS,
    Rows,
    arithmetic,
    at_every_place,
    broken_logits_stay_in_range,
    gate_is_near,
    mix_is_exact,
    noise,
    norm_is_near,
    norm_of_a_sum_is_that,
    route_is_near,
    same,
    softplus_is_near,
    ties_go_to_the_lowest,
)
from tests.kernels.test_faults import Mutant, mutant

__all__ = ["mutant"]

WIDTH = 70
NAMES = tuple(arithmetic(WIDTH))


@pytest.mark.parametrize(
    ("width", "groups"), [(1, None), (32, None), (33, None), (5120, None), (16384, None), (40, 3), (128, 2)]
)
def test_norm(width: int, groups: int | None) -> None:
    norm_is_near(width, groups)


@pytest.mark.parametrize("width", [1, 70, 5120])
def test_norm_of_a_sum(width: int) -> None:
    norm_of_a_sum_is_that(width)


@pytest.mark.parametrize("limit", [0.0, 1.5])
@pytest.mark.parametrize("half", [1, 70, rows.BLOCK, rows.BLOCK + 1])
def test_gate(half: int, limit: float) -> None:
    gate_is_near(half, limit)


def test_a_gate_hides_nothing() -> None:
    broken = torch.tensor([[float("nan"), 1.0, 1.0, float("nan")]])
    assert rows.gate(broken, 2.0).isnan().all()


@pytest.mark.parametrize("name", ROUTINGS)
def test_route(name: str) -> None:
    route_is_near(*ROUTINGS[name])


def test_route_of_many() -> None:
    """1024 experts and one less."""
    for n in (1024, 1023):
        route_is_near(n, ROUTINGS["softmax"][1], False, True, count=1)


def test_ties() -> None:
    ties_go_to_the_lowest()


def test_softplus() -> None:
    softplus_is_near()


@pytest.mark.filterwarnings("ignore:All-NaN slice:RuntimeWarning")  # numpy's, in the interpreter
def test_broken_logits() -> None:
    broken_logits_stay_in_range()


@pytest.mark.parametrize(("used", "hidden"), [(1, 1), (8, 70), (3, rows.BLOCK + 1)])
def test_mix(used: int, hidden: int) -> None:
    mix_is_exact(used, hidden)


@pytest.mark.parametrize("name", NAMES)
def test_a_row_by_itself(name: str) -> None:
    at_every_place(*arithmetic(WIDTH)[name])


def test_no_rows() -> None:
    for name, (width, fn) in arithmetic(WIDTH).items():
        assert len(fn(torch.empty(0, width))) == 0, name


def test_values_of_a_row_that_lie_apart() -> None:
    """A turned matrix is copied."""
    x, weight = noise(3, WIDTH), noise(WIDTH, seed=1)
    turned = x.T.contiguous().T
    assert same(rows.norm(turned, weight, 1e-6), rows.norm(x, weight, 1e-6))
    assert same(rows.gate(turned), rows.gate(x))


DEPENDENCES: dict[str, Rows] = {
    "number of rows": lambda y: y * (1 + (len(y) > 1) * 2.0**-20),
    "position": lambda y: y * (1 + (torch.arange(len(y)) == 7)[:, None] * 2.0**-20),
    "neighbours": lambda y: y + y[:1] * 2.0**-20,
}


@pytest.mark.parametrize("fault", DEPENDENCES)
def test_a_dependence_is_seen(fault: str) -> None:
    width, fn = arithmetic(WIDTH)["gate"]

    def wrong(x: Tensor) -> Tensor:
        return DEPENDENCES[fault](fn(x))

    with pytest.raises(AssertionError, match="every second"):
        at_every_place(width, wrong)


def routes() -> None:
    for given in ROUTINGS.values():
        route_is_near(*given, count=2)


MUTANTS: list[tuple[str, str, Callable[[], None]]] = [
    ("x_group + i, mask=has, other=0.0", "x_group + i", lambda: norm_is_near(WIDTH)),
    ("width * 1.0", "padded * 1.0", lambda: norm_is_near(WIDTH)),
    ("mean + eps", "mean", lambda: norm_is_near(WIDTH)),
    ("r * x_row + g", "r * width + g", lambda: norm_is_near(WIDTH)),
    ("g * x_group", "0 * x_group", lambda: norm_is_near(WIDTH, 3)),
    ("g * weight_group", "g * width", lambda: norm_is_near(WIDTH, 3)),
    ("r * tl.num_programs(1) + g", "r + g", lambda: norm_is_near(WIDTH, 3)),
    ("v * factor * tl", "v * (1 + 2e-6) * factor * tl", lambda: norm_is_near(WIDTH)),
    ("y + r * y_row", "y", lambda: norm_of_a_sum_is_that(WIDTH)),
    ("total + to, v", "total + to, v - v", lambda: norm_of_a_sum_is_that(WIDTH)),
    ("x_row + half + i", "x_row + i", lambda: gate_is_near(WIDTH, 0.0)),
    ("a > limit, limit", "a > limit, a", lambda: gate_is_near(WIDTH, 1.5)),
    ("b < -limit, -limit", "b < -limit, b", lambda: gate_is_near(WIDTH, 1.5)),
    ("if limit != 0", "if limit == 0", lambda: gate_is_near(WIDTH, 0.0)),
    ("tl.program_id(1) * block", "0", lambda: gate_is_near(rows.BLOCK + 1, 0.0)),
    ("open_ = (group < groups) & (member < members)", "open_ = group * members + member < 64", routes),
    ("number == expert, found", "number == expert, key", routes),
    ("key = key + tl", "key = key - tl", routes),
    ("open_ & (number != expert)", "open_", routes),
    ("high + next_", "high", ties_go_to_the_lowest),
    ("(member != at)", "(key != high)", ties_go_to_the_lowest),
    ("(open_ & (key == high), number, last)", "((key == high), number, last)", ties_go_to_the_lowest),
    (
        "return smallest(tl.where(open_ & (key == high), number, last))",
        "return largest(tl.where(open_ & (key == high), number, -1))",
        ties_go_to_the_lowest,
    ),
    ("total + 1e-20", "total + 1e-4", routes),
    ("shares * scale", "shares", routes),
    ("r * row + n)", "r * row + n - 1)", routes),
    ("1.0 / 7", "1.0 / 8", softplus_is_near),
    ("tl.where(x > 0, x, 0.0)", "x", softplus_is_near),
    ('return tl.where(key == key, key, float("inf"))', "return key", broken_logits_stay_in_range),
    ("range(1, used)", "range(1, used - 1)", lambda: mix_is_exact(8, WIDTH)),
    ("+ rank", "+ (used - rank)", lambda: mix_is_exact(8, WIDTH)),  # another order
    ("more * tl.load(weight + used)", "more", lambda: mix_is_exact(8, WIDTH)),
]


@pytest.mark.filterwarnings("ignore:All-NaN slice:RuntimeWarning")
@pytest.mark.parametrize(("old", "new", "check"), MUTANTS, ids=[old for old, _, _ in MUTANTS])
def test_a_wrong_program_is_seen(
    old: str, new: str, check: Callable[[], None], mutant: Mutant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "programs", mutant(programs_rows, old, new))
    with pytest.raises(AssertionError):
        check()
