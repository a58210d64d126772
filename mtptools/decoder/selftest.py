"""The start-up self-test: does a row keep its bits wherever it stands, whatever stands beside it?

Per distinct weight shape and type one row is rolled through 16 positions, between two kinds of other rows, at several
row counts; attention is tried around chunk edges. Exact decoding is refused if one bit moves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from mtptools.decoder.attention import attend, fused
from mtptools.decoder.cache import CHUNK, KVCache
from mtptools.decoder.compressed import CompressedAttention
from mtptools.decoder.hyper import HyperBlock
from mtptools.decoder.model import Model
from mtptools.decoder.moe import FEW
from mtptools.decoder.ops import Arithmetic
from mtptools.decoder.packed import Weight, here, label
from mtptools.decoder.runs import Runs
from mtptools.decoder.settings_v4 import HCA
from mtptools.decoder.trunk import Layer
from mtptools.errors import SystemFailure

__all__ = ["ROW_COUNTS", "check_rows", "self_test"]

ROW_COUNTS: Final = (1, 2, 4, 5, 16, 33)
"""Plain decoding, k = 1, 3 and 4, one full tile, three tiles."""

PASS: Final = (3, 1, 4)
"""Rows of passes that are compared with single tokens, before one that is not short."""

POSITIONS: Final = 16
FEW_COUNTS: Final = (1, 4)
"""For a weight so large that one round of `ROW_COUNTS` takes seconds: an output matrix of a large vocabulary."""

BUDGET: Final = 5e8
"""Multiply-adds a shape may cost; larger weights are tried at fewer positions, the largest at fewer counts."""

_PASSED: set[tuple[object, ...]] = set()


def self_test(model: Model) -> None:
    """Raises SystemFailure naming the first shape whose rows are not exact. Shapes that passed are not tried again."""
    ops = model.arithmetic
    for name, weight in _weights(model):
        output = name == "output"  # of which products are in float32 whatever it is stored as
        key = (
            output,
            tuple(weight.shape),
            label(weight),
            weight.device,
            torch.get_num_threads(),
            ops.tile,
            ops.wide_tile,
        )
        if key in _PASSED:
            continue
        product = ops.logits if output else ops.linear
        what = f"{name} {list(weight.shape)} {label(weight)} on {weight.device}"
        check_rows(partial(_times, product, here(weight)), weight.shape[1], what, weight.device, weight.numel())
        _PASSED.add(key)
        _check_pointwise(ops, name, weight)
    for layer in _layers(model):
        ops = getattr(layer, "arithmetic", model.arithmetic)
        mixer: Any = getattr(layer, "mixer", layer)
        cache = mixer.new_cache()
        if isinstance(layer, HyperBlock):
            _check_streams(layer, model.dtype)
        for name, weight in mixer.products() if hasattr(mixer, "products") else ():
            _check_heads(ops, name, weight)
        ffn: Any = getattr(layer, "ffn", None)
        for name, stack in ffn.stacks() if hasattr(ffn, "stacks") else ():
            _check_experts(ops, name, stack)
        if ops.kernels and not isinstance(layer, HyperBlock):
            _check_passes(layer)
        if not isinstance(cache, KVCache):
            continue
        heads = mixer.n_heads
        shape = ("attention", heads, cache.shape, cache.shared, cache.dtype, ops, fused(cache) is None)
        if shape not in _PASSED:
            _check_attention(ops, heads, cache)
            _PASSED.add(shape)


def _check_streams(layer: HyperBlock, dtype: torch.dtype) -> None:
    """How streams are mixed, by rows; and attention to windows and compressed keys, one pass against single tokens."""
    ops, mixer, around = layer.arithmetic, layer.mixer, layer.around_mixer
    assert isinstance(mixer, CompressedAttention)
    ratio = mixer.compressor.ratio if mixer.compressor else 0
    shape = ("streams", ratio, mixer.window, tuple(weight.shape for _, weight in mixer.matrices()), dtype, ops)
    if shape in _PASSED:
        return

    def mixed(x: Tensor) -> Tensor:
        inner, mixing = around.enter(x)
        return around.leave(x, inner, mixing)

    width = around.weight.shape[1]
    check_rows(mixed, width, f"the mix of {around.settings.streams} streams", ops.device, around.weight.numel())
    edge = HCA
    x = torch.randn((edge + 3, width // around.settings.streams), generator=torch.Generator().manual_seed(2))
    x = x.to(ops.device)
    together = mixer.forward(x, mixer.new_cache(), 0)
    cache = mixer.new_cache()
    mixer.forward(x[: edge - 3], cache, 0)
    for row in range(edge - 3, edge + 3):
        if not torch.equal(mixer.forward(x[row : row + 1], cache, row)[0], together[row]):
            raise _moved(f"attention over windows of {ratio} tokens on {ops.device}", f"token {row}")
    _PASSED.add(shape)


def _check_passes(layer: Layer) -> None:
    """Between products kernels do the rest: a pass of several rows against a row at a time, from whatever state."""
    weights = [(tuple(weight.shape), label(weight)) for _, weight in layer.matrices()]
    mixer: Any = getattr(layer, "mixer", layer)
    shape = ("passes", type(mixer).__name__, type(getattr(layer, "ffn", None)).__name__, *weights, mixer.arithmetic)
    if shape in _PASSED:
        return
    width, device = weights[0][0][1], mixer.arithmetic.device
    x = torch.randn((sum(PASS) + FEW + 1, width), generator=torch.Generator().manual_seed(3)).to(device)
    caches = [layer.new_cache() for _ in range(2)]
    alone = torch.cat([layer.forward(x[row : row + 1], caches[0], row, [0]) for row in range(len(x))])
    first = 0
    for count in (*PASS, FEW + 1):
        together = layer.forward(x[first : first + count], caches[1], first, [0] * count)
        for row in range(count):
            if not torch.equal(together[row], alone[first + row]):
                raise _moved(f"a layer of {type(mixer).__name__} on {device}", f"row {row} of {count}")
        first += count
    _PASSED.add(shape)


def _check_pointwise(ops: Arithmetic, name: str, weight: Weight) -> None:
    """The norm before a product, and the gate after one."""
    high, width = weight.shape
    key = ("pointwise", name, high, width, weight.device, torch.get_num_threads(), ops.tile)
    if key in _PASSED:
        return
    one = torch.ones(width, device=weight.device)
    check_rows(lambda x: ops.rms_norm(x, one, 1e-6), width, f"a norm over {width}", weight.device, width)
    if name.endswith("gate and up"):
        check_rows(ops.silu_gate, high, f"a gate of {high // 2}", weight.device, high)
    _PASSED.add(key)


def _check_heads(ops: Arithmetic, name: str, weight: Tensor) -> None:
    """Products of each head with a weight [heads, N, K] of its own."""
    heads, _, width = weight.shape
    key = (tuple(weight.shape), weight.dtype, weight.device, torch.get_num_threads(), ops.tile, ops.wide_tile)
    if key in _PASSED:
        return

    def product(x: Tensor) -> Tensor:
        return ops.per_head(x.view(-1, heads, width), weight)

    what = f"{name} {list(weight.shape)} {str(weight.dtype).removeprefix('torch.')} on {weight.device}"
    check_rows(product, heads * width, what, weight.device, weight.numel())
    _PASSED.add(key)


def _check_experts(ops: Arithmetic, name: str, stack: Weight) -> None:
    """Rows of two experts in one launch."""
    n, height, width = stack.shape
    key = ("experts", tuple(stack.shape), label(stack), stack.device)
    if key in _PASSED:
        return

    def product(x: Tensor) -> Tensor:
        rows = x.shape[0]
        runs = Runs((0, n - 1), (rows, rows), x.device)
        return ops.grouped(torch.cat((x, x)), stack, runs).view(2, rows, -1).transpose(0, 1).flatten(1)

    what = f"{name} {list(stack.shape)} {label(stack)} on {stack.device}"
    check_rows(product, width, what, stack.device, 2 * height * width)
    _PASSED.add(key)


def _times(product: Callable[[Tensor, Weight], Tensor], weight: Weight, x: Tensor) -> Tensor:
    return product(x, weight)


def _layers(model: Model) -> Iterator[Layer]:
    yield from (getattr(block, "layer", block) for block in model.trunk.blocks)
    if model.head is not None:
        yield from (layer.block for layer in model.head.layers)


def _weights(model: Model) -> Iterator[tuple[str, Weight]]:
    yield "output", model.trunk.output
    if model.head is not None:
        for layer in model.head.layers:
            yield "output", layer.output
            yield "fuse", layer.fuse
    for block in _layers(model):
        yield from block.matrices()


def check_rows(fn: Callable[[Tensor], Tensor], width: int, what: str, device: torch.device, cost: float) -> None:
    """Roll a row through `fn` [rows, width] -> [rows, …]. `cost` is one row's multiply-adds; a GPU has time for all."""
    cost = 0 if device.type == "cuda" else cost
    generator = torch.Generator().manual_seed(0)
    row, other = (torch.randn((n, width), generator=generator) for n in (1, max(ROW_COUNTS)))
    fillers = (torch.zeros_like(other), other * 8)
    wanted = fn(row.to(device))
    round_cost = cost * sum(ROW_COUNTS) * len(fillers)
    positions = max(1, min(POSITIONS, int(BUDGET / max(round_cost, 1))))
    counts = ROW_COUNTS if round_cost < 8 * BUDGET else FEW_COUNTS
    for count in counts:
        last = count - 1
        spread = {p * last // (positions - 1) for p in range(positions)} if positions > 1 else {last}
        for filler in fillers[: 1 if count == 1 else 2]:
            for position in sorted(spread):
                batch = filler[:count].clone()
                batch[position] = row[0]
                if not torch.equal(fn(batch.to(device))[position], wanted[0]):
                    raise _moved(what, f"row {position} of {count}")


def _check_attention(ops: Arithmetic, n_heads: int, cache: KVCache) -> None:
    """Rows around the edges of chunks, alone, and among others when more of the text is there."""
    generator = torch.Generator().manual_seed(1)
    n_kv_heads, _, width = cache.shape
    kernels = fused(cache)
    edges = [CHUNK, 2 * CHUNK] if kernels is None else [CHUNK, 2 * CHUNK, kernels.ATTENTION.segment]

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(ops.device)

    queries = random(max(ROW_COUNTS), n_heads, cache.key_dim)
    for edge in edges:
        cache.append(random(edge + 3 - cache.length, n_kv_heads, width))
        last = [edge - 3 + row % 6 for row in range(len(queries))]
        alone = [attend(ops, queries[row : row + 1], cache, [end])[0] for row, end in enumerate(last)]
        cache.append(8 * random(CHUNK, n_kv_heads, width))
        for count in ROW_COUNTS:
            together = attend(ops, queries[:count], cache, last[:count])
            for row in range(count):
                if not torch.equal(together[row], alone[row]):
                    what = f"attention with {n_heads} heads of {cache.key_dim} on {ops.device}"
                    raise _moved(what, f"slot {last[row]}, row {row} of {count}")
        cache.rollback(edge + 3)


def _moved(what: str, where: str) -> SystemFailure:
    return SystemFailure(
        f"arithmetic is not exact here: {what}: {where} has other bits than alone",
        hint="report the machine and `python -m torch.utils.collect_env`; --device cpu --dtype float32 is the safest",
    )
