"""d2t and t2d of a checkpoint, written by gguf-py and the safetensors library, read by ours; each fault is named."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from mtptools.checkpoint import Checkpoint, open_checkpoint
from mtptools.errors import CorruptError
from mtptools.vocab.stored import draft_vocabulary, map_names, marks, raw, told
from tests.conftest import FIXTURES
from tests.vocab import reduced

SIZE = 2048  # of the fixtures
IDS = np.array([0, 1, 2, 9, 100, 101, 400, 2047], dtype=np.int64)
OFFSETS = IDS - np.arange(len(IDS))
MASK = np.isin(np.arange(SIZE), IDS)


@pytest.fixture
def hf(tmp_path: Path) -> Any:
    """(tensors) -> a folder with a config of Qwen3.5 and these tensors."""

    def make(**tensors: np.ndarray) -> Checkpoint:
        shutil.copy(FIXTURES / "qwen35" / "hf" / "config.json", tmp_path)
        save_file({name: np.ascontiguousarray(one) for name, one in tensors.items()}, tmp_path / "model.safetensors")
        return open_checkpoint(tmp_path)

    return make


@pytest.fixture
def gguf(tmp_path: Path) -> Any:
    full = FIXTURES / "qwen35" / "gguf" / "model-BF16.gguf"

    def make(**tensors: np.ndarray) -> Checkpoint:
        return open_checkpoint(reduced.gguf(full, tmp_path / "x.gguf", put=tensors))

    return make


def said(ckpt: Checkpoint) -> str:
    found = raw(ckpt, SIZE)
    assert found is not None
    with pytest.raises(CorruptError) as error:
        draft_vocabulary(ckpt)
    assert all(what in error.value.what for what, _ in found.problems)
    return "; ".join(f"{what} ({evidence})" for what, evidence in found.problems)


@pytest.mark.parametrize("kind", [np.int64, np.int32])
def test_safetensors(hf: Any, kind: Any) -> None:
    ckpt = hf(d2t=OFFSETS.astype(kind), t2d=MASK)
    found = draft_vocabulary(ckpt)
    assert found is not None
    assert (found.ids.tolist(), found.size) == (IDS.tolist(), SIZE)
    assert map_names(ckpt) == ("d2t", "t2d")


def test_gguf(gguf: Any) -> None:
    ckpt = gguf(d2t=IDS)
    found = draft_vocabulary(ckpt)
    assert found is not None
    assert (found.ids.tolist(), found.size) == (IDS.tolist(), SIZE)


def test_none(hf: Any, gguf: Any) -> None:
    for ckpt in (hf(x=np.zeros(3, np.float32)), gguf()):
        assert draft_vocabulary(ckpt) is None
        assert raw(ckpt) is None


def test_offsets_without_t2d(hf: Any) -> None:
    """0, 0, 0 cannot be absolute ids: what it is can be said without t2d."""
    found = draft_vocabulary(hf(d2t=OFFSETS))
    assert found is not None
    assert found.ids.tolist() == IDS.tolist()


@pytest.mark.parametrize(
    ("tensors", "wanted"),
    [
        ({"d2t": IDS, "t2d": MASK}, ["these are absolute ids, offsets belong here"]),
        ({"d2t": np.array([0, 2, 5, 9]), "t2d": MASK}, ["t2d disagrees with d2t on", "t2d marks 8 tokens"]),
        ({"d2t": np.array([3, 20, 40])}, ["no t2d stands beside d2t", "they are a map as offsets too"]),
        ({"d2t": np.array([3, 20, 2047])}, ["no t2d stands beside d2t", "they are no map as offsets", "out of range"]),
        ({"d2t": np.array([0, 0, 2050]), "t2d": MASK}, ["out of range", "2052", "disagrees"]),
        ({"d2t": OFFSETS, "t2d": MASK[:-1]}, ["t2d is BOOL [2047]", "BOOL [2048]"]),
        ({"d2t": OFFSETS, "t2d": MASK.astype(np.int64)}, ["t2d is I64 [2048]"]),
        ({"d2t": OFFSETS.astype(np.float32), "t2d": MASK}, ["d2t is F32", "I64 or I32"]),
        ({"d2t": OFFSETS.reshape(2, 4), "t2d": MASK}, ["d2t has shape [2, 4]"]),
        ({"d2t": np.zeros(0, np.int64), "t2d": MASK}, ["d2t has shape [0]"]),
        ({"d2t": np.zeros(2049, np.int64), "t2d": MASK}, ["d2t has shape [2049]", "1 to 2048"]),
        ({"d2t": np.zeros((2049, 2), np.float32)}, ["d2t is F32", "d2t has shape [2049, 2]"]),
        ({"t2d": MASK}, ["t2d stands without d2t"]),
        ({"d2t": np.array([0, -1, 3]), "t2d": MASK}, ["more than once", "disagrees"]),
        ({"d2t": np.array([2**63 - 1, 2**63 - 1]), "t2d": MASK}, ["out of range"]),
    ],
)
def test_faults_in_safetensors(hf: Any, tensors: dict[str, np.ndarray], wanted: list[str]) -> None:
    text = said(hf(**tensors))
    for part in wanted:
        assert part in text


@pytest.mark.parametrize(
    ("tensors", "wanted"),
    [
        ({"d2t": OFFSETS}, ["more than once", "these are offsets, absolute ids belong here"]),
        ({"d2t": IDS[::-1]}, ["not in ascending order"]),
        ({"d2t": np.array([0, 2048])}, ["out of range", "2048"]),
        ({"d2t": IDS.astype(np.int32)}, ["d2t is I32", "I64 belongs here"]),
        ({"d2t": IDS, "t2d": MASK.astype(np.int8)}, ["a GGUF holds t2d"]),
    ],
)
def test_faults_in_gguf(gguf: Any, tensors: dict[str, np.ndarray], wanted: list[str]) -> None:
    text = said(gguf(**tensors))
    for part in wanted:
        assert part in text


def test_what_can_be_told() -> None:
    both = np.array([3, 20, 40])
    assert told(both, SIZE) == ("absolute", "offsets")
    assert told(both[::-1].copy(), SIZE) == ("absolute",)  # by frequency
    assert told(IDS, SIZE) == ("absolute",)  # 2047 + 7 is no token
    assert told(OFFSETS, SIZE) == ("offsets",)
    assert told(np.array([7, 7, 2050]), SIZE) == ()
    assert marks(MASK, IDS)  # type: ignore[arg-type]
    assert not marks(MASK, IDS[1:])  # type: ignore[arg-type]
