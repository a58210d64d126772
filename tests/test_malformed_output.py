"""Odd headers, names and tensors, and how what is no text is printed."""

from __future__ import annotations

import json
import shutil
import struct
import sys
from collections.abc import Callable
from io import BytesIO, TextIOWrapper
from pathlib import Path

import numpy as np
import pytest

from mtptools.checkpoint import open_checkpoint
from mtptools.cli.main import main
from mtptools.cli.output import emit, note
from mtptools.codecs import decode
from mtptools.containers.gguf_values import string_value
from mtptools.containers.safetensors import parse_json, read_index
from mtptools.errors import CorruptError
from mtptools.ops.inspect import inspect
from mtptools.receipt import FOLDER_NAME
from mtptools.tensors import Blob, Tensor
from tests import rewrite
from tests.test_malformed import GGUF, HF, bare, configured


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shutil.copytree(HF, tmp_path / "hf")


# --- safetensors headers, JSON, odd tensors


@pytest.mark.parametrize(
    "text",
    [
        b'{"a\\ud800": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}',
        b'{"__metadata__": {"a": "\\uDFFF"}}',
        b'{"__metadata__": {"\\udc80": "a"}}',
        b'{"__metadata__": {"a": "1", "a": "2"}}',
        b'{"a": ' + b"9" * 5000 + b"}",
    ],
)
def test_header(text: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text)
    with pytest.raises(CorruptError) as caught:
        read_index(path)
    assert caught.value.where == str(path)


def test_a_header_with_whole_pairs(tmp_path: Path) -> None:
    assert read_index(bare(tmp_path, "\U0001f600")).tensors.keys() == {"\U0001f600"}


def test_repeated_keys_of_other_files(folder: Path) -> None:
    """As Python and transformers read them: the last one counts."""
    assert parse_json(b'{"a": 1, "a": 2}', folder) == {"a": 2}
    for name in ("config.json", "tokenizer.json"):
        text = (folder / name).read_text()
        (folder / name).write_text(text.replace("{", '{"model_type": "x", "model": 5, ', 1))
    facts = inspect(open_checkpoint(folder))
    assert (facts["family"], facts["tokenizer"]) == ("qwen35", inspect(open_checkpoint(HF))["tokenizer"])


@pytest.mark.parametrize("name", ["weight", ".weight", "", "..", "blk.weight", "a.b.weight"])
def test_odd_names(name: str, tmp_path: Path) -> None:
    shutil.copy(HF / "config.json", tmp_path)
    bare(tmp_path, name)
    assert inspect(open_checkpoint(tmp_path))["tensors"] == 1


@pytest.mark.parametrize("codec", ["F32", "BF16", "Q8_0"])
@pytest.mark.parametrize(("shape", "rows"), [((0,), (1, 0)), ((0, 32), (0, 32)), ((3, 0), (3, 0)), ((0, 0), (0, 0))])
def test_empty_tensors(shape: tuple[int, ...], rows: tuple[int, int], codec: str, tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.touch()
    values = decode(Tensor("w", shape, codec, (Blob(path, 0, 0),)))
    assert (values.shape, values.dtype) == (rows, np.float32)


# --- what is printed


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
@pytest.mark.parametrize("as_json", [True, False])
def test_printing_what_is_no_text(encoding: str, as_json: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = BytesIO()
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(raw, encoding=encoding, errors="surrogateescape"))
    name = "a\udcff\ud800 ü €"
    emit({"name": name}, name, as_json=as_json, quiet=False)
    sys.stdout.flush()
    printed = raw.getvalue().decode(encoding)
    if as_json:
        assert json.loads(printed) == {"name": "a\ufffd\ufffd ü €"}
    else:
        assert (
            printed.strip()
            == {
                "utf-8": "a\ufffd\ufffd ü €",
                "ascii": "a?? ? ?",
                "latin-1": "a?? ü ?",
            }[encoding]
        )


def test_notes(capsys: pytest.CaptureFixture[str]) -> None:
    note("a\udcff")
    assert capsys.readouterr().err == "a\ufffd\n"


# --- the command line


def broken_config(folder: Path) -> Path:
    return configured(folder, layer_types=5)


def broken_tokenizer(folder: Path) -> Path:
    (folder / "tokenizer.json").write_text('{"model": []}')
    return folder


def broken_receipt(folder: Path) -> Path:
    (folder / FOLDER_NAME).write_text('{"schema": 99}')
    return folder


def broken_integer(folder: Path) -> Path:
    (folder / "config.json").write_text('{"hidden_size": ' + "9" * 5000 + "}")
    return folder


@pytest.mark.parametrize(
    ("verb", "spoil"),
    [
        ("validate", broken_config),
        ("validate", broken_tokenizer),
        ("inspect", broken_tokenizer),
        ("inspect", broken_integer),
        ("verify", broken_receipt),
    ],
)
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_command_line(
    verb: str, spoil: Callable[[Path], Path], options: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main([verb, str(spoil(folder)), *options])
    out, err = capsys.readouterr()
    assert caught.value.code == 3
    assert err.startswith("error: ")
    assert "hint: " in err
    assert "Traceback" not in out + err
    if options:
        assert json.loads(out)["exit_code"] == 3


def test_metadata_that_is_not_utf8_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    value = string_value("qwen35\udcff")
    path = rewrite.gguf(GGUF, tmp_path / "x.gguf", metadata={"general.architecture": value})
    for options in ([], ["--json"]):
        with pytest.raises(SystemExit) as caught:
            main(["inspect", str(path), *options])
        out = capsys.readouterr().out
        assert caught.value.code == 0
        assert "qwen35\ufffd" in out
    assert "qwen35\ufffd" in json.loads(out)["family_error"]


def test_escape_sequences_do_not_reach_the_terminal(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A tensor name that clears the screen is shown, not obeyed."""
    from tests import rewrite
    from tests.conftest import FIXTURES

    full = FIXTURES / "qwen35" / "gguf" / "model-BF16.gguf"
    path = rewrite.gguf(full, tmp_path / "e.gguf", add={"\x1b[2Jevil\r": np.ones(4, np.float32)})
    with pytest.raises(SystemExit) as stopped:
        main(["validate", str(path)])
    out = capfd.readouterr().out
    assert stopped.value.code == 1
    assert "\x1b" not in out
    assert "\r" not in out
    assert r"\x1b[2Jevil\r" in out


@pytest.mark.parametrize("stated", [5, "x", [None], {"a": 1}, 1.5, True])
def test_end_of_text_ids(stated: object, tmp_path: Path) -> None:
    import shutil

    from mtptools.checkpoint import open_checkpoint
    from mtptools.decoder.tokenizer import load_tokenizer
    from mtptools.errors import TokenizerError
    from tests.conftest import FIXTURES

    folder = tmp_path / "m"
    shutil.copytree(FIXTURES / "qwen35" / "hf", folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": stated}))
    if stated == 5 and not isinstance(stated, bool):
        assert load_tokenizer(open_checkpoint(folder)).stop_ids
        return
    with pytest.raises(TokenizerError):
        load_tokenizer(open_checkpoint(folder))


def test_a_name_of_several_lines_is_refused(full: Path, hf: Path, tmp_path: Path) -> None:
    """It could forge a line of a listing."""
    from safetensors.torch import load_file, save_file

    from mtptools.checkpoint import open_checkpoint
    from mtptools.errors import CorruptError

    forged = "a\nhead  no head"
    gguf = rewrite.gguf(full, tmp_path / "n.gguf", add={forged: np.ones(4, np.float32)})
    folder = rewrite.hf(hf, tmp_path / "n")
    tensors = load_file(folder / "model.safetensors")
    tensors[forged] = tensors["mtp.norm.weight"].clone()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    for path in (gguf, folder):
        with pytest.raises(CorruptError, match="line break"):
            open_checkpoint(path)
