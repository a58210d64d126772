"""Heads tried on one trunk: the counts of the real loop, errors as they come out in fact, and the choice."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from functools import partial
from math import inf, sqrt
from pathlib import Path

import numpy as np
import pytest

from fixtures import permutation
from mtptools import decoder
from mtptools.checkpoint import Checkpoint, open_checkpoint
from mtptools.decoder.acceptance import total
from mtptools.decoder.load import load_model, with_head
from mtptools.decoder.model import Model
from mtptools.decoder.packed import Packed
from mtptools.decoder.run import verify_model
from mtptools.decoder.sampling import GREEDY
from mtptools.decoder.sweep import (
    FEW,
    PAIRED,
    Measured,
    difference_error,
    freedom,
    length_error,
    measure_head,
    passages,
    plain_traces,
)
from mtptools.decoder.trace import DraftCounts, Trace
from mtptools.errors import CorruptError, IncompatibleError, UsageError
from mtptools.ops.quantize import quantize
from mtptools.ops.roofline import Part, Traffic, traffic
from mtptools.ops.style import Style
from mtptools.plan import Plan
from mtptools.preview import preview
from mtptools.report.chance import t_quantile
from mtptools.report.choice import AS_IT_IS, LEVEL, Tried, choose
from mtptools.views import computed
from mtptools.writer import write
from tests.decoder import quantizers
from tests.decoder.quantized_models import quantized
from tests.decoder.test_quantized_mlx import mlx_arrays
from tests.random_checkpoints import Checkpoints

PROMPTS = [[7, 300, 12, 5], [77, 8, 9, 200, 31], [1000, 40]]
TOKENS = 40


@pytest.fixture
def source(trained: Path) -> Checkpoint:
    return open_checkpoint(trained / "gguf" / "model-BF16.gguf")


def plan_of(source: Checkpoint, kind: str | None, own_output: str | None = None) -> Plan:
    return quantize(source, "out.gguf", Style.asked(kind, own_output=own_output))


@pytest.mark.parametrize(("kind", "own"), [("Q8_0", None), ("Q4_K_M", None), ("Q2_K", "Q4_K")])
def test_counts_are_those_of_the_written_file(source: Checkpoint, kind: str, own: str | None, tmp_path: Path) -> None:
    """What `verify` counts in the real loop on the file that the same options write."""
    plan = plan_of(source, kind, own)
    write(plan, tmp_path / "out.gguf")
    written = load_model(open_checkpoint(tmp_path / "out.gguf"))
    model = load_model(source)
    traces = plain_traces(model, PROMPTS, TOKENS)
    head = with_head(model, preview(plan, source)).require_head()
    report = verify_model(written, PROMPTS, (3,), TOKENS, samplings=(GREEDY,), controls=False)
    found = measure_head(head, traces, 3)
    assert found.acceptance == report.acceptance[0]
    assert 1 < found.mean_length < 4


@pytest.mark.parametrize(
    ("stored", "asked"), [("mlx", "mlx-affine-g64b4"), ("hf-FP8", "BF16"), ("hf-FP8", "fp8-block128")]
)
def test_counts_of_a_folder(stored: str, asked: str, tmp_path: Path) -> None:
    """Encodings whose codes and scales are tensors of their own, and configurations that must name them."""
    source = open_checkpoint(mlx_folder(tmp_path) if stored == "mlx" else hf_folder(tmp_path, stored))
    plan = quantize(source, "out", Style.asked(asked))
    write(plan, tmp_path / "out")
    written = load_model(open_checkpoint(tmp_path / "out"))
    model = load_model(source)
    found = measure_head(
        with_head(model, preview(plan, source)).require_head(), plain_traces(model, PROMPTS[:2], 20), 2
    )
    report = verify_model(written, PROMPTS[:2], (2,), 20, samplings=(GREEDY,), controls=False)
    assert found.acceptance == report.acceptance[0]
    assert traffic(preview(plan, source)) == traffic(open_checkpoint(tmp_path / "out"))


def hf_folder(root: Path, stored: str) -> Path:
    return Checkpoints(root / "models").get("qwen35moe", stored, echo=0.1)


def mlx_folder(root: Path) -> Path:
    """Every matrix in 8 bits."""
    config = permutation.config("qwen35moe")
    matrices = mlx_arrays("qwen35moe", permutation.tensors("qwen35moe"), config)
    eight = partial(quantizers.mlx_affine, bits=8)
    stored, _ = quantized(matrices, lambda name, a: eight if a.ndim > 1 and "conv1d" not in name else None)
    stated = config | {"quantization": {"group_size": 64, "bits": 8}}
    return quantizers.write(root / "mlx", stored, stated, "mlx")


def test_nothing_of_the_trunk_is_loaded_again(source: Checkpoint) -> None:
    model = load_model(source)
    other = with_head(model, preview(plan_of(source, "Q8_0", "Q4_K"), source))
    assert other.trunk is model.trunk
    assert other.require_head().layers[0].embed is model.trunk.embed
    assert other.require_head().layers[0].output is not model.trunk.output
    assert with_head(model, source).require_head().layers[0].output is model.trunk.output


def test_matrices_are_held_as_the_trunks_are(source: Checkpoint) -> None:
    """Where the model does not fit, heads do not either; what they draft is the same."""
    plan = plan_of(source, "Q4_K")
    loaded, packed = (load_model(source, weights=how) for how in ("loaded", "stored"))
    heads = [with_head(model, preview(plan, source)).require_head() for model in (loaded, packed)]
    assert isinstance(next(iter(heads[1].layers[0].block.matrices()))[1], Packed)
    traces = plain_traces(loaded, PROMPTS[:1], 12)
    assert measure_head(heads[0], traces, 2) == measure_head(heads[1], traces, 2)


def test_another_models_head_is_refused(source: Checkpoint) -> None:
    other = "qwen35" if source.family.name == "qwen35moe" else "qwen35moe"
    path = source.path.parents[2] / other / "gguf" / "model-BF16.gguf"
    with pytest.raises(IncompatibleError, match="another model"):
        with_head(load_model(source), open_checkpoint(path))


def test_nothing_to_decode(source: Checkpoint) -> None:
    model = load_model(source)
    for prompts, tokens in (([], 9), (PROMPTS, 2)):
        with pytest.raises(UsageError, match="needs a prompt and at least 3 tokens"):
            plain_traces(model, prompts, tokens)


def destroyed(source: Checkpoint, value: float) -> Checkpoint:
    """With every value of the head's fusion the same."""
    name = next(name for name in source if name.endswith("eh_proj.weight"))
    shape = source[name].shape
    flat = computed(name, shape, "F32", lambda start, stop: np.full((stop - start, shape[-1]), value, np.float32))
    return replace(source, tensors={**source.tensors, name: flat})


def test_a_destroyed_head_is_not_chosen(source: Checkpoint) -> None:
    """It would be the smallest of all; damage that is not a number is not measured at all."""
    model = load_model(source)
    traces = plain_traces(model, PROMPTS, TOKENS)
    own = Tried(AS_IT_IS, False, traffic(source), measure_head(model.require_head(), traces, 3))
    broken = measure_head(with_head(model, destroyed(source, 0.0)).require_head(), traces, 3)
    assert broken.mean_length < 1.2
    small = Tried("zeros", False, Traffic(own.traffic.trunk, (Part(1),), (1,), 2, 0, 0), broken)
    choice = choose([own, small], 0.01)
    assert (choice.chosen, choice.unsettled, choice.alike) == (own, (), False)
    with pytest.raises(CorruptError, match="not finite"):
        with_head(model, destroyed(source, float("nan")))


def counted(hits: list[int], k: int = 3) -> DraftCounts:
    out = DraftCounts()
    for one in hits:
        out.add(k, one)
    return out


def test_error_of_a_mean_length() -> None:
    """Counts per position hold all of the spread of lengths."""
    rng = np.random.default_rng(1)
    for steps in (2, 3, 50):
        hits = [int(n) for n in rng.integers(0, 4, steps)]
        wanted = np.std([1 + n for n in hits], ddof=1) / sqrt(steps)
        assert length_error(total(3, [counted(hits)])) == pytest.approx(wanted)
    assert length_error(total(3, [counted([2, 2, 2])])) == 0
    assert length_error(total(3, [counted([2])])) == inf


@pytest.mark.parametrize("shared", [0.0, 0.9])
def test_error_of_a_difference_is_what_it_says(shared: float) -> None:
    """Against the spread that many drawings have in fact: of heads that hit apart, and of heads that hit together."""
    rng, prompts, steps = np.random.default_rng(2), 12, 20
    differences, errors = [], []
    for _ in range(1500):
        ours, theirs = [], []
        for chance in rng.uniform(0.3, 0.9, prompts):  # texts differ in how hard they are
            first, other = rng.binomial(3, chance, steps), rng.binomial(3, chance, steps)
            ours.append(counted(first.tolist()))
            theirs.append(counted(np.where(rng.random(steps) < shared, first, other).tolist()))
        one, two = Measured(3, tuple(ours)), Measured(3, tuple(theirs))
        differences.append(one.mean_length - two.mean_length)
        errors.append(difference_error(one, two) ** 2)
    assert sqrt(np.mean(errors)) == pytest.approx(np.std(differences), rel=0.08)


def test_error_of_clustered_steps_is_what_it_says() -> None:
    """Steps of one prompt are alike: taken as independent, the error would be a third of what it is."""
    rng, prompts, steps = np.random.default_rng(3), 12, 40
    lengths, errors = [], []
    for _ in range(1000):
        chances = rng.choice([0.1, 0.9], prompts)
        one = Measured(3, tuple(counted(rng.binomial(3, chance, steps).tolist()) for chance in chances))
        lengths.append(one.mean_length)
        errors.append(one.error**2)
    assert sqrt(np.mean(errors)) == pytest.approx(np.std(lengths), rel=0.08)
    assert length_error(one.acceptance) < 0.4 * one.error


def test_errors_of_few_prompts() -> None:
    parts = [counted([3, 0, 1, 2] * 6), counted([0, 0, 1] * 6)]
    one, two = Measured(3, tuple(parts)), Measured(3, tuple(reversed(parts)))
    assert len(parts) < PAIRED
    assert one.error == length_error(one.acceptance)
    assert difference_error(one, two) == pytest.approx(sqrt(2 * one.error**2 + 42**-2))
    assert (freedom(one, two), freedom(*[Measured(3, tuple(parts * 3))] * 2)) == (41, 5)


def test_nothing_is_certain() -> None:
    """Heads that did the same may differ by a step elsewhere; that a few steps are all alike says nothing."""
    alike = Measured(3, (counted([2] * 10),) * 6)
    assert (alike.error, difference_error(alike, alike)) == (0, pytest.approx(1 / 60))
    for parts in (1, 4):
        few = Measured(3, (counted([2] * 7),) * parts)
        assert few.acceptance.steps < FEW
        assert (few.error, difference_error(few, few)) == (inf, inf)
    own, other = (replace(tried(name, size, [2]), measured=few) for name, size in ((AS_IT_IS, 9), ("Q4_K", 5)))
    choice = choose([own, other], 0.01)
    assert (choice.chosen, choice.unsettled, choice.settled) == (other, (other,), False)


@pytest.mark.parametrize(
    ("freedom", "quantiles"),
    [  # printed tables: one-sided 0.95, 0.995, 0.9995
        (1, (6.314, 63.657, 636.619)),
        (2, (2.920, 9.925, 31.599)),
        (3, (2.353, 5.841, 12.924)),
        (7, (1.895, 3.499, 5.408)),
        (30, (1.697, 2.750, 3.646)),
        (1000, (1.646, 2.581, 3.300)),
    ],
)
def test_students_t(freedom: int, quantiles: tuple[float, ...]) -> None:
    for level, wanted in zip((0.1, 0.01, 0.001), quantiles, strict=True):
        assert t_quantile(freedom, level) == pytest.approx(wanted, abs=6e-4)


@pytest.mark.parametrize("prompts", [2, 4, 8, 30])
def test_types_that_are_equally_good(prompts: int) -> None:
    """Eight that differ from what they were made from by luck alone: seldom is one taken for better, or for other."""
    rng, shape = np.random.default_rng(prompts), (prompts, 25, 3)
    switched, told, times = 0, 0, 300
    for _ in range(times):
        chance = rng.uniform(0.55, 0.85, (prompts, 1, 1))
        common = rng.random(shape) < chance
        drawn = [np.where(rng.random(shape) < 0.24, rng.random(shape) < chance, common) for _ in range(9)]
        heads = []
        for number, right in enumerate(drawn):
            hits = np.cumprod(right, axis=2).sum(axis=2)
            one = tried(f"T{number}" if number else AS_IT_IS, 100 - number, [2])
            heads.append(replace(one, measured=Measured(3, tuple(counted(row.tolist()) for row in hits))))
        choice = choose(heads, 0.01)
        switched += choice.reference is not heads[0]
        told += not choice.alike
    assert switched <= 0.02 * times
    assert told <= 0.03 * times


def test_the_decoder_reaches_no_name_map() -> None:
    """Not through another module either: one mistake would hide the other."""
    names = [path.stem for path in Path(decoder.__file__).parent.glob("[a-z]*.py")]
    assert "sweep" in names
    code = f"import sys\nfrom mtptools.decoder import {', '.join(names)}\nsys.exit('mtptools.head' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def tried(name: str, size: int, hits: list[int], *, head: int = 0) -> Tried:
    """A head that got the same in each of six prompts, but for one step of the last."""
    counts = [counted(hits)] * 5 + [counted([*hits[:-1], 3 - hits[-1]])]
    return Tried(name, False, Traffic(Part(1000), (Part(size),), (0,), head or size, 0, 0), Measured(3, tuple(counts)))


def test_the_smallest_within_the_tolerance() -> None:
    own, good, bad = tried(AS_IT_IS, 90, [3] * 40), tried("Q4_K", 40, [3] * 39 + [2]), tried("Q2_K", 20, [2] * 40)
    for order in ([own, good, bad], [own, bad, good]):
        choice = choose(order, 0.01)
        assert (choice.chosen, choice.reference, choice.best) == (good, own, own)
        assert choice.away(good)[0] == good.measured.mean_length - own.measured.mean_length < 0
        assert choice.away(own) == (0.0, 0.0)
        assert not choice.alike
    assert choose([own, good, bad], 0).chosen is own
    assert choose([own, good, bad], 0.3).chosen is bad


def test_ties() -> None:
    """By the file where drafts read the same, then by what it got; what is there already before what is the same."""
    own = tried(AS_IT_IS, 40, [3] * 40, head=60)
    large, small = tried("A", 40, [3] * 40, head=70), tried("B", 40, [3] * 40, head=50)
    assert choose([own, large, small], 0.01).chosen is small
    better = replace(small, name="C", measured=own.measured)
    worse = replace(small, name="A", measured=tried("", 1, [3] * 39 + [2]).measured)
    assert choose([own, worse, better], 0.5).chosen is better
    assert choose([own, tried("A", 40, [3] * 40, head=60)], 0.01).chosen is own


def test_luck_is_not_the_measure() -> None:
    """Of many types one will seem better than what it was made from; only more than chance makes it the measure."""
    own = tried(AS_IT_IS, 90, [2] * 40)
    rng = np.random.default_rng(4)
    noisy = [counted(np.clip(2 + rng.integers(-1, 2, 40), 0, 3).tolist()) for _ in range(6)]
    lucky = replace(tried("Q8_0", 50, [2]), measured=Measured(3, tuple(noisy)))
    error = difference_error(lucky.measured, own.measured)
    better = lucky.measured.mean_length - own.measured.mean_length
    assert 0 < better < t_quantile(5, LEVEL) * error, "the drawing is such"
    choice = choose([own, lucky], 0.01)
    assert (choice.best, choice.reference, choice.alike) == (lucky, own, True)
    far = tried("F32", 95, [3] * 40)
    assert choose([own, far], 0.01).reference is far


def test_what_is_not_settled_is_named() -> None:
    """A smaller head that fell short by less than its error; a larger one does not decide anything."""
    own, fine = tried(AS_IT_IS, 90, [2] * 40), tried("Q6_K", 60, [2] * 40)
    rng = np.random.default_rng(4)
    noisy = tuple(counted((3 * (rng.random(40) < 0.64)).tolist()) for _ in range(6))
    near = replace(tried("Q4_K", 40, [2]), measured=Measured(3, noisy))
    large = replace(near, name="Q5_K", traffic=Traffic(Part(1000), (Part(70),), (0,), 70, 0, 0))
    short = choose([own, fine, near, large], 0.01)
    assert near.measured.mean_length < short.wanted, "the drawing is such"
    assert (short.chosen, short.unsettled, short.settled) == (fine, (near,), True)
    lucky = replace(near, measured=Measured(3, tuple(counted((3 * (rng.random(40) < 0.7)).tolist()) for _ in range(6))))
    within = choose([own, fine, lucky], 0.01)
    assert (within.chosen, within.unsettled, within.settled) == (lucky, (lucky,), False)


def test_passages_are_spread() -> None:
    texts = [list(range(1000)), [], list(range(5000, 5300)), [1, 2]]
    pieces = passages(texts, 100, 5)
    assert [piece[0] for piece in pieces] == [100, 400, 700, 900, 5200]
    assert all(len(piece) == 100 for piece in pieces)
    every = passages(texts, 100, 99)
    assert [piece[0] for piece in every] == [*range(0, 1000, 100), 5000, 5100, 5200, 1]
    assert passages([[4, 5]], 100, 8, [0]) == [[0, 4, 5]]
    assert passages([[]], 100, 8) == []


def test_a_trace_without_states_is_refused(source: Checkpoint) -> None:
    model: Model = load_model(source)
    with pytest.raises(UsageError, match="kept no trunk states"):
        measure_head(model.require_head(), [Trace([1], 9, [2, 3, 4, 5])], 2)
