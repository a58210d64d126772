"""The importance matrix as a file and as weights: against files of llama-imatrix, and bytes of llama-quantize."""

from __future__ import annotations

import base64
import ctypes
import hashlib
import json
from pathlib import Path

import gguf
import numpy as np
import pytest

from mtptools.checkpoint import open_checkpoint
from mtptools.codecs import decode
from mtptools.errors import CorruptError, IncompatibleError, InputError
from mtptools.importance import Entry, Importance, file_parts, merged, read_importance
from tests.conftest import FIXTURES, load_script

GOLDEN = json.loads((FIXTURES / "imatrix_golden.json").read_text(encoding="utf-8"))


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with the small files of the golden."""
    for name, content in GOLDEN["files"].items():
        (tmp_path / name).write_bytes(base64.b64decode(content))
    return tmp_path


def written(matrix: Importance) -> bytes:
    return b"".join(file_parts(matrix))


def test_reads_what_gguf_py_wrote(files: Path) -> None:
    tensors = {tensor.name: np.array(tensor.data) for tensor in gguf.GGUFReader(files / "one.gguf").tensors}
    found = read_importance(files / "one.gguf")
    assert {name for entry in found.entries for name in (f"{entry}.in_sum2", f"{entry}.counts")} == set(tensors)
    for name, entry in found.entries.items():
        assert np.array_equal(entry.sums.reshape(-1), tensors[f"{name}.in_sum2"].reshape(-1))
        assert entry.counts.tolist() == tensors[f"{name}.counts"].reshape(-1).tolist()
        assert entry.sums.shape[0] == len(entry.counts)
    assert (found.datasets, found.chunks, found.chunk_size) == (("text-1.txt",), 4, 64)


@pytest.mark.parametrize("name", ["merged.gguf", "with_dat.gguf"])
def test_writes_llama_imatrix_file_byte_for_byte(files: Path, name: str) -> None:
    assert written(read_importance(files / name)) == (files / name).read_bytes()


@pytest.mark.parametrize(("one", "out"), [("one.gguf", "merged.gguf"), ("one.dat", "with_dat.gguf")])
def test_merges_as_llama_imatrix_does(files: Path, one: str, out: str) -> None:
    """Also a file of the older format, which counts in chunks and keeps one count for all experts."""
    both = merged(read_importance(files / one), read_importance(files / "other.gguf"))
    assert written(both) == (files / out).read_bytes()


def test_merging_an_older_file_into_a_newer_is_the_same_sum(files: Path) -> None:
    one, other = read_importance(files / "one.dat"), read_importance(files / "other.gguf")
    first, second = merged(one, other), merged(other, one)
    for name, entry in first.entries.items():
        assert np.array_equal(entry.sums, second.entries[name].sums), name
        assert np.array_equal(entry.counts, second.entries[name].counts), name


def test_older_format_says_the_same(files: Path) -> None:
    """Its writer scales sums to chunks; what a quantizer sees is the same to the last bits."""
    older, newer = read_importance(files / "one.dat"), read_importance(files / "one.gguf")
    assert (older.datasets, older.chunks, older.chunk_size) == (("text-1.txt",), 4, 0)
    for name, entry in newer.entries.items():
        size, n = entry.sums.size // len(entry.counts), len(entry.counts)
        first, second = (matrix.importance_of(name, size, n) for matrix in (older, newer))
        assert first is not None
        assert second is not None
        assert np.allclose(first, second, rtol=3e-7, atol=0), name


def test_weights() -> None:
    sums = np.array([[7, 1, 5], [0, 0, 0]], dtype=np.float32)
    entries = {
        "experts": Entry(sums, np.array([3, 0])),
        "heads": Entry(np.arange(6, dtype=np.float32)[None], np.array([2])),
    }
    matrix = Importance(entries)
    third = np.float32(1) / np.float32(3)
    found = matrix.importance_of("experts", 3, 2)
    assert found is not None
    assert found.dtype == np.float32
    assert found[0].tolist() == [np.float32(7) / np.float32(3), third, np.float32(5) / np.float32(3)]
    assert found[1].tolist() == [1, 1, 1]  # no row came: every column weighs the same
    heads = matrix.importance_of("heads", 2, 3)
    assert heads is not None
    assert heads.tolist() == [[0, 0.5], [1, 1.5], [2, 2.5]]
    assert matrix.importance_of("nothing", 3, 2) is None
    assert entries["experts"].unused == 1


@pytest.mark.interop
@pytest.mark.parametrize("key", GOLDEN["quantized"])
def test_weights_are_those_of_llama_quantize(key: str, files: Path) -> None:
    """Real ggml with our weights gives the bytes that llama-quantize gave with the file."""
    pytest.importorskip("xllamacpp", reason="needs llama.cpp: pip install 'mtptools[llama]'")
    file, name = key.split()
    tensor = open_checkpoint(FIXTURES / "qwen35moe/gguf/model-BF16.gguf")[name]
    values = np.ascontiguousarray(decode(tensor, 0, tensor.n_rows)).reshape(-1, *tensor.shape[-2:])
    weights = read_importance(files / file).importance_of(name, tensor.shape[-1], len(values))
    assert weights is not None
    assert quantized(values, weights) == GOLDEN["quantized"][key]
    assert quantized(values, weights[:, ::-1]) != GOLDEN["quantized"][key]


def quantized(values: np.ndarray, weights: np.ndarray) -> str:
    """The digest of float32 [n, rows, columns] as Q4_K by ggml, with weights [n, columns]."""
    library: ctypes.CDLL = load_script("quantize_trunk")._ggml()
    n, rows, columns = values.shape
    out = np.empty((n, rows, columns // 256 * 144), dtype=np.uint8)
    for each, weight, target in zip(values, np.ascontiguousarray(weights), out, strict=True):
        library.ggml_quantize_chunk(
            int(gguf.GGMLQuantizationType.Q4_K),
            each.ctypes.data,
            target.ctypes.data,
            0,
            rows,
            columns,
            weight.ctypes.data,
        )
    return hashlib.sha256(out.tobytes()).hexdigest()


def test_another_models_matrix_is_refused() -> None:
    entry = Entry(np.ones((4, 8), dtype=np.float32), np.array([1, 1, 1, 1]))
    matrix = Importance({"blk.3.ffn_up_exps.weight": entry}, where="x.gguf")
    for columns, n in ((8, 8), (16, 4)):
        with pytest.raises(IncompatibleError, match=rf"blk.3.ffn_up_exps.weight: 4 x 8 .*, {n} x {columns}") as caught:
            matrix.importance_of("blk.3.ffn_up_exps.weight", columns, n)
        assert caught.value.exit_code == 4
    other = Importance({"blk.3.ffn_up_exps.weight": Entry(np.ones((2, 16), dtype=np.float32), np.array([1, 1]))})
    with pytest.raises(IncompatibleError, match=r"blk\.3\.ffn_up_exps\.weight: 4 x 8 and 2 x 16"):
        merged(matrix, other)


@pytest.mark.parametrize(("name", "optional"), [("one.gguf", 0), ("one.dat", 4 + 4 + len("text-1.txt"))])
def test_cut_anywhere(files: Path, name: str, optional: int) -> None:
    """Every shorter file is refused, but for an older one that ends before or in the name of its text."""
    whole = (files / name).read_bytes()
    path, kept = files / "cut", []
    last = len(whole) - optional
    for size in range(last):
        path.write_bytes(whole[:size])
        try:
            read_importance(path)
            kept.append(size)
        except InputError:
            pass
    end = len(whole.rstrip(b"\0"))  # what follows the last tensor of a GGUF is padding
    assert [size for size in kept if size < end] == []
    path.write_bytes(whole[:last])
    assert read_importance(path).entries.keys() == read_importance(files / name).entries.keys()


@pytest.mark.parametrize(("value", "what"), [(np.nan, "2 not finite"), (np.inf, "2 not finite"), (-1, "2 negative")])
def test_bad_sums_are_named(files: Path, value: float, what: str) -> None:
    matrix = read_importance(files / "one.gguf")
    sums = matrix.entries["blk.7.attn_q.weight"].sums.copy()
    sums[0, 1:3] = value
    entries = {**matrix.entries, "blk.7.attn_q.weight": Entry(sums, np.array([256]))}
    path = files / "bad.gguf"
    path.write_bytes(written(Importance(entries, matrix.datasets, 4, 64)))
    with pytest.raises(CorruptError, match=f"blk.7.attn_q.weight: of 6 sums {what}"):
        read_importance(path)


def test_what_is_no_importance_matrix(files: Path) -> None:
    (files / "text").write_text("This is a text, and it is long enough to hold a number.", encoding="utf-8")
    (files / "empty").write_bytes(b"")
    (files / "zeros").write_bytes(bytes(64))
    model = FIXTURES / "qwen35/gguf/trunk-Q8_0.gguf"
    for path in (files / "text", files / "empty", files / "zeros", model, FIXTURES / "qwen35/hf/model.safetensors"):
        with pytest.raises(InputError, match="not an importance matrix"):
            read_importance(path)
    for path in (files, files / "nothing.gguf"):
        with pytest.raises(InputError, match="cannot read"):
            read_importance(path)


def test_incomplete_files(files: Path) -> None:
    def write(name: str, *, keys: int = 3, codec: type = np.float32, counts: int = 1, both: bool = True) -> Path:
        writer = gguf.GGUFWriter(files / name, "")
        writer.kv_data[0].clear()
        for key, add in list(
            {
                "datasets": lambda: writer.add_array("imatrix.datasets", ["a"]),
                "count": lambda: writer.add_uint32("imatrix.chunk_count", 1),
                "size": lambda: writer.add_uint32("imatrix.chunk_size", 1),
            }.items()
        )[:keys]:
            assert key
            add()
        writer.add_tensor("a.in_sum2", np.ones(6, dtype=codec))
        if both:
            writer.add_tensor("a.counts", np.ones(counts, dtype=np.float32))
        for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
            step()
        writer.close()
        return files / name

    assert read_importance(write("good.gguf")).entries["a"].sums.shape == (1, 6)
    for path, what in (
        (write("keys.gguf", keys=2), "imatrix.chunk_size"),
        (write("half.gguf", codec=np.float16), "a.in_sum2 is F16"),
        (write("odd.gguf", counts=4), "6 sums and 4 counts"),
        (write("alone.gguf", both=False), "a has no .counts"),
    ):
        with pytest.raises(CorruptError, match=what):
            read_importance(path)
