"""Every fault of a network and of a server: what is fetched nevertheless, or what the error says."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub.utils import close_session

from mtptools.errors import CorruptError, MtpToolsError, SystemFailure
from mtptools.hub import client, mirror, missing, parse, prefetch
from mtptools.hub import transfer as transfers
from mtptools.hub.failures import failure
from mtptools.hub.partial import Partial
from mtptools.hub.remote import busy
from mtptools.tensors import PARTIAL, Blob
from tests.hub.contents import Bytes, Pattern, shard
from tests.hub.server import TOKEN, Hub

A, B = 3_000_000, 2_000_000


@dataclass
class Model:
    """A repo of one file with tensors a and b, mirrored; `b` is what is wanted."""

    hub: Hub
    path: Path
    content: Pattern
    b: Blob

    def here(self) -> bool:
        return self.path.read_bytes()[self.b.offset :] == bytes(self.content.read(self.b.offset, B))


@pytest.fixture
def model(hub: Hub) -> Model:
    content = shard({"a": A, "b": B})
    hub.add("user/repo", {"config.json": Bytes(b"{}"), "model.safetensors": content})
    folder, _ = mirror(address())
    path = folder / "model.safetensors"
    return Model(hub, path, content, Blob(path, len(content.head) + A, B))


def address(text: str = "user/repo"):
    found = parse(text)
    assert found is not None
    return found


def test_cut_connections_go_on_where_they_were_cut(model: Model) -> None:
    model.hub.faults.cut_every = 300_000
    before = model.hub.sent
    prefetch([model.b])
    assert model.here()
    assert model.hub.sent - before == B
    assert len(model.hub.asked("cdn")) >= B // 300_000


def test_a_connection_that_brings_nothing_ends_it(model: Model) -> None:
    model.hub.faults.cut_every = 1
    with pytest.raises(SystemFailure, match="network") as caught:
        prefetch([model.b])
    assert caught.value.exit_code == 7
    assert "run the same command again" in str(caught.value.hint)


def test_nobody_listens(model: Model) -> None:
    model.hub.close()
    close_session()
    with pytest.raises(SystemFailure, match="network"):
        prefetch([model.b])


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_busy_and_then_not(model: Model, status: int) -> None:
    model.hub.faults.answers = [(status, {})] * 3
    prefetch([model.b])
    assert model.here()


@pytest.mark.parametrize(("status", "what"), [(503, "gave up after 6 tries: the server answers 503"), (429, "429")])
def test_busy_for_ever(model: Model, status: int, what: str) -> None:
    model.hub.faults.forever = status
    with pytest.raises(SystemFailure, match=what):
        prefetch([model.b])
    assert len(model.hub.asked("cdn")) <= 1 + transfers.TRIES


def test_retry_after_is_heeded(model: Model) -> None:
    model.hub.faults.answers = [(429, {"Retry-After": "1"})]
    start = time.monotonic()
    prefetch([model.b])
    assert 1.0 <= time.monotonic() - start < 3.0
    assert model.here()


def test_retry_after_is_capped(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "LONGEST", 0.05)
    model.hub.faults.answers = [(503, {"Retry-After": "86400"})]
    prefetch([model.b])
    assert model.here()


def _set(**faults: object) -> Callable[[Hub], None]:
    def apply(hub: Hub) -> None:
        for name, value in faults.items():
            setattr(hub.faults, name, value)

    return apply


@pytest.mark.parametrize(
    ("fault", "error", "what", "hint"),
    [
        (_set(ignore_range=True), SystemFailure, "ignores byte ranges: the whole file of 0.005 GB", "hf download"),
        (_set(refuse_range=True), CorruptError, "file changed while it was read", "pin the commit"),
        (_set(grow=5), CorruptError, "it was 5000160 bytes long, now 5000165", "pin the commit"),
        (_set(etag="other"), CorruptError, "the server called it cdn-.*, and now other", "pin the commit"),
        (_set(linked_etag="other", uses=1), CorruptError, "now other", "pin the commit"),
        (_set(shift=10), SystemFailure, "asked for bytes .*, the server sends bytes", "proxy"),
        (_set(no_content_range=True), SystemFailure, "it does not say which", "proxy"),
        (_set(encoding="gzip"), SystemFailure, "sends gzip where stored bytes", None),
        (_set(extra=100), SystemFailure, "sends more than was asked for", None),
        (_set(forever=418), SystemFailure, "the server answers 418", "again"),
    ],
)
def test_refused(
    model: Model, fault: Callable[[Hub], None], error: type[MtpToolsError], what: str, hint: str | None
) -> None:
    fault(model.hub)
    with pytest.raises(error, match=what) as caught:
        prefetch([model.b])
    assert str(caught.value.where) == "hf://user/repo/model.safetensors"
    assert (hint or "") in (caught.value.hint or "")
    if model.hub.faults.extra == 0:
        assert missing([model.b]).nbytes == B


def test_one_server_more_than_one_place(model: Model) -> None:
    """A signed place serves twice and then no more: the hub is asked for another, without a word."""
    model.hub.faults.uses = 2
    model.hub.faults.cut_every = 400_000
    prefetch([model.b])
    assert model.here()
    assert len(model.hub.asked("hub", "resolve")) >= 3


def test_a_place_that_is_refused_twice(model: Model) -> None:
    model.hub.faults.forever = 403
    with pytest.raises(SystemFailure, match="answers 403"):
        prefetch([model.b])


def test_the_token_goes_to_the_hub_alone(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.add("user/repo", {"config.json": Bytes(b"{}"), "model.safetensors": shard({"a": 100})}, private=True)
    folder, _ = mirror(address())
    PARTIAL[folder / "model.safetensors"].need(0, 100)
    assert {request.token for request in hub.asked("hub")} == {TOKEN}
    assert {request.token for request in hub.asked("cdn")} == {None}


def test_what_came_before_an_error_is_kept(model: Model) -> None:
    model.hub.faults.cut_every = 500_000
    model.hub.faults.uses = 2
    model.hub.faults.linked_etag = "other"  # the third place is of another file
    with pytest.raises(CorruptError):
        prefetch([model.b])
    left = missing([model.b]).nbytes
    assert 0 < left < B
    model.hub.faults.linked_etag, model.hub.faults.uses = None, 0
    PARTIAL.clear()
    mirror(address())
    assert missing([model.b]).nbytes == left
    before = model.hub.sent
    prefetch([model.b])
    assert model.hub.sent - before == left
    assert model.here()


def test_ctrl_c_keeps_what_came(model: Model) -> None:
    model.hub.faults.stall = 0.05

    def stop(n: int) -> None:
        if n:
            raise KeyboardInterrupt

    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        prefetch([model.b], stop)
    assert time.monotonic() - start < 3
    PARTIAL.clear()
    mirror(address())
    assert 0 < missing([model.b]).nbytes < B
    assert threading.active_count() < 30


def test_progress_counts_the_bytes(model: Model) -> None:
    told: list[int] = []
    prefetch([model.b], told.append)
    assert sum(told) == B


def test_disk_full(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1_000_000})())
    with pytest.raises(SystemFailure, match=r"0.002 GB are to be fetched, 0.001 GB are free") as caught:
        prefetch([model.b])
    assert "MTPTOOLS_CACHE" in str(caught.value.hint)


def test_a_disk_that_fills_up_meanwhile(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: Partial, start: int, stop: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Partial, "came", full)
    with pytest.raises(SystemFailure, match="cannot write: No space left on device") as caught:
        prefetch([model.b])
    assert "MTPTOOLS_CACHE" in str(caught.value.hint)


def test_a_server_that_says_nothing(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "TIMEOUT", (1.0, 0.05, 1.0, None))
    monkeypatch.setattr(transfers, "TRIES", 2)
    model.hub.faults.stall = 0.5
    with pytest.raises(SystemFailure, match=r"the network fails: .*timed out"):
        prefetch([model.b])


def test_several_connections(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four parts at once take as long as one."""
    from mtptools.hub import fetch as fetches

    monkeypatch.setattr(fetches, "PART", 250_000)
    monkeypatch.setenv("MTPTOOLS_CONNECTIONS", "4")
    hub.add("user/repo", {"config.json": Bytes(b"{}"), "model.safetensors": shard({"a": 1_200_000})})
    folder, _ = mirror(address())
    hub.faults.stall = 0.3
    start = time.monotonic()
    prefetch([Blob(folder / "model.safetensors", 131_072, 1_000_000)])
    assert time.monotonic() - start < 0.9


def test_connections_must_be_a_number(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MTPTOOLS_CONNECTIONS", "many")
    with pytest.raises(MtpToolsError, match="MTPTOOLS_CONNECTIONS is 'many'"):
        prefetch([model.b])


def test_a_file_of_ours_that_cannot_be_read() -> None:
    error = failure(PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/x/model.gguf"), "user/repo")
    assert (error.what, error.where) == ("cannot read: Permission denied", "/x/model.gguf")


@pytest.mark.parametrize(("stated", "wait"), [("7", 7.0), ("\xb2", None), ("Wed, 21 Oct 2026 07:28:00 GMT", None)])
def test_what_a_busy_server_says(stated: str, wait: float | None) -> None:
    assert busy(SimpleNamespace(status_code=503, headers={"retry-after": stated})).wait == wait
