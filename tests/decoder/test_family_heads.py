"""Heads of every family against transformers, on random weights: logits, every draft, and faults that must show."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch

from mtptools.checkpoint import open_checkpoint
from mtptools.decoder.drafter import Drafter
from mtptools.decoder.load import load_model
from mtptools.decoder.model import Model
from mtptools.decoder.mtp_head import Head
from mtptools.decoder.speculate import decode_plain, decode_speculative
from tests.decoder import oracle
from tests.random_checkpoints import Checkpoints

pytest.importorskip("transformers", reason="needs transformers: pip install 'mtptools[dev]'")
pytestmark = [pytest.mark.filterwarnings("default")]

TOLERANCE = 2e-4
"""Of logits that spread by 2; the largest difference found is 7.7e-5, of the second layer of deepseekv3."""
SHOWS = 50 * TOLERANCE
PROMPT = oracle.IDS[:40]
TOKENS = 40
ECHO = 0.1

LOGITS = [
    *[
        (kind, depth, stored)
        for kind in ("glm4moe", "deepseekv3")
        for depth in (1, 2, 3)
        for stored in ("hf-F32", "F32")
    ],
    *[(kind, 1, stored) for kind in ("qwen35", "qwen35moe", "qwen3next") for stored in ("hf-F32", "F32")],
    *[(kind, 2, "hf-F32") for kind in ("glm4air", "glm4bare", "deepseekv3full", "deepseekv3halves")],
    *[("glm4lite", 2, stored) for stored in ("hf-F32", "F32")],
]
DRAFTS = [(kind, depth, ECHO) for kind in ("deepseekv3", "glm4moe") for depth in (1, 2, 3)]
DRAFTS += [("deepseekv3", 3, None), ("glm4moe", 2, None)]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    return Checkpoints(tmp_path_factory.mktemp("heads"))


@pytest.fixture(scope="module")
def load(checkpoints: Checkpoints) -> Callable[..., Model]:
    @cache
    def get(kind: str, depth: int, stored: str = "hf-F32", echo: float | None = None) -> Model:
        path = checkpoints.get(kind, stored, depth=depth, echo=echo)
        return load_model(open_checkpoint(path), wiring=oracle.wiring(kind), check=False)

    return get


@pytest.fixture(scope="module")
def theirs(checkpoints: Checkpoints) -> Callable[..., list[torch.Tensor]]:
    """Logits [slots, vocab] of each layer of the library's head, over PROMPT."""

    @cache
    def get(kind: str, depth: int) -> list[torch.Tensor]:
        model = oracle.trunk(kind, checkpoints.get(kind, depth=depth), depth)
        return oracle.head_logits(model, oracle.head(kind, model, depth), PROMPT)

    return get


@torch.inference_mode()
def head_logits(model: Model, head: Head) -> Iterator[torch.Tensor]:
    """Ours: layer j on the states of layer j - 1, as one pass over the text."""
    states = model.trunk.forward(PROMPT, model.trunk.new_cache()).tap(head.wiring.tap)
    for j, layer in enumerate(head.layers):
        slots = len(PROMPT) - 1 - j
        post, states = head.step(j, states[:slots], PROMPT[j + 1 :], layer.block.new_cache(), j)
        yield head.logits(post, j)


def furthest(got: Iterator[torch.Tensor], wanted: list[torch.Tensor]) -> float:
    return max(float((ours - other).abs().max()) for ours, other in zip(got, wanted, strict=True))


@pytest.mark.parametrize(("kind", "depth", "stored"), LOGITS)
def test_head_logits(
    kind: str, depth: int, stored: str, load: Callable[..., Model], theirs: Callable[..., list[torch.Tensor]]
) -> None:
    model = load(kind, depth, stored)
    wanted = theirs(kind, depth)
    got = list(head_logits(model, model.require_head()))
    assert furthest(iter(got), wanted) < TOLERANCE
    drafter = Drafter(model.require_head())
    with torch.inference_mode():
        drafter.observe(model.trunk.forward(PROMPT[:-1], model.trunk.new_cache()).post, PROMPT[1:])
        assert torch.equal(drafter.head.logits(drafter.ready[0])[0], got[0][-1])


CHANGES: dict[str, tuple[int, Callable[[Head], Head]]] = {
    "halves of the fusion exchanged": (1, lambda head: head.rewired(concat="he")),
    "tap before the final norm": (1, lambda head: head.rewired(tap="pre")),
    "first slot masked": (1, lambda head: head.rewired(mask_first=True)),
    "recycled before the norm": (2, lambda head: head.rewired(recycle="pre")),
    "norms one too many": (1, lambda head: Head(tuple(one.shifted(1) for one in head.layers), *_rest(head))),
    "layers exchanged": (2, lambda head: Head(head.layers[::-1], *_rest(head))),
}


def _rest(head: Head) -> tuple[Any, ...]:
    return head.wiring, head.eps, head.arithmetic


DEPTHS = {"qwen3next": 1, "qwen35": 1, "glm4moe": 2, "glm4lite": 2, "deepseekv3": 2}


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for name, (needed, _) in CHANGES.items() for kind, depth in DEPTHS.items() if needed <= depth],
)
def test_a_wrong_head_shows(
    kind: str, name: str, load: Callable[..., Model], theirs: Callable[..., list[torch.Tensor]]
) -> None:
    model = load(kind, DEPTHS[kind])
    head = CHANGES[name][1](model.require_head())
    assert furthest(head_logits(model, head), theirs(kind, DEPTHS[kind])) > SHOWS


@pytest.mark.parametrize("masked", [False, True])
def test_mimo_head(masked: bool, checkpoints: Checkpoints, load: Callable[..., Model]) -> None:
    """The hand formula around transformers' Qwen2 layer, and every other wiring of ours away from it."""
    path = checkpoints.get("mimo")
    wanted = [oracle.mimo_head_logits(oracle.trunk("mimo", path), path, PROMPT, masked=masked)]
    model = load("mimo", 1)
    head = model.require_head().rewired(mask_first=masked)
    assert furthest(head_logits(model, head), wanted) < TOLERANCE
    for changes in ({"concat": "eh"}, {"tap": "post"}, {"mask_first": not masked}):
        assert furthest(head_logits(model, head.rewired(**changes)), wanted) > SHOWS


# --- drafts of generate(use_mtp=True) ----------------------------------------------------------------------------


@dataclass
class Generated:
    """tokens: the text; steps: (tokens known, drafts), one a step."""

    tokens: list[int]
    steps: list[tuple[int, list[int]]]


@pytest.fixture(scope="module")
def generated(checkpoints: Checkpoints) -> Callable[..., Generated]:
    @cache
    def get(kind: str, depth: int, echo: float | None) -> Generated:
        model = oracle.trunk(kind, checkpoints.get(kind, depth=depth, echo=echo), depth)
        ids = torch.tensor([PROMPT])
        settings = {"max_new_tokens": TOKENS, "do_sample": False, "attention_mask": torch.ones_like(ids)}
        with oracle.drafting() as log:
            tokens = model.generate(ids, use_mtp=True, **settings)[0].tolist()
        assert tokens == model.generate(ids, **settings)[0].tolist()
        return Generated(tokens, log)

    return get


@torch.inference_mode()
def drafted(model: Model, head: Head, found: Generated, depth: int) -> list[list[int]]:
    """Our drafts at each of the library's steps, by one drafter that goes along with the text."""
    states = model.trunk.forward(found.tokens, model.trunk.new_cache()).tap(head.wiring.tap)
    drafter, seen, out = Drafter(head), 1, []
    for known, _ in found.steps:
        drafter.observe(states[seen - 1 : known - 1], found.tokens[seen:known])
        seen = known
        out.append(drafter.draft(depth, lambda row, _: int(row.argmax())))
    return out


@pytest.mark.parametrize(
    ("kind", "depth", "echo", "stored"),
    [*((*case, "hf-F32") for case in DRAFTS), ("deepseekv3", 3, ECHO, "F32"), ("glm4moe", 3, ECHO, "F32")],
)
def test_every_draft(
    kind: str,
    depth: int,
    echo: float | None,
    stored: str,
    load: Callable[..., Model],
    generated: Callable[..., Generated],
) -> None:
    found = generated(kind, depth, echo)
    model = load(kind, depth, stored, echo)
    head = model.require_head().rewired(recurrence="exact")
    assert drafted(model, head, found, depth) == [drafts for _, drafts in found.steps]
    assert all(len(drafts) == depth for _, drafts in found.steps)
    text = found.tokens[len(PROMPT) :]
    assert decode_plain(model, PROMPT, TOKENS).tokens == text
    trace = decode_speculative(model.with_head(head), PROMPT, TOKENS, depth)
    assert trace.tokens == text
    right = [
        next((n for n, (a, b) in enumerate(zip(drafts, found.tokens[known:], strict=False)) if a != b), depth)
        for known, drafts in found.steps
    ]
    if echo is None:
        assert sum(right) <= 3
    else:  # of both, or neither accepting nor rejecting is tested
        assert 5 < sum(right) < depth * len(right) - 3
        # The last step of ours drafts no more than can be emitted.
        assert sum(trace.drafts.accepted) == pytest.approx(sum(right), abs=depth)


WRONG_DRAFTS = [
    (1, {"concat": "he"}),
    (1, {"tap": "pre"}),
    (1, {"mask_first": True}),
    (2, {"recycle": "pre"}),
    (2, {"recurrence": "first"}),
    (3, {"recycle": "pre"}),
    (3, {"recurrence": "cycle"}),
    (3, {"recurrence": "first"}),
]


@pytest.mark.parametrize("kind", ["deepseekv3", "glm4moe"])
@pytest.mark.parametrize(("depth", "changes"), WRONG_DRAFTS, ids=str)
def test_other_wirings_draft_otherwise(
    kind: str,
    depth: int,
    changes: dict[str, Any],
    load: Callable[..., Model],
    generated: Callable[..., Generated],
) -> None:
    """Two layers draft the same by "cycle" as by "exact": their second layer waits for no drafted token but its own."""
    found, model = generated(kind, depth, None), load(kind, depth)
    head = model.require_head().rewired(**{"recurrence": "exact", **changes})
    assert drafted(model, head, found, depth) != [drafts for _, drafts in found.steps]


@pytest.mark.parametrize("kind", ["deepseekv3", "glm4moe"])
def test_two_layers_cycle_exactly(kind: str, load: Callable[..., Model], generated: Callable[..., Generated]) -> None:
    found, model = generated(kind, 2, ECHO), load(kind, 2, echo=ECHO)
    head = model.require_head().rewired(recurrence="cycle")
    assert drafted(model, head, found, 2) == [drafts for _, drafts in found.steps]
