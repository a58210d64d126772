"""Which cases of a test run where."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import pytest
import torch

__all__ = ["CPU", "DTYPES", "GPU", "on"]

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")

DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def on(gpu: Iterable[Any], here: Iterable[Any]) -> list[Any]:
    """Arguments of a test, the device before them: all on a GPU, and few here. Without a GPU one stands for all."""
    every = list(gpu) if torch.cuda.is_available() else list(gpu)[:1]
    return [
        *(pytest.param(GPU, *_tuple(case), marks=pytest.mark.gpu, id=_name("cuda", case)) for case in every),
        *(pytest.param(CPU, *_tuple(case), id=_name("cpu", case)) for case in here),
    ]


def _tuple(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)


def _name(device: str, case: Any) -> str:
    return "-".join((device, *(str(one).removeprefix("torch.") for one in _tuple(case))))
