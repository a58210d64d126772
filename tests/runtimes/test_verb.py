"""`verify --runtime` from the command line: each way for a runtime to be bad has its exit code, and none passes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mtptools.checkpoint import open_checkpoint
from mtptools.cli.main import main
from mtptools.decoder.tokenizer import load_tokenizer
from mtptools.report.levels import levels
from mtptools.report.markdown import markdown_report
from tests.conftest import FIXTURES
from tests.runtimes.fake_server import Fake

MODEL = FIXTURES / "qwen35" / "gguf" / "model-BF16.gguf"
TOKENS = 8


def verify(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    told = ("verify", str(MODEL), "--runtime-alone", "--limit", "2", "--tokens", str(TOKENS), "--k", "3", *arguments)
    with pytest.raises(SystemExit) as stopped:
        main(list(told))
    out, err = capfd.readouterr()
    assert "Traceback" not in err, err
    return int(stopped.value.code or 0), out, err


def fake(**faults: Any) -> Fake:
    ckpt = open_checkpoint(MODEL)
    told = {"vocabulary": ckpt.hparams.vocab_size, "decode": load_tokenizer(ckpt).decode, **faults}
    return Fake(**told)


def test_pass(capfd: pytest.CaptureFixture[str]) -> None:
    with fake() as mtp, fake(drafts=None) as plain:
        code, out, err = verify(capfd, "--runtime", mtp.url, "--runtime-plain", plain.url, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)["runtime"]
    assert (found["ok"], found["name"], found["how_plain"]) == (True, "llama.cpp", plain.url)
    assert found["aggregate"]["rate"] == pytest.approx(8 / 12)
    assert [row["category"] for row in found["prompts"]] == ["prose", "speech"]
    assert found["comparisons"][0]["divergences"] == []


def test_one_address_alone(capfd: pytest.CaptureFixture[str]) -> None:
    """Nothing its text could be compared with: what passes is said to be the drafts alone."""
    with fake() as server:
        code, out, _ = verify(capfd, "--runtime", server.url, "--json")
        assert "no text was compared" in verify(capfd, "--runtime", server.url)[1]
    data = json.loads(out)
    assert (code, data["runtime"]["comparisons"]) == (0, [])
    assert levels(data)[-1].what.endswith("drafts were counted, no text was compared")
    assert "no text was compared" in markdown_report(data).partition("In a real runtime")[2]


def _more(answer: dict[str, Any]) -> dict[str, Any]:
    return answer | {"tokens": answer["tokens"] * 2}


def _fewer(answer: dict[str, Any]) -> dict[str, Any]:
    return answer | {"tokens": answer["tokens"][:5]}


@pytest.mark.parametrize(
    ("faults", "code", "what"),
    [
        ({"change": _fewer}, 1, "5 tokens, 8 were asked for"),
        ({"drafts": (0, 0)}, 1, "drafted nothing: the head is not used"),
        ({"drafts": (24, 1)}, 1, "the head is dead there"),
        ({"dialect": "vllm", "metrics": False}, 1, "whether the head is used is not known"),
        ({"hang": 1.0}, 7, "no answer within 0.3 s"),
        ({"cut": True}, 7, "ended the connection before it had answered"),
        ({"page": {"/completion": (500, "text/plain", b"CUDA error")}}, 7, "HTTP 500: CUDA error"),
        ({"page": {"/v1/models": (200, "text/html", b"<html>")}}, 7, "a web page"),
        ({"names": ("a", "b")}, 7, "it serves a, b"),
        ({"vocabulary": 5}, 7, "another model"),
        ({"change": _more}, 7, "16 tokens, 8 were asked for"),
        ({"decode": lambda ids: "another text"}, 7, "another tokenizer"),
        ({"change": lambda _: b"\x00\x01nonsense"}, 7, "no JSON"),
    ],
)
def test_bad_runtimes(faults: dict[str, Any], code: int, what: str, capfd: pytest.CaptureFixture[str]) -> None:
    with fake(**faults) as server:
        found, out, err = verify(capfd, "--runtime", server.url, "--runtime-timeout", "0.3")
    assert found == code
    assert what in (out if code == 1 else err)
    assert ("FAIL" in out) if code == 1 else ("hint: " in err)
    assert "PASS" not in out


@pytest.mark.parametrize(
    ("runtime", "code", "what"),
    [
        ("http://127.0.0.1:9", 7, "no server answers"),
        ("/no/such/llama-server", 7, "no such program"),
        ("http://", 2, "not the address of a server"),
    ],
)
def test_no_runtime(runtime: str, code: int, what: str, capfd: pytest.CaptureFixture[str]) -> None:
    found, _, err = verify(capfd, "--runtime", runtime)
    assert (found, what in err) == (code, True)
