"""Corpora: what is read, where it is cut, what is held out, and what is refused."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise
from pathlib import Path

import pytest

from mtptools.errors import InputError
from mtptools.vocab import corpus
from mtptools.vocab.corpus import Piece, find, pieces


def read(*paths: Path) -> list[Piece]:
    return list(pieces(find(paths)))


def texts(*paths: Path) -> list[str]:
    return [piece.text for piece in read(*paths)]


def written(path: Path, data: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def test_text_is_whole(tmp_path: Path) -> None:
    text = "".join(f"line {n} of it\r\n" + "\n" * (n % 3) + "    indented é 天\n" for n in range(20000))
    found = read(written(tmp_path / "t.txt", text))
    assert "".join(piece.text for piece in found) == text
    assert max(len(piece.text) for piece in found) <= 1 << 16
    assert all(piece.text.endswith("\n") for piece in found)
    assert not any(piece.text[0].isspace() for piece in found[1:])
    assert [piece.begins for piece in found].count(True) == 1
    assert found[-1].read == len(text.encode())


def test_long_lines(tmp_path: Path) -> None:
    spaced, solid = "word " * 500_000, "天" * 2_500_000
    found = texts(written(tmp_path / "t.txt", spaced + "\n" + solid))
    assert "".join(found) == spaced + "\n" + solid
    assert max(map(len, found)) <= 1 << 20
    assert found[1].startswith(" word")


def test_byte_order_mark(tmp_path: Path) -> None:
    assert texts(written(tmp_path / "t.txt", b"\xef\xbb\xbfhello")) == ["hello"]
    assert texts(written(tmp_path / "t.jsonl", b'\xef\xbb\xbf"hello"\n')) == ["hello"]


RECORDS: list[tuple[object, list[str]]] = [
    ("plain", ["plain"]),
    ({"text": "a", "id": "no", "meta": {"text": "not a field's field"}}, ["a"]),
    ({"prompt": "p", "completion": "c"}, ["p", "c"]),
    ({"canonical_solution": "s", "prompt": "p"}, ["s", "p"]),
    ({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}, ["q", "a"]),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": "part"}]}]}, ["part"]),
    ({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}, ["q", "a"]),
    ({"turns": ["one", "two"]}, ["one", "two"]),
    ({"instruction": "i", "input": "", "output": "o"}, ["i", "o"]),
    ({"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}], "text": "t"}, ["{}", "t"]),
    (["x", {"text": "y"}], ["x", "y"]),
]


@pytest.mark.parametrize(("record", "expected"), RECORDS)
def test_every_text_of_a_record(record: object, expected: list[str], tmp_path: Path) -> None:
    assert texts(written(tmp_path / "t.jsonl", json.dumps(record) + "\n\n")) == expected


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", ["t.jsonl", "t.json", "lines.json"])
def test_records(name: str, packed: bool, tmp_path: Path) -> None:
    records = [{"text": f"document {n}\u2028 goes on"} for n in range(30)]
    text = json.dumps(records) if name == "t.json" else "".join(json.dumps(one) + "\n" for one in records)
    path = tmp_path / (name + ".gz" * packed)
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    found = read(path)
    assert [piece.text for piece in found] == [one["text"] for one in records]
    assert [n for n, piece in enumerate(found) if piece.held] == [9, 19, 29]
    assert all(piece.begins for piece in found)
    assert found[-1].read <= path.stat().st_size


def test_other_json_is_code(tmp_path: Path) -> None:
    text = json.dumps({"name": "package", "version": 1}, indent=2)
    assert texts(written(tmp_path / "package.json", text)) == [text]


def test_folder(tmp_path: Path) -> None:
    written(tmp_path / "b" / "two.py", "two = 2\n")
    written(tmp_path / "a.txt", "one\n")
    written(tmp_path / "empty.py", "")
    written(tmp_path / ".git" / "hidden", "no")
    written(tmp_path / "image.png", b"\x89PNG\0\0")
    written(tmp_path / "latin.txt", "señor".encode("latin-1"))
    files = find([tmp_path])
    assert [path.name for path in files.paths] == ["a.txt", "two.py"]
    assert {path.name: why for path, why in files.skipped.items()} == {
        "image.png": "binary, not text: byte 4 is zero",
        "latin.txt": "not UTF-8: byte 2",
    }
    assert files.nbytes == 12
    assert [piece.text for piece in pieces(files)] == ["one\n", "two = 2\n"]


def test_whole_documents_are_held_out(tmp_path: Path) -> None:
    for n in range(20):
        written(tmp_path / f"{n:02}.txt", f"file {n}\n" * 9000)
    found = read(tmp_path)
    assert len(found) > 20
    assert {piece.text.split("\n")[0] for piece in found if piece.held} == {"file 9", "file 19"}
    assert not any(piece.text.startswith(("file 9\n", "file 19\n")) for piece in found if not piece.held)


@pytest.mark.parametrize("size", [5_000, 100_000, 3_000_000])
def test_blocks_are_held_out(size: int, tmp_path: Path) -> None:
    """One text: about a tenth, in several places, of consecutive lines."""
    lines = [f"line {n} of a text\n" for n in range(size // 19)]
    found = read(written(tmp_path / "t.txt", "".join(lines)))
    held = [piece.text for piece in found if piece.held]
    assert 0.05 < sum(map(len, held)) / sum(map(len, lines)) < 0.15
    edges = sum(a.held != b.held for a, b in pairwise(found))
    assert edges >= (2 if size == 5_000 else 10)
    assert all(text.count("\n") > 5 for text in held)


def test_few_documents_make_blocks(tmp_path: Path) -> None:
    """Nineteen records: blocks of consecutive text, of which none holds two."""
    path = written(tmp_path / "t.jsonl", "".join(json.dumps(f"{n} " + "word " * 2000) + "\n" for n in range(19)))
    found = read(path)
    assert sum(piece.begins for piece in found) == 19
    assert 0.05 < sum(len(p.text) for p in found if p.held) / sum(len(p.text) for p in found) < 0.15


def test_the_same_each_time(tmp_path: Path) -> None:
    path = written(tmp_path / "t.txt", "".join(f"{n}\n" for n in range(50_000)))
    assert read(path) == read(path)


def test_memory_is_bounded(tmp_path: Path) -> None:
    """Pieces come before the file has been read to its end."""
    path = written(tmp_path / "t.txt", b"some words in a line\n" * 500_000)
    first = next(iter(pieces(find([path]))))
    assert first.read <= 4 * corpus.PIECE


REFUSED: list[tuple[str, bytes, str, str]] = [
    ("t.txt", b"", "no text", "UTF-8"),
    ("t.txt", b" \n\t\n", "no text", "UTF-8"),
    ("t.jsonl", b"\n\n", "no text", "UTF-8"),
    ("t.jsonl", b'""\n{"text": " "}\n', "no text", "UTF-8"),
    ("t.txt", b"abc\0def", "byte 3 is zero", "UTF-8"),
    ("t.txt", b"x" * 200_000 + b"\0", "byte 200000 is zero", "UTF-8"),
    ("t.txt", b"se\xf1or", "not UTF-8: byte 2", "iconv -f ENCODING -t UTF-8"),
    ("t.txt", b"x" * 65_535 + "天".encode() + b"\xff", "not UTF-8: byte 65538", "iconv"),
    ("t.txt", b"x" * 65_535 + "天".encode()[:2], "not UTF-8: byte 65535", "iconv"),
    ("t.txt", "hello".encode("utf-16"), "UTF-16", "iconv -f UTF-16 -t UTF-8"),
    ("t.jsonl", '"hello"'.encode("utf-16"), "UTF-16", "iconv -f UTF-16 -t UTF-8"),
    ("t.txt", "hello".encode("utf-32"), "UTF-32", "iconv -f UTF-32 -t UTF-8"),
    ("t.jsonl", b'"a"\n\n{"text": "b"\n', "line 3 is not JSON", "JSONL"),
    ("t.jsonl", b'"a"\n{"id": 7}\n', "line 2 holds no text", "messages"),
    ("t.jsonl", b'"a"\n"\\ud800"\n', "line 2 holds half a character", "pair"),
    ("t.jsonl", b'"a"\n"\xff"\n', "not UTF-8: byte 5", "iconv"),
    ("t.json", b'["a", 7]', "entry 2 holds no text", "messages"),
    ("t.json", b'["a"', "not JSON", "JSONL"),
    ("t.txt.gz", gzip.compress(b"hello" * 9999)[:-30], "cannot be read", "whole"),
    ("t.txt.gz", b"\x1f\x8bnot gzip", "cannot be read", "whole"),
]


@pytest.mark.parametrize(("name", "data", "what", "hint"), REFUSED)
def test_refused(name: str, data: bytes, what: str, hint: str, tmp_path: Path) -> None:
    path = written(tmp_path / name, data)
    with pytest.raises(InputError, match=what) as found:
        read(path)
    assert found.value.where == str(path)
    assert hint in str(found.value.hint)


def test_refused_folders(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file or folder"):
        find([tmp_path / "missing"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no file in this folder holds text"):
        find([tmp_path / "empty"])
    written(tmp_path / "wide" / "a.txt", "hello".encode("utf-16"))
    with pytest.raises(InputError, match=r"none of 1 files is text: .*UTF-16") as found:
        find([tmp_path / "wide"])
    assert "iconv" in str(found.value.hint)
