from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.decoder import toy

if TYPE_CHECKING:
    from mtptools.decoder.model import Model

if find_spec("torch") is None:  # surgery alone is installed
    collect_ignore_glob = ["test_*.py"]

FIXTURES = Path(__file__).parents[2] / "fixtures"


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Two spinning threads on a busy machine are slower than one by an order of magnitude."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def toy_path(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """(moe, kind, depth) to a checkpoint; kind "hf" or a GGUF type."""
    root = tmp_path_factory.mktemp("toy")

    @cache
    def make(moe: bool, kind: str = "hf", depth: int = 1) -> Path:
        arrays = toy.weights(moe, depth)
        name = f"{'moe' if moe else 'dense'}-{depth}"
        if kind == "hf":
            return toy.write_hf(root / name, arrays, moe, depth)
        return toy.write_gguf(root / f"{name}-{kind}.gguf", arrays, moe, kind, depth)

    return make


@pytest.fixture(scope="session")
def load(toy_path: Callable[..., Path]) -> Callable[..., Model]:
    """(moe, kind, dtype, depth) to a loaded toy; each is loaded once."""
    from mtptools.checkpoint import open_checkpoint
    from mtptools.decoder.load import load_model

    @cache
    def get(moe: bool = False, kind: str = "hf", dtype: str = "float32", depth: int = 1) -> Model:
        return load_model(open_checkpoint(toy_path(moe, kind, depth)), dtype=dtype)

    return get


@pytest.fixture(scope="session", params=["qwen35", "qwen35moe"])
def trained(request: pytest.FixtureRequest) -> Path:
    """The folder of a trained fixture."""
    return FIXTURES / str(request.param)
