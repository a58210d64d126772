"""Files written past the page cache hold what was written, whatever the sizes of the pieces."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from mtptools import sequential
from mtptools.checkpoint import open_checkpoint
from mtptools.ops.diff import diff
from mtptools.ops.extract import strip
from mtptools.ops.graft import graft
from mtptools.writer import write


@pytest.fixture
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file is large, and the buffer small enough to go round many times."""
    monkeypatch.setattr(sequential, "LARGE", 0)
    monkeypatch.setattr(sequential, "BUFFER", 8192)


@pytest.mark.parametrize("total", [0, 1, 4095, 4096, 8192, 8193, 100_003])
def test_any_pieces(total: int, direct: None, tmp_path: Path) -> None:
    noise = random.Random(total)
    data = noise.randbytes(total)
    with sequential.writing(tmp_path / "f", total) as file:
        at = 0
        while at < total:
            n = noise.randint(1, 9000)
            file.write(data[at : at + n])
            at = min(at + n, total)
            assert file.tell() == at
    assert (tmp_path / "f").read_bytes() == data


def test_a_whole_graft(direct: None, full: Path, tmp_path: Path) -> None:
    source = open_checkpoint(full)
    write(strip(source, "t.gguf"), tmp_path / "t.gguf")
    write(graft(open_checkpoint(tmp_path / "t.gguf"), source, "o.gguf"), tmp_path / "o.gguf")
    assert diff(source, open_checkpoint(tmp_path / "o.gguf")).equal


def test_existing_file_is_not_overwritten(direct: None, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"mine")
    with pytest.raises(FileExistsError), sequential.writing(tmp_path / "f", 10) as file:
        file.write(b"x")
    assert (tmp_path / "f").read_bytes() == b"mine"


def test_a_short_write_goes_on_through_the_cache(direct: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left after a short write is not aligned: the kernel answers EINVAL as long as O_DIRECT is on."""
    import os

    real, calls = os.write, []

    def short(fd: int, data: memoryview) -> int:
        calls.append(len(data))
        return real(fd, data[:512] if len(calls) == 1 else data)

    monkeypatch.setattr(os, "write", short)
    data = random.Random(1).randbytes(50_000)
    with sequential.writing(tmp_path / "f", len(data)) as file:
        file.write(data)
    assert (tmp_path / "f").read_bytes() == data
    assert len(calls) > 6
