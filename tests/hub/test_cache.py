"""What stays on the disk: resumed, checked, thrown away when it does not fit, shared with huggingface_hub."""

from __future__ import annotations

import errno
import json
import os
import threading
from pathlib import Path

import pytest
from huggingface_hub import constants, hf_hub_download

from mtptools.errors import CorruptError, SystemFailure
from mtptools.hub import fetch, mirror, missing, parse, prefetch, unregistered
from mtptools.hub.partial import Partial
from mtptools.tensors import PARTIAL, Blob, read_blob
from tests.hub.contents import Bytes, Pattern, shard
from tests.hub.server import Hub

SIZE = 1_500_000


@pytest.fixture
def content(hub: Hub) -> Pattern:
    content = shard({"a": SIZE})
    hub.add("user/repo", {"config.json": Bytes(b"{}"), "model.safetensors": content})
    return content


def opened() -> Path:
    PARTIAL.clear()
    address = parse("user/repo")
    assert address is not None
    return mirror(address)[0] / "model.safetensors"


def record(path: Path) -> Path:
    return path.parent.parent / ".ranges" / f"{path.name}.json"


def test_a_second_run_fetches_nothing(hub: Hub, content: Pattern) -> None:
    path = opened()
    prefetch([Blob(path, 500_000, 200_000)])
    before = hub.sent
    assert opened() == path
    assert missing([Blob(path, 500_000, 200_000)]).nbytes == 0
    prefetch([Blob(path, 500_000, 200_000)])
    assert hub.sent == before


def test_a_whole_file_is_checked_and_then_ordinary(hub: Hub, content: Pattern) -> None:
    path = opened()
    prefetch([Blob(path, 0, content.size)])
    assert path.read_bytes() == bytes(content.read(0, content.size))
    assert opened() not in PARTIAL
    assert json.loads(record(path).read_bytes())["whole"] is True
    assert unregistered(path) is None


def test_a_whole_file_with_another_digest(hub: Hub, content: Pattern) -> None:
    path = opened()
    hub.faults.damage = True
    with pytest.raises(CorruptError, match=r"all 1500\d+ bytes came, but their digest is"):
        prefetch([Blob(path, 0, content.size)])
    assert missing([Blob(path, 0, content.size)]).nbytes == content.size, "thrown away"
    hub.faults.damage = False
    prefetch([Blob(path, 0, content.size)])
    assert path.read_bytes() == bytes(content.read(0, content.size))


@pytest.mark.parametrize("harm", ["no record", "not json", "other size", "other etag", "no data", "short", "outside"])
def test_a_record_that_does_not_fit(hub: Hub, content: Pattern, harm: str) -> None:
    path = opened()
    blob = Blob(path, 500_000, 200_000)
    prefetch([blob])
    stored = json.loads(record(path).read_bytes())
    match harm:
        case "no record":
            record(path).unlink()
        case "not json":
            record(path).write_text("{")
        case "other size":
            record(path).write_text(json.dumps(stored | {"size": 3}))
        case "other etag":
            record(path).write_text(json.dumps(stored | {"etag": "x"}))
        case "no data":
            path.unlink()
        case "short":
            os.truncate(path, 1000)
        case "outside":
            record(path).write_text(json.dumps(stored | {"ranges": [[0, 10**12]]}))
    assert opened() == path
    assert missing([blob]).nbytes == blob.nbytes
    assert path.stat().st_size == content.size
    prefetch([blob])
    with open(path, "rb") as file:
        file.seek(blob.offset)
        assert file.read(blob.nbytes) == bytes(content.read(blob.offset, blob.nbytes))


def test_the_record_never_promises_what_is_not_there(
    hub: Hub, content: Pattern, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that loses what was not synced: whatever the record on it says was synced before it was written."""
    path = opened()
    synced: list[str] = []
    fsync, replace = os.fsync, os.replace
    names = {path: "data", record(path): "record"}

    def watched(fd: int) -> None:
        synced.append(names.get(Path(f"/proc/self/fd/{fd}").readlink(), "other"))
        fsync(fd)

    def moved(a: Path, b: Path) -> None:
        synced.append(names.get(Path(b), "other"))
        replace(a, b)

    if not Path("/proc/self/fd").exists():
        pytest.skip("no /proc to tell which file is synced")
    monkeypatch.setattr(os, "fsync", watched)
    monkeypatch.setattr(os, "replace", moved)
    prefetch([Blob(path, 500_000, 200_000)])
    assert synced == ["data", "other", "record"]


def test_an_end_before_the_check(hub: Hub, content: Pattern, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every byte came, and the process was killed before it compared the digest: the next one does."""
    path = opened()
    with monkeypatch.context() as patch:
        patch.setattr(Partial, "finish", lambda file: None)
        prefetch([Blob(path, 0, content.size)])
    with open(path, "r+b") as file:
        file.seek(700_000)
        file.write(b"damaged")
    with pytest.raises(CorruptError, match="digest"):
        opened()


def test_who_only_looks_does_not_wait(hub: Hub, content: Pattern) -> None:
    """A file that another process fetches for an hour can be opened meanwhile."""
    path = opened()
    mine = PARTIAL[path]
    assert isinstance(mine, Partial)
    with mine.locked():
        assert opened() == path


def test_two_at_once_fetch_once(hub: Hub, content: Pattern) -> None:
    path = opened()
    before = hub.sent
    threads = [threading.Thread(target=prefetch, args=([Blob(path, 200_000, 1_000_000)],)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert hub.sent - before == 1_000_000


def test_another_process_fetched_meanwhile(hub: Hub, content: Pattern) -> None:
    path = opened()
    mine = PARTIAL[path]
    assert opened() == path
    prefetch([Blob(path, 200_000, 1_000_000)])  # by the second object, as another process has it
    before = hub.sent
    mine.need(200_000, 1_000_000)
    assert hub.sent == before


def test_a_path_into_the_cache(hub: Hub, content: Pattern) -> None:
    path = opened()
    assert unregistered(path) is None
    PARTIAL.clear()
    assert unregistered(path) == "hf://user/repo/model.safetensors"
    assert unregistered(Path(__file__)) is None
    assert unregistered(Path(__file__).parent) is None


def test_what_leads_into_the_cache(hub: Hub, content: Pattern, tmp_path: Path) -> None:
    """A folder, a file by which a folder is opened, a link to either, a folder of links."""
    path = opened()
    assert unregistered(path.parent) is None
    PARTIAL.clear()
    (tmp_path / "file.safetensors").symlink_to(path)
    (tmp_path / "folder").symlink_to(path.parent)
    (tmp_path / "links.gguf").mkdir()
    (tmp_path / "links.gguf" / "model.safetensors").symlink_to(path)
    inside = [path.parent, path.parent / "config.json"]
    for place in (*inside, tmp_path / "file.safetensors", tmp_path / "folder", tmp_path / "links.gguf"):
        assert unregistered(place) == "hf://user/repo/model.safetensors", place
    prefetch([Blob(opened(), 0, content.size)])
    PARTIAL.clear()
    assert unregistered(path.parent) is None


def test_a_shard_that_is_whole_beside_one_that_is_not(hub: Hub) -> None:
    names = [f"m-0000{number}-of-00002.gguf" for number in (1, 2)]
    hub.add("user/split", {name: shard({name: 1_500_000}) for name in names} | {"other.gguf": Bytes(b"x" * 2_000_000)})
    address = parse(f"hf://user/split/{names[0]}")
    assert address is not None
    path, _ = mirror(address)
    prefetch([Blob(path, 0, path.stat().st_size)])
    PARTIAL.clear()
    assert unregistered(path) == f"hf://user/split/{names[1]}"


@pytest.mark.parametrize("how", ["begun anew", "deleted"])
def test_a_file_that_is_thrown_away_under_its_reader(hub: Hub, content: Pattern, how: str) -> None:
    """Another process began it anew: here its bytes had arrived, and there stand holes now."""
    path = opened()
    blob = Blob(path, 500_000, 200_000)
    prefetch([blob])
    mine = PARTIAL[path]
    assert isinstance(mine, Partial)
    if how == "deleted":
        path.unlink()
    else:
        other = Partial(path, mine.record, mine.remote)
        other._begin()  # as it does where a digest is wrong
        other.need(0, 1000)
    with pytest.raises(CorruptError, match="changed while it was read"):
        read_blob(blob)
    with pytest.raises(CorruptError, match="changed while it was read"):
        mine.need(900_000, 1000)


def test_a_record_that_says_whole_of_a_part(hub: Hub, content: Pattern) -> None:
    path = opened()
    stored = json.loads(record(path).read_bytes())
    record(path).write_text(json.dumps(stored | {"whole": True}))
    assert opened() in PARTIAL


def test_a_cache_that_cannot_be_written(hub: Hub, content: Pattern, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is whole in it can be used; for the rest the error names another place."""
    path = opened()
    prefetch([Blob(path, 0, content.size)])
    hub.add("user/other", {"model.safetensors": content})

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("mtptools.hub.repo.replace_file", refuse)
    assert opened() == path
    monkeypatch.setattr(Path, "mkdir", refuse)
    address = parse("user/other")
    assert address is not None
    with pytest.raises(SystemFailure, match="cannot write: Read-only file system") as caught:
        mirror(address)
    assert "MTPTOOLS_CACHE" in str(caught.value.hint)


def test_a_kill_costs_seconds(hub: Hub, content: Pattern, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record is brought up to date while bytes arrive, however slowly they do."""
    path = opened()
    assert fetch.SAVE <= 10.0
    monkeypatch.setattr(fetch, "SAVE", 0.0)
    hub.faults.stall = 0.12
    seen: set[int] = set()
    prefetch([Blob(path, 200_000, 1_200_000)], lambda n: seen.add(len(record(path).read_bytes())))
    assert len(seen) > 1


def test_what_huggingface_hub_downloaded_is_used(hub: Hub, content: Pattern, monkeypatch: pytest.MonkeyPatch) -> None:
    hf_hub_download("user/repo", "model.safetensors", endpoint=hub.url, cache_dir=constants.HF_HUB_CACHE)
    sent = hub.sent
    path = opened()
    assert hub.sent - sent == 2, "config.json alone"
    assert path not in PARTIAL
    assert path.read_bytes() == bytes(content.read(0, content.size))
    assert path.resolve().name == "model.safetensors"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("MTPTOOLS_CACHE", str(path.parents[4] / "another"))
    assert opened().read_bytes() == path.read_bytes()
