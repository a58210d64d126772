"""Whole models: tokens a second against the floor, what drafts gain, what exactness costs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from forced_drafts import Forced
from gpu_clock import profiled, release, synchronize, wall
from gpu_models import bytes_per_token, config_of, loaded, model_of, packed, remembered
from gpu_products import Bench, bandwidth

from mtptools.checkpoint import open_checkpoint
from mtptools.decoder.devices import free_memory, gib
from mtptools.decoder.free import Free
from mtptools.decoder.load import load_model
from mtptools.decoder.model import Model
from mtptools.decoder.ops import Arithmetic
from mtptools.decoder.speculate import decode_plain, decode_speculative

__all__ = ["costs", "decode", "drafts"]

FIXTURE = Path(__file__).parents[1] / "fixtures" / "qwen35"
PROMPT = [(7 * n + 3) % 200 for n in range(16)]
RATES = (0.6, 0.8, 0.9)
KS = (1, 2, 3, 4)


class Stepper:
    """A token at a time: the pass, the logits, and the choice on the device; nothing is recorded."""

    def __init__(self, model: Model) -> None:
        self.model = model

    @torch.inference_mode()
    def start(self, ids: Sequence[int] = PROMPT) -> Stepper:
        self.cache = self.model.trunk.new_cache()
        self.next = 0
        self._read(ids)
        return self

    def _read(self, ids: Sequence[int]) -> None:
        trunk = self.model.trunk
        states = trunk.forward(ids, self.cache)
        self.next = int(trunk.logits(states.part(len(ids) - 1, len(ids)))[0].argmax())

    @torch.inference_mode()
    def __call__(self) -> None:
        self._read([self.next])


def _tokens(bench: Bench) -> int:
    return 3 if bench.toy else 16 if bench.quick else 64


ROUNDS = 5


def decode(bench: Bench) -> None:
    """Plain decoding of packed models, and where the time goes."""
    copy = bandwidth(bench)
    n, lines = _tokens(bench), []
    print(f"\n## Decoding, {bench.trunk} of random values, one token after {len(PROMPT)} and more\n")
    print("| model | how | bytes a token | floor | a step | tokens/s | of the floor | with records | no kernel |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in bench.models:
        model = model_of(config_of(name, toy=bench.toy), bench.device, packed(bench.trunk, bench.device))
        ways = {"launch by launch": replace(model, trunk=replace(model.trunk))}
        ways |= {} if model.trunk.replays is None else {"CUDA graphs": model}
        steps = {way: Stepper(one).start() for way, one in ways.items()}
        arms: dict[str, Callable[[], float]] = {}
        for way, one in ways.items():
            arms[way] = wall(steps[way], bench.device, 1 if bench.toy else n)
            arms[f"{way}, records"] = lambda one=one: _seconds(one, n)  # type: ignore[misc]
        found = bench.turns(arms, ROUNDS)
        read = bytes_per_token(model)
        floor = read * copy.middle / 2
        for way, step in steps.items():
            seen = profiled(step, bench.device, 1 if bench.toy else 4)
            print(
                f"| {name} | {way}, {seen.launches:.0f} kernels | {gib(read)} | {floor * 1e3:.3g} ms | {found[way]} | "
                f"{1 / found[way].middle:.3g} | {floor / found[way].middle:.0%} | "
                f"{1 / found[f'{way}, records'].middle:.3g} tokens/s | {seen.outside:.0%} |",
                flush=True,
            )
            lines += [
                f"| {name} | {way} | {what[:60]} | {part * 1e3:.3g} ms | {part / seen.wall:.0%} |"
                for what, part in seen.largest
            ]
        if model.trunk.replays is not None:
            lines.append(f"| {name} | CUDA graphs | {model.trunk.replays} | | |")
        del model, ways, one, steps, step, arms
        release(bench.device)
    print("\n| model | how | kernel | a token | of its time |\n|---|---|---|---|---|")
    print("\n".join(lines), flush=True)


def _seconds(model: Model, n: int) -> float:
    """Of a token after the first, of `decode_plain`, which hashes and checks every row of logits on the host."""
    return 1 / decode_plain(model, PROMPT, n).tokens_per_second


def drafts(bench: Bench) -> None:
    """Speculative decoding over plain: drafts right at a given rate, and the fixture's own."""
    n = _tokens(bench)
    print("\n## Drafts: tokens/s of speculative over plain decoding, records and all\n")
    print("| model | drafts are right | k | tokens a step | plain | speculative | gain |")
    print("|---|---|---|---|---|---|---|", flush=True)
    ks, rates = (KS[:1], RATES[:1]) if bench.toy else (KS[::2], RATES[1:2]) if bench.quick else (KS, RATES)
    for name in bench.models:
        model = model_of(config_of(name, toy=bench.toy), bench.device, packed(bench.trunk, bench.device))
        for rate in rates:
            _gains(model, name, n, ks, bench, rate)
        del model
        release(bench.device)
    how = "resident" if bench.device.type == "cuda" else "loaded"
    fixture = load_model(
        open_checkpoint(FIXTURE / "hf"), device=str(bench.device), dtype="bfloat16", weights=how, check=False
    )
    _gains(fixture, "fixture qwen35", 4 * n, ks, bench, None)


def _gains(model: Model, name: str, n: int, ks: Sequence[int], bench: Bench, rate: float | None) -> None:
    """rate  None: the head's own drafts"""
    text = decode_plain(model, PROMPT, n).tokens
    vocab = model.trunk.embed.shape[0]
    made: dict[int, tuple[float, float]] = {}

    def speculative(k: int) -> float:
        forced = Forced(text, 1.0 if rate is None else rate, vocab, seed=k)
        options: dict[str, Any] = {} if rate is None else {"corrupt": forced.corrupt, "on_tokens": forced.on_tokens}
        trace = decode_speculative(model, PROMPT, n, k, **options)
        assert trace.tokens == text, "speculative decoding wrote another text"
        counts = trace.drafts
        made[k] = counts.emitted / counts.steps, sum(counts.accepted) / max(sum(counts.drafted), 1)
        return trace.decode_seconds / (len(trace.tokens) - 1)

    arms: dict[str, Callable[[], float]] = {"plain": lambda: _seconds(model, n)}
    arms |= {str(k): (lambda k=k: speculative(k)) for k in ks}  # type: ignore[misc]
    found = bench.turns(arms, ROUNDS)
    for k in ks:
        plain, ours = found["plain"], found[str(k)]
        own = f"{made[k][1]:.0%} of the time" + ("" if rate is not None else ", its own")
        gain = plain.middle / ours.middle
        print(f"| {name} | {own} | {k} | {made[k][0]:.2f} | {plain} | {ours} | {gain:.2f}x |", flush=True)


def costs(bench: Bench) -> None:
    """Exact arithmetic against the same code with cuBLAS free, and transformers: as many layers as fit three times."""
    n = _tokens(bench)
    print("\n## What exactness costs, bfloat16 values, a token\n")
    print("| model | arm | a token | of free cuBLAS |\n|---|---|---|---|", flush=True)
    for name in bench.models:
        config = _fitting(name, bench)
        device, start = bench.device, remembered(loaded(bench.device))
        exact = model_of(config, device, start(), arithmetic=replace(Arithmetic.on(device), kernels=False))
        free = model_of(config, device, start(), arithmetic=Free.on(device))
        kinds = dict.fromkeys(("BF16", bench.trunk))
        models = {"free: cuBLAS on all rows": free, "exact: torch alone": exact}
        models |= {f"exact: kernels, {kind}": model_of(config, device, packed(kind, device)) for kind in kinds}
        arms = {what: wall(Stepper(model).start(), device, 1 if bench.toy else n) for what, model in models.items()}
        theirs = _transformers(config, device, n)
        arms |= theirs
        found = bench.turns(arms, ROUNDS)
        text = config["text_config"]
        label = f"{name}, {text['num_hidden_layers']} layers, {text['vocab_size']} tokens"
        for what, times in found.items():
            ratio = times.middle / found["free: cuBLAS on all rows"].middle
            print(f"| {label} | {what} | {times} | {ratio:.2f}x |", flush=True)
        if not theirs:
            print(f"| {label} | transformers | not installed | |", flush=True)
        del models, arms, theirs, exact, free, start
        release(bench.device)


def _fitting(name: str, bench: Bench) -> dict[str, Any]:
    """The model cut to the layers whose values fit loaded, as BF16 slabs, packed, and in transformers.

    Where those are few the vocabulary is cut, too.
    """
    config = config_of(name, toy=bench.toy)
    if bench.toy:
        return config
    text = config["text_config"]
    hidden, room = text["hidden_size"], 0.8 * (free_memory(bench.device) or 0)
    layer = 3 * hidden * text.get("intermediate_size", 0) + 6 * hidden * hidden
    layer += 3 * hidden * text.get("moe_intermediate_size", 0) * text.get("num_experts", 0)
    most = 8 if bench.quick else text["num_hidden_layers"]
    fits = 0
    for vocab in (text["vocab_size"], SMALL_VOCABULARY):
        fits = min(most, int((room / HELD - 2 * vocab * hidden) / layer))
        if fits >= 8:
            break
    cut = config_of(name, max(fits, 2))
    return cut | {"text_config": cut["text_config"] | {"vocab_size": vocab}}


HELD = 2 * 3.5
"""Bytes a value: three times two, and packed."""

SMALL_VOCABULARY = 32768


def _transformers(config: dict[str, Any], device: torch.device, n: int) -> dict[str, Callable[[], float]]:
    """`generate` of the same shapes, random values; {} where transformers is not installed."""
    try:
        import transformers
    except ImportError:
        return {}
    transformers.logging.set_verbosity_error()
    text = dict(config["text_config"])
    kind = {"qwen3_5_text": "Qwen3_5TextConfig", "qwen3_5_moe_text": "Qwen3_5MoeTextConfig"}[text.pop("model_type")]
    settings = getattr(transformers, kind)(**text, tie_word_embeddings=config["tie_word_embeddings"])
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(settings, dtype=torch.bfloat16).eval()
    ids = torch.tensor([PROMPT], device=device)
    options = {"do_sample": False, "min_new_tokens": n + 1, "max_new_tokens": n + 1, "pad_token_id": 0}

    @torch.inference_mode()
    def arm() -> float:
        synchronize(device)
        started = time.perf_counter()
        model.generate(ids, attention_mask=torch.ones_like(ids), **options)
        synchronize(device)
        return (time.perf_counter() - started) / (n + 1)

    return {f"transformers {transformers.__version__}: generate": arm}
