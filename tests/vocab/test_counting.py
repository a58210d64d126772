"""Counting, against the tokenizers library encoding every piece whole; processes, errors, progress."""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mtptools.errors import InputError, MissingExtraError, SystemFailure, TokenizerError
from mtptools.vocab import counting, seen, tally, workers
from mtptools.vocab.corpus import find, pieces
from mtptools.vocab.counting import Counted, count
from mtptools.vocab.tally import Job

from .tokenizers_of_kinds import SAMPLE, texts, tokenizer

SIZE = 3100


@pytest.fixture
def corpora(tmp_path: Path) -> dict[str, list[Path]]:
    """Two domains: a text in many blocks, and documents in a folder beside a gzipped file."""
    one, folder, packed = tmp_path / "one.txt", tmp_path / "many", tmp_path / "packed.jsonl.gz"
    one.write_text("\n".join([*SAMPLE, *texts(1, 60)] * 4), encoding="utf-8", newline="")
    folder.mkdir()
    for n, text in enumerate(texts(2, 25)):
        (folder / f"{n}.py").write_text(text, encoding="utf-8", newline="")
    packed.write_bytes(gzip.compress(b'{"prompt": "caf\\u00e9 \\u0000 zero", "completion": "<think>no"}\n'))
    return {"one": [one], "many": [folder, packed]}


def plain(paths: list[Path], kind: str) -> tuple[np.ndarray, np.ndarray, int, int]:
    backend = tokenizer(kind)
    found = list(pieces(find(paths)))
    sides = []
    for side in (False, True):
        ids = [i for p in found if p.held is side for i in backend.encode(p.text, add_special_tokens=False).ids]
        sides.append(np.bincount(np.array(ids, np.int64), minlength=SIZE))
    return sides[0], sides[1], sum(p.begins for p in found), sum(len(p.text.encode()) for p in found)


def same(one: Counted, expected: tuple[np.ndarray, np.ndarray, int, int]) -> bool:
    train, held, documents, nbytes = expected
    alike = np.array_equal(one.train, train) and np.array_equal(one.held, held)
    return alike and (one.documents, one.nbytes) == (documents, nbytes)


@pytest.mark.parametrize("kind", ["qwen35", "deepseek-v3", "glm4", "gpt-2", "kimi-k2", "default"])
def test_as_encoded_whole(kind: str, corpora: dict[str, list[Path]]) -> None:
    """Kinds that are cut into words and kinds that are not (the last two)."""
    found = count(corpora, tokenizer(kind).to_str(), SIZE, processes=1)
    assert [one.domain for one in found] == ["one", "many"]
    assert all(one.train.dtype == one.held.dtype == np.int64 and one.train.shape == (SIZE,) for one in found)
    for one in found:
        assert same(one, plain(corpora[one.domain], kind)), one.domain
    assert found[1].documents == 26


def test_few_words_at_a_time(corpora: dict[str, list[Path]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Words are encoded whenever too many are held, and in several parts."""
    monkeypatch.setattr(tally, "MOST", 5000)
    monkeypatch.setattr(tally, "AT_ONCE", 7)
    monkeypatch.setattr(tally, "LETTERS", 40)
    monkeypatch.setattr(seen, "LONGEST", 12)
    monkeypatch.setattr(seen, "MERGE", 30)
    monkeypatch.setattr(seen, "ROWS", 5)
    monkeypatch.setattr(counting, "JOB", 500)
    for one in count(corpora, tokenizer("qwen35").to_str(), SIZE, processes=1):
        assert same(one, plain(corpora[one.domain], "qwen35"))


def test_processes_do_not_matter(corpora: dict[str, list[Path]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "JOB", 2000)
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    told: list[tuple[int, int]] = []
    found = count(corpora, tokenizer("qwen35").to_str(), SIZE, processes=2, progress=lambda *now: told.append(now))
    for one in found:
        assert same(one, plain(corpora[one.domain], "qwen35"))
    total = sum(find(paths).nbytes for paths in corpora.values())
    assert told == sorted(told)
    assert told[-1] == (total, total)
    assert len(told) > 5
    assert os.environ["TOKENIZERS_PARALLELISM"] == "true"


def test_one_process_starts_none(corpora: dict[str, list[Path]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(workers.multiprocessing, "get_context")
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    told: list[tuple[int, int]] = []
    count(corpora, tokenizer("qwen2").to_str(), SIZE, progress=lambda *now: told.append(now))  # None: they are small
    assert told[-1][0] == told[-1][1]
    assert "TOKENIZERS_PARALLELISM" not in os.environ


@pytest.mark.parametrize("processes", [1, 2])
def test_a_token_behind_the_vocabulary(processes: int, corpora: dict[str, list[Path]]) -> None:
    with pytest.raises(TokenizerError, match="and the model has 300") as found:
        count(corpora, tokenizer("qwen35").to_str(), 300, processes=processes)
    assert "this very model" in str(found.value.hint)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_broken_tokenizer(processes: int, corpora: dict[str, list[Path]]) -> None:
    with pytest.raises(TokenizerError, match="cannot be read") as found:
        count(corpora, "{}", SIZE, processes=processes)
    assert "tokenizer.json" in str(found.value.hint)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_broken_corpus(processes: int, tmp_path: Path) -> None:
    """Found while the processes are at work."""
    path = tmp_path / "c.jsonl"
    path.write_text('"some text"\n' * 1000 + "{\n", encoding="utf-8")
    with pytest.raises(InputError, match="line 1001 is not JSON"):
        count({"c": [path]}, tokenizer("qwen2").to_str(), SIZE, processes=processes)
    assert not workers.multiprocessing.active_children()


def test_an_interrupt(corpora: dict[str, list[Path]]) -> None:
    """What comes up in the one that counts ends the others."""

    def stop(_: int, __: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        count(corpora, tokenizer("qwen2").to_str(), SIZE, processes=2, progress=stop)
    assert not workers.multiprocessing.active_children()


def test_a_process_that_dies() -> None:
    def jobs() -> Iterator[Job]:
        for child in workers.multiprocessing.active_children():
            child.kill()
        for _ in range(9):
            yield Job("d", (["text"], []), 4)

    with pytest.raises(SystemFailure, match="ended by itself") as found:
        workers.shared(tokenizer("qwen2").to_str(), SIZE, jobs(), lambda _: None, 2)
    assert "one process" in str(found.value.hint)
    assert not workers.multiprocessing.active_children()


def test_too_little_text(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_text("only some words\n" * 20, encoding="utf-8")
    with pytest.raises(InputError, match="corpus small is too small to hold a part of it out") as found:
        count({"small": [path]}, tokenizer("qwen2").to_str(), SIZE)
    assert found.value.where == str(path)
    assert "20 documents, or 5 KB" in str(found.value.hint)
    path.write_text("".join(f"only {n} words\n" for n in range(400)), encoding="utf-8")  # what the hint asks for
    assert count({"small": [path]}, tokenizer("qwen2").to_str(), SIZE)[0].held.sum() > 0


def test_text_that_repeats_itself(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_text("the very same words in each of these lines, and nothing beside them\n" * 2000, encoding="utf-8")
    with pytest.raises(InputError, match="repeats itself"):
        count({"same": [path]}, tokenizer("qwen2").to_str(), SIZE)


def test_little_text_that_is_only_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_text("only some words\n", encoding="utf-8")
    (found,) = count({"small": [path]}, tokenizer("qwen2").to_str(), SIZE, whole=["small"])
    assert (int(found.train.sum()), int(found.held.sum())) == (len(tokenizer("qwen2").encode("only some words\n")), 0)


def test_what_was_left(tmp_path: Path) -> None:
    """A folder with a picture and a damaged file, records without text, a prompt that all share."""
    prompt = "You are an agent that uses tools. " * 9
    records = [json.dumps([prompt, f"question {n}"]) if n % 5 else '{"id": 1}' for n in range(100)]
    (tmp_path / "logs.jsonl").write_text("\n".join(records), encoding="utf-8")
    (tmp_path / "broken.jsonl").write_text('"text"\n{', encoding="utf-8")
    (tmp_path / "a.png").write_bytes(b"\x89PNG\0")
    (found,) = count({"d": [tmp_path]}, tokenizer("qwen2").to_str(), SIZE)
    assert [(path.name, why.split(" (")[0]) for path, why in found.skipped] == [
        ("a.png", "binary, not text: byte 4 is zero"),
        ("broken.jsonl", "line 2 is not JSON"),
    ]
    assert found.textless == 20
    assert found.repeated in range(5 * len(prompt), 11 * len(prompt))


def test_against_the_library_alone(tmp_path: Path) -> None:
    """Documents of one piece each, of which the recorded ones are held out: nothing of the code under test is used."""
    backend, given = tokenizer("qwen35"), texts(5, 50)
    path = tmp_path / "c.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in given), encoding="utf-8")
    (found,) = count({"c": [path]}, backend.to_str(), SIZE, processes=1)
    sides: tuple[list[int], list[int]] = ([], [])
    for n, text in enumerate(given):
        sides[n in (3, 15, 22, 32, 45)].extend(backend.encode(text, add_special_tokens=False).ids)
    for counts, ids in zip((found.train, found.held), sides, strict=True):
        assert counts.tolist() == np.bincount(ids, minlength=SIZE).tolist()
    assert found.nbytes == sum(len(text.encode()) for text in given)


PEAK = """
import re, sys
from pathlib import Path
from mtptools.vocab.counting import count
peak = lambda: int(re.search("VmHWM: *(.*) kB", Path("/proc/self/status").read_text().replace("\\t", " "))[1])
small, large, tokenizer, size = *map(Path, sys.argv[1:4]), int(sys.argv[4])
count({"d": [small]}, tokenizer.read_text(encoding="utf-8"), size, processes=1)
before = peak()
count({"d": [large]}, tokenizer.read_text(encoding="utf-8"), size, processes=1)
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
def test_memory_is_bounded(tmp_path: Path) -> None:
    """16 MB of words of 24,000 letters, of 300, and of 9: what distinct words take does not grow with the text."""
    chance = random.Random(1)
    some = ["".join(chance.choices("ACGTacgt", k=1 << 16)) for _ in range(4)]
    large, small, saved = tmp_path / "large.txt", tmp_path / "small.txt", tmp_path / "tokenizer.json"
    with open(large, "w", encoding="utf-8") as file:
        for length, lines in ((24_000, 220), (300, 17_000), (9, 500_000)):
            for _ in range(lines):
                at = chance.randrange((1 << 16) - length)
                file.write(chance.choice(some)[at : at + length] + "\n")
    small.write_text("".join(f"only {n} words\n" for n in range(400)), encoding="utf-8")
    saved.write_text(tokenizer("qwen2").to_str(), encoding="utf-8")
    command = [sys.executable, "-c", PEAK, *map(str, (small, large, saved, SIZE))]
    grown = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert grown < 150_000, "KB"


def test_nothing_named(tmp_path: Path) -> None:
    (tmp_path / "white.txt").write_text("  \n" * 9999, encoding="utf-8")
    with pytest.raises(InputError, match="no text in this file"):
        count({"white": [tmp_path / "white.txt"]}, tokenizer("qwen2").to_str(), SIZE)
    assert count({}, tokenizer("qwen2").to_str(), SIZE) == []


def test_without_tokenizers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(counting, "find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match="needs the package tokenizers") as found:
        count({"c": [tmp_path]}, "{}", 1)
    assert "mtptools[decoder]" in str(found.value.hint)
