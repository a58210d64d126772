"""quantize --sweep from the command line: what it prints, what it writes, what it refuses."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mtptools.checkpoint import open_checkpoint
from mtptools.codecs import CODECS, ENCODABLE, EXACT, NEEDS_IMPORTANCE, encode
from mtptools.errors import MtpToolsError, SystemFailure, UsageError
from mtptools.importance import Entry, Importance, file_parts
from mtptools.ops.diff import diff
from tests.conftest import FIXTURES

pytest.importorskip("torch", reason="the decoder extra is not installed")

MODEL = FIXTURES / "qwen35" / "gguf" / "model-BF16.gguf"
BRIEF = ("--tokens", "16", "--limit", "2")


def swept(run: Any, *arguments: object, code: int = 0) -> dict[str, Any]:
    found, out, err = run("quantize", *arguments, "--json")
    assert found == code, out + err
    data = json.loads(out)
    assert isinstance(data["sweep"], dict)
    json.dumps(data, allow_nan=False)
    return data


def rows(data: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["head"]: row for row in data["sweep"]["rows"]}


@pytest.fixture(scope="module")
def importance(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights for every matrix of the head of MODEL: drawn, not measured."""
    rng, ckpt = np.random.default_rng(5), open_checkpoint(MODEL)
    names = [name for name, tensor in ckpt.items() if name.startswith("blk.4.") and len(tensor.shape) > 1]
    entries = {name: drawn(rng, ckpt[name].shape[-1]) for name in names}
    path = tmp_path_factory.mktemp("imatrix") / "head.imatrix.gguf"
    path.write_bytes(b"".join(file_parts(Importance(entries, ("drawn",), 1, 512))))
    return path


def drawn(rng: np.random.Generator, columns: int) -> Entry:
    return Entry(rng.uniform(0.5, 2, (1, columns)).astype(np.float32), np.array([512]))


@pytest.mark.parametrize("family", ["qwen35moe"])
def test_the_table_and_the_json_tell_the_same(run: Any, full: Path) -> None:
    asked = (full, "--sweep", "q8_0, Q4_K,Q4_K_M,Q4_K,IQ2_XS", "--tokens", "24", "--k", "2")
    code, text, err = run("quantize", *asked)
    assert code == 0, err
    data = swept(run, *asked)
    found = rows(data)
    assert list(found) == ["as it is", "Q8_0", "Q4_K", "Q4_K_M", "IQ2_XS"]
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    assert table[0][4:] == ["pos 1", "pos 2", "mean length", "difference", "modelled speed-up"]
    for cells in table[2:]:
        row = found[cells[0].removesuffix(" *")]
        assert cells[4:6] == [f"{share:.1%}" for share in row["per_position"]]
        assert cells[6] == f"{row['mean_length']:.3f} ± {row['standard_error']:.3f}"
        assert cells[7] == (
            "" if row["head"] == "as it is" else f"{row['difference']:+.3f} ± {row['difference_error']:.3f}"
        )
        assert cells[8] == f"{row['modelled_speedup']:.2f}"
        assert cells[0].endswith(" *") == (row["head"] == data["sweep"]["recommended"])
    assert "why" in found["IQ2_XS"]
    assert re.search(r"IQ2_XS: cannot be had: .*IQ2_XS without importance is noise", text)
    doubt = "" if data["sweep"]["settled"] else "not settled: "
    assert f"\n* {doubt}{data['sweep']['recommended']} (" in text
    assert "float32 on cpu" in text
    assert "6 prompts, 24 tokens each" in text


def test_what_so_few_steps_do_not_tell(run: Any, tmp_path: Path) -> None:
    """No error is known: null, and a question mark; nothing is settled, and what is asked for is still written."""
    asked = (MODEL, "--sweep", "Q4_K", "--tokens", "3", "--limit", "1", "--tolerance", "90%")
    data = swept(run, *asked)
    for row in data["sweep"]["rows"]:
        assert row["standard_error"] is None
    assert rows(data)["Q4_K"]["difference_error"] is None
    assert (data["sweep"]["recommended"], data["sweep"]["settled"]) == ("Q4_K", False)
    code, text, err = run("quantize", *asked, "-o", tmp_path / "out.gguf")
    assert code == 0, err
    assert " ± ? " in text
    assert "± ?: of so few steps no error is known" in text
    assert "\n* not settled: Q4_K (" in text
    assert (tmp_path / "out.gguf").exists()


def test_figures_are_verifys(run: Any, tmp_path: Path) -> None:
    """On the file that the same options write, by its real loop."""
    found = rows(swept(run, MODEL, "--sweep", "Q3_K_M", "--role", "ffn_*=Q4_K", "--tokens", "24"))
    out = tmp_path / "out.gguf"
    assert run("quantize", MODEL, "-o", out, "--head", "Q3_K_M", "--role", "ffn_*=Q4_K", "-q")[0] == 0
    report = json.loads(run("verify", out, "--parity", "--k", "3", "--tokens", "24", "--json")[1])
    (counted,) = report["decoder"]["acceptance"]
    assert {key: found["Q3_K_M"][key] for key in counted} == counted


def test_the_order_of_types_changes_nothing(run: Any, importance: Path) -> None:
    types = ["Q8_0", "Q2_K", "IQ4_XS", "BF16"]
    one, other = (
        swept(run, MODEL, "--sweep", ",".join(order), "--imatrix", importance, *BRIEF)["sweep"]
        for order in (types, types[::-1])
    )
    assert one["recommended"] == other["recommended"]
    assert sorted(one.pop("rows"), key=str) == sorted(other.pop("rows"), key=str)
    assert one == other


def test_types_that_take_weights_are_measured_twice(run: Any, importance: Path) -> None:
    found = rows(swept(run, MODEL, "--sweep", "Q8_0,Q4_K,IQ2_XS", "--imatrix", importance, *BRIEF))
    assert list(found)[:4] == ["as it is", "Q8_0", "Q4_K", "Q4_K, imatrix"]
    assert len(found) == 5, "with weights, or with the reason why there is no encoder here"
    one, other = found["Q4_K"], found["Q4_K, imatrix"]
    assert (one["weighted"], other["weighted"]) == (False, True)
    assert one["draft_bytes"] == other["draft_bytes"]


@pytest.mark.parametrize(
    "kind", sorted({name for name in ENCODABLE if CODECS[name].kind == "block"} - NEEDS_IMPORTANCE)
)
def test_which_types_take_weights(kind: str) -> None:
    """The table against the encoders: the same bytes whatever the weights, or not."""
    rng = np.random.default_rng(6)
    values = rng.standard_normal((2, 512)).astype(np.float32)
    weights = [rng.uniform(0.01, 100, 512).astype(np.float32) for _ in range(2)]
    try:
        made = [encode(values, kind, one) for one in weights]
    except MtpToolsError as error:
        pytest.skip(f"no encoder here: {error}")
    assert (made[0] == made[1]) == (kind in EXACT)


def test_wrong_weights_do_not_win(run: Any, tmp_path: Path) -> None:
    """A fault put in: one column counts and no other, so ggml's searches make zeros of nearly all."""
    entries = {}
    for name, tensor in open_checkpoint(MODEL).items():
        if name.startswith("blk.4.") and len(tensor.shape) > 1:
            entries[name] = Entry(np.eye(1, tensor.shape[-1], dtype=np.float32), np.array([1]))
    path = tmp_path / "wrong.gguf"
    path.write_bytes(b"".join(file_parts(Importance(entries, ("wrong",), 1, 512))))
    data = swept(run, MODEL, "--sweep", "Q8_0,Q4_K", "--imatrix", path, "--tolerance", "10%", "--tokens", "48")
    found = rows(data)
    assert found["Q4_K, imatrix"]["mean_length"] < 0.7 * found["Q4_K"]["mean_length"]
    assert data["sweep"]["recommended"] == "Q4_K"
    assert "Q4_K, imatrix" not in data["sweep"]["unsettled"]


def test_the_recommended_one_is_written(run: Any, tmp_path: Path) -> None:
    out, again = tmp_path / "out.gguf", tmp_path / "again.gguf"
    asked = (MODEL, "--sweep", "Q8_0,Q6_K", *BRIEF, "--tolerance", "20%")
    data = swept(run, *asked, "-o", out)
    assert data["sweep"]["recommended"] == "Q6_K"
    assert data["output"] == str(out)
    assert run("quantize", MODEL, "--head", "Q6_K", "-o", again)[0] == 0
    assert diff(open_checkpoint(out), open_checkpoint(again)).equal
    code, text, _ = run("quantize", *asked, "-o", out, "--force")
    assert code == 0
    assert "Q6_K (" in text
    assert "quantize: " in text
    assert "receipt: " in text
    assert run("quantize", *asked, "-o", out)[0] == 6, "found out before anything is measured"


def test_a_dry_run_measures_and_writes_nothing(run: Any, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    code, text, _ = run("quantize", MODEL, "--sweep", "Q8_0", *BRIEF, "--tolerance", "20%", "-o", out, "--dry-run")
    assert code == 0
    assert "Q8_0 (" in text
    assert "dry run: nothing was written" in text
    assert not list(tmp_path.iterdir())


def test_nothing_better_is_nothing_written(run: Any, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    asked = (MODEL, "--sweep", "Q2_K", "--tolerance", "0", "--tokens", "32")
    code, text, err = run("quantize", *asked, "-o", out)
    assert code == 1
    assert "nothing is written: the head as it is is the one to publish" in err
    assert "* as it is (" in text
    assert not out.exists()
    data = swept(run, *asked, "-o", out, code=1)
    assert (data["sweep"]["recommended"], data["output"]) == ("as it is", None)
    assert "the exit code is 1" in " ".join(run("quantize", "--help")[1].split())
    assert run("quantize", *asked)[0] == 0, "nothing was to be written"


def test_own_output(run: Any) -> None:
    shared, own = (
        rows(swept(run, MODEL, "--sweep", "Q8_0", *BRIEF, *more))["Q8_0"] for more in ((), ("--own-output", "Q4_K"))
    )
    assert own["draft_bytes"] < shared["draft_bytes"]
    assert own["head_bytes"] > shared["head_bytes"]
    assert own["modelled_speedup"] > shared["modelled_speedup"]


def test_passages_of_text(run: Any, tmp_path: Path) -> None:
    long, short = tmp_path / "long.txt", tmp_path / "short.txt"
    long.write_text("The ship went out of the harbour in the morning, and the men sang. " * 60, encoding="utf-8")
    short.write_text("A short one.", encoding="utf-8")
    asked = (MODEL, "--sweep", "Q8_0", "--tokens", "8", "--text", long)
    found = swept(run, *asked, "--text", short)["sweep"]
    assert found["prompts"] == 8
    assert swept(run, *asked, "--limit", "2")["sweep"]["prompts"] == 2
    assert swept(run, MODEL, "--sweep", "Q8_0", "--tokens", "8", "--text", short)["sweep"]["prompts"] == 1


def test_plot(run: Any, importance: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    asked = (MODEL, "--sweep", "Q8_0,Q4_K,Q2_K", "--imatrix", importance, *BRIEF)
    files = [tmp_path / "a.svg", tmp_path / "b.svg", tmp_path / "c.png"]
    for path in files:
        code, _, err = run("quantize", *asked, "--plot", path)
        assert (code, f"plot: {path}" in err) == (0, True)
    text = files[0].read_text(encoding="utf-8")
    for label in ("weighted by imatrix", "not weighted", "as it is", "Q2_K", "speed-up, a model of bytes read"):
        assert f">{label}<" in text
    assert files[1].read_text(encoding="utf-8") == text, "the same numbers give the same bytes"
    assert files[2].read_bytes().startswith(b"\x89PNG")
    assert run("quantize", MODEL, "--sweep", "Q8_0", *BRIEF, "--plot", files[0])[0] == 0
    assert ">types<" in files[0].read_text(encoding="utf-8"), "one line has nothing to be told from"


def test_a_plot_that_cannot_be_written(run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Found out before anything is measured; and when it fails after all, the output is there."""
    pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    asked = (MODEL, "--sweep", "Q8_0", *BRIEF, "--tolerance", "20%", "-o", tmp_path / "out.gguf")
    code, out, err = run("quantize", *asked, "--plot", "/proc/x.svg")
    assert (code, out) == (7, ""), err
    assert "hint: " in err
    assert not list(tmp_path.iterdir())

    def full(*_: object) -> bytes:
        raise OSError(28, "No space left on device", "x.svg")

    monkeypatch.setattr("mtptools.report.sweep_plot.plot_sweep", full)
    code, out, err = run("quantize", *asked, "--plot", tmp_path / "x.svg")
    assert (code, "* " in out, "No space left" in err) == (7, True, True)
    assert (tmp_path / "out.gguf").exists()


def test_a_write_that_fails_loses_no_figures(run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*_: object, **__: object) -> None:
        raise SystemFailure("no space", where="out.gguf")

    monkeypatch.setattr("mtptools.writer.write", full)
    asked = (MODEL, "--sweep", "Q8_0", *BRIEF, "--tolerance", "20%", "-o", tmp_path / "out.gguf", "--json")
    code, out, err = run("quantize", *asked)
    assert (code, json.loads(out)["what"]) == (7, "no space")
    assert "modelled speed-up" in err


def test_a_name_that_cannot_be_is_found_out_first(run: Any, tmp_path: Path) -> None:
    code, out, err = run("quantize", FIXTURES / "qwen35" / "hf", "--sweep", "BF16", *BRIEF, "-o", tmp_path / "out.gguf")
    assert (code, out) == (2, "")
    assert "the output is a folder" in err


def test_a_type_that_fails_late_is_a_row(run: Any, monkeypatch: pytest.MonkeyPatch, importance: Path) -> None:
    """ggml that gives up while it encodes; what was measured before and after stays."""
    from mtptools.report import trial

    tried = trial.with_head

    def gives_up(model: Any, planned: Any) -> Any:
        if any(tensor.codec == "Q4_K" for tensor in planned.tensors.values()):
            raise SystemFailure("ggml gave up", where="blk.4.attn_q.weight")
        return tried(model, planned)

    monkeypatch.setattr(trial, "with_head", gives_up)
    data = swept(run, MODEL, "--sweep", "Q8_0,Q4_K,Q6_K", "--imatrix", importance, *BRIEF)
    found = rows(data)
    assert [head for head, row in found.items() if "why" in row] == ["Q4_K", "Q4_K, imatrix"]
    assert found["Q4_K, imatrix"]["why"] == "blk.4.attn_q.weight: ggml gave up"
    assert found["Q6_K"]["mean_length"] > 1
    code, _, err = run("quantize", MODEL, "--sweep", "Q4_K", *BRIEF)
    assert (code, "ggml gave up" in err) == (7, True), "none is left"


def test_a_role_that_goes_with_some_types(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from mtptools.ops import quantize as op

    plan = op.quantize

    def clashes(*args: Any, **more: Any) -> Any:
        if args[2].matrices == "F32":
            raise UsageError("eh_proj cannot be F32", where="--role", hint="leave it out")
        return plan(*args, **more)

    monkeypatch.setattr(op, "quantize", clashes)
    found = rows(swept(run, MODEL, "--sweep", "F32,BF16", "--role", "nextn.eh_proj=Q8_0", *BRIEF))
    assert found["F32"]["why"] == "--role: eh_proj cannot be F32"
    assert found["BF16"]["mean_length"] > 1


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("--sweep", "Q8_0,Q9_Z"), 2, "no type is called 'Q9_Z'"),
        (("--sweep", " , "), 2, "no type to measure"),
        (("--sweep", "Q8_0", "--head", "Q8_0"), 2, "the type is what a sweep finds out"),
        (("--sweep", "Q8_0", "--tolerance", "much"), 2, "is no share"),
        (("--sweep", "Q8_0", "--tolerance", "100%"), 2, "is no share"),
        (("--sweep", "Q8_0", "--tolerance", "nan"), 2, "is no share"),
        (("--sweep", "Q8_0", "--role", "nose=Q8_0"), 2, "the head has no matrix 'nose'"),
        (("--sweep", "Q8_0", "--plot", "sweep.pdf"), 2, "a plot is .svg or .png"),
        (("--sweep", "Q8_0", "--verify"), 2, "no output was given"),
        (("--sweep", "Q8_0", "--device", "abacus"), 2, "does not run on 'abacus'"),
        (("--sweep", "Q8_0", "--tokens", "90000"), 2, "do not fit the model's context"),
        (("--sweep", "IQ2_XS,IQ1_S"), 5, "IQ2_XS without importance is noise"),
        (("--head", "Q8_0"), 2, "no output was given"),
        (("--head", "Q8_0", "-o", "out.gguf", "--tokens", "64"), 2, "only a sweep takes it"),
        (("--head", "Q8_0", "-o", "out.gguf", "--text", "a.txt"), 2, "--text: only a sweep takes it"),
        (("--sweep", "Q8_0", "--prompts", "none.txt"), 3, "no such file of prompts"),
        (("--sweep", "Q8_0", "--text", "none.txt"), 3, "cannot read the text"),
        (("--sweep", "Q8_0", "--text", "none.txt", "--prompts", "none.txt"), 2, "leave one of both out"),
    ],
)
def test_refused(run: Any, arguments: tuple[str, ...], code: int, says: str) -> None:
    found, out, err = run("quantize", MODEL, *arguments)
    assert (found, out) == (code, ""), err
    assert says in err
    assert "hint: " in err


@pytest.mark.parametrize(("content", "says"), [(b" \n", "empty"), (b"\xff\xfe\xfa", "UTF-8"), (b"a\0b", "zero bytes")])
def test_bad_text(run: Any, content: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.txt"
    path.write_bytes(content)
    code, _, err = run("quantize", MODEL, "--sweep", "Q8_0", "--text", path)
    assert (code, says in err, "hint: " in err) == (3, True, True)


def test_no_head_and_no_trunk(run: Any, tmp_path: Path) -> None:
    bare, head = tmp_path / "trunk.gguf", tmp_path / "head.gguf"
    assert run("strip", MODEL, "-o", bare)[0] == run("extract", MODEL, "-o", head)[0] == 0
    code, _, err = run("quantize", bare, "--sweep", "Q8_0")
    assert (code, "no MTP head" in err) == (3, True)
    code, _, err = run("quantize", head, "--sweep", "Q8_0")
    assert (code, "a sidecar has no trunk to draft for" in err) == (3, True)


def test_a_family_without_decoder(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mtptools.decoder.FAMILIES", ("another",))
    code, out, err = run("quantize", MODEL, "--sweep", "Q8_0")
    assert (code, out) == (8, ""), err
    assert "does not know" in err


def test_another_models_importance(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    entries = {"blk.4.attn_q.weight": drawn(np.random.default_rng(7), 64)}
    path.write_bytes(b"".join(file_parts(Importance(entries, ("other",), 1, 512))))
    code, _, err = run("quantize", MODEL, "--sweep", "Q4_K", "--imatrix", path, *BRIEF)
    assert (code, "another model's" in err) == (4, True)
    path.write_bytes(b"".join(file_parts(Importance({"blk.0.x.weight": entries["blk.4.attn_q.weight"]}, (), 1, 512))))
    code, _, err = run("quantize", MODEL, "--sweep", "Q4_K", "--imatrix", path, *BRIEF)
    assert (code, "no entry for any matrix" in err) == (4, True)
    code, _, err = run("quantize", MODEL, "--sweep", "Q8_0", "--imatrix", path, *BRIEF)
    assert (code, "weights none of these types" in err) == (0, True)


def test_without_torch(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    code, _, err = run("quantize", MODEL, "--sweep", "Q8_0")
    assert (code, "pip install 'mtptools[decoder]'" in err) == (7, True)


def test_a_row_that_does_not_fit_is_a_row(run: Any, tmp_path: Path) -> None:
    """GLM's experts have rows of 128: no K-quant fits them, and the rest can have one."""
    hf, gguf = tmp_path / "hf", tmp_path / "model.gguf"
    shutil.copytree(FIXTURES / "glm4moe" / "hf", hf)
    assert run("convert", hf, "-o", gguf, "--to", "gguf")[0] == 0
    found = rows(swept(run, gguf, "--sweep", "Q8_0,Q4_K", *BRIEF))
    assert "a row of 128 values is not a multiple of Q4_K's block of 256" in found["Q4_K"]["why"]
    found = rows(swept(run, gguf, "--sweep", "Q8_0,Q4_K", "--role", "ffn_down*=Q4_0", *BRIEF))
    assert found["Q4_K"]["mean_length"] > 1


def test_a_folder(run: Any, tmp_path: Path) -> None:
    """Hugging Face: float types; what GGUF alone has is refused by name."""
    hf = FIXTURES / "qwen35" / "hf"
    data = swept(run, hf, "--sweep", "BF16,F32", *BRIEF)
    assert data["sweep"]["recommended"] == "as it is", "no smaller one was asked for"
    code, _, err = run("quantize", hf, "--sweep", "BF16,Q4_K", *BRIEF)
    assert (code, "Q4_K" in err, "--head" in err) == (2, True, False)
