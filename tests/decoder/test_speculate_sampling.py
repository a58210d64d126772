"""Sampling on a trained model: speculative output is plain output, whatever is drafted, rejected or penalised."""

from __future__ import annotations

import json
import random
from typing import Any

import click
import pytest
from torch import Tensor

from mtptools.checkpoint import open_checkpoint
from mtptools.cli.generate import command as generate
from mtptools.cli.main import main
from mtptools.decoder import rejection
from mtptools.decoder.acceptance import simulate
from mtptools.decoder.load import load_model
from mtptools.decoder.model import Model
from mtptools.decoder.mtp_head import Head
from mtptools.decoder.parity import compare
from mtptools.decoder.penalties import Dry, Penalties
from mtptools.decoder.run import compare_drafts
from mtptools.decoder.sampling import DRAFT_CHOICES, GREEDY, Sampling
from mtptools.decoder.speculate import ACCEPTANCE_RULES, decode_plain, decode_speculative
from mtptools.decoder.trunk import Trunk
from mtptools.errors import CorruptError, UsageError
from tests.decoder.conftest import FIXTURES

PATH = FIXTURES / "qwen35/gguf/model-BF16.gguf"
PROMPT = [70, 300, 12, 5, 77, 8, 9, 200, 31, 300, 12, 5, 77]
N = 24
PENALTIES = Penalties(1.1, 0.3, 0.2, last_n=16)
CHAINS = {
    "penalties and DRY": Sampling(1.0, seed=3, penalties=PENALTIES, dry=Dry(0.8, breakers=frozenset({8}))),
    "filters": Sampling(1.3, 40, 0.95, 0.02, seed=5),
    "greedy with penalties": Sampling(penalties=PENALTIES, dry=Dry(0.8, allowed_length=1)),
}


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model(open_checkpoint(PATH))


class Spoil:
    """Some drafts replaced by other tokens, some by the true ones: accepts and rejections at every place."""

    def __init__(self, text: list[int]) -> None:
        self.text, self.emitted, self.random = text, [], random.Random(2)  # type: ignore[var-annotated]

    def __call__(self, drafts: list[int], step: int) -> list[int]:
        true = self.text[len(self.emitted) :]
        return [t + 1 if self.random.random() < 0.3 else t for t, _ in zip(true, drafts, strict=False)]


@pytest.mark.parametrize("name", CHAINS)
def test_bits(name: str, model: Model) -> None:
    sampling = CHAINS[name]
    plain = decode_plain(model, PROMPT, N, sampling=sampling)
    assert plain.tokens != decode_plain(model, PROMPT, N).tokens
    accepted = rejected = 0
    for k, mode in ((1, "fast"), (2, "fast"), (3, "fast"), (3, "serial"), (5, "fast"), (8, "fast")):
        spoil = Spoil(plain.tokens)
        trace = decode_speculative(
            model, PROMPT, N, k, mode=mode, sampling=sampling, corrupt=spoil, on_tokens=spoil.emitted.extend
        )
        assert compare(plain, trace).equal, (k, mode)
        assert trace.tokens == plain.tokens
        accepted += sum(trace.drafts.accepted)
        rejected += trace.drafts.steps - 1
    assert min(accepted, rejected) > 10


@pytest.mark.parametrize("draft", DRAFT_CHOICES)
def test_any_draft_gives_the_same_text(draft: str, model: Model) -> None:
    """And what simulating the head says is what the loop counts."""
    for sampling in CHAINS.values():
        plain = decode_plain(model, PROMPT, N, sampling=sampling, keep_states=True)
        trace = decode_speculative(model, PROMPT, N, 3, sampling=sampling, draft=draft)
        assert compare(plain, trace).equal
        assert simulate(model.require_head(), plain, 3, sampling=sampling.for_drafts(draft)) == trace.drafts


def test_penalties_see_the_drafts_before(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """A history that lacks the tokens of the step at hand gives another text: the comparison above can fail."""
    from mtptools.decoder import speculate

    sampling = Sampling(penalties=Penalties(frequency=-1, last_n=6))  # repetition is wanted, and soon; no noise
    plain = decode_plain(model, PROMPT, 60, sampling=sampling)
    emitted: list[int] = []

    def decode() -> list[int]:
        emitted.clear()

        def true(drafts: list[int], number: int) -> list[int]:
            return plain.tokens[len(emitted) :][: len(drafts)]

        trace = decode_speculative(model, PROMPT, 60, 8, sampling=sampling, corrupt=true, on_tokens=emitted.extend)
        return trace.tokens

    verify, settle = speculate._verify_fast, speculate._Writer._settle
    step: list[int] = []

    def verifying(model: Model, cache: Any, drafts: Any, writer: Any) -> Any:
        step[:] = writer.text
        return verify(model, cache, drafts, writer)

    def stale(self: Any, logits: Any, proposal: Any) -> int:
        known, self.text = self.text, step or self.text
        token = settle(self, logits, proposal)
        self.text = known
        return token

    assert decode() == plain.tokens
    monkeypatch.setattr(speculate, "_verify_fast", verifying)
    monkeypatch.setattr(speculate._Writer, "_settle", stale)
    assert decode() != plain.tokens


def test_drafts_by_the_sampler_are_accepted_more(model: Model) -> None:
    """Three prompts of 40 tokens at temperature 1 with DRY: the head's argmax is seldom what was sampled."""
    prompts = [PROMPT, PROMPT[3:], PROMPT[5:]]
    sampling = Sampling(1.0, seed=1, dry=Dry(0.8))
    found = compare_drafts(model, prompts, sampling, (1, 2), 40)
    rates = {choice: found.drafts[choice][0].rate for choice in DRAFT_CHOICES}
    assert rates["sampler"] > rates["argmax"] + 0.1, rates
    assert found.prompts == 3
    assert json.loads(json.dumps(found.to_json()))["drafts"]["chain"][1]["k"] == 2


def test_rejection_accepts_more_than_match_and_stays_seeded(model: Model) -> None:
    sampling = Sampling(1.0, seed=4, dry=Dry(0.8))
    options: dict[str, Any] = {"sampling": sampling, "acceptance": "rejection"}
    for mode in ("fast", "serial"):
        traces = [decode_speculative(model, PROMPT, 40, 3, mode=mode, **options) for _ in range(2)]
        assert traces[0].tokens == traces[1].tokens
        assert 0 < sum(traces[0].drafts.accepted) < sum(traces[0].drafts.drafted)
    fast, serial = (decode_speculative(model, PROMPT, 40, 3, mode=mode, **options) for mode in ("fast", "serial"))
    assert compare(fast, serial).equal


@pytest.mark.parametrize("sampling", [GREEDY, CHAINS["greedy with penalties"]], ids=["greedy", "penalised"])
def test_rejection_without_temperature_is_greedy(sampling: Sampling, model: Model) -> None:
    plain = decode_plain(model, PROMPT, N, sampling=sampling)
    for draft in DRAFT_CHOICES:
        trace = decode_speculative(model, PROMPT, N, 3, sampling=sampling, acceptance="rejection", draft=draft)
        assert compare(plain, trace).equal


def test_rejection_takes_the_drafts_own_distribution(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """q is a distribution for drawn drafts and None for sure ones, and holds the draft."""
    from mtptools.decoder import speculate

    seen: list[rejection.Proposal] = []

    def settle(p: Any, proposal: rejection.Proposal | None, seed: int, position: int) -> int:
        seen.extend([proposal] if proposal else [])
        return rejection.settle(p, proposal, seed, position)

    monkeypatch.setattr(speculate, "settle", settle)
    for draft in DRAFT_CHOICES:
        seen.clear()
        decode_speculative(model, PROMPT, 12, 2, sampling=Sampling(1.0, top_k=8), acceptance="rejection", draft=draft)
        assert seen
        for proposal in seen:
            assert (proposal.q is None) == (draft != "sampler")
            if proposal.q is not None:
                assert (proposal.q > 0).sum() == 8
                assert proposal.q.sum() == pytest.approx(1)
                assert proposal.chance() > 0


@pytest.mark.parametrize("row", [0, 5])
def test_broken_trunk_is_named(row: int, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    honest, calls = Trunk.logits, [0]

    def broken(self: Trunk, *arguments: Any) -> Tensor:
        out = honest(self, *arguments).clone()
        if calls[0] == row:
            out[0, 7] = float("nan")
        calls[0] += 1
        return out

    monkeypatch.setattr(Trunk, "logits", broken)
    with pytest.raises(CorruptError, match=f"trunk's logits for token {len(PROMPT) + row} are not finite") as raised:
        decode_plain(model, PROMPT, 12)
    assert raised.value.where == str(model.where)
    assert raised.value.hint


def test_broken_head_is_named(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Head, "logits", lambda self, states, *rest: states * float("nan"))
    with pytest.raises(CorruptError, match=f"head's logits for the draft of token {len(PROMPT) + 1} are not finite"):
        decode_speculative(model, PROMPT, 12, 2)


@pytest.mark.parametrize(
    ("prompt", "n", "what"),
    [
        ([], 4, "the prompt is empty"),
        ([1, 10**6], 4, "the token id 1000000, the model knows 0 to"),
        ([1, -1], 4, "the token id -1"),
        ([1], 0, "0 tokens are nothing to decode"),
        ([1] * 100, 10**7, "a prompt of 100 tokens and 10000000 more do not fit"),
    ],
)
def test_what_cannot_be_decoded(prompt: list[int], n: int, what: str, model: Model) -> None:
    with pytest.raises(UsageError, match=what) as raised:
        decode_plain(model, prompt, n)
    assert raised.value.hint


@pytest.mark.parametrize("wrong", [{"acceptance": "typical"}, {"draft": "best"}], ids=str)
def test_unknown_rules(wrong: dict[str, str], model: Model) -> None:
    with pytest.raises(UsageError, match="no acceptance rule"):
        decode_speculative(model, PROMPT, 4, 2, **wrong)  # type: ignore[arg-type]


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, dict[str, Any]]:
    with pytest.raises(SystemExit) as stopped:
        main([str(argument) for argument in arguments])
    out = capsys.readouterr().out
    return int(stopped.value.code or 0), json.loads(out) if out else {}


def test_the_command_line_says_it_all(capsys: pytest.CaptureFixture[str]) -> None:
    chain = (
        *("--temperature", "1.1", "--top-k", "50", "--top-p", "0.9", "--min-p", "0.01", "--seed", "7"),
        *("--repetition-penalty", "1.2", "--presence-penalty", "0.3", "--frequency-penalty", "0.1"),
        *("--penalty-range", "9", "--dry-multiplier", "0.8", "--dry-base", "1.5", "--dry-allowed-length", "3"),
        *("--dry-range", "99"),
    )
    common = ("generate", PATH, "-p", "Once upon a time", "--tokens", "16", *chain, "--json")
    code, plain = run(capsys, *common)
    assert code == 0
    for draft in DRAFT_CHOICES:
        code, found = run(capsys, *common, "--k", "3", "--draft", draft)
        assert (found["text"], found["acceptance"]["draft"]) == (plain["text"], draft)
    code, other = run(capsys, *common, "--k", "3", "--acceptance", "rejection")
    assert other["acceptance"]["rule"] == "rejection"
    code, report = run(
        capsys, "verify", PATH, "--parity", "--limit", "1", "--tokens", "12", "--k", "2", *chain, "--json"
    )
    (sampled,) = report["decoder"]["sampled"]
    breakers = sampled["sampling"]["dry"].pop("breakers")
    assert breakers
    assert sampled["sampling"] == {
        "temperature": 1.1,
        "top_k": 50,
        "top_p": 0.9,
        "min_p": 0.01,
        "seed": 7,
        "penalties": {"repetition": 1.2, "presence": 0.3, "frequency": 0.1, "last_n": 9},
        "dry": {"multiplier": 0.8, "base": 1.5, "allowed_length": 3, "last_n": 99},
    }
    assert report["decoder"]["parity"]["equal"]
    assert list(sampled["drafts"]) == list(DRAFT_CHOICES)


def test_the_command_line_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    base = ("generate", PATH, "-p", "x", "--json")
    for wrong in (("--draft", "argmax"), ("--acceptance", "match"), ("--min-p", "2"), ("--dry-base", "0")):
        code, error = run(capsys, *base, *wrong)
        assert (code, error["error"]) == (2, "UsageError")
        assert error["hint"]
    assert run(capsys, "verify", PATH, "--temperature", "1", "--json")[1]["hint"] == "add --parity"


def test_the_command_line_knows_the_choices() -> None:
    choices = {o.name: tuple(o.type.choices) for o in generate.params if isinstance(o.type, click.Choice)}
    assert choices["draft"] == DRAFT_CHOICES
    assert choices["acceptance"] == ACCEPTANCE_RULES
