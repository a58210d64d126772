"""Off-loaded layers: how much of the way from pinned memory to the device decoding makes use of."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import torch
from gpu_clock import Times, release, repeated, wall
from gpu_decode import PROMPT, ROUNDS, Stepper
from gpu_models import Make, config_of, copied_per_token, model_of, nowhere, packed
from gpu_products import Bench
from torch import Tensor

from mtptools.codecs import CODECS
from mtptools.decoder.ahead import Ahead
from mtptools.decoder.devices import free_memory, gib
from mtptools.decoder.model import Model
from mtptools.decoder.offload import offloaded
from mtptools.decoder.packed import Weight
from mtptools.decoder.pipeline import Elsewhere
from mtptools.decoder.resident import Resident

__all__ = ["offload"]

TOKENS = 8
HOST_SHARE = 0.4
"""Of the free memory of the host that layers may have: what is pinned is rounded up to powers of two."""


def offload(bench: Bench) -> None:
    """Plain decoding with the layers in pinned memory, copied ahead and copied as they are used."""
    link = _link(bench)
    print(f"\n## Off-loaded layers, {bench.trunk} of random values, one token after {len(PROMPT)} and more\n")
    print(f"from pinned memory to the device: {1 / link.middle / 1e9:.4g} GB/s (± {link.spread:.0%})\n")
    print("| model | layers | copied a token | floor | copied ahead | of the floor | copied as used | of the floor |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for name in bench.models:
        config, device = _fitting(name, bench), bench.device
        here = packed(bench.trunk, device)
        model = model_of(config, device, here, layers=_away(here, device))
        times = 1 if bench.toy else TOKENS
        arms = {what: wall(Stepper(one).start(), device, times) for what, one in _both(model).items()}
        found, read = bench.turns(arms, ROUNDS), copied_per_token(model)
        floor = read * link.middle
        columns = [f"{one} | {floor / one.middle:.0%}" for one in found.values()]
        layers = len(model.trunk.blocks)
        print(f"| {name} | {layers} | {gib(read)} | {floor * 1e3:.3g} ms | {' | '.join(columns)} |", flush=True)
        del model, arms
        release(device)


def _link(bench: Bench) -> Times:
    """Seconds a byte."""
    nbytes = 1 << (20 if bench.toy else 28)
    source = torch.zeros(nbytes, dtype=torch.uint8)
    source = source if bench.toy else source.pin_memory()
    to = torch.empty_like(source, device=bench.device)
    arm = repeated([lambda: to.copy_(source, non_blocking=not bench.toy)] * 4, bench.device, graph=False)
    return Times(tuple(seconds / nbytes for seconds in bench.turns({"copy": arm})["copy"].seconds))


def _away(make: Make, device: torch.device) -> Make:
    """What `make` makes, off-loaded."""

    def made(shape: tuple[int, ...]) -> Weight:
        weight = make(shape)
        assert isinstance(weight, Resident)
        return offloaded(weight.over(Tensor.cpu), device)

    return made


def _both(model: Model) -> dict[str, Model]:
    """The model, and one of the same weights without what brings them ahead."""
    blocks = model.trunk.blocks
    assert all(isinstance(block, Ahead) for block in blocks)
    plain = tuple(Elsewhere(block.layer, block.device, block.to) for block in blocks)  # type: ignore[attr-defined]
    return {"ahead": model, "as used": replace(model, trunk=replace(model.trunk, blocks=plain))}


def _fitting(name: str, bench: Bench) -> dict[str, Any]:
    """The model, or as many of its layers as the host can pin."""
    config = config_of(name, toy=bench.toy)
    layers = config["text_config"]["num_hidden_layers"]
    if bench.toy:
        return config
    shapes: list[tuple[int, ...]] = []
    model_of(config, bench.device, nowhere, layers=lambda shape: shapes.append(shape) or nowhere(shape))
    nbytes = sum(prod(shape[:-1]) * CODECS[bench.trunk].row_bytes(shape[-1]) for shape in shapes)
    free = free_memory(torch.device("cpu"))
    room = nbytes if free is None else HOST_SHARE * free
    fits = min(layers, int(layers * room / nbytes), 8 if bench.quick else layers)
    return config_of(name, max(fits, 4))  # of two, both would stay
