"""Shared fixtures: the two trained checkpoints, and what is derived from them once a session."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from safetensors.numpy import save_file

from mtptools.checkpoint import Checkpoint, open_checkpoint
from mtptools.codecs import decode

ROOT = Path(__file__).parent.parent

FIXTURES = ROOT / "fixtures"
FAMILIES = ("qwen35", "qwen35moe")


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_the_disk() -> Iterator[None]:
    """Files need not outlive the machine here, and there are thousands."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: None)
        yield


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def hf(family: str) -> Path:
    return FIXTURES / family / "hf"


@pytest.fixture
def full(family: str) -> Path:
    """The whole model as llama.cpp's converter wrote it, BF16, with its head."""
    return FIXTURES / family / "gguf" / "model-BF16.gguf"


@pytest.fixture
def trunk_q8(family: str) -> Path:
    return FIXTURES / family / "gguf" / "trunk-Q8_0.gguf"


@pytest.fixture
def trunk_q4(family: str) -> Path:
    return FIXTURES / family / "gguf" / "trunk-Q4_K.gguf"


def load_script(name: str) -> ModuleType:
    """A script of fixtures/ as a module."""
    spec = importlib.util.spec_from_file_location(name, FIXTURES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def trunk_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """(family, type) -> a head-less trunk of that type, quantized by real ggml from the stripped BF16 model."""
    folder = tmp_path_factory.mktemp("trunks")

    def make(family: str, kind: str) -> Path:
        committed = FIXTURES / family / "gguf" / f"trunk-{kind}.gguf"
        if committed.is_file():
            return committed
        out = folder / f"{family}-{kind}.gguf"
        if not out.is_file():
            from mtptools.ops.extract import strip
            from mtptools.writer import write

            bare = folder / f"{family}-trunk.gguf"
            if not bare.is_file():
                write(strip(open_checkpoint(FIXTURES / family / "gguf" / "model-BF16.gguf"), bare.name), bare)
            load_script("quantize_trunk").quantize(bare, kind, out)
        return out

    return make


@pytest.fixture
def hf_per_expert(tmp_path: Path) -> Path:
    """The MoE fixture in the layout of the 3.5 releases: the head's experts one by one."""
    source = FIXTURES / "qwen35moe" / "hf"
    out = tmp_path / "per-expert"
    shutil.copytree(source, out)
    ckpt = open_checkpoint(source)
    arrays: dict[str, np.ndarray] = {}
    for name, tensor in ckpt.items():
        raw = np.frombuffer(tensor.read(), np.uint16 if tensor.codec == "BF16" else np.float32).reshape(tensor.shape)
        if name.startswith("mtp.") and name.endswith("experts.gate_up_proj"):
            stem, half = name.removesuffix("gate_up_proj"), tensor.shape[1] // 2
            for e in range(tensor.shape[0]):
                arrays[f"{stem}{e}.gate_proj.weight"] = raw[e, :half]
                arrays[f"{stem}{e}.up_proj.weight"] = raw[e, half:]
        elif name.startswith("mtp.") and name.endswith("experts.down_proj"):
            for e in range(tensor.shape[0]):
                arrays[f"{name.removesuffix('down_proj')}{e}.down_proj.weight"] = raw[e]
        else:
            arrays[name] = raw
    save_bf16(arrays, out / "model.safetensors")
    return out


def save_bf16(arrays: dict[str, np.ndarray], path: Path) -> None:
    """Save through the safetensors library; uint16 arrays are the bits of BF16."""
    import torch
    from safetensors.torch import save_file as save_torch

    if any(array.dtype == np.uint16 for array in arrays.values()):
        tensors = {}
        for name, array in arrays.items():
            tensor = torch.from_numpy(np.ascontiguousarray(array).copy())
            tensors[name] = tensor.view(torch.bfloat16) if array.dtype == np.uint16 else tensor
        save_torch(tensors, path, metadata={"format": "pt"})
    else:
        save_file(arrays, path, metadata={"format": "pt"})


def values(ckpt: Checkpoint, name: str) -> np.ndarray:
    return decode(ckpt[name])
