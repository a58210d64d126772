"""Nothing leaves without a word; what is sent is what stands there, and comes back the same."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from huggingface_hub import constants

from mtptools.hub import mirror, parse
from mtptools.tensors import PARTIAL
from tests.cli.conftest import Run
from tests.hub.conftest import hub  # noqa: F401
from tests.hub.contents import shard
from tests.hub.server import TOKEN, Hub
from tests.hub.uploads import Uploads

# huggingface_hub sends bytes in a way that its own HTTP client calls outdated.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

WEIGHTS = bytes(shard({"a": 300_000}).read(0, 1 << 20))


@pytest.fixture
def uploads(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Uploads:  # noqa: F811
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # its server speaks no HTTP that could stand in here
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    return Uploads(hub)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    out = tmp_path / "out"
    (out / "extra").mkdir(parents=True)
    (out / "model.safetensors").write_bytes(WEIGHTS)
    (out / "config.json").write_text('{"model_type": "x"}')
    (out / "README.md").write_text("# A model")
    (out / "extra" / "notes.txt").write_text("notes")
    (out / "mtptools-receipt.json").write_text('{"schema": 1, "sources": [{"name": "model.gguf"}]}')
    return out


NAMES = ["README.md", "config.json", "extra/notes.txt", "model.safetensors", "mtptools-receipt.json"]


def test_a_folder_there_and_back(run: Run, uploads: Uploads, folder: Path) -> None:
    code, out, err = run("upload", folder, "user/new", "--yes", "--message", "A head", "--json")
    assert code == 0, err
    record = json.loads(out)
    assert [file["name"] for file in record["files"]] == NAMES
    assert uploads.commits == [{"message": "A head", "branch": "main", "files": NAMES}]
    assert record["sent"]["commit"] in record["sent"]["url"]
    address = parse("user/new")
    assert address is not None
    path, origin = mirror(address)
    assert origin.commit == record["sent"]["commit"]
    PARTIAL[path / "model.safetensors"].need(0, len(WEIGHTS))
    assert (path / "model.safetensors").read_bytes() == WEIGHTS


def test_a_file_and_its_receipt(run: Run, uploads: Uploads, tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"m-0000{number}-of-00002.gguf").write_bytes(b"GGUF" + bytes(number))
    (tmp_path / "m-00001-of-00002.gguf.receipt.json").write_text("{}")
    (tmp_path / "other.gguf").write_bytes(b"GGUF")
    code, _, err = run("upload", tmp_path / "m-00001-of-00002.gguf", "user/new@v1", "--yes", "--private")
    assert code == 0, err
    assert (uploads.private, uploads.branches) == (["user/new"], ["v1"])
    assert uploads.commits[0]["branch"] == "v1"
    assert uploads.commits[0]["files"] == [
        "m-00001-of-00002.gguf",
        "m-00001-of-00002.gguf.receipt.json",
        "m-00002-of-00002.gguf",
    ]


@pytest.mark.parametrize(
    ("name", "code"),
    [("best-of-2.gguf", 0), ("m-00001-of-00002.gguf", 3), ("model-00001-of-00002.safetensors", 2)],
)
def test_a_file_and_what_its_name_says(run: Run, tmp_path: Path, name: str, code: int) -> None:
    (tmp_path / name).write_bytes(b"GGUF")
    assert run("upload", tmp_path / name, "user/new", "--dry-run")[0] == code


def test_a_cached_folder_with_holes(run: Run, uploads: Uploads) -> None:
    """Also where only a tokenizer is not whole."""
    uploads.hub.add(
        "user/repo",
        {
            "a.gguf": shard({"a": 100}),
            "config.json": shard({"c": 1}),
            "model.safetensors": shard({"a": 9}),
            "tokenizer.json": shard({"t": 2_000_000}),
        },
    )
    address = parse("user/repo")
    assert address is not None
    path, _ = mirror(address)
    PARTIAL[path / "model.safetensors"].need(0, 9)
    PARTIAL.clear()
    code, _, err = run("upload", path, "user/new", "--dry-run")
    assert (code, "only parts of hf://user/repo/tokenizer.json are here" in err) == (2, True), err


def test_dry_run_asks_nobody(run: Run, uploads: Uploads, folder: Path) -> None:
    code, out, _ = run("upload", folder, "user/new", "--dry-run")
    assert code == 0
    assert "5 files, 300.2 kB, to user/new\ndry run: nothing was sent" in out
    assert not uploads.hub.log


def test_nobody_to_ask(run: Run, uploads: Uploads, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    code, _, err = run("upload", folder, "user/new")
    assert code == 2
    assert "nobody to ask: nothing was sent" in err
    assert "add --yes" in err
    assert not uploads.hub.log


@pytest.mark.parametrize(("answer", "code"), [(True, 0), (False, 130)])
def test_asked(
    run: Run, uploads: Uploads, folder: Path, monkeypatch: pytest.MonkeyPatch, answer: bool, code: int
) -> None:
    import click

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)

    def confirm(text: str, **options: object) -> None:
        assert text == "send 5 files to user/new?"
        if not answer:
            raise click.Abort

    monkeypatch.setattr(click, "confirm", confirm)
    assert run("upload", folder, "user/new")[0] == code
    assert bool(uploads.commits) is answer


def test_a_pull_request(run: Run, uploads: Uploads, folder: Path) -> None:
    uploads.hub.add("user/repo", {})
    code, out, err = run("upload", folder, "user/repo", "--yes", "--create-pr")
    assert code == 0, err
    assert out == f"sent: {uploads.hub.url}/user/repo/discussions/1\n"
    assert run("upload", folder, "user/none", "--yes", "--create-pr")[0] == 3


def test_what_was_sent_is_not_sent_again(run: Run, uploads: Uploads, folder: Path) -> None:
    uploads.refuse = 503
    code, _, err = run("upload", folder, "user/new", "--yes", "-q")
    assert (code, len(uploads.puts)) == (7, 1)
    assert "run the same command again" in err
    uploads.refuse = 0
    assert run("upload", folder, "user/new", "--yes", "-q")[0] == 0
    assert len(uploads.puts) == 1


@pytest.mark.parametrize(
    ("harm", "code", "what"),
    [
        (lambda out: (out / ".cache").write_text("x"), 2, ".cache is hidden, or left over"),
        (lambda out: (out / "a.incomplete").write_text("x"), 2, "a.incomplete is hidden, or left over"),
        (lambda out: (out / "a\n0 files").write_text("x"), 2, r"no name for a file of a repo: 'a\n0 files'"),
        (lambda out: (out / "\udcff.txt").write_text("x"), 2, r"no name for a file of a repo: '\udcff.txt'"),
        (lambda out: (out / "gone").symlink_to("nowhere"), 2, "gone is a link that leads nowhere"),
        (lambda out: (out / "model.safetensors").unlink(), 3, "no weights in this folder"),
        (
            lambda out: (out / "mtptools-receipt.json").write_text('{"sources": [{"name": "/home/me/model.gguf"}]}'),
            2,
            "the receipt names a path of this machine: /home/me… in sources[0].name",
        ),
        (lambda out: (out / "mtptools-receipt.json").write_text("{"), 3, "not readable as JSON"),
        (
            lambda out: (out / "extra" / "mtptools-receipt.json").write_text('{"from": "file:///home/me/x.gguf"}'),
            2,
            "names a path of this machine: /home/me… in from",
        ),
        (
            lambda out: (out / "mtptools-receipt.json").write_text('{"files": {"/home/me/x.gguf": 1}}'),
            2,
            "names a path of this machine: /home/me… in a key of files",
        ),
        (
            lambda out: (out / "mtptools-receipt.json").write_text('{"from": "C:/Users/me/x.gguf"}'),
            2,
            "names a path of this machine: C:/… in from",
        ),
        (lambda out: (out / "more").symlink_to(out / "extra"), 2, "more is a link that leads nowhere or to a folder"),
        (
            lambda out: (out / "model.safetensors.index.json").write_text(
                '{"weight_map": {"a": "model.safetensors", "b": "gone.safetensors"}}'
            ),
            3,
            "the index names gone.safetensors, which is not here",
        ),
        (lambda out: (out / "extra" / "m-00001-of-00002.gguf").write_bytes(b"GGUF"), 3, "1 of 2 shards are here"),
    ],
)
def test_what_stays_here(run: Run, uploads: Uploads, folder: Path, harm: object, code: int, what: str) -> None:
    harm(folder)  # type: ignore[operator]
    got, _, err = run("upload", folder, "user/new", "--yes")
    assert (got, what in err) == (code, True), err
    assert not uploads.hub.log


@pytest.mark.parametrize(
    ("repo", "token", "code", "what"),
    [
        ("nothing", TOKEN, 2, "not an address of a model repo"),
        (f"user/repo@{'a' * 40}", TOKEN, 2, "a commit stays as it is"),
        ("user/repo:Q4_K_M", TOKEN, 2, "not the name of a repo"),
        ("hf://user/repo/model.gguf", TOKEN, 2, "not the name of a repo"),
        ("user/new --message=", TOKEN, 2, "message is empty"),
        ("user/new", "hf_wrong", 7, "the hub refuses the token, or wants one"),
        ("user/public --private", TOKEN, 2, "the repo is there already, and public"),
        ("user/refused", TOKEN, 7, "the token may not do this"),
    ],
)
def test_refused(
    run: Run,
    uploads: Uploads,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    repo: str,
    token: str,
    code: int,
    what: str,
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    uploads.hub.add("user/public", {})
    uploads.refuse = 403 if "refused" in repo else 0
    got, _, err = run("upload", folder, *repo.split(), "--yes", "-q")
    assert (got, what in err) == (code, True), err
    assert not uploads.commits
