"""Lists and maps in files: ours read by other people's code, theirs by ours, and every fault named with its place."""

from __future__ import annotations

import hashlib
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import save_file

from mtptools.checkpoint import open_checkpoint
from mtptools.errors import InputError, MtpToolsError, TokenizerError, UsageError
from mtptools.tokens import tokenizer_facts
from mtptools.vocab.mapfiles import FORMATS, LOADED_BY, file_bytes, read_ids, receipt
from mtptools.vocab.maps import Absolute, DraftVocabulary
from tests.conftest import FIXTURES
from tests.vocab import reduced

SIZE = 2048
IDS = np.array([0, 1, 2, 9, 100, 101, 400, 2047], dtype=np.int64)
OFFSETS = IDS - np.arange(len(IDS))
MASK = np.isin(np.arange(SIZE), IDS)
MADE = DraftVocabulary.of(Absolute(IDS), SIZE)
HASH, OTHER = "a1" * 32, "b2" * 32
Make = Callable[[str, Any], Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """(name, what) -> a file: bytes and text as they are, other things as the suffix says."""

    def write(name: str, what: Any) -> Path:
        path = tmp_path / name
        if isinstance(what, bytes):
            path.write_bytes(what)
        elif isinstance(what, str):
            path.write_text(what, encoding="utf-8")
        elif path.suffix == ".json":
            path.write_text(json.dumps(what), encoding="utf-8")
        elif path.suffix == ".npy":
            np.save(path, what)
        elif path.suffix == ".safetensors":
            save_file(what, path)
        else:
            torch.save(what, path)
        return path

    return write


def same(found: DraftVocabulary) -> bool:
    return found == MADE


# What we write


@pytest.mark.parametrize("name", FORMATS)
def test_comes_back(name: str, make: Make) -> None:
    data = file_bytes(MADE, name, HASH)
    assert data == file_bytes(MADE, name, HASH)
    path = make(f"x{FORMATS[name].suffix}", data)
    assert same(read_ids(path, SIZE, tokenizer_sha256=HASH))
    made = receipt(MADE, name, data, HASH, {"corpus": ["a.txt"]})
    assert made["sha256"] == hashlib.sha256(data).hexdigest()
    assert (made["tokens"], made["vocab_size"], made["kind"]) == (8, SIZE, FORMATS[name].kind)
    assert json.loads(json.dumps(made))["origin"] == {"corpus": ["a.txt"]}
    assert LOADED_BY[name]


def test_ids_as_the_vllm_overlay_reads_them(make: Make) -> None:
    """sorted({int(line) for line in handle if line.strip()}): a line of anything else would raise."""
    path = make("x.txt", file_bytes(MADE, "ids", HASH))
    with open(path) as handle:
        assert [int(line) for line in handle] == IDS.tolist()


def test_json_as_mtplx_reads_it(make: Make) -> None:
    payload = json.loads(make("x.json", file_bytes(MADE, "json", HASH)).read_text())
    assert payload["ids"] == IDS.tolist()
    assert (payload["schema"], payload["kind"], payload["vocab_size"]) == (1, "absolute", SIZE)
    assert payload["tokenizer_sha256"] == HASH


def test_npy_as_mtplx_reads_it(make: Make) -> None:
    path = make("x.npy", file_bytes(MADE, "npy", HASH))
    assert np.load(path, allow_pickle=False).reshape(-1).tolist() == IDS.tolist()


def test_pt_as_sglang_reads_it(make: Make) -> None:
    """torch.tensor(torch.load(path, weights_only=True), dtype=torch.int64), warnings being errors here."""
    path = make("x.pt", file_bytes(MADE, "sglang", HASH))
    hot = torch.load(path, weights_only=True)
    assert torch.tensor(hot, dtype=torch.int64).tolist() == IDS.tolist()
    head = torch.arange(SIZE * 4).reshape(SIZE, 4)
    assert torch.equal(head[torch.tensor(hot)][3], head[9])


def test_eagle3_as_the_safetensors_library_reads_it(make: Make) -> None:
    path = make("x.safetensors", file_bytes(MADE, "eagle3", HASH))
    with safe_open(path, "numpy") as file:
        d2t, t2d, metadata = file.get_tensor("d2t"), file.get_tensor("t2d"), file.metadata()
    assert (d2t.dtype, t2d.dtype) == (np.int64, np.bool_)
    assert (np.arange(len(d2t)) + d2t).tolist() == IDS.tolist() == np.flatnonzero(t2d).tolist()
    assert metadata["draft_vocab_size"] == "8"


def test_no_such_format() -> None:
    with pytest.raises(UsageError) as error:
        file_bytes(MADE, "gguf2", None)
    assert "eagle3" in str(error.value.hint)


def test_large_ones(make: Make) -> None:
    """As large as real ones: 64k of 248,320."""
    chosen = np.sort(np.random.default_rng(1).choice(248_320, 65_536, replace=False)).astype(np.int64)
    made = DraftVocabulary.of(Absolute(chosen), 248_320)
    for name, form in FORMATS.items():
        assert read_ids(make(f"x{form.suffix}", file_bytes(made, name, None)), 248_320) == made
    assert torch.load(make("y.pt", file_bytes(made, "sglang", None)), weights_only=True) == chosen.tolist()


# What others write

BY_FREQUENCY = [9, 0, 2047, 400, 1, 2, 101, 100]


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("x.txt", "\n".join(map(str, BY_FREQUENCY))),
        ("list", "\r\n\r\n".join(map(str, BY_FREQUENCY)) + "\r\n"),
        ("x.json", BY_FREQUENCY),
        ("x.json", {"ids": BY_FREQUENCY}),  # MTPLX's
        ("x.txt", json.dumps(BY_FREQUENCY)),
        ("x.npy", np.array(BY_FREQUENCY, dtype=np.int32)),
        ("x.npy", np.array(BY_FREQUENCY, dtype=np.uint64)),
        ("x.npy", MASK),
        ("x.pt", BY_FREQUENCY),  # FR-Spec's freq_32768.pt
        ("x.pt", torch.tensor(BY_FREQUENCY, dtype=torch.int32)),
        ("x.pt", torch.tensor(BY_FREQUENCY)),
        ("x.pt", {"d2t": torch.tensor(OFFSETS), "t2d": torch.tensor(MASK)}),
        ("x.pt", {"d2t": torch.tensor(OFFSETS)}),
        ("x.safetensors", {"d2t": OFFSETS, "t2d": MASK, "fc.weight": np.zeros((2, 2), np.float32)}),
        ("x.safetensors", {"d2t": OFFSETS.astype(np.int32)}),
        ("x.safetensors", {"d2t": IDS}),  # 2047 + 7 is no token: they cannot be offsets
        ("x.txt", b"\xef\xbb\xbf" + "\n".join(map(str, BY_FREQUENCY)).encode()),
        ("d2t.npy", OFFSETS),  # speculators'
        ("d2t.npy", IDS),
    ],
)
def test_theirs(name: str, what: Any, make: Make) -> None:
    assert same(read_ids(make(name, what), SIZE))


def test_a_reduced_head_gives_its_own(tmp_path: Path) -> None:
    full = FIXTURES / "qwen35" / "gguf" / "model-BF16.gguf"
    path = reduced.gguf(full, tmp_path / "r.gguf", put={"d2t": IDS})
    tokens = tokenizer_facts(open_checkpoint(full))
    assert tokens is not None
    assert same(read_ids(path, SIZE, tokenizer_sha256=tokens.digest))
    with pytest.raises(TokenizerError, match=tokens.digest[:12]):
        read_ids(path, SIZE, tokenizer_sha256=OTHER)
    with pytest.raises(InputError, match="not reduced"):
        read_ids(full, SIZE)
    twisted = reduced.gguf(full, tmp_path / "o.gguf", put={"d2t": OFFSETS})
    with pytest.raises(InputError, match="these are offsets, absolute ids belong here"):
        read_ids(twisted, SIZE)
    folder = tmp_path / "folder"
    folder.mkdir()
    save_file({"d2t": OFFSETS, "t2d": MASK}, folder / "model.safetensors")
    assert same(read_ids(folder, SIZE))


AMBIGUOUS = np.array([3, 20, 40, 90], dtype=np.int64)


@pytest.mark.parametrize("name", ["x.safetensors", "x.pt", "d2t.npy"])
def test_which_of_the_two_must_be_said(name: str, make: Make) -> None:
    what = {"d2t": AMBIGUOUS} if name.endswith("safetensors") else AMBIGUOUS
    path = make(name, {"d2t": torch.tensor(AMBIGUOUS)} if name == "x.pt" else what)
    with pytest.raises(InputError) as error:
        read_ids(path, SIZE)
    assert "absolute: tokens 3 to 90, offsets: tokens 3 to 93" in error.value.what
    assert "--ids-as absolute|offsets" in str(error.value.hint)
    assert read_ids(path, SIZE, kind="absolute").ids.tolist() == [3, 20, 40, 90]
    assert read_ids(path, SIZE, kind="offsets").ids.tolist() == [3, 21, 42, 93]


def test_absolute_ids_where_offsets_belong(make: Make) -> None:
    path = make("x.safetensors", {"d2t": IDS, "t2d": MASK})
    with pytest.raises(InputError, match="these are absolute ids, offsets belong here") as error:
        read_ids(path, SIZE)
    assert "--ids-as absolute" in str(error.value.hint)
    assert same(read_ids(path, SIZE, kind="absolute"))
    with pytest.raises(InputError, match="t2d disagrees"):
        read_ids(path, SIZE, kind="offsets")


def test_a_list_of_offsets(make: Make) -> None:
    path = make("x.json", OFFSETS.tolist())
    with pytest.raises(InputError, match="more than once") as error:
        read_ids(path, SIZE)
    assert "as offsets they are a map: --ids-as offsets" in str(error.value.hint)


@pytest.mark.parametrize("kind", ["absolute", "offsets"])
def test_json_says_its_kind(kind: Any, make: Make) -> None:
    path = make("x.json", {"kind": kind, "ids": (IDS if kind == "absolute" else OFFSETS).tolist()})
    assert same(read_ids(path, SIZE))
    assert same(read_ids(path, SIZE, kind=kind))
    with pytest.raises(InputError, match=f"its numbers are {kind}, not"):
        read_ids(path, SIZE, kind="offsets" if kind == "absolute" else "absolute")


# Another tokenizer


def test_another_tokenizer_inside(make: Make) -> None:
    for name in ("json", "eagle3"):
        path = make(f"x{FORMATS[name].suffix}", file_bytes(MADE, name, HASH))
        with pytest.raises(TokenizerError) as error:
            read_ids(path, SIZE, tokenizer_sha256=OTHER)
        assert HASH[:12] in error.value.what
        assert OTHER[:12] in error.value.what
        assert HASH[:13] not in error.value.what
        assert same(read_ids(path, SIZE))  # a model without a tokenizer has nothing to compare


@pytest.mark.parametrize("name", FORMATS)
def test_another_tokenizer_in_the_receipt(name: str, make: Make) -> None:
    data = file_bytes(MADE, name, None)
    path = make(f"x{FORMATS[name].suffix}", data)
    make(path.name + ".receipt.json", json.dumps(receipt(MADE, name, data, HASH, None)))
    assert same(read_ids(path, SIZE, tokenizer_sha256=HASH))
    with pytest.raises(TokenizerError, match=HASH[:12]):
        read_ids(path, SIZE, tokenizer_sha256=OTHER)


# Faults

FAULTS: list[tuple[str, Any, str]] = [
    ("x.txt", "", "empty"),
    ("x.txt", "\n \n", "holds no ids"),
    ("x.txt", "5\n9\n".encode("utf-16"), "UTF-16 text"),
    ("x.txt", "5\n9\nhello\n", "line 3 is 'hello', no whole number"),
    ("x.txt", "5\n1.5\n", "line 2 is '1.5'"),
    ("x.txt", "5\n1_0\n", "line 2 is '1_0'"),
    ("x.txt", "5, 9\n", "line 1 is '5, 9'"),
    ("x.txt", "# ids\n5\n", "line 1 is '# ids'"),
    ("x.txt", "5\n" + "9" * 40, "line 2 is"),
    ("x.txt", b"\x00\xff\x01\x02" * 50, "line 1 is"),
    ("x.txt", "5\n\n-3\n", "line 3 is -3"),
    ("x.txt", "5\n2048\n", "line 2 is 2048, the vocabulary has 2048"),
    ("x.txt", "5\n7\n\n5\n", "5 at line 1 and line 4"),
    ("x.json", [], "no list of ids"),
    ("x.json", [1, 2.0], "entry 1 is 2.0, no id"),
    ("x.json", [1, True], "entry 1 is True, no id"),
    ("x.json", [1, "2"], "entry 1 is '2', no id"),
    ("x.json", [1, 10**30], "entry 1 is"),
    ("x.json", [[1, 2]], "entry 0 is"),
    ("x.json", {"tokens": [1]}, "neither a list of ids nor an object"),
    ("x.json", "[1, 2", "not readable as JSON"),
    ("x.json", {"ids": [1], "schema": 2}, "schema 2, this version reads 1"),
    ("x.json", {"ids": [1], "kind": "relative"}, "kind is 'relative'"),
    ("x.json", {"ids": [1], "vocab_size": 99}, "made for a vocabulary of 99 tokens, the model has 2048"),
    ("x.json", {"ids": [1], "vocab_size": "99"}, "vocab_size '99'"),
    ("x.json", {"ids": [1, 5000, 1]}, "entry 1 is 5000"),
    ("x.npy", np.zeros((2, 2), np.int64), "holds int64 [2, 2]"),
    ("x.npy", np.zeros(3), "holds float64 [3]"),
    ("x.npy", np.zeros(99, np.bool_), "made for a vocabulary of 99 tokens"),
    ("x.npy", np.array([2**64 - 1], np.uint64), "entry 0 is"),
    ("x.npy", b"\x93NUMPY\x01\x00rubbish", "no numpy array"),
    ("x.npy", b"1\n2\n", "no numpy array"),
    ("x.pt", b"rubbish", "not readable as lists and tensors"),
    ("x.pt", b"PK\x03\x04rubbish", "not readable as lists and tensors"),
    ("x.pt", {"a": 1}, "holds dict, no list of ids"),
    ("x.pt", torch.zeros(3), "holds float32 [3]"),
    ("x.pt", torch.zeros(3, dtype=torch.bfloat16), "holds torch.bfloat16"),
    ("x.pt", {"d2t": torch.tensor(OFFSETS), "t2d": torch.tensor(MASK[1:])}, "t2d is no mask of 2048 tokens"),
    ("x.pt", [1, 2.5], "entry 1 is 2.5"),
    ("x.safetensors", b"rubbish", "not a safetensors file"),
    ("x.safetensors", {"x": np.zeros(3)}, "holds no d2t"),
    ("x.safetensors", {"d2t": OFFSETS, "t2d": MASK[1:]}, "t2d is BOOL [2047]"),
    ("x.safetensors", {"d2t": OFFSETS.astype(np.float32)}, "d2t is F32"),
    ("x.safetensors", {"d2t": OFFSETS, "t2d": ~MASK}, "t2d disagrees with d2t on 2048 tokens, token 0 the first"),
    ("x.safetensors", {"d2t": np.array([0, 0, 0, 4000])}, "row 3 is 4003"),
]


@pytest.mark.parametrize(("name", "what", "said"), FAULTS, ids=[f"{n}-{said[:24]}" for n, _, said in FAULTS])
def test_faults(name: str, what: Any, said: str, make: Make) -> None:
    path = make(name, what)
    with pytest.raises(MtpToolsError) as error:
        read_ids(path, SIZE)
    assert said in error.value.what
    assert error.value.exit_code == 3
    assert path.name in str(error.value.where)


def test_code_in_a_pickle_is_not_run(make: Make, tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "ran",)

    for name in ("x.pt", "x.txt", "x.npy"):
        with pytest.raises(InputError):
            read_ids(make(name, pickle.dumps(Evil(), 2)), SIZE)
    with pytest.raises(InputError, match="not readable as lists and tensors"):
        read_ids(make("y.pt", Evil()), SIZE)
    objects = make("z.npy", np.array([Evil()], dtype=object))
    with pytest.raises(InputError, match="no numpy array"):
        read_ids(objects, SIZE)
    assert not (tmp_path / "ran").exists()


def test_a_header_that_claims_a_terabyte(make: Make) -> None:
    head = b"{'descr': '<i8', 'fortran_order': False, 'shape': (200000000000,), }"
    head += b" " * (118 - len(head) - 1) + b"\n"
    with pytest.raises(InputError, match="no numpy array"):
        read_ids(make("x.npy", b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head), SIZE)


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(MtpToolsError) as error:
        read_ids(tmp_path / "none.txt", SIZE)
    assert error.value.exit_code == 3


def test_a_pt_without_torch(make: Make) -> None:
    path = make("x.pt", IDS.tolist())
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from mtptools.vocab.mapfiles import read_ids, file_bytes\n"
        "from mtptools.errors import MissingExtraError\n"
        f"found = read_ids({str(make('x.txt', '1'))!r}, 9)\n"
        "assert file_bytes(found, 'sglang', None)\n"  # written without torch
        f"try:\n read_ids({str(path)!r}, 9)\nexcept MissingExtraError as error:\n print(error.hint)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "mtptools[decoder]" in done.stdout
