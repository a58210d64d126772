"""Tests for a GPU (`pytest -m gpu`). Each also runs on the CPU, on less, so that its logic is tried on every machine.

On the CPU the kernels run in triton's interpreter; where a GPU is they are compiled. A process has them one way.
Hundreds of programs are compiled for the whole of it, a second or more each: `pytest tests/gpu -m gpu -n 8`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from tests.interpreted import HAVE, import_kernels

if HAVE:
    import torch

    import_kernels()
else:
    collect_ignore_glob = ["test_[!n]*.py"]  # all but the one that says so


def pytest_runtest_setup(item: pytest.Item) -> None:
    if not HAVE:
        return
    from mtptools.decoder.kernels.numbers import INTERPRETED

    if item.get_closest_marker("gpu") is None:
        if not INTERPRETED:
            pytest.skip("kernels are compiled where a GPU is: CUDA_VISIBLE_DEVICES= pytest tests/gpu runs the rest")
        return
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    if INTERPRETED:
        pytest.fail("triton's interpreter is on: these would be tests of it. Run pytest tests/gpu -m gpu by itself")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """numpy, which the interpreter computes with, would warn of overflows, which are part of the result."""
    with np.errstate(all="ignore"):
        yield


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Command:
    """The command line in this process: (exit code, stdout, stderr)."""
    from mtptools.cli.main import main

    def call(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stopped:
            main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return int(stopped.value.code or 0), out, err

    return call


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Two spinning threads on a busy machine are slower than one by an order of magnitude."""
    if HAVE:
        torch.set_num_threads(1)
