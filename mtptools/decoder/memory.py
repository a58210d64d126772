"""What a model will take of each device's memory, found and told before anything is loaded."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch

from mtptools.checkpoint import Checkpoint
from mtptools.decoder.ahead import ARENAS
from mtptools.decoder.devices import describing, free_memory, gib
from mtptools.decoder.estimate import Estimate, Size, estimate
from mtptools.decoder.offload import BATCH
from mtptools.decoder.ops import HEAD_CHUNK
from mtptools.decoder.parts import CHUNK_VALUES
from mtptools.decoder.placement import Placement, split
from mtptools.decoder.replay import MOST
from mtptools.errors import SystemFailure, UsageError

__all__ = ["DTYPES", "WEIGHTS", "DevicePlan", "MemoryPlan", "plan_memory"]

DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

WEIGHTS: Final = {
    "loaded": "weights, decoded",
    "stored": "weights that are not matrices",
    "resident": "weights, packed",
    "offloaded": "weights but for the layers'",
}
"""How matrices are held -> what stands in memory then. "stored" ones are read from the file at every use."""

CONTEXT: Final = 8192
"""Tokens that room is kept for where nobody says how long texts are."""

_PASS: Final = 256
"""Rows of the largest pass (`speculate.PREFILL`)."""

_PINNED: Final = 1.6
"""Pinned memory by what is asked for: torch rounds each plane up to a power of two, 1.46 to 1.6 at a 27B's shapes."""

_COPIES: Final = 6
"""Of the residual stream that a layer has at a time, each norm's and product's among them."""

_SCRATCH: Final = 32 << 20
"""`kernels.table.SCRATCH`, which takes triton to import."""

_CUDA: Final = 512 << 20
"""What CUDA, its libraries and the allocator's gaps take of a GPU: an allowance, not a measurement."""

_LEAST: Final = 512
"""Tokens below which no context is offered."""


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """lines  (what, bytes);  free  bytes, None where the system does not say"""

    device: torch.device
    lines: tuple[tuple[str, int], ...]
    free: int | None

    @property
    def needed(self) -> int:
        return sum(nbytes for _, nbytes in self.lines)

    @property
    def fits(self) -> bool:
        return self.free is None or self.needed <= self.free

    def __str__(self) -> str:
        return f"{gib(self.needed)} on {self.device}" + (f" of {gib(self.free)} free" if self.free is not None else "")


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """mode      how matrices are held, a key of WEIGHTS;  note  why it is not a better one, or empty
    context   tokens that there is room for
    host      what off-loaded layers take of the CPU's memory, else None
    next_flag what to type should memory run out all the same
    """

    devices: tuple[DevicePlan, ...]
    placement: Placement
    mode: str
    dtype: str
    context: int
    host: DevicePlan | None = None
    note: str = ""
    next_flag: str = ""

    @property
    def places(self) -> tuple[DevicePlan, ...]:
        return self.devices if self.host is None else (*self.devices, self.host)

    @property
    def fits(self) -> bool:
        return all(one.fits for one in self.places) and self._together

    @property
    def _together(self) -> bool:
        """Devices that are one memory (`cpu,cpu`) share what is free."""
        cpus = [one for one in self.places if one.device.type == "cpu" and one.free is not None]
        return sum(one.needed for one in cpus) <= min((one.free or 0 for one in cpus), default=0)

    def describing(self) -> AbstractContextManager[None]:
        """What runs out of memory inside says what would help: see `devices.describing`."""
        return describing(*self.placement.devices, hint=self.next_flag)

    def __str__(self) -> str:
        """One line."""
        text = f"memory: {'; '.join(map(str, self.places))} ({self.mode}, {self.dtype}, {self.context} tokens)"
        return f"{text}; {self.note}" if self.note else text

    def rows(self) -> list[tuple[str, str, str]]:
        """(device, what, size) of every line and total, for a table."""
        out: list[tuple[str, str, str]] = []
        for one in self.places:
            out += [(str(one.device), what, gib(nbytes)) for what, nbytes in one.lines]
            out.append((str(one.device), "together", gib(one.needed)))
            out.append((str(one.device), "free", "unknown" if one.free is None else gib(one.free)))
        return out

    def to_json(self) -> dict[str, Any]:
        layers = [[some.start, some.stop] for some in self.placement.ranges]
        devices = [
            {
                "device": str(one.device),
                "layers": found,
                "needed": one.needed,
                "free": one.free,
                "parts": dict(one.lines),
            }
            for one, found in zip(self.places, [*layers, None], strict=False)
        ]
        return {"weights": self.mode, "dtype": self.dtype, "context": self.context, "devices": devices}


def plan_memory(
    ckpt: Checkpoint,
    head: Checkpoint | None,
    devices: Sequence[torch.device],
    dtype: str,
    *,
    weights: str | None = None,
    context: int | None = None,
    least: int = 0,
    k: int = 3,
    flags: Collection[str] = ("--offload",),
) -> MemoryPlan:
    """How a model will stand in memory.

    weights  a key of WEIGHTS; None: on the CPU loaded if there is room, else stored; on a GPU resident if it has the
             kernels, else loaded
    context  tokens to keep room for; None: `least`
    least    tokens that the longest of the texts takes, with what is written to it; 0: not known, and CONTEXT it is
    k        drafts that may be taken back
    flags    of "--offload" and "--stream", those that the verb has

    Raises SystemFailure when it does not fit, with what was needed, what is free, and the first flag that would fit;
    UsageError (fewer tokens than the texts have, no such way to hold weights); and what `estimate` raises.
    """
    if weights is not None and weights not in WEIGHTS:
        raise UsageError(f"weights cannot be held {weights!r}", hint=f"one of: {', '.join(WEIGHTS)}")
    if context is not None and context < least:
        raise UsageError(f"the texts take {least} tokens", where="--context", hint=f"--context {least}")
    asked = _Asked(ckpt, head, tuple(devices), dtype, weights, _context(ckpt, context, least), least, k, tuple(flags))
    plans = [asked.plan(mode) for mode in asked.modes()]
    found = next((plan for plan in plans if plan.fits), None)
    flag = next(_flags(asked, found), "")
    if found is not None:
        return replace(found, next_flag=flag)
    last = plans[-1]
    full = [one for one in last.places if not one.fits] or list(last.places)
    parts = ", ".join(f"{what} {gib(size)}" for what, size in full[0].lines)
    raise SystemFailure(
        f"the model does not fit: {'; '.join(map(str, full))} ({parts})",
        where=ckpt.path,
        hint=flag or "use a machine with more memory",
    )


def _context(ckpt: Checkpoint, context: int | None, least: int) -> int:
    longest = ckpt.hparams.context_length
    return context or least or (min(CONTEXT, longest) if longest else CONTEXT)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What `plan_memory` was asked. sizes  by dtype, found once."""

    ckpt: Checkpoint
    head: Checkpoint | None
    devices: tuple[torch.device, ...]
    dtype: str
    weights: str | None
    context: int
    least: int
    k: int
    flags: tuple[str, ...]
    sizes: dict[str, Estimate] = field(default_factory=dict, compare=False)

    def modes(self) -> tuple[str, ...]:
        """Ways to hold weights, the best first."""
        if self.weights is not None:
            return (self.weights,)
        if self.devices[0].type == "cpu":
            return ("loaded", "stored")
        return ("loaded",) if _kernels(self.devices)[1] else ("resident",)

    def plan(self, mode: str) -> MemoryPlan:
        packing = mode in ("resident", "offloaded") or self.on_gpu
        kinds, missing = _kernels(self.devices) if packing else ((), None)
        if self.dtype not in self.sizes:
            self.sizes[self.dtype] = estimate(self.ckpt, self.head, DTYPES[self.dtype], kinds)
        sizes = self.sizes[self.dtype]
        free = [free_memory(device) for device in self.devices]
        note = f"weights are decoded: {missing}" if missing and mode != "stored" and self.on_gpu else ""
        return replace(_planned(sizes, self.devices, free, mode, self.context, self.k), dtype=self.dtype, note=note)

    @property
    def on_gpu(self) -> bool:
        return self.devices[0].type == "cuda"

    def fits(self) -> bool:
        return any(self.plan(mode).fits for mode in self.modes())


def _flags(asked: _Asked, found: MemoryPlan | None) -> Iterator[str]:
    """Flags with which it would fit, the one that changes least first; of a plan that fits, those that take less."""
    trials = [
        (f"--context {size}", replace(asked, context=size))
        for size in (1 << bits for bits in range((asked.context - 1).bit_length() - 1, 0, -1))
        if size >= max(asked.least, _LEAST)
    ]
    if asked.dtype == "float32":
        trials.append(("--dtype bfloat16", replace(asked, dtype="bfloat16")))
    if asked.on_gpu:
        for count in range(len(asked.devices) + 1, torch.cuda.device_count() + 1):
            more = tuple(torch.device("cuda", number) for number in range(count))
            trials.append((f"--device {','.join(map(str, more))}", replace(asked, devices=more)))
        if "--offload" in asked.flags and asked.weights != "offloaded":
            trials.append(("--offload", replace(asked, weights="offloaded")))
    yield from (flag for flag, trial in trials if found is not None or trial.fits())
    if "--stream" in asked.flags:
        yield "--stream"


def _kernels(devices: Sequence[torch.device]) -> tuple[Collection[str], str | None]:
    """(types that can be multiplied packed, why none can on these devices)"""
    from mtptools.decoder.kernels import unavailable
    from mtptools.decoder.kernels.layouts import KINDS

    missing = next((reason for one in devices if (reason := unavailable(one))), None)
    return () if missing else tuple(KINDS), missing


def _planned(
    sizes: Estimate, devices: Sequence[torch.device], free: Sequence[int | None], mode: str, context: int, k: int
) -> MemoryPlan:
    """The placement and the lines of every device. `dtype` is left for the caller."""
    away = mode == "offloaded"
    weights = [one.of(mode) for one in (sizes.embed, *sizes.layers)]
    weights += [one.of("resident" if away else mode) for one in (sizes.output, sizes.head)]  # read at every step
    caches = [sizes.layer_cache(n, context, k) for n in range(len(sizes.layers))]
    temporary = _temporary(sizes, mode, context, k, devices)
    last = [("caches of the head", sizes.head_cache(context, k)), *_last_lines(sizes, context, k)]
    common = sum(nbytes for _, nbytes in temporary)
    room = [(sum(weights) + sum(caches) if size is None else size) - common for size in free]
    layers = [weight + cache for weight, cache in zip(weights[1:-2], caches, strict=True)]
    placement = split(devices, layers, weights[0], sum(weights[-2:]) + sum(size for _, size in last), room)
    plans = []
    for number, (device, size) in enumerate(zip(devices, free, strict=True)):
        some = placement.ranges[number]
        is_last = number == len(devices) - 1
        own = sum(weights[1 + layer] for layer in some)
        own += (weights[0] if number == 0 else 0) + (sum(weights[-2:]) if is_last else 0)
        lines = [(WEIGHTS[mode], own), (f"caches of {context} tokens", sum(caches[layer] for layer in some))]
        plans.append(DevicePlan(device, (*lines, *(last if is_last else ()), *temporary), size))
    host = None
    if away:
        packed = sum(one.packed for one in (sizes.embed, *sizes.layers))
        host = DevicePlan(torch.device("cpu"), (("layers", round(packed * _PINNED)),), free_memory(torch.device("cpu")))
    return MemoryPlan(tuple(plans), placement, mode, "", context, host)


def _last_lines(sizes: Estimate, context: int, k: int) -> list[tuple[str, int]]:
    """What only the device with the output matrix has: logits of a pass, twice, and the states of the whole text."""
    return [("logits", 2 * (k + 1) * sizes.vocab * 4), ("states of the text", 2 * context * sizes.hidden * 4)]


def _temporary(
    sizes: Estimate, mode: str, context: int, k: int, devices: Sequence[torch.device]
) -> list[tuple[str, int]]:
    """What every device has besides weights and caches."""
    on_gpu = devices[0].type == "cuda"
    rows = min(_PASS, max(context, k + 1))
    widest = max((one.widest for one in (*sizes.layers, sizes.head)), default=0)
    wide = 2 * max(sizes.experts, 1) * widest
    lines = [
        ("a pass of the text", 4 * rows * (_COPIES * sizes.hidden + wide)),
        ("rotary tables", sizes.tables(context)),
    ]
    decoded = {"stored": sizes.whole.largest, "offloaded": _brought(sizes.layers)}
    lines.append(("weights at work", decoded.get(mode, 0) + 4 * CHUNK_VALUES))
    if on_gpu:
        wider = HEAD_CHUNK * sizes.hidden * 4 if mode == "loaded" and sizes.itemsize < 4 else 0
        lines += [("CUDA itself", _CUDA + wider), ("attention at work", _SCRATCH)]
    if on_gpu and mode == "resident" and len(devices) == 1:  # memory of their own, twice what the largest has at a time
        lines.append(("recorded passes", 2 * (_SCRATCH + 4 * MOST * (_COPIES * sizes.hidden + wide))))
    return lines


def _brought(layers: Sequence[Size]) -> int:
    """Off-loaded weights on their device at a time: two layers' matrices, and experts or a matrix that is asked for."""
    arena = max((one.packed - one.stacks for one in layers), default=0)
    batch = max((max(one.copied, min(one.stacks, BATCH)) for one in layers), default=0)
    return ARENAS * arena + batch
