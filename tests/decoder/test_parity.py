"""Plain and speculative decoding: the same logits, bit for bit."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from mtptools.decoder.cache import RecurrentCache
from mtptools.decoder.model import Model
from mtptools.decoder.ops import Arithmetic
from mtptools.decoder.parity import compare
from mtptools.decoder.sampling import Sampling
from mtptools.decoder.speculate import decode_plain, decode_speculative
from mtptools.decoder.trace import Trace
from mtptools.errors import CorruptError, UsageError

PROMPT = [7, 300, 12, 5, 77, 8, 9, 200, 31]
LONG = random.Random(3).choices(range(384), k=270)  # five attention chunks


class Errors:
    """Drafts that are the true text, spoiled in places: accepts and rejections at every length."""

    def __init__(self, plain: Trace, rate: float = 0.3) -> None:
        self.text, self.rate = plain.tokens, rate
        self.emitted: list[int] = []
        self.random = random.Random(1)

    def __call__(self, drafts: list[int], step: int) -> list[int]:
        at = len(self.emitted)
        true = self.text[at : at + len(drafts)]
        return [(t + 1) % 384 if self.random.random() < self.rate else t for t in true]


def both(model: Model, k: int, mode: str, prompt: list[int] = PROMPT, n: int = 24, **options: object) -> Trace:
    plain = decode_plain(model, prompt, n, **options)
    errors = Errors(plain)
    trace = decode_speculative(
        model, prompt, n, k, mode=mode, corrupt=errors, on_tokens=errors.emitted.extend, **options
    )
    assert errors.emitted == trace.tokens
    assert compare(plain, trace).equal, compare(plain, trace)
    assert trace.tokens == plain.tokens
    return trace


@pytest.mark.parametrize(
    ("kind", "dtype"), [("F32", "float32"), ("BF16", "bfloat16"), ("Q4_K", "float32"), ("Q4_K", "bfloat16")]
)
@pytest.mark.parametrize("moe", [False, True], ids=["dense", "moe"])
def test_bits(moe: bool, kind: str, dtype: str, load: Callable[..., Model]) -> None:
    model = load(moe, kind, dtype)
    rejected = accepted = 0
    for k in (1, 2, 3, 4):
        drafts = both(model, k, "fast").drafts
        accepted += sum(drafts.accepted)
        rejected += sum(drafts.drafted) - sum(drafts.accepted)
    assert accepted > 10
    assert rejected > 10
    both(model, 3, "serial")


@pytest.mark.parametrize("moe", [False, True], ids=["dense", "moe"])
def test_long_prompt(moe: bool, load: Callable[..., Model]) -> None:
    both(load(moe), 3, "fast", LONG, 60)  # crosses a chunk edge at 320 while drafting


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sampled(dtype: str, load: Callable[..., Model]) -> None:
    sampling = Sampling(temperature=8.0, top_k=50, seed=11)  # top-p looks at temperature 1, and would keep one token
    model = load(False, "Q4_K", dtype)
    for k in (1, 3):
        both(model, k, "fast", sampling=sampling)
    assert decode_plain(model, PROMPT, 24, sampling=sampling).tokens != decode_plain(model, PROMPT, 24).tokens


def test_own_drafts_and_two_layers(load: Callable[..., Model]) -> None:
    for depth in (1, 2):
        model = load(depth=depth)
        plain = decode_plain(model, PROMPT, 40)
        for k in (1, 3, 5):
            for mode in ("fast", "serial"):
                assert compare(plain, decode_speculative(model, PROMPT, 40, k, mode=mode)).equal


def test_gpu_policy_on_cpu(load: Callable[..., Model]) -> None:
    """The 16-row tiles that a GPU uses, in float32 on the CPU: other bits than the row loop, the same exactness."""
    model = load()
    tiles = Arithmetic(torch.device("cpu"), 16)
    parts: list[object] = [model.trunk, model.head, *model.trunk.blocks]
    assert model.head is not None
    parts += [layer.block for layer in model.head.layers]
    blocks = [part for part in parts if hasattr(part, "mixer")]
    parts += [block.mixer for block in blocks] + [block.ffn for block in blocks]
    try:
        for part in parts:
            object.__setattr__(part, "arithmetic", tiles)
        for k in (1, 3):
            both(model, k, "fast", LONG[:60], 16)
    finally:
        for part in parts:
            object.__setattr__(part, "arithmetic", model.arithmetic)


def naive(self: Arithmetic, x: Tensor, weight: Tensor, index: int | None = None) -> Tensor:
    weight = weight if index is None else weight[index]
    return functional.linear(x.to(weight.dtype), weight).float()


def test_naive_linear_is_caught(load: Callable[..., Model], monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain batched products fail this very comparison, while the tokens stay the same."""
    model = load()
    weight = model.trunk.output
    x = torch.randn((4, weight.shape[1]), generator=torch.Generator().manual_seed(0))
    if torch.equal(functional.linear(x, weight)[:1], functional.linear(x[:1], weight)):
        pytest.skip("this machine's matrix product does not depend on the number of rows")
    monkeypatch.setattr(Arithmetic, "linear", naive)
    plain = decode_plain(model, PROMPT, 32, keep_logits=range(32))
    trace = decode_speculative(model, PROMPT, 32, 3, keep_logits=range(32))
    result = compare(plain, trace)
    assert not result.equal
    assert result.same_tokens
    assert result.max_difference is not None
    assert 0 < result.max_difference < 1e-3
    assert result.margin is not None


def test_late_rollback_is_caught(load: Callable[..., Model], monkeypatch: pytest.MonkeyPatch) -> None:
    """A recurrent state kept one token too long is a different model."""
    model = load()
    plain = decode_plain(model, PROMPT, 32)

    def late(self: RecurrentCache, length: int) -> None:
        self.state = self.history[min(length - self.base + 1, len(self.history) - 1)]
        self.history = []
        self.recording = False

    monkeypatch.setattr(RecurrentCache, "rollback", late)
    errors = Errors(plain)
    trace = decode_speculative(model, PROMPT, 32, 3, corrupt=errors, on_tokens=errors.emitted.extend)
    assert not compare(plain, trace).equal


def test_stop_tokens_end_both_arms_alike(load: Callable[..., Model]) -> None:
    model = load()
    stop = {decode_plain(model, PROMPT, 20).tokens[13]}
    plain = decode_plain(model, PROMPT, 20, stop=stop)
    assert len(plain.tokens) == 14
    for mode in ("fast", "serial"):
        assert compare(plain, decode_speculative(model, PROMPT, 20, 4, mode=mode, stop=stop)).equal


def test_compare_reports_a_missing_token(load: Callable[..., Model]) -> None:
    result = compare(decode_plain(load(), PROMPT, 6), decode_plain(load(), PROMPT, 4), "short")
    assert (result.equal, result.first_difference, result.compared) == (False, 4, 4)
    assert result.to_json()["arm"] == "short"


@pytest.mark.parametrize(("prompt", "n"), [([], 4), ([1, 384], 4), ([-1], 4), ([1], 0)])
def test_what_cannot_be_decoded(prompt: list[int], n: int, load: Callable[..., Model]) -> None:
    with pytest.raises(UsageError):
        decode_plain(load(), prompt, n)


@pytest.mark.parametrize("layer", [0, 2])
def test_numbers_that_are_none_are_traced_to_their_layer(load: Callable[..., Model], layer: int) -> None:
    model = load()
    block = model.trunk.blocks[layer]
    broken = replace(block, ffn_norm=block.ffn_norm * torch.inf)
    blocks = (*model.trunk.blocks[:layer], broken, *model.trunk.blocks[layer + 1 :])
    with pytest.raises(CorruptError, match=f"layer {layer} is the first whose output is not"):
        decode_plain(replace(model, trunk=replace(model.trunk, blocks=blocks)), PROMPT, 2)
    bad = replace(model, trunk=replace(model.trunk, norm=model.trunk.norm * torch.inf))
    with pytest.raises(CorruptError, match="the final norm or the output matrix"):
        decode_plain(bad, PROMPT, 2)
