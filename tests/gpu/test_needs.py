"""Says why nothing was tested on a GPU, where nothing was."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


@pytest.mark.parametrize("package", ["torch", "triton"])
def test_is_installed(package: str) -> None:
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed: nothing is tested on a GPU")
