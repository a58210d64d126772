"""Clocks for a device: arms that take turns, calls timed on the device alone, and what a profiler saw of them."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

__all__ = ["Seen", "Times", "profiled", "release", "repeated", "synchronize", "take_turns", "wall"]


@dataclass(frozen=True)
class Times:
    """Seconds, one a round."""

    seconds: tuple[float, ...]

    @property
    def middle(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Half the range from the first quartile to the third, as a share of the median."""
        if len(self.seconds) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return (high - low) / 2 / self.middle

    def __str__(self) -> str:
        for unit, scale in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
            if self.middle * scale >= 1 or unit == "µs":
                return f"{self.middle * scale:.3g} {unit} ± {self.spread:.0%}"
        raise AssertionError


def take_turns(arms: dict[str, Callable[[], float]], rounds: int, *, warm: bool = True) -> dict[str, Times]:
    """Each arm once a round, in another order every round: what warms up or slows down hurts all alike.

    An arm gives the seconds that it took. A first round is not counted, but where there is nothing to warm up.
    """
    names = list(arms)
    found: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(0 if warm else 1, rounds + 1):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            seconds = arms[name]()
            if turn:
                found[name].append(seconds)
    return {name: Times(tuple(seconds)) for name, seconds in found.items()}


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def release(device: torch.device) -> None:
    """What is no longer referred to goes back to the device: recorded graphs hold memory of their own."""
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()


def wall(call: Callable[[], object], device: torch.device, times: int = 1) -> Callable[[], float]:
    """An arm: seconds of a call, by the clock on the wall, the device's work waited for."""

    def arm() -> float:
        synchronize(device)
        started = time.perf_counter()
        for _ in range(times):
            call()
        synchronize(device)
        return (time.perf_counter() - started) / times

    return arm


def repeated(calls: Sequence[Callable[[], object]], device: torch.device, *, graph: bool = True) -> Callable[[], float]:
    """An arm: seconds of one of the calls on the device, of all of them in a row.

    graph  they are recorded once as a CUDA graph and replayed: without the time that launches take on the host
    """
    if device.type != "cuda":
        several = wall(lambda: [call() for call in calls], device)
        return lambda: several() / len(calls)
    for call in calls[:2]:  # compiles
        call()
    torch.cuda.synchronize(device)

    def play() -> None:
        for call in calls:
            call()

    if graph:
        recorded = torch.cuda.CUDAGraph()
        with torch.cuda.graph(recorded):
            play()

    def arm() -> float:
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        if graph:
            recorded.replay()
        else:
            play()
        last.record()
        torch.cuda.synchronize(device)
        return first.elapsed_time(last) / 1e3 / len(calls)

    return arm


@dataclass(frozen=True)
class Seen:
    """Of one call: kernels launched (on a CPU: operations), seconds in them, the largest ones, seconds on the wall."""

    launches: float
    busy: float
    largest: tuple[tuple[str, float], ...]
    wall: float

    @property
    def outside(self) -> float:
        """Share of the time in which no kernel ran."""
        return max(0.0, 1 - self.busy / self.wall)


def profiled(call: Callable[[], object], device: torch.device, times: int = 4) -> Seen:
    """What torch's profiler sees. The wall time is measured without it, which slows the host down."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    call()
    seconds = wall(call, device, times)()
    on_gpu = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities) as found:
        for _ in range(times):
            call()
        synchronize(device)
    kind = DeviceType.CUDA if on_gpu else DeviceType.CPU
    sums: dict[str, float] = {}
    events = [event for event in found.events() if event.device_type == kind]
    if not on_gpu:  # operations call operations
        events = [event for event in events if event.cpu_parent is None]
    for event in events:
        sums[event.name] = sums.get(event.name, 0.0) + event.time_range.elapsed_us() / 1e6 / times
    ordered = sorted(sums.items(), key=lambda pair: -pair[1])
    return Seen(len(events) / times, sum(sums.values()), tuple(ordered[:6]), seconds)
