"""Layer ranges run apart, breaks in the middle and states that are not ours: the end is that of one go, or an error."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from mtptools.decoder.stream import states as module
from mtptools.decoder.stream.model import Streamed, identity
from mtptools.decoder.stream.passages import Passage, Passages
from mtptools.decoder.stream.report import StreamReport
from mtptools.decoder.stream.run import stream, stream_layers
from mtptools.decoder.stream.states import StateFolder
from mtptools.errors import CorruptError, InputError, SystemFailure, UsageError
from tests.conftest import FIXTURES
from tests.decoder.stream.given import opened, own_texts, streamed, through

NAME = "qwen35"
LAYERS = 4


def texts() -> Passages:
    first, second, *_ = own_texts(NAME)
    return Passages((Passage(first.ids[:30], 28), Passage(second.ids[:9])))


SMALL = Passages((Passage(tuple(range(5, 40)), 3), Passage((900, 2, 77))))
"""For any vocabulary."""


def fresh(**options: object) -> Streamed:
    return streamed(f"{NAME}/hf", texts(), **options)


def told(report: StreamReport) -> dict[str, Any]:
    """All but what a run of its own has."""
    own = ("layers", "went_on_after", "bytes", "seconds")
    return {key: value for key, value in report.to_json().items() if key not in own}


class Break(Exception):
    pass


def breaking(at: int) -> Any:
    """Progress that ends the run before layer `at` + 1 begins."""

    def say(done: int, total: int, what: str) -> None:
        if what.startswith(f"layer {at + 1} "):
            raise Break

    return say


def kept(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_ranges_are_one_go(tmp_path: Path) -> None:
    whole = stream(fresh(), 3)
    assert stream_layers(fresh(), 0, 2, tmp_path) == range(2)
    assert kept(tmp_path) == ["after-0002.safetensors", "run.json"]
    assert stream_layers(fresh(), 2, LAYERS, tmp_path) == range(2, LAYERS)
    assert kept(tmp_path) == ["after-0002.safetensors", "after-0004.safetensors", "run.json"], "where it began stays"
    assert torch.equal(load_file(tmp_path / "after-0004.safetensors")["states"], through(fresh()).pre)
    last = stream(fresh(), 3, folder=tmp_path)
    assert list(last.layers) == []
    assert (last.went_on_after, whole.went_on_after) == (LAYERS, 0)
    assert told(last) == told(whole)
    assert 0 < last.nbytes < whole.nbytes


@pytest.mark.parametrize("place", ["qwen35moe/gguf/model-BF16.gguf", "deepseekv4/hf"])
def test_states_of_other_families(place: str, tmp_path: Path) -> None:
    """Several streams too."""
    one = streamed(place, SMALL, exact=False)
    stream_layers(one, 0, 1, tmp_path)
    rest = streamed(place, SMALL, exact=False)
    stream_layers(rest, 1, rest.n_layers, tmp_path)
    assert torch.equal(rest.ended().post, through(streamed(place, SMALL, exact=False)).post)


@pytest.mark.parametrize("at", range(LAYERS))
def test_a_break_in_the_middle(at: int, tmp_path: Path) -> None:
    with pytest.raises(Break):
        stream(fresh(), 2, folder=tmp_path, progress=breaking(at))
    said: list[str] = []
    report = stream(fresh(), 2, folder=tmp_path, tell=said.append)
    assert said == [f"going on after layer {at} of 4"] * (at > 0)
    assert list(report.layers) == list(range(at, LAYERS))
    assert told(report) == told(stream(fresh(), 2))
    assert kept(tmp_path) == ["after-0004.safetensors", "run.json"], "no more than is needed"


KILLED = """
import os, signal, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from mtptools.decoder.stream import states
from mtptools.decoder.stream.run import stream_layers
from tests.decoder.stream.test_states import fresh

plain, how, folder = states.save_file, sys.argv[1], Path(sys.argv[2])

def half(tensors, path, metadata):
    plain(tensors, path, metadata)
    if "0003" in path.name:
        os.truncate(path, path.stat().st_size // 2)
        os.kill(os.getpid(), signal.SIGKILL)

def say(done, total, what):
    if how == "between" and what.startswith("layer 3 "):
        os.kill(os.getpid(), signal.SIGKILL)

if how == "writing":
    states.save_file = half
stream_layers(fresh(), 0, 4, folder, say)
"""


@pytest.mark.parametrize("how", ["between", "writing"])
def test_a_kill(how: str, tmp_path: Path) -> None:
    """Between layers, and while states are written: the next run goes on after layer 2, to the same bits."""
    command = [sys.executable, "-c", KILLED, how, str(tmp_path)]
    done = subprocess.run(command, cwd=FIXTURES.parent, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert "after-0002.safetensors" in kept(tmp_path)
    assert "after-0003.safetensors" not in kept(tmp_path)
    one = fresh()
    assert stream_layers(one, 0, LAYERS, tmp_path) == range(2, LAYERS)
    assert torch.equal(one.ended().post, through(fresh()).post)


def test_states_of_another_run(tmp_path: Path) -> None:
    """Another text, dtype, arithmetic or checkpoint: what differs is named."""
    stream_layers(fresh(), 0, 2, tmp_path)
    first, second = texts().all
    others: list[tuple[str, Streamed]] = [
        ("text", streamed(f"{NAME}/hf", Passages((first, Passage((*second.ids[:-1], 7)))))),
        ("text", streamed(f"{NAME}/hf", Passages((Passage(first.ids, 27), second)))),
        ("dtype", fresh(dtype="bfloat16")),
        ("arithmetic", fresh(exact=False)),
        ("checkpoint, settings", streamed(f"{NAME}/gguf/model-BF16.gguf", texts())),
    ]
    for named, one in others:
        with pytest.raises(InputError, match=f"another run: other {named}$") as caught:
            stream_layers(one, 2, LAYERS, tmp_path)
        assert "--state" in str(caught.value.hint)


def test_identity_knows_what_is_stored(tmp_path: Path) -> None:
    """A copy is the same checkpoint; other bytes, at the end of a tensor, are another."""
    ckpt = opened(f"{NAME}/gguf/model-BF16.gguf")
    copy = tmp_path / "copy.gguf"
    data = bytearray(ckpt.path.read_bytes())
    copy.write_bytes(data)
    assert identity(streamed(copy, texts()).ckpt) == identity(ckpt)
    tensor = ckpt["blk.1.ffn_down.weight"]
    data[tensor.blobs[0].offset + tensor.nbytes - 1] ^= 1
    copy.write_bytes(data)
    assert identity(streamed(copy, texts()).ckpt) != identity(ckpt)


@pytest.mark.parametrize("damage", ["truncated", "empty", "other tensor", "gone"])
def test_damaged_states(damage: str, tmp_path: Path) -> None:
    stream_layers(fresh(), 0, 2, tmp_path)
    path = tmp_path / "after-0002.safetensors"
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:-100])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "other tensor":
        save_file({"other": torch.zeros(2)}, path)
    else:
        path.unlink()
        with pytest.raises(InputError, match="no states after 2 layers") as caught:
            stream_layers(fresh(), 2, LAYERS, tmp_path)
        assert "--layers 0:2" in str(caught.value.hint)
        return
    with pytest.raises(CorruptError, match="cannot read the states") as damaged:
        stream_layers(fresh(), 2, LAYERS, tmp_path)
    assert damaged.value.where == str(path)
    assert damaged.value.hint == "delete the file"


def test_states_of_another_shape(tmp_path: Path) -> None:
    """The right name, and not what was kept there."""
    stream_layers(fresh(), 0, 2, tmp_path)
    path = tmp_path / "after-0002.safetensors"
    save_file({"states": load_file(path)["states"][:-1].contiguous()}, path)
    with pytest.raises(CorruptError) as caught:
        stream_layers(fresh(), 2, LAYERS, tmp_path)
    assert caught.value.hint


def test_a_damaged_record(tmp_path: Path) -> None:
    stream_layers(fresh(), 0, 2, tmp_path)
    for text in ("{", "[]", "{}", json.dumps("x")):
        (tmp_path / "run.json").write_text(text)
        with pytest.raises(CorruptError, match=r"run\.json, .* is damaged") as caught:
            stream_layers(fresh(), 2, LAYERS, tmp_path)
        assert caught.value.hint
    (tmp_path / "run.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CorruptError, match="damaged"):
        stream_layers(fresh(), 2, LAYERS, tmp_path)


ONE, OTHER = {"text": "a", "dtype": "float32"}, {"text": "b", "dtype": "float32"}
STATES = torch.arange(6.0).reshape(2, 3)


def old(path: Path) -> Path:
    os.utime(path, (0, 0))
    return path


def test_files_of_others_stay(tmp_path: Path) -> None:
    """A folder with something in it and no run.json is not ours: nothing is deleted there, nothing written."""
    mine = (".config.old.bak", ".after-0002.safetensors.77", "after-0001.safetensors", "notes.txt")
    for name in mine:
        folder = tmp_path / f"of {name}"
        folder.mkdir()
        (folder / name).write_text("mine")
        old(folder / name)
        with pytest.raises(InputError, match=r"no run\.json") as caught:
            StateFolder(folder, ONE)
        assert caught.value.hint is not None
        assert f"--state '{folder / 'states'}'" in caught.value.hint
        assert kept(folder) == [name]


def test_what_is_swept(tmp_path: Path) -> None:
    """In a folder of ours: what a killed run was writing, once nobody can be writing it."""
    StateFolder(tmp_path, ONE)
    left = [".after-0002.safetensors.0123abcd.mtptools", ".run.json.0123abcd.mtptools"]
    fresh_one, folder, mine = ".after-0003.safetensors.0123abcd.mtptools", left[0].replace("2", "4", 1), ".a.b.c"
    for name in (*left, fresh_one, mine):
        (tmp_path / name).write_text("x")
    (tmp_path / folder).mkdir()
    for name in (*left, folder, mine):
        old(tmp_path / name)
    StateFolder(tmp_path, ONE)
    assert kept(tmp_path) == sorted([mine, fresh_one, folder, "run.json"])


def test_a_kill_before_the_record(tmp_path: Path) -> None:
    """What it was writing is nobody else's."""
    (tmp_path / ".run.json.0123abcd.mtptools").write_text("{")
    StateFolder(tmp_path, ONE).save(1, STATES, 0)
    assert torch.equal(StateFolder(tmp_path, ONE).load(1), STATES)


def test_states_carried_elsewhere(tmp_path: Path) -> None:
    """Files of states know their run: with another's run.json beside them, or none that they were written with."""
    first, second = tmp_path / "first", tmp_path / "second"
    StateFolder(first, ONE).save(1, STATES, 0)
    other = StateFolder(second, OTHER)
    shutil.copy(first / "after-0001.safetensors", second)
    with pytest.raises(InputError, match="another run") as caught:
        other.load(1)
    assert str(caught.value.hint).startswith("delete the file")
    (first / "run.json").unlink()
    with pytest.raises(InputError, match=r"no run\.json"):
        StateFolder(first, OTHER)
    path = second / "after-0002.safetensors"
    other.save(2, STATES, 0)
    with safe_open(path, "pt") as file:
        digest = file.metadata()["digest"]
    save_file({"states": STATES}, path, {"digest": digest})
    with pytest.raises(InputError, match="another run"):
        other.load(2)


@pytest.mark.parametrize("links", [True, False])
def test_two_runs_at_once(links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both find the folder empty: one of them has it, the other is told."""
    plain = os.link

    def second(partial: Path, path: Path) -> None:
        monkeypatch.setattr(os, "link", plain)
        StateFolder(tmp_path, ONE)
        os.link(partial, path)

    def unable(partial: Path, path: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", second if links else unable)
    if links:
        with pytest.raises(InputError, match=r"another run: other text$"):
            StateFolder(tmp_path, OTHER)
    else:
        StateFolder(tmp_path, ONE)
    StateFolder(tmp_path, ONE)
    assert kept(tmp_path) == ["run.json"]


def test_states_stand_where_torch_puts_them(tmp_path: Path) -> None:
    """Wherever they begin in the file: rows at other addresses may be multiplied to other bits."""
    folder = StateFolder(tmp_path, ONE)
    folder.save(1, STATES, 0)
    assert folder.load(1).data_ptr() % 64 == 0


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    for folder in (file, file / "below"):
        with pytest.raises(SystemFailure, match="cannot keep states there") as caught:
            stream_layers(fresh(), 0, 1, folder)
        assert "--state" in str(caught.value.hint)
    with pytest.raises(SystemFailure, match="it is a file"):
        StateFolder(file, ONE)


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """States of the layers before stay, nothing half-written does."""
    stream_layers(fresh(), 0, 1, tmp_path)

    def full(tensors: object, path: Path, metadata: object) -> None:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "save_file", full)
    with pytest.raises(SystemFailure, match="No space left") as caught:
        stream_layers(fresh(), 0, LAYERS, tmp_path)
    assert "space" in str(caught.value.hint)
    assert kept(tmp_path) == ["after-0001.safetensors", "run.json"]


def test_the_wrong_order(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no states after 2 layers") as caught:
        stream_layers(fresh(), 2, LAYERS, tmp_path)
    assert "--layers 0:2" in str(caught.value.hint)
    with pytest.raises(InputError, match="no states after 2 layers"):
        stream_layers(fresh(), 2, LAYERS, None)


@pytest.mark.parametrize(("first", "stop"), [(0, 5), (3, 3), (4, 5), (-1, 2), (3, 1)])
def test_layers_that_there_are_not(first: int, stop: int, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="of a model of 4") as caught:
        stream_layers(fresh(), first, stop, tmp_path)
    assert caught.value.hint == "--layers 0:4"


def test_ranges_that_overlap(tmp_path: Path) -> None:
    """What is done is not done again."""
    stream_layers(fresh(), 0, 3, tmp_path)
    assert stream_layers(fresh(), 0, 3, tmp_path) == range(3, 3)
    assert stream_layers(fresh(), 0, 2, tmp_path) == range(2), "states after layer 2 were let go"
    assert stream_layers(fresh(), 1, LAYERS, tmp_path) == range(3, LAYERS)
    assert StateFolder(tmp_path, fresh().run()).last(0, LAYERS) == LAYERS
