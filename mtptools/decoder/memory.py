"""Is there room for a model? Asked before anything is loaded."""

from __future__ import annotations

import contextlib
import os
from typing import Final

import torch

from mtptools.checkpoint import Checkpoint
from mtptools.errors import SystemFailure

__all__ = ["DTYPES", "check_memory", "memory_needed"]

DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

_NOT_TEXT: Final = ("model.visual.", "visual.", "v.", "mm.")


def memory_needed(ckpt: Checkpoint, dtype: str) -> int:
    """Bytes of a checkpoint's text weights in `dtype`; caches and temporaries come on top."""
    size = DTYPES[dtype].itemsize
    return sum(t.n_values * size for name, t in ckpt.items() if not name.startswith(_NOT_TEXT))


def check_memory(ckpt: Checkpoint, head: Checkpoint | None, device: torch.device, dtype: str) -> None:
    """Raises SystemFailure when the weights are larger than what is free on the device."""
    needed = memory_needed(ckpt, dtype) + (memory_needed(head, dtype) if head is not None else 0)
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else _free_memory()
    if free is not None and needed > free:
        narrow = needed * 2 // DTYPES[dtype].itemsize
        hint = "--dtype bfloat16" if dtype == "float32" and narrow < free else "use a machine with more memory"
        raise SystemFailure(
            f"the weights take {needed / 2**30:.1f} GiB as {dtype}, {free / 2**30:.1f} GiB are free",
            where=ckpt.path,
            hint=hint,
        )


def _free_memory() -> int | None:
    """Bytes the system can hand out, None where it does not say."""
    with contextlib.suppress(OSError, ValueError), open("/proc/meminfo", encoding="ascii") as file:  # Linux
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return None
