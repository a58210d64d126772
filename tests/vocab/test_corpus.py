"""Corpora: what is read, where it is cut, what is held out, and what is refused."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from mtptools.errors import InputError
from mtptools.vocab import corpus
from mtptools.vocab.corpus import Left, Piece, find, pieces

HELD = [3, 15, 22, 32, 45]
"""Recorded: documents that are held out of fifty, on every machine and in every version."""


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
    assert max(map(len, found)) <= 1 << 18
    assert found[1].startswith(" word")


@pytest.mark.parametrize(
    ("text", "most"), [("".join(f"word{n} " for n in range(500_000)), 0.025), ("天地" * 99_999, 0.07)]
)
def test_one_line_is_held_out_in_blocks(text: str, most: float, tmp_path: Path) -> None:
    found = read(written(tmp_path / "t.txt", text))
    assert "".join(piece.text for piece in found) == text
    assert max(len(piece.text) for piece in found) <= most * len(text)
    if " " in text:
        assert 0.07 < sum(len(piece.text) for piece in found if piece.held) / len(text) < 0.13


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
    assert [n for n, piece in enumerate(found) if piece.held] == HELD[:3]
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


def test_damaged_files_of_a_folder(tmp_path: Path) -> None:
    """They are read up to the damage; a .json that holds no text is code like any other."""
    broken = {
        "a.jsonl": (b'"whole"\n{"text": \n', "line 2 is not JSON"),
        "b.txt": (b"x\n" * 50_000 + b"\0", "byte 100000 is zero"),
        "c.txt": (b"x\n" * 50_000 + b"\xff", "not UTF-8: byte 100000"),
        "d.jsonl": (b'{"id": 1}\n{"id": 2}\n', "none of 2 records holds text"),
        "e.txt.gz": (gzip.compress(b"hello" * 99_999, mtime=0)[:-30], "cannot be read"),
        "f.json": (b'["a", "b"', "is not JSON"),
    }
    code = {
        "package.json": b'{"name": 1}\n',
        "points.json": b"[[1, 2], [3, 4]]",
        "none.json": b"[]",
        "odd.json": b"[1,",
    }
    for name, data in ({name: data for name, (data, _) in broken.items()} | code).items():
        written(tmp_path / name, data)
    left = Left()
    found = [piece.text for piece in pieces(find([tmp_path]), left)]
    assert {path.name for path in left.skipped} == set(broken)
    for path, why in left.skipped.items():
        assert broken[path.name][1] in why
    assert set(found) >= {"whole", *(data.decode() for data in code.values())}
    with pytest.raises(InputError, match="line 2 is not JSON"):
        read(tmp_path / "a.jsonl")


def test_records_without_text(tmp_path: Path) -> None:
    left = Left()
    path = written(tmp_path / "t.jsonl", b'"a"\n{"id": 7}\n{"text": " "}\n"b"\n')
    assert [piece.text for piece in pieces(find([path]), left)] == ["a", "b"]
    assert left.textless == 2


def test_a_file_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "one" / "t.txt", "text\n")
    (tmp_path / "link.txt").symlink_to(path)
    monkeypatch.chdir(tmp_path)
    files = find([Path("one"), Path("one/t.txt"), path, Path("link.txt")])
    assert files.paths == (Path("one/t.txt"),)
    assert files.named == {Path("one/t.txt")}


def test_whole_documents_are_held_out(tmp_path: Path) -> None:
    for n in range(20):
        written(tmp_path / f"{n:02}.txt", "".join(f"file {n} line {line}\n" for line in range(6000)))
    found = read(tmp_path)
    assert len(found) > 20
    held = tuple(f"file {n} " for n in HELD[:2])
    assert {piece.text.split("line")[0] for piece in found if piece.held} == set(held)
    assert not any(piece.text.startswith(held) for piece in found if not piece.held)


def test_one_of_ten_but_no_period() -> None:
    held = np.array([corpus._is_held(n) for n in range(20_000)])
    assert np.flatnonzero(held)[: len(HELD)].tolist() == HELD
    assert (held.reshape(-1, 10).sum(1) == 1).all()
    for period in range(2, 41):
        assert max(abs(held[start::period].mean() - 0.1) for start in range(period)) < 0.05, period


@pytest.mark.parametrize("large", [3, 8])
def test_uneven_documents_make_blocks(large: int, tmp_path: Path) -> None:
    """A document with nearly all of the text, one that would be held out and one that would not."""
    for n in range(25):
        written(tmp_path / f"{n:02}.txt", "".join(f"file {n} word {m}\n" for m in range(50_000 if n == large else 5)))
    found = read(tmp_path)
    assert 0.05 < sum(len(p.text) for p in found if p.held) / sum(len(p.text) for p in found) < 0.15


def test_repeated_text_is_not_held_out(tmp_path: Path) -> None:
    """The system prompt of an agent's logs."""
    prompt = "You are an agent that uses tools. " * 50
    logs = [{"messages": [{"content": prompt + " " * (n % 2)}, {"content": f"question {n}"}]} for n in range(200)]
    path = written(tmp_path / "t.jsonl", "".join(json.dumps(one) + "\n" for one in logs))
    left = Left()
    found = list(pieces(find([path]), left))
    assert [piece.text for piece in found] == [one["content"] for log in logs for one in log["messages"]]
    held = [piece.text for piece in found if piece.held]
    assert held == [f"question {n}" for n in range(200) if corpus._is_held(n)]
    assert left.repeated == sum(len(log["messages"][0]["content"]) for n, log in enumerate(logs) if corpus._is_held(n))


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
    path = written(
        tmp_path / "t.jsonl", "".join(json.dumps(" ".join(f"{n}{m}" for m in range(2000))) + "\n" for n in range(19))
    )
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
    ("t.jsonl", b'""\n{"text": " "}\n', "none of 2 records holds text", "UTF-8"),
    ("t.txt", b"abc\0def", "byte 3 is zero", "UTF-8"),
    ("t.txt", b"x" * 200_000 + b"\0", "byte 200000 is zero", "UTF-8"),
    ("t.txt", b"se\xf1or", "not UTF-8: byte 2", "iconv -f ENCODING -t UTF-8"),
    ("t.txt", b"x" * 65_535 + "天".encode() + b"\xff", "not UTF-8: byte 65538", "iconv"),
    ("t.txt", b"x" * 65_535 + "天".encode()[:2], "not UTF-8: byte 65535", "iconv"),
    ("t.txt", "hello".encode("utf-16"), "UTF-16", "iconv -f UTF-16 -t UTF-8"),
    ("t.jsonl", '"hello"'.encode("utf-16"), "UTF-16", "iconv -f UTF-16 -t UTF-8"),
    ("t.txt", "hello".encode("utf-32"), "UTF-32", "iconv -f UTF-32 -t UTF-8"),
    ("t.jsonl", b'"a"\n\n{"text": "b"\n', "line 3 is not JSON", "JSONL"),
    ("t.jsonl", b'{"id": 7}\n', "none of 1 records holds text", "messages"),
    ("t.jsonl.gz", gzip.compress(b'"' + b"a" * (33 << 20) + b'"\n', mtime=0), "line 1 has more than 32 MB", "split it"),
    ("t.jsonl", b'"a"\n"\\ud800"\n', "line 2 holds half a character", "pair"),
    ("t.jsonl", b'"a"\n"\xff"\n', "not UTF-8: byte 5", "iconv"),
    ("t.json", b'["a"', "not JSON", "JSONL"),
    ("t.txt.gz", gzip.compress(b"hello" * 9999, mtime=0)[:-30], "cannot be read", "whole"),
    ("t.txt.gz", b"\x1f\x8bnot gzip", "cannot be read", "whole"),
]


@pytest.mark.parametrize(("name", "data", "what", "hint"), REFUSED, ids=[case[2] for case in REFUSED])
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
