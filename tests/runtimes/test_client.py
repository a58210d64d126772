"""Everything HTTP can do to us ends in one clear error, and never in an answer."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from contextlib import suppress

import pytest

from mtptools.errors import SystemFailure, UsageError
from mtptools.runtimes import client as module
from mtptools.runtimes.client import Client, base_url
from tests.runtimes.fake_server import Fake


@pytest.mark.parametrize(
    ("status", "kind", "body", "what", "hint"),
    [
        (500, "application/json", b'{"error": {"code": 500, "message": "out of memory"}}', "500: out of memory", "log"),
        (503, "text/html", b"<html>busy</html>", "HTTP 503: Service Unavailable", "log"),
        (401, "application/json", b'{"error": "no key"}', "HTTP 401: no key", "--api-key-env"),
        (404, "text/plain", b"nothing here", "HTTP 404: nothing here", "without a path"),
        (302, "text/plain", b"", "HTTP 302", "http://elsewhere.example/"),
        (200, "text/html", b"<!doctype html><p>Welcome", "a web page", "address"),
        (200, "text/plain", b"hello there", "no JSON ('hello there')", "address"),
        (200, "application/json", b'{"data": [', "no JSON", "address"),
        (200, "application/json", b"[" * 100_000, "no JSON", "address"),
        (200, "application/octet-stream", b"\xff\xfe\x00\x01", "no JSON", "address"),
    ],
)
def test_answers_that_are_none(status: int, kind: str, body: bytes, what: str, hint: str) -> None:
    with Fake(page={"/v1/models": (status, kind, body)}) as fake, pytest.raises(SystemFailure) as failed:
        Client(fake.url, 5).get("/v1/models")
    assert what in str(failed.value)
    assert hint in (failed.value.hint or "")
    assert failed.value.where == fake.url + "/v1/models"


def test_nobody_there() -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{one.getsockname()[1]}"
    with pytest.raises(SystemFailure, match="no server answers: Connection refused"):
        Client(url, 5).get("/v1/models")


def test_a_certificate_of_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ssl.SSLCertVerificationError("certificate verify failed: self-signed certificate")

    monkeypatch.setattr("http.client.HTTPSConnection.connect", refuse)
    with pytest.raises(SystemFailure, match="self-signed") as failed:
        Client("https://127.0.0.1:9", 5).get("/v1/models")
    assert "SSL_CERT_FILE" in (failed.value.hint or "")


def test_no_such_host() -> None:
    with pytest.raises(SystemFailure, match="no server answers"):
        Client("http://nowhere.invalid", 5).get("/v1/models")


def test_hangs() -> None:
    with Fake(hang=0.6) as fake, pytest.raises(SystemFailure, match=r"no answer within 0\.1 s") as failed:
        Client(fake.url, 0.1).post("/completion", {"prompt": [1], "n_predict": 1})
    assert "--runtime-timeout" in (failed.value.hint or "")


def test_a_byte_at_a_time() -> None:
    """Each byte is in time, and the answer never comes: headers, too."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def drip() -> None:
            with suppress(OSError):
                one, _ = listening.accept()
                with one:
                    for byte in b"HTTP/1.1 200 OK\r\n" * 3:
                        one.send(bytes([byte]))
                        time.sleep(0.05)

        threading.Thread(target=drip, daemon=True).start()
        start = time.monotonic()
        with pytest.raises(SystemFailure, match=r"no answer within 0\.2 s"):
            Client(f"http://127.0.0.1:{listening.getsockname()[1]}", 0.2).get("/v1/models")
        assert time.monotonic() - start < 2


def test_dies_midway() -> None:
    with Fake(cut=True) as fake, pytest.raises(SystemFailure, match="ended the connection before it had answered"):
        Client(fake.url, 5).post("/completion", {"prompt": [1], "n_predict": 1})


def test_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 1000)
    page = {"/v1/models": (200, "text/plain", b"x" * 5000)}
    with Fake(page=page) as fake, pytest.raises(SystemFailure, match="the answer does not end"):
        Client(fake.url, 5).get("/v1/models")


def test_key_is_sent_and_not_shown() -> None:
    page = {"/v1/models": (403, "text/plain", b"s3cret is not known here")}
    with Fake(page=page) as fake, pytest.raises(SystemFailure) as failed:
        Client(fake.url, 5, "s3cret").get("/v1/models")
    assert fake.keys == ["Bearer s3cret"]
    assert "s3cret" not in f"{failed.value} {failed.value.hint}"


def test_pages_that_may_be_missing() -> None:
    with Fake(metrics=False, page={"/props": (200, "text/html", b"<p>")}) as fake:
        client = Client(fake.url, 5)
        assert client.text("/metrics") is None
        assert client.maybe("/props") is None
        assert client.maybe("/nothing") is None


@pytest.mark.parametrize(
    ("given", "base"),
    [
        ("http://a:8000", "http://a:8000"),
        ("http://a:8000/", "http://a:8000"),
        ("https://a/v1", "https://a"),
        ("https://a/proxy/v1/", "https://a/proxy"),
        ("http://[::1]:80/v1?x=1", "http://[::1]:80"),
    ],
)
def test_addresses(given: str, base: str) -> None:
    assert base_url(given) == base


@pytest.mark.parametrize("given", ["http://", "ftp://a", "a:8000", "http://a:port", "http://user:pass@a"])
def test_no_addresses(given: str) -> None:
    with pytest.raises(UsageError):
        base_url(given)
