"""The devices that `--device` names: read, tried out, and what to say when one cannot be used or runs out of memory."""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import torch

from mtptools.decoder.device_names import DeviceName, device_names
from mtptools.decoder.kernels import OLDEST
from mtptools.errors import SystemFailure, UsageError

__all__ = ["describing", "free_memory", "gib", "parse", "require_dtype"]

_GROUP: Final = Path("/sys/fs/cgroup")

_ARCH: Final = re.compile(r"(sm|compute)_(\d+)(\d)[af]?")

_CAUSES: Final = (
    ("Found no NVIDIA driver", "there is no NVIDIA driver", "install the driver of the GPU, or --device cpu"),
    ("driver on your system is too old", "the NVIDIA driver is too old for this torch", "update the driver, or install "
     "a torch that is built for an older CUDA, or --device cpu"),
    ("No CUDA GPUs are available", "no GPU is there, or CUDA_VISIBLE_DEVICES hides it", "nvidia-smi lists the GPUs; "
     "or --device cpu"),
)  # fmt: skip
"""Part of what torch says -> what is wrong, and what to do."""

_NO_ROOM: Final = (
    "out of memory", "can't allocate memory", "not enough memory", "Unable to allocate", "ALLOC_FAILED",
    "Cannot allocate memory",
)  # fmt: skip
_LARGER: Final = "use a machine with more memory"
_WANTED: Final = re.compile(r"(?:[Tt]ried to allocate|Unable to allocate) ([\d.]+) ?([KMGTP]iB|bytes)")
_UNITS: Final = {"bytes": 0, "KiB": 1, "MiB": 2, "GiB": 3, "TiB": 4, "PiB": 5}


def parse(text: str) -> tuple[torch.device, ...]:
    """ "cpu", "cuda" (the current one), "cuda:1", or several, "cuda:0,cuda:1": layers are split between them.

    "cpu,cpu" is two devices for trying a split out. Each is checked to be there and to work.

    Raises UsageError (a name or a mixture that cannot be) and SystemFailure (no CUDA, no driver, no such GPU, a GPU
    that this torch has no code for).
    """
    devices = tuple(map(_usable, device_names(text)))
    twice = next((device for device, n in Counter(devices).items() if n > 1 and device.type == "cuda"), None)
    if twice is not None:
        raise UsageError(f"{twice} is named twice", where="--device", hint=f"--device {_joined(devices)}")
    return devices


def _joined(devices: Sequence[torch.device]) -> str:
    return ",".join(dict.fromkeys(map(str, devices)))


def _usable(named: DeviceName) -> torch.device:
    if named.kind == "cpu":
        return torch.device("cpu")
    name = str(named)
    _require_cuda(name)
    count = torch.cuda.device_count()
    number = torch.cuda.current_device() if named.number is None else named.number
    if number >= count:
        there = f"cuda:0 to cuda:{count - 1}" if count > 1 else "cuda:0 alone"
        raise _unusable(name, f"this machine has {there}", f"--device cuda:{count - 1}")
    device = torch.device("cuda", number)
    _require_code(device)
    try:
        torch.empty(1, device=device)
    except RuntimeError as error:
        if _no_room(error):
            raise _unusable(name, "its memory is full", "nvidia-smi lists what runs on it; or --device cpu") from error
        raise _unusable(name, str(error), "--device cpu") from error
    return device


def _require_cuda(name: str) -> None:
    """Is there a CUDA to speak of? Raises SystemFailure."""
    if torch.version.cuda is None:
        built = "for ROCm, on which the decoder was never tried" if torch.version.hip else "without CUDA"
        raise _unusable(
            name, f"torch {torch.__version__} is built {built}", "install a torch with CUDA, or --device cpu"
        )
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        for part, what, hint in _CAUSES:
            if part in str(error):
                raise _unusable(name, what + _versions(str(error)), hint) from error
        raise _unusable(name, str(error), "--device cpu") from error


def _versions(text: str) -> str:
    """What CUDA the driver knows and what torch wants, where torch's message tells: 11040 is 11.4."""
    found = re.search(r"found version (\d+)(\d\d)\d\)", text)
    return f" (it knows CUDA {found[1]}.{int(found[2])}, torch wants {torch.version.cuda})" if found else ""


def _require_code(device: torch.device) -> None:
    """Has this torch code for the GPU? Cubins run within a major version, PTX on all that come later."""
    capability = torch.cuda.get_device_capability(device)
    known = [match for match in map(_ARCH.fullmatch, torch.cuda.get_arch_list()) if match]
    able = any(
        (int(match[2]), int(match[3])) <= capability and (match[1] == "compute" or int(match[2]) == capability[0])
        for match in known
    )
    if known and not able:
        raise _unusable(
            str(device),
            f"{torch.cuda.get_device_name(device)} has compute capability {capability[0]}.{capability[1]}; torch "
            f"{torch.__version__} has code for {', '.join(match[0] for match in known)}",
            "install a torch that is built for this GPU, or --device cpu",
        )


def require_dtype(devices: Sequence[torch.device], dtype: str) -> None:
    """Raises SystemFailure for a GPU that has no instructions for a dtype."""
    for device in devices:
        if device.type == "cuda" and dtype == "bfloat16" and torch.cuda.get_device_capability(device) < OLDEST:
            raise _unusable(
                str(device),
                f"{torch.cuda.get_device_name(device)} does not multiply bfloat16: that takes compute capability "
                f"{OLDEST[0]}.{OLDEST[1]}",
                "--dtype float32, or --device cpu",
            )


def _unusable(name: str, what: str, hint: str) -> SystemFailure:
    return SystemFailure(f"device {name!r} cannot be used: {what}", where="--device", hint=hint)


def free_memory(device: torch.device) -> int | None:
    """Bytes that can be taken on a device, None where the system does not say.

    On a GPU what torch holds and does not use counts as free.
    """
    if device.type != "cuda":
        return _free_host_memory()
    idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0] + idle)


def _free_host_memory() -> int | None:
    """What the system has left, and a container's limit lets through."""
    found = [free for free in (_free_of_system(), _free_of_group()) if free is not None]
    return min(found, default=None)


def _free_of_group() -> int | None:
    """Under a control group's limit (version 2; files that can be given back count as free)."""
    try:
        told = {name: (_GROUP / f"memory.{name}").read_text(encoding="ascii") for name in ("max", "current", "stat")}
        files = re.search(r"^inactive_file (\d+)$", told["stat"], re.MULTILINE)
        return int(told["max"]) - int(told["current"]) + (int(files[1]) if files else 0)
    except (OSError, ValueError):  # no such group, or "max": no limit
        return None


def _free_of_system() -> int | None:
    with contextlib.suppress(OSError, ValueError), open("/proc/meminfo", encoding="ascii") as file:  # Linux
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError, AttributeError):
        return None


def gib(nbytes: float) -> str:
    """Bytes for people: "1.5 GiB", "37 MiB"."""
    return f"{nbytes / 2**30:.1f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:.0f} MiB"


@contextlib.contextmanager
def describing(*devices: torch.device, hint: str = "") -> Iterator[None]:
    """Memory that runs out inside is a SystemFailure: what was asked for, what is free on each device, what to do.

    hint  the flag to go on with (`MemoryPlan.next_flag`); of two, one inside the other, the one that has it says it
    """
    try:
        yield
    except SystemFailure as error:
        if hint and error.hint == _LARGER:
            error.hint = hint
        raise
    except (RuntimeError, MemoryError) as error:
        if not _no_room(error):
            raise
        wanted = _WANTED.search(str(error))
        asked = f", {gib(float(wanted[1]) * 1024 ** _UNITS[wanted[2]])} more were needed" if wanted else ""
        left = [(device, _free_now(device)) for device in dict.fromkeys(devices or (torch.device("cpu"),))]
        free = "; ".join(f"{gib(size)} are free on {device}" for device, size in left if size is not None)
        raise SystemFailure(f"out of memory{asked}" + (f"; {free}" if free else ""), hint=hint or _LARGER) from error


def _free_now(device: torch.device) -> int | None:
    """After a failure the device itself may not answer."""
    try:
        return free_memory(device)
    except RuntimeError:
        return None


def _no_room(error: BaseException) -> bool:
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(part in str(error) for part in _NO_ROOM)
