"""Acceptance: counted, simulated, destroyed on purpose, and diagnosed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from mtptools.decoder.acceptance import Acceptance, first_hits, simulate, total
from mtptools.decoder.controls import ControlResult, diagnose, run_controls
from mtptools.decoder.drafter import Drafter
from mtptools.decoder.model import Model
from mtptools.decoder.mtp_head import Head
from mtptools.decoder.run import measure, verify_model
from mtptools.decoder.sampling import Sampling
from mtptools.decoder.speculate import decode_plain, decode_speculative
from mtptools.decoder.trace import DraftCounts
from mtptools.errors import UsageError

PROMPTS = [[7, 300, 12, 5], [77, 8, 9, 200, 31]]


@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(temperature=8.0, top_k=20, seed=5)], ids=["greedy", "sampled"]
)
@pytest.mark.parametrize(("moe", "depth"), [(False, 1), (True, 1), (False, 2)])
def test_simulation_counts_what_the_loop_counts(
    moe: bool, depth: int, sampling: Sampling, load: Callable[..., Model]
) -> None:
    model = load(moe, depth=depth)
    for prompt in PROMPTS:
        plain = decode_plain(model, prompt, 36, keep_states=True, sampling=sampling)
        for k in (1, 4):
            loop = decode_speculative(model, prompt, 36, k, sampling=sampling).drafts
            assert simulate(model.require_head(), plain, k, sampling=sampling) == loop
    assert 0 < sum(loop.accepted) < sum(loop.drafted)


def test_simulation_with_a_stop_token(load: Callable[..., Model]) -> None:
    model = load()
    stop = {decode_plain(model, PROMPTS[0], 20).tokens[13]}
    plain = decode_plain(model, PROMPTS[0], 20, keep_states=True, stop=stop)
    for k in (1, 3):
        assert (
            simulate(model.require_head(), plain, k) == decode_speculative(model, PROMPTS[0], 20, k, stop=stop).drafts
        )


def test_other_wirings_simulate_too(load: Callable[..., Model]) -> None:
    model = load()
    for changes in ({"recycle": "pre"}, {"tap": "pre"}, {"concat": "he"}, {"mask_first": True}):
        head = model.require_head().rewired(**changes)
        plain = decode_plain(model, PROMPTS[0], 30, keep_states=True)
        assert simulate(head, plain, 3) == decode_speculative(model.with_head(head), PROMPTS[0], 30, 3).drafts


def test_first_hits_are_the_first_drafts(load: Callable[..., Model]) -> None:
    """k = 1, restarted at every token, must find the same drafts."""
    model = load()
    plain = decode_plain(model, PROMPTS[0], 30, keep_states=True)
    hits = first_hits(model.require_head(), plain)
    assert len(hits) == 29
    one = simulate(model.require_head(), plain, 1)
    at, accepted = 0, 0  # walk the loop's own steps over the hits
    for _ in range(one.steps):
        if at >= 28:
            break
        accepted += bool(hits[at])
        at += 1 + bool(hits[at])
    assert accepted == one.accepted[0]


@pytest.mark.parametrize("recycle", ["post", "pre"])
def test_chained_drafts_continue_the_text(recycle: str, load: Callable[..., Model]) -> None:
    """Draft 3 is what one pass over all slots gives, with the head's own states and drafts in the last two."""
    model = load()
    head = model.require_head().rewired(recycle=recycle)
    ids = [7, 300, 12, 5, 77, 8, 9]
    with torch.inference_mode():
        states = model.trunk.forward(ids[:-1], model.trunk.new_cache()).post
        drafter = Drafter(head)
        drafter.observe(states, ids[1:])
        rows: list[torch.Tensor] = []
        drafts = drafter.draft(3, lambda row, at: rows.append(row) or int(row.argmax()))
        again = drafter.draft(3, lambda row, at: int(row.argmax()))
        assert again == drafts  # nothing of the first call is left
        for made in range(3):
            post, recycled = head.step(0, states, [*ids[1:], *drafts[:made]], head.layers[0].block.new_cache(), 0)
            assert torch.equal(head.logits(post[-1:])[0], rows[made])
            states = torch.cat((states, recycled[-1:]))


def test_the_first_slot_can_be_masked(load: Callable[..., Model]) -> None:
    head = load().require_head()
    states = torch.randn((2, 256), generator=torch.Generator().manual_seed(0))

    def run(head: Head, tokens: list[int]) -> torch.Tensor:
        return head.step(0, states, tokens, head.layers[0].block.new_cache(), 0)[0]

    masked = head.rewired(mask_first=True)
    assert torch.equal(run(masked, [5, 6]), run(masked, [99, 6]))
    assert not torch.equal(run(masked, [5, 6]), run(head, [5, 6]))
    assert not torch.equal(run(masked, [5, 6]), run(masked, [5, 7]))


def test_figures() -> None:
    counts = DraftCounts()
    for drafted, accepted in ((3, 3), (3, 1), (3, 0), (2, 2), (0, 0)):
        counts.add(drafted, accepted)
    found = total(3, [counts, DraftCounts()])
    assert found == Acceptance(3, (4, 4, 3), (3, 2, 1), 5, 11)
    assert found.per_position == (3 / 4, 2 / 4, 1 / 3)
    assert found.conditional == (3 / 4, 2 / 3, 1 / 2)
    assert found.rate == 6 / 11
    assert found.mean_length == 11 / 5
    assert json.loads(json.dumps(found.to_json()))["mean_length"] == 2.2
    assert total(2, []).mean_length == 0


def swapped(head: Head) -> Head:
    return replace(head, layers=tuple(layer.swapped() for layer in head.layers))


def without_one(head: Head) -> Head:
    return replace(head, layers=tuple(layer.shifted(-1.0) for layer in head.layers))


def zeroed(head: Head) -> Head:
    return replace(head, layers=tuple(replace(layer, fuse=torch.zeros_like(layer.fuse)) for layer in head.layers))


@pytest.mark.parametrize(
    ("broken", "named"),
    [
        (swapped, "the halves of eh_proj swapped"),
        (without_one, "1 added to every norm"),
        (zeroed, "no control explains"),
    ],
)
def test_a_broken_head_keeps_parity_and_loses_acceptance(
    broken: Callable[[Head], Head], named: str, load: Callable[..., Model]
) -> None:
    model = load()
    bad = model.with_head(broken(model.require_head()))
    report = verify_model(bad, PROMPTS, (1, 2), 40)
    baseline = measure(model, PROMPTS, (1, 2), 40)
    assert report.parity_ok
    assert report.acceptance[0].per_position[0] < 0.2 < 0.5 < baseline[0].per_position[0]
    assert report.diagnosis is not None
    assert named in report.diagnosis


def test_controls_hurt_or_say_they_cannot(load: Callable[..., Model]) -> None:
    """The toy's head hardly reads the trunk's state: the controls on it must say that they have no power."""
    model = load()
    report = verify_model(model, PROMPTS, (2,), 60)
    verdicts = {result.name: result.verdict for result in report.controls}
    for name in ("swapped halves", "shifted token", "norms without +1"):
        assert verdicts[name] == "hurts", report.controls
    assert "helps" not in verdicts.values()
    assert set(report.powerless) == {r.name for r in report.controls if r.must_hurt and r.verdict == "no power"}
    assert report.diagnosis is None


def test_diagnosis_needs_a_clear_gain() -> None:
    def result(acceptance: float, base: float, verdict: str) -> ControlResult:
        return ControlResult("x", "the halves of eh_proj swapped", acceptance, base, 0, 9, verdict)

    assert diagnose([]) is None
    assert diagnose([result(0.75, 0.7, "helps")]) is None
    assert diagnose([result(0.4, 0.3, "no power")]) is None
    assert "no control explains" in str(diagnose([result(0.09, 0.05, "no power")]))
    assert "acceptance of the first draft is 71%" in str(diagnose([result(0.71, 0.02, "helps")]))
    assert "no control explains" in str(diagnose([result(0.11, 0.0, "helps")]))
    assert run_controls.__doc__


def test_report_is_plain_json(load: Callable[..., Model]) -> None:
    seen: list[str] = []
    model = load()
    report = verify_model(model, PROMPTS, (1,), 8, modes=("fast", "serial"), progress=seen.append)
    data = json.loads(json.dumps(report.to_json()))
    assert data["parity"]["equal"]
    assert len(data["parity"]["arms"]) == 2 * 2 * 2  # prompts, samplings, modes
    assert [one.to_json() for one in measure(model, PROMPTS, (1,), 8)] == report.to_json()["acceptance"]
    assert data["fingerprint"]["arithmetic"] == "cpu: float32 in tiles of 1, other dtypes in tiles of 8"
    assert report.first_difference() is None
    assert seen[-1] == "controls"
    assert measure(model, PROMPTS, (1,), 8) == report.acceptance


def test_nothing_to_verify(load: Callable[..., Model]) -> None:
    for prompts, ks, n in (([], (1,), 8), (PROMPTS, (), 8), (PROMPTS, (0,), 8), (PROMPTS, (1,), 1)):
        with pytest.raises(UsageError):
            verify_model(load(), prompts, ks, n)
    with pytest.raises(UsageError, match="kept no trunk states"):
        simulate(load().require_head(), decode_plain(load(), [1], 3), 1)


def test_mismatch_is_reported_with_its_size(load: Callable[..., Model], monkeypatch: pytest.MonkeyPatch) -> None:
    """verify_model decodes once more and keeps the logits where the arms part."""
    from mtptools.decoder import speculate

    honest = speculate._verify_fast

    def crooked(model: Model, cache: object, drafts: list[int], writer: object) -> object:
        states = honest(model, cache, drafts, writer)
        cache.layers[0].state.memory.mul_(1.01)
        return states

    monkeypatch.setattr(speculate, "_verify_fast", crooked)
    report = verify_model(load(), PROMPTS[:1], (2,), 12, samplings=(Sampling(),), controls=False)
    found = report.first_difference()
    assert not report.parity_ok
    assert found is not None
    assert found.max_difference is not None
    assert found.max_difference > 0
    assert found.margin is not None
