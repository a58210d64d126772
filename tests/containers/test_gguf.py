"""The lean GGUF reader and header writer, against gguf-py."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mtptools.containers import gguf as container
from mtptools.containers.gguf import Metadata, header_bytes, read_index
from mtptools.containers.gguf_values import array_value, scalar_value, string_value
from mtptools.errors import CorruptError, InputError, MtpToolsError, NotACheckpointError

BIG = 1 << 61


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A file as gguf-py writes it, with every value type it offers and odd-sized tensors."""
    path = tmp_path / "a.gguf"
    writer = gguf.GGUFWriter(path, "qwen35")
    writer.add_uint8("t.u8", 7)
    writer.add_int8("t.i8", -7)
    writer.add_uint16("t.u16", 65535)
    writer.add_int16("t.i16", -2)
    writer.add_uint32("t.u32", 4_000_000_000)
    writer.add_int32("t.i32", -5)
    writer.add_uint64("t.u64", 1 << 60)
    writer.add_int64("t.i64", -(1 << 60))
    writer.add_float32("t.f32", 0.5)
    writer.add_float64("t.f64", 0.1)
    writer.add_bool("t.bool", True)
    writer.add_string("t.text", "Grüße, 世界")
    writer.add_array("t.ints", [1, -2, 3])
    writer.add_array("t.bools", [True, False])
    writer.add_array("tokenizer.ggml.tokens", [f"tok{i}é" for i in range(5000)])
    rng = np.random.default_rng(0)
    writer.add_tensor("blk.0.attn_norm.weight", rng.standard_normal(7).astype(np.float32))
    writer.add_tensor("token_embd.weight", rng.standard_normal((5, 64)).astype(np.float16))
    quantized = gguf.quants.quantize(rng.standard_normal((2, 3, 64)).astype(np.float32), gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("x.weight", quantized, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_same_as_gguf_py(written: Path) -> None:
    index, oracle = read_index(written), gguf.GGUFReader(written)
    for key, field in oracle.fields.items():
        if not key.startswith("GGUF."):
            assert index.metadata[key] == field.contents(), key
    assert [t.name for t in oracle.tensors] == list(index.tensors)
    for theirs in oracle.tensors:
        ours = index.tensors[theirs.name]
        assert list(reversed(ours.shape)) == theirs.shape.tolist()
        assert ours.codec == theirs.tensor_type.name
        assert ours.blobs[0].offset == theirs.data_offset
        assert ours.read() == theirs.data.tobytes()
    assert index.gaps == ()


def test_header_is_byte_identical(written: Path) -> None:
    index = read_index(written)
    assert header_bytes(index.metadata, list(index.tensors.values()), 32) == written.read_bytes()[: index.data_start]


def test_values_written_are_read_by_gguf_py(tmp_path: Path) -> None:
    metadata = Metadata(
        {
            "general.architecture": string_value("qwen35"),
            "a.flag": scalar_value("bool", True),
            "a.count": scalar_value("u32", 41),
            "a.flags": array_value("bool", [True, False, True]),
            "a.names": array_value("string", ["ä", ""]),
            "a.floats": array_value("f32", [0.5, 2.0]),
        }
    )
    path = tmp_path / "m.gguf"
    path.write_bytes(header_bytes(metadata, [], 32))
    fields = gguf.GGUFReader(path).fields
    for key in metadata:
        assert fields[key].contents() == metadata[key]
        assert read_index(path).metadata[key] == metadata[key]


def test_edited_keeps_order_and_bytes(written: Path) -> None:
    before = read_index(written).metadata
    after = before.edited({"t.u32": scalar_value("u32", 1), "t.bool": None, "new": string_value("x")})
    keys = [key for key in before if key != "t.bool"]
    assert list(after) == [*keys, "new"]
    assert all(after.stored[k].encoded() == before.stored[k].encoded() for k in keys if k != "t.u32")


def kv(key: str, kind: int, payload: bytes) -> bytes:
    return struct.pack("<Q", len(key)) + key.encode() + struct.pack("<I", kind) + payload


def info(name: str, ne: list[int], kind: int, offset: int) -> bytes:
    head = struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", len(ne))
    return head + struct.pack(f"<{len(ne)}Q", *ne) + struct.pack("<IQ", kind, offset)


def build(infos: list[bytes], kvs: list[bytes] = [], data: bytes = bytes(4096), **over: Any) -> bytes:  # noqa: B006
    n_tensors, n_kv = over.get("n_tensors", len(infos)), over.get("n_kv", len(kvs))
    head = over.get("magic", b"GGUF") + struct.pack("<I", over.get("version", 3)) + struct.pack("<QQ", n_tensors, n_kv)
    head += b"".join(kvs) + b"".join(infos)
    return head + bytes(-len(head) % 32) + data


ARRAY = struct.Struct("<IQ")
LIES = {
    "wrong magic": (build([], magic=b"GGML"), NotACheckpointError),
    "big-endian": (build([], version=3 << 24), NotACheckpointError),
    "version 1": (build([], version=1), NotACheckpointError),
    "absurd tensor count": (build([], n_tensors=BIG), CorruptError),
    "absurd metadata count": (build([], n_kv=BIG), CorruptError),
    "absurd string": (build([], [kv("a", 8, struct.pack("<Q", BIG))]), CorruptError),
    "absurd array": (build([], [kv("a", 9, ARRAY.pack(4, BIG))]), CorruptError),
    "absurd string array": (build([], [kv("a", 9, ARRAY.pack(8, BIG))]), CorruptError),
    "string array past the end": (build([], [kv("a", 9, ARRAY.pack(8, 2) + struct.pack("<Q", BIG))]), CorruptError),
    "array of arrays": (build([], [kv("a", 9, ARRAY.pack(9, 1))]), CorruptError),
    "unknown value type": (build([], [kv("a", 99, b"")]), CorruptError),
    "duplicate key": (build([], [kv("a", 0, b"1"), kv("a", 0, b"1")]), CorruptError),
    "key not UTF-8": (build([], [struct.pack("<Q", 2) + b"\xff\xfe" + struct.pack("<I", 0) + b"1"]), CorruptError),
    "duplicate tensor": (build([info("a", [4], 0, 0), info("a", [4], 0, 32)]), CorruptError),
    "overlap": (build([info("a", [64], 0, 0), info("b", [64], 0, 32)]), CorruptError),
    "past the end": (build([info("a", [4], 0, 4096)]), CorruptError),
    "offset near 2^64": (build([info("a", [4], 0, (1 << 64) - 32)]), CorruptError),
    "absurd shape": (build([info("a", [1 << 40, 1 << 40], 0, 0)]), CorruptError),
    "five dimensions": (build([info("a", [1] * 5, 0, 0)]), CorruptError),
    "half a block": (build([info("a", [33], 8, 0)]), CorruptError),
    "misaligned": (build([info("a", [4], 0, 4)]), CorruptError),
    "unknown type": (build([info("a", [4], 777, 0)]), MtpToolsError),
    "alignment 3": (build([], [kv("general.alignment", 4, struct.pack("<I", 3))]), CorruptError),
    "alignment 0": (build([], [kv("general.alignment", 4, struct.pack("<I", 0))]), CorruptError),
    "alignment a string": (build([], [kv("general.alignment", 8, struct.pack("<Q", 0))]), CorruptError),
}


@pytest.mark.parametrize("case", LIES)
def test_lies_are_refused(case: str, tmp_path: Path) -> None:
    data, error = LIES[case]
    path = tmp_path / "lie.gguf"
    path.write_bytes(data)
    with pytest.raises(error) as caught:
        read_index(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("size", [0, 3, 4, 7, 8, 23, 24, 30])
def test_truncated_to(size: int, written: Path) -> None:
    written.write_bytes(written.read_bytes()[:size])
    with pytest.raises(InputError):
        read_index(written)


def test_gaps_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "gap.gguf"
    path.write_bytes(build([info("a", [4], 0, 0), info("b", [4], 0, 64)]))
    assert read_index(path).gaps == ("b",)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_damage_is_an_error_or_a_sound_index(data: st.DataObject, written: Path, tmp_path: Path) -> None:
    """Bytes overwritten anywhere in the header, or a cut: an MtpToolsError, or tensors inside of the file."""
    whole = bytearray(written.read_bytes())
    start = read_index(written).data_start
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, start - 1))
        patch = data.draw(st.one_of(st.binary(min_size=1, max_size=8), st.just(b"\xff" * 8), st.just(bytes(8))))
        whole[at : at + len(patch)] = patch
    cut = data.draw(st.one_of(st.none(), st.integers(0, len(whole))))
    path = tmp_path / "damaged.gguf"
    path.write_bytes(bytes(whole[:cut]))
    try:
        index = read_index(path)
    except MtpToolsError:
        return
    size = path.stat().st_size
    for tensor in index.tensors.values():
        assert tensor.blobs[0].offset + tensor.blobs[0].nbytes <= size
    for value in index.metadata.stored.values():
        assert len(value.raw) <= size


names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)
values = st.one_of(
    st.integers(0, 2**32 - 1).map(lambda n: scalar_value("u32", n)),
    st.integers(-(2**63), 2**63 - 1).map(lambda n: scalar_value("i64", n)),
    st.booleans().map(lambda b: scalar_value("bool", b)),
    st.text(max_size=50).filter(lambda s: s.isprintable()).map(string_value),
    st.lists(st.integers(-100, 100), max_size=20).map(lambda v: array_value("i32", v)),
    st.lists(names, max_size=5).map(lambda v: array_value("string", v)),
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(stored=st.dictionaries(names.filter(lambda n: n != "general.alignment"), values, max_size=8))
def test_any_metadata_comes_back(stored: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "any.gguf"
    path.write_bytes(header_bytes(Metadata(stored), [], 32))
    back = container.read_index(path).metadata
    assert list(back) == list(stored)
    assert all(back.stored[key].encoded() == value.encoded() for key, value in stored.items())
