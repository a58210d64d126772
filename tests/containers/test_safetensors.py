"""The lean safetensors reader and header writer, against the safetensors library."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load, save_file

from mtptools.containers.safetensors import header_bytes, read_index
from mtptools.errors import CorruptError, MtpToolsError, NotACheckpointError


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "a.safetensors"
    rng = np.random.default_rng(0)
    arrays = {
        "b.weight": rng.standard_normal((3, 5)).astype(np.float32),
        "a.weight": rng.standard_normal(7).astype(np.float16),
        "ids": np.arange(4, dtype=np.int64),
        "scalar": np.array(2.5, np.float32),
        "empty": np.zeros((0, 4), np.float32),
    }
    save_file(arrays, path, metadata={"format": "pt"})
    return path


def test_same_as_the_library(written: Path) -> None:
    index = read_index(written)
    assert index.metadata == {"format": "pt"}
    with safe_open(written, "numpy") as theirs:
        assert set(theirs.keys()) == set(index.tensors)
        for name, tensor in index.tensors.items():
            array = theirs.get_tensor(name)
            assert tensor.shape == array.shape
            assert tensor.read() == array.tobytes()


def test_library_reads_what_we_write(written: Path) -> None:
    tensors = list(read_index(written).tensors.values())
    data = header_bytes({"format": "pt", "x": "ü"}, tensors) + b"".join(tensor.read() for tensor in tensors)
    back = load(data)
    assert {name: array.tobytes() for name, array in back.items()} == {t.name: t.read() for t in tensors}


def build(header: Any, data: bytes = bytes(64), length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(**over: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [16], "data_offsets": [0, 64]} | over


LIES = {
    "empty file": (b"", NotACheckpointError),
    "absurd header length": (build({}, length=1 << 60), NotACheckpointError),
    "header past the end": (build({}, length=1000), CorruptError),
    "not JSON": (build(b"{nope"), CorruptError),
    "not UTF-8": (build(b"\xff\xfe{}"), CorruptError),
    "a list": (build([]), CorruptError),
    "deep nesting": (build(b"[" * 100_000), CorruptError),
    "duplicate tensor": (build(b'{"a":{},"a":{}}'), CorruptError),
    "entry not an object": (build({"a": 3}), CorruptError),
    "offsets past the end": (build({"a": entry(shape=[32], data_offsets=[0, 128])}), CorruptError),
    "negative": (build({"a": entry(data_offsets=[-4, 60])}), CorruptError),
    "reversed": (build({"a": entry(data_offsets=[64, 0])}), CorruptError),
    "size differs": (build({"a": entry(shape=[15])}), CorruptError),
    "overlap": (build({"a": entry(), "b": entry(shape=[8], data_offsets=[32, 64])}), CorruptError),
    "trailing bytes": (build({"a": entry(shape=[8], data_offsets=[0, 32])}), CorruptError),
    "gap": (build({"a": entry(shape=[8], data_offsets=[32, 64])}), CorruptError),
    "shape of floats": (build({"a": entry(shape=[16.0])}), CorruptError),
    "shape of booleans": (build({"a": entry(shape=[True, 16])}), CorruptError),
    "absurd shape": (build({"a": entry(shape=[1 << 61, 1 << 61])}), CorruptError),
    "unknown dtype": (build({"a": entry(dtype="F12")}), MtpToolsError),
    "dtype a list": (build({"a": entry(dtype=["F32"])}), MtpToolsError),
    "metadata of numbers": (build({"__metadata__": {"a": 1}}), CorruptError),
}


@pytest.mark.parametrize("case", LIES)
def test_lies_are_refused(case: str, tmp_path: Path) -> None:
    data, error = LIES[case]
    path = tmp_path / "lie.safetensors"
    path.write_bytes(data)
    with pytest.raises(error) as caught:
        read_index(path)
    assert str(path) in str(caught.value)


json_values: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
fields = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "BF16", "I8", "nope"]) | json_values,
        "shape": st.lists(st.integers(-1, 1 << 62), max_size=4) | json_values,
        "data_offsets": st.lists(st.integers(-1, 200), min_size=2, max_size=2) | json_values,
    }
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(header=st.dictionaries(st.text(max_size=8), fields | json_values, max_size=4))
def test_any_header_is_an_error_or_a_sound_index(header: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "any.safetensors"
    path.write_bytes(build(header))
    try:
        index = read_index(path)
    except MtpToolsError:
        return
    for tensor in index.tensors.values():
        assert len(tensor.read()) == tensor.nbytes
