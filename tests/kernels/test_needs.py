"""Says why the kernels are not tested, where they are not."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


@pytest.mark.parametrize("package", ["torch", "triton"])
def test_is_installed(package: str) -> None:
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed: the kernels are not tested")
