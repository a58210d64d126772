"""The kernels run in triton's interpreter here: on CPU tensors, a numpy operation for each of a program's.

Where a GPU is they are compiled, for `pytest -m gpu`; a process has them one way.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pytest

from tests.interpreted import HAVE, import_kernels

WITHOUT_INTERPRETER: Final = ("test_compile", "test_needs")

if HAVE:
    import_kernels()
else:
    collect_ignore_glob = ["test_[!n]*.py"]  # all but the one that says so


def pytest_runtest_setup(item: pytest.Item) -> None:
    if not HAVE or item.path.stem.startswith(WITHOUT_INTERPRETER):
        return
    from mtptools.decoder.kernels.numbers import INTERPRETED

    if not INTERPRETED:
        pytest.skip("kernels are compiled where a GPU is: CUDA_VISIBLE_DEVICES= pytest tests/kernels interprets them")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """A GPU does not warn of an overflow, which is part of the result; numpy would."""
    with np.errstate(all="ignore"):
        yield
