"""Where an output goes, as people type it: from inside of it, without a name, onto their own files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mtptools.checkpoint import open_checkpoint
from mtptools.cli.main import main
from tests import rewrite
from tests.conftest import FIXTURES

HF = FIXTURES / "qwen35" / "hf"
FULL = FIXTURES / "qwen35" / "gguf" / "model-BF16.gguf"


def run(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main([str(arg) for arg in args])
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


@pytest.fixture
def made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    out = tmp_path / "out"
    assert run(capsys, "strip", HF, "-o", out, "-q")[0] == 0
    return out


@pytest.mark.parametrize("name", ["../out", "."])
def test_replaced_from_within(
    made: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder that goes is the one the command runs in."""
    monkeypatch.chdir(made)
    code, _, err = run(capsys, "strip", HF, "-o", name, "--force")
    monkeypatch.chdir(made.parent)
    assert (code, [path.name for path in made.parent.iterdir()]) == (0, ["out"]), err
    assert len(open_checkpoint(made))


@pytest.mark.parametrize("args", [("strip", FULL), ("extract", FULL), ("convert", HF, "--to", "gguf")])
@pytest.mark.parametrize("name", [".", "/"])
def test_no_name(
    args: tuple[object, ...],
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capsys, *args, "-o", name)
    assert code == 2
    assert "error: " in err
    assert not list(tmp_path.iterdir())


def test_own_files_are_not_removed(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (made / "README.md").write_text("my model card")
    code, _, err = run(capsys, "strip", HF, "-o", made, "--force")
    assert code == 2
    assert "README.md" in err
    assert (made / "README.md").read_text() == "my model card"


def test_what_a_killed_run_took_away_is_kept(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run that died between taking the old output away and placing the new one: the old one is nobody's rubbish."""
    old = made.with_name(".out.mtptools-999999999-old")
    old.mkdir()
    made.rename(old / "0")
    assert run(capsys, "strip", HF, "-o", made)[0] == 0
    assert (old / "0").is_dir()
    assert run(capsys, "strip", HF, "-o", made, "--force")[0] == 0
    assert not old.exists()


def test_folder_with_a_files_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "convert", FULL, "-o", tmp_path / "x.gguf", "--to", "hf")
    assert code == 2
    assert "folder" in err
    assert not list(tmp_path.iterdir())


def test_hints_can_be_typed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spaced = rewrite.hf(HF, tmp_path / "my model")
    code, _, err = run(capsys, "graft", spaced, HF, "-o", tmp_path / "o")
    assert code == 3
    assert f"mtptools strip '{spaced}'" in err


def test_exclusions_of_a_wrong_kind(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = json.loads((made / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "dynamic": [1]}
    (made / "config.json").write_text(json.dumps(config))
    code, _, err = run(capsys, "graft", made, HF, "-o", tmp_path / "o")
    assert code == 3
    assert "not a table" in err


def test_options_without_meaning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trunk = FIXTURES / "qwen35" / "gguf" / "trunk-Q8_0.gguf"
    for args in (
        ("graft", trunk, HF, "--norm-type", "F16"),
        ("graft", trunk, HF, "--experts", "single"),
        ("convert", HF, "--to", "gguf", "--head-only", "--outtype", "Q8_0"),
        ("convert", HF, "--to", "gguf", "--lossless"),
        ("convert", HF, "--to", "mlx", "--experts", "single"),
    ):
        code, _, err = run(capsys, *args, "-o", tmp_path / "o.gguf")
        assert code == 2, args
        assert "hint: " in err


def test_a_head_of_another_size_is_not_converted_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from safetensors.torch import load_file, save_file

    broken = rewrite.hf(HF, tmp_path / "m")
    tensors = load_file(broken / "model.safetensors")
    tensors["mtp.fc.weight"] = tensors["mtp.fc.weight"][:, :256].contiguous()
    save_file(tensors, broken / "model.safetensors", metadata={"format": "pt"})
    code, _, err = run(capsys, "convert", broken, "-o", tmp_path / "o.gguf", "--to", "gguf")
    assert code == 3
    assert "eh_proj" in err


def test_a_size_of_zero_is_no_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = rewrite.hf(HF, tmp_path / "m", config=lambda c: c.update(hidden_size=0))
    assert run(capsys, "validate", path)[0] in (1, 3)


def test_generic_does_not_claim_what_it_did_not_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from mtptools.containers.gguf_values import string_value

    ckpt = open_checkpoint(FULL)
    renamed = {f"new{k.removeprefix('qwen35')}": v for k, v in ckpt.metadata.stored.items() if k.startswith("qwen35.")}
    gone = dict.fromkeys(k for k in ckpt.metadata if k.startswith("qwen35."))
    path = rewrite.gguf(
        FULL, tmp_path / "new.gguf", metadata={"general.architecture": string_value("new"), **renamed, **gone}
    )
    code, out, _ = run(capsys, "validate", path, "--generic", "--json")
    result = json.loads(out)
    assert code == 0
    assert {"tensor-shape", "tensor-unknown", "head-norms"} <= set(result["skipped"])
    assert not {"tensor-shape", "tensor-unknown", "head-norms"} & set(result["passed"])
