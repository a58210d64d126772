"""Files of servers that are no hub."""

from __future__ import annotations

import pytest

from mtptools.errors import CorruptError, NotACheckpointError, SystemFailure
from mtptools.hub import mirror, parse, prefetch, shown
from mtptools.hub import transfer as transfers
from mtptools.hub import web as webs
from mtptools.hub.remote import Remote
from mtptools.tensors import PARTIAL, Blob, read_blob
from tests.hub.contents import shard
from tests.hub.server import Hub

CONTENT = shard({"a": 4_000_000})


def test_a_file(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.web["/x/model.gguf"] = CONTENT
    address = parse(f"{hub.cdn}/x/model.gguf?X-Signature=1")
    assert address is not None
    path, origin = mirror(address)
    assert path.name == "model.gguf"
    assert origin.to_json() == {
        "address": f"{hub.cdn}/x/model.gguf",
        "repo": None,
        "revision": None,
        "commit": None,
        "url": f"{hub.cdn}/x/model.gguf",
    }
    blob = Blob(path, 2_000_000, 100_000)
    assert read_blob(blob) == CONTENT.read(2_000_000, 100_000)
    assert hub.sent <= 1 + (1 << 20) + (256 << 10)
    assert {request.token for request in hub.log} == {None}
    assert shown(f"{path}: bad") == f"{hub.cdn}/x/model.gguf: bad"
    again = parse(f"{hub.cdn}/x/model.gguf?X-Signature=2")
    assert again is not None
    assert mirror(again)[0] == path, "another signature, the same file"
    assert hub.sent <= 2 + (1 << 20) + (256 << 10)


def test_all_shards(hub: Hub) -> None:
    for number in (1, 2):
        hub.web[f"/x/m-0000{number}-of-00002.gguf"] = CONTENT
    address = parse(f"{hub.cdn}/x/m-00001-of-00002.gguf")
    assert address is not None
    path, _ = mirror(address)
    assert {path, path.with_name("m-00002-of-00002.gguf")} == set(PARTIAL)


def test_a_file_that_changed(hub: Hub) -> None:
    hub.web["/x/model.gguf"] = CONTENT
    address = parse(f"{hub.cdn}/x/model.gguf")
    assert address is not None
    path, _ = mirror(address)
    hub.web["/x/model.gguf"] = shard({"b": 4_000_000})
    with pytest.raises(CorruptError, match="the file changed while it was read") as caught:
        prefetch([Blob(path, 2_000_000, 100_000)])
    assert caught.value.hint == "run the same command again"
    mirror(address)
    prefetch([Blob(path, 2_000_000, 100_000)])


def test_a_whole_file_that_another_process_begins_anew(hub: Hub) -> None:
    hub.web["/x/model.gguf"] = CONTENT
    address = parse(f"{hub.cdn}/x/model.gguf")
    assert address is not None
    path, _ = mirror(address)
    prefetch([Blob(path, 0, CONTENT.size)])
    PARTIAL.clear()
    mirror(address)
    mine = PARTIAL[path]
    assert read_blob(Blob(path, 2_000_000, 100)) == CONTENT.read(2_000_000, 100)
    hub.web["/x/model.gguf"] = shard({"b": 4_000_000})
    mirror(address)  # as another process does
    PARTIAL[path] = mine
    with pytest.raises(CorruptError, match="changed while it was read"):
        read_blob(Blob(path, 2_000_000, 100))


def test_no_ranges(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small file is fetched whole; a large one is refused."""
    hub.web["/x/model.gguf"] = CONTENT
    hub.faults.ignore_range = True
    address = parse(f"{hub.cdn}/x/model.gguf")
    assert address is not None
    path, _ = mirror(address)
    assert len(hub.log) == 2
    assert path.read_bytes() == bytes(CONTENT.read(0, CONTENT.size))
    monkeypatch.setattr(webs, "SMALL", 1000)
    with pytest.raises(SystemFailure, match=r"ignores byte ranges: the whole file of 0\.004 GB") as caught:
        mirror(address)
    assert "curl -LO" in str(caught.value.hint)


def test_no_ranges_and_a_cut(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """It can only be fetched anew; a server that never gets through is given up on."""
    monkeypatch.setattr(transfers, "PAUSES", (0.15,))
    hub.web["/x/model.gguf"] = CONTENT
    hub.faults.ignore_range = True
    hub.faults.cut_every = 3_000_000
    address = parse(f"{hub.cdn}/x/model.gguf")
    assert address is not None

    def mended(n: int) -> None:
        if n:
            hub.faults.cut_every = 0

    path, _ = mirror(address, progress=mended)
    assert path.read_bytes() == bytes(CONTENT.read(0, CONTENT.size))
    hub.web["/x/other.gguf"] = CONTENT
    hub.faults.cut_every = 3_000_000
    other = parse(f"{hub.cdn}/x/other.gguf")
    assert other is not None
    with pytest.raises(SystemFailure, match="network fails"):
        mirror(other)


def test_not_there(hub: Hub) -> None:
    address = parse(f"{hub.cdn}/user/repo/commit/model.gguf?X-Signature=none")
    assert address is not None
    with pytest.raises(SystemFailure, match=r"refuses the file \(403\)"):
        mirror(address)
    hub.faults.forever = 404
    with pytest.raises(NotACheckpointError, match="not found on the server"):
        mirror(address)


@pytest.mark.parametrize(
    ("place", "what"),
    [
        ("file:///etc/passwd", "leads to no web address: 'file"),
        ("data:text/plain,x", "leads to no web address"),
        ("http://[::1/x", "leads to no web address"),
        ("http://host:abc/x", "not an address that can be opened"),
        ("/x/model.gguf", "in a circle"),
    ],
)
def test_redirects_that_lead_nowhere(hub: Hub, place: str, what: str) -> None:
    """None of them is worth another try."""
    hub.faults.answers = [(302, {"Location": place})] * 20
    address = parse(f"{hub.cdn}/x/model.gguf")
    assert address is not None
    with pytest.raises(SystemFailure, match=what):
        mirror(address)
    assert len(hub.log) <= 8


def test_an_open_line_behind_a_closed_one() -> None:
    remote = Remote("https://host/x.gguf", 1, None, "https://host/x.gguf", hub=False)
    assert remote._leads(remote.url, "/y.gguf") == "https://host/y.gguf"
    with pytest.raises(SystemFailure, match="to an open line"):
        remote._leads(remote.url, "http://host/y.gguf")


@pytest.mark.parametrize("status", [204, 304])
def test_an_answer_that_is_no_file(hub: Hub, status: int) -> None:
    hub.faults.answers = [(status, {})]
    address = parse(f"{hub.cdn}/x/model.gguf")
    assert address is not None
    with pytest.raises(SystemFailure, match=f"answers {status}"):
        mirror(address)


def test_a_length_that_is_none(hub: Hub) -> None:
    hub.web["/x/model.gguf"] = CONTENT
    hub.faults.grow = 10**30
    address = parse(f"{hub.cdn}/x/model.gguf")
    assert address is not None
    with pytest.raises(SystemFailure, match="does not say how long"):
        mirror(address)
