"""Is there room for a model? Asked before anything is loaded."""

from __future__ import annotations

import contextlib
import os
from typing import Final

import torch

from mtptools.checkpoint import Checkpoint
from mtptools.errors import MtpToolsError, SystemFailure
from mtptools.quantized import COMPANIONS, values_of
from mtptools.tensors import Tensor

__all__ = ["DTYPES", "fits", "memory_needed"]

DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

_NOT_TEXT: Final = ("model.visual.", "visual.", "v.", "mm.")


def memory_needed(ckpt: Checkpoint, dtype: str) -> int:
    """Bytes of a checkpoint's text weights in `dtype`; caches and temporaries come on top."""
    size = DTYPES[dtype].itemsize
    return sum(_values(ckpt, name) * size for name in ckpt if _is_text(name))


def _is_text(name: str) -> bool:
    return not name.startswith(_NOT_TEXT)


def _stacked(tensor: Tensor) -> int:
    """Experts are decoded one at a time."""
    return max(tensor.shape[0], 1) if len(tensor.shape) == 3 else 1


def _values(ckpt: Checkpoint, name: str) -> int:
    """Values of the weight that `name` holds: more than the codes it is stored as; 0 for the scales beside one."""
    if ckpt.dialect == "gguf":
        return ckpt[name].n_values
    if name.endswith(COMPANIONS):
        return 0
    try:
        return values_of(name, ckpt, ckpt.config).n_values
    except MtpToolsError:  # it is refused where it is used, if it is
        return ckpt[name].n_values


def fits(ckpt: Checkpoint, head: Checkpoint | None, device: torch.device, dtype: str) -> bool:
    """Is there room for all weights in `dtype`? False: they can stay as they are stored (`packed.py`).

    Raises SystemFailure when not even the largest matrix fits.
    """
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else _free_memory()
    sources = [one for one in (ckpt, head) if one is not None]
    if free is None or sum(memory_needed(one, dtype) for one in sources) <= free:
        return True
    matrices = (_values(one, name) // _stacked(one[name]) for one in sources for name in one if _is_text(name))
    largest = max(matrices, default=0) * DTYPES[dtype].itemsize
    if 2 * largest > free:
        raise SystemFailure(
            f"the largest matrix takes {largest / 2**30:.1f} GiB as {dtype}, {free / 2**30:.1f} GiB are free",
            where=ckpt.path,
            hint="--dtype bfloat16" if dtype == "float32" else "use a machine with more memory",
        )
    return False


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
