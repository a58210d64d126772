"""The table, the JSON and the picture of coverage."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

import numpy as np
import pytest

from mtptools.report.coverage import name_of, notes, render, to_json
from mtptools.vocab.counting import Counted
from mtptools.vocab.coverage import SIZES, Coverage, coverage
from mtptools.vocab.ranking import Ranking, chosen, rank

VOCABULARY = 150_000
WEIGHTS = {"unlike": 0.0}


@pytest.fixture(scope="module")
def counted() -> list[Counted]:
    """Two domains, and one that nobody asks for; shares 1/n over other orders of the tokens."""
    out = []
    for seed, name in enumerate(("code", "a very long name <of> a corpus & more", "unlike")):
        rng = np.random.default_rng(seed)
        used = 120_000 if seed < 2 else VOCABULARY
        shares = np.zeros(VOCABULARY)
        shares[rng.permutation(used)] = 1 / (1 + np.arange(used))
        shares /= shares.sum()
        out.append(Counted(name, rng.multinomial(2_000_000, shares), rng.multinomial(200_000, shares), 9, 9))
    return out


@pytest.fixture(scope="module")
def ranking(counted: list[Counted]) -> Ranking:
    return rank(counted, WEIGHTS, range(300), VOCABULARY)


def at(size: int, counted: list[Counted], ranking: Ranking) -> Coverage:
    return coverage(chosen(ranking, size), counted, WEIGHTS)


def test_table(counted: list[Counted], ranking: Ranking) -> None:
    own = at(69632, counted, ranking)
    text = render(own, [at(size, counted, ranking) for size in SIZES], ranking)
    lines = text.splitlines()
    assert all(len(line) <= 100 for line in lines)
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|")]
    assert cells[0] == ["held-out coverage", "tokens", "16k", "32k", "48k", "64k", "68k *", "96k"]
    assert [row[0] for row in cells[2:]] == ["code", "…of> a corpus & more", "(unlike)", "overall", "worst"]
    assert cells[2][6] == f"{own.domains[0].held:.2%}"
    assert cells[-1][6] == f"{min(own.domains[0].held, own.domains[1].held):.2%}", "of weight 0 is not asked"
    assert "* 69,632 of 150,000 tokens, 46.4%" in lines
    assert any(line.startswith("( ) of weight 0") for line in lines)


def test_table_of_one_domain_and_one_size() -> None:
    one = Counted("text", np.array([5, 3, 1, 0]), np.array([5, 3, 0, 1]), 1, 1)
    own = coverage(chosen(rank([one], {}, [], 4), 3), [one], {})
    lines = render(own).splitlines()
    assert [line.split("|")[1].strip() for line in lines[:4:2]] == ["held-out coverage", "text"]
    assert "overall" not in render(own)
    assert "( )" not in render(own)
    assert "| worst" in render(own)


def test_no_more_columns_than_fit(counted: list[Counted], ranking: Ranking) -> None:
    """The chosen size stays, and the ones nearest to it."""
    sizes = (*SIZES, 1024, 2048, 4096, 100_001)
    lines = render(at(3000, counted, ranking), [at(size, counted, ranking) for size in sizes]).splitlines()
    assert [cell.strip() for cell in lines[0].split("|")[3:-1]] == ["1k", "2k", "3000 *", "4k", "16k", "32k"]
    assert max(map(len, lines)) <= 100
    wide = Coverage(100_001, VOCABULARY, at(3000, counted, ranking).domains)
    lines = render(wide, [Coverage(100_001 + n, VOCABULARY, wide.domains) for n in range(9)]).splitlines()
    assert max(map(len, lines)) <= 100


def test_nearly_everything_is_not_everything() -> None:
    one = Counted("text", np.array([10**6, 1]), np.array([10**6, 1]), 1, 1)
    assert "| 99.99% |" in render(coverage(chosen(rank([one], {}, [], 2), 1), [one], {}))
    assert "| 100% |" in render(coverage(chosen(rank([one], {}, [], 2), 2), [one], {}))


def test_notes(counted: list[Counted], ranking: Ranking) -> None:
    small = at(1024, counted, ranking)
    lost = 1 - small.domains[0].held
    (line,) = notes(small, ranking)
    assert f"code {lost:.1%}" in line
    assert "unlike" in line, "weight 0 or not, it is text somebody has"
    large = notes(at(VOCABULARY, counted, ranking), ranking)
    assert large == [line for line in large if line.startswith(f"{VOCABULARY - ranking.seen:,} of the tokens occur")]
    assert large
    assert not notes(at(VOCABULARY, counted, ranking))


def test_json(counted: list[Counted], ranking: Ranking) -> None:
    own = at(65536, counted, ranking)
    data = json.loads(json.dumps(to_json(own, [at(size, counted, ranking) for size in SIZES], ranking)))
    assert data["schema"] == 1
    assert (data["size"], data["vocabulary"], data["kept"], data["seen"]) == (65536, VOCABULARY, 300, ranking.seen)
    assert [one["size"] for one in data["sizes"]] == list(SIZES)
    mine = data["sizes"][3]
    assert mine["overall"] == own.overall
    assert mine["worst"] == {"domain": own.worst.domain, "held": own.worst.held}
    assert mine["domains"][2]["weight"] == 0
    assert mine["domains"][0]["held"] == own.domains[0].held
    assert data["meets_target"] is (own.worst.held >= 0.995)
    assert to_json(own)["kept"] is None
    assert data["curve"] is None


def test_curve_in_json(counted: list[Counted], ranking: Ranking) -> None:
    own = at(65536, counted, ranking)
    found = json.loads(json.dumps(to_json(own, [], ranking, counted)["curve"]))
    sizes = found["sizes"]
    assert 90 <= len(sizes) <= 100
    assert (sizes[0], sizes[-1]) == (300, VOCABULARY)
    assert sizes == sorted(set(sizes))
    for n in (0, 40, 99):
        rows = at(sizes[n], counted, ranking).domains
        for row, curve in zip(rows, found["domains"], strict=True):
            assert (curve["domain"], curve["held"][n]) == (row.domain, pytest.approx(row.held))


def test_names_of_sizes() -> None:
    assert [name_of(n) for n in (65536, 69632, 47149, 1024, 512)] == ["64k", "68k", "47149", "1k", "512"]


def picture(counted: list[Counted], ranking: Ranking, size: int | None = 65536, kind: str = "svg") -> bytes:
    pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    from mtptools.report.coverage_plot import plot_coverage

    weights = WEIGHTS if any(one.domain in WEIGHTS for one in counted) else {}
    return plot_coverage(counted, ranking, weights, size, kind)


def texts(svg: bytes) -> list[str | None]:
    return [one.text for one in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_picture(counted: list[Counted], ranking: Ranking) -> None:
    svg = picture(counted, ranking)
    labels = texts(svg)
    for label in (
        "code",
        "a very long name <of> a corpus & more",
        "(unlike)",
        "65,536",
        "99.5% covered",
        "32k",
        "10 %",
    ):
        assert label in labels
    assert picture(counted, ranking) == svg
    assert picture(counted, ranking, 32768) != svg
    assert not re.search(rb"<dc:date>|\d{4}-\d\d-\d\dT|Matplotlib v", svg)
    assert picture(counted, ranking, kind="png").startswith(b"\x89PNG\r\n\x1a\n")
    assert "65,536" not in texts(picture(counted, ranking, None))


@pytest.mark.parametrize("size", [1, 3, 40])
def test_picture_of_a_small_vocabulary(size: int) -> None:
    one = Counted("文", np.arange(40), np.arange(40), 1, 1)
    ranking = rank([one], {}, [0], 40)
    assert "文" in texts(picture([one], ranking, size))
    assert picture([one], ranking, size, "png")


def test_picture_of_a_domain_without_a_loss() -> None:
    """Everything in it is kept: there is no logarithm of nothing."""
    one = Counted("text", np.array([9, 1, 0, 0]), np.array([9, 1, 0, 0]), 1, 1)
    assert "text" in texts(picture([one], rank([one], {}, [0, 1], 4), 3))


def test_many_domains() -> None:
    rng = np.random.default_rng(0)
    some = [Counted(f"kind {n}", rng.integers(0, 9, 500), rng.integers(0, 9, 500), 1, 1) for n in range(30)]
    ranking = rank(some, {}, [], 500)
    assert "kind 29" in texts(picture(some, ranking, 64))
    assert "kind 29" in render(coverage(chosen(ranking, 64), some, {}))
