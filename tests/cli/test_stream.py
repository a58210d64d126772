"""verify --stream from the command line: what it prints, what it refuses, and with which exit code."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mtptools.checkpoint import open_checkpoint
from mtptools.decoder.tokenizer import load_tokenizer
from mtptools.head import head_names
from tests import rewrite
from tests.conftest import FIXTURES

FULL = FIXTURES / "qwen35" / "gguf" / "model-BF16.gguf"
TRUNK = FIXTURES / "qwen35" / "gguf" / "trunk-Q8_0.gguf"
HF = FIXTURES / "qwen35" / "hf"
LAYERS = 4
BRIEF = ("--stream", "--positions", "100")

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    return dict(np.load(FIXTURES / "qwen35" / "golden.npz"))


@pytest.fixture
def own(golden: dict[str, np.ndarray], tmp_path: Path) -> Path:
    """Two prompts and what transformers wrote to them, as ids."""
    records = [
        {"prompt_tokens": golden[f"{name}_ids"].tolist(), "tokens": golden[f"{name}_greedy"].tolist()}
        for name in ("attorney", "congress")
    ]
    path = tmp_path / "own.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture(scope="module")
def long(golden: dict[str, np.ndarray]) -> str:
    """A text of 300 tokens."""
    return load_tokenizer(open_checkpoint(FULL), 2048).decode(golden["long_ids"].tolist())


def stream(run: Run, *arguments: object) -> tuple[int, dict[str, Any]]:
    code, out, _ = run("verify", *arguments, "--stream", "--json")
    return code, json.loads(out)


def refused(run: Run, *arguments: object, code: int = 2) -> str:
    """What it says; there is always a next thing to type."""
    got, out, err = run("verify", *arguments)
    assert got == code, out + err
    assert "error:" in err.lower(), err
    assert "hint:" in err or "Usage:" in err, err
    return err


def broken(out: Path) -> Path:
    """With the halves of the fusion swapped."""
    fusion = next(name for name in head_names(open_checkpoint(FULL)) if name.endswith("nextn.eh_proj.weight"))
    return rewrite.gguf(FULL, out, edit={fusion: lambda rows: np.roll(rows, rows.shape[-1] // 2, axis=-1)})


def test_passes(run: Run, own: Path) -> None:
    code, out, err = run("verify", FULL, "--stream", "--text", own)
    assert code == 0, out + err
    assert "PASS  L0, L1, L3 and L4 from one pass" in out
    assert "| draft | tried | right, if all before it were | of all steps | rate at k | mean length at k |" in out
    assert "text of the model's own" in out
    assert "100.0% of 128 tokens are its first choice" in out
    assert "L4 control     hurts    swapped halves" in out
    assert "184 tokens of text are few" in err
    assert "memory: " in err
    assert "the loop's own counts" in out


def test_the_report(run: Run, own: Path) -> None:
    """Every field that a script may rely on."""
    code, data = stream(run, FULL, "--text", own, "--k", "2")
    assert code == 0
    assert (data["schema"], data["ok"], data["failures"], data["not_run"]) == (1, True, [], None)
    assert data["decoder"] is None
    found = data["stream"]
    assert set(found) == {
        "passages", "positions", "text_digest", "trunk", "rates", "own_text", "walked", "controls", "control_rows",
        "powerless", "diagnosis", "warnings", "compared", "layers", "n_layers", "went_on_after", "bytes", "seconds",
        "fingerprint",
    }  # fmt: skip
    assert (found["passages"], found["positions"], found["control_rows"]) == (2, 184, 184)
    assert set(found["trunk"]) == {"counted", "agreement", "loss", "perplexity", "margins", "ties"}
    assert found["trunk"]["counted"] == 128
    assert list(found["trunk"]["margins"]) == ["0.001", "0.01", "0.1", "0.5"]
    assert list(found["trunk"]["margins"].values()) == sorted(found["trunk"]["margins"].values())
    assert found["trunk"]["perplexity"] == pytest.approx(np.exp(found["trunk"]["loss"]))
    assert set(found["rates"]) == {
        "tried", "right", "conditional", "error", "per_position", "rate", "mean_length",
    }  # fmt: skip
    assert all(len(one) == 2 for one in found["rates"].values())
    assert [one["k"] for one in found["walked"]] == [1, 2]
    assert found["own_text"]
    assert found["compared"] is None
    assert (found["layers"], found["n_layers"], found["went_on_after"]) == (list(range(LAYERS)), LAYERS, 0)
    assert found["warnings"] == []
    (device,) = data["memory"]["devices"]
    assert (device["device"], device["layers"], data["memory"]["context"]) == ("cpu", [0, LAYERS], 184)
    assert device["needed"] > found["bytes"] / 4
    assert found["bytes"] == sum(tensor.nbytes for tensor in open_checkpoint(FULL).values())
    assert found["seconds"] > 0
    assert found["fingerprint"]["device"] == "cpu"
    assert "free" in found["fingerprint"]["arithmetic"]
    exact = stream(run, FULL, "--text", own, "--exact")[1]["stream"]["fingerprint"]["arithmetic"]
    assert "free" not in exact


def test_counts_are_those_of_decoding(run: Run, golden: dict[str, np.ndarray], tmp_path: Path) -> None:
    """--stream on a model's own text, and --parity on its prompt: the same steps, the same drafts."""
    before, after = golden["attorney_ids"].tolist(), golden["attorney_greedy"].tolist()[:40]
    tokenizer = load_tokenizer(open_checkpoint(FULL), 2048)
    text = tokenizer.decode(before)
    assert tokenizer.encode(text) == before
    prompts, own = tmp_path / "prompts.jsonl", tmp_path / "own.json"
    prompts.write_text(json.dumps({"prompt": text}))
    own.write_text(json.dumps({"prompt_tokens": before, "tokens": after}))
    walked = stream(run, FULL, "--text", own, "--k", "2")[1]["stream"]["walked"]
    code, out, _ = run("verify", FULL, "--parity", "--prompts", prompts, "--k", "2", "--tokens", "40", "--json")
    assert code == 0
    assert walked[1:] == json.loads(out)["decoder"]["acceptance"]


def test_what_generate_printed(run: Run, tmp_path: Path) -> None:
    """Its ids are taken as they are: the text is the model's own."""
    out = run("generate", FULL, "-p", "The whale", "--tokens", "40", "--ignore-eos", "--json")[1]
    path = tmp_path / "generated.json"
    path.write_text(out)
    code, data = stream(run, FULL, "--text", path)
    assert code in (0, 1)
    assert data["stream"]["own_text"]
    assert data["stream"]["trunk"]["agreement"] == 1
    assert data["stream"]["trunk"]["counted"] == 40


@pytest.mark.parametrize("form", ["txt", "jsonl text", "json strings", "prompt and text", "completion", "gz", "two"])
def test_forms_of_text(run: Run, form: str, long: str, tmp_path: Path) -> None:
    """The same 300 tokens however they are given; a prompt is read and not counted."""
    before, after = long[: len(long) // 2], long[len(long) // 2 :]
    name, data = {
        "txt": ("t.txt", long),
        "jsonl text": ("t.jsonl", json.dumps({"text": long}) + "\n\n"),
        "json strings": ("t.json", json.dumps([long])),
        "prompt and text": ("t.jsonl", json.dumps({"prompt": before, "text": after})),
        "completion": ("t.jsonl", json.dumps({"prompt": before, "completion": after})),
        "gz": ("t.jsonl.gz", json.dumps({"text": long})),
        "two": ("t.txt", long),
    }[form]
    path = tmp_path / name
    path.write_bytes(gzip.compress(data.encode()) if form == "gz" else data.encode())
    twice = ("--text", path) if form == "two" else ()
    code, found = stream(run, FULL, "--text", path, *twice, "--k", "1", "--min-acceptance", "0")
    assert code in (0, 1), found
    found = found["stream"]
    assert found["positions"] == 300 * (1 + (form == "two"))
    assert found["passages"] == 1 + (form == "two")
    half = form in ("prompt and text", "completion")
    assert 100 < found["trunk"]["counted"] < 200 if half else found["trunk"]["counted"] % 299 == 0


@pytest.mark.parametrize(
    ("name", "data", "code", "says"),
    [
        ("empty.txt", b"", 2, "no token to predict"),
        ("one.txt", b"a", 2, "no token to predict"),
        ("empty.txt", b"", 2, "hint: a longer --text"),
        ("latin.txt", "caf\u00e9".encode("latin-1"), 3, "not UTF-8"),
        ("wide.txt", "some text".encode("utf-16"), 3, "hint: iconv -f UTF-16 -t UTF-8 "),
        ("empty.jsonl", b"", 2, "no token to predict"),
        ("broken.jsonl", b'{"text": "a b c"}\n{"text"', 3, "line 2 is not JSON"),
        ("number.json", b"7", 3, "holds no text"),
        ("nothing.json", b'{"other": "x"}', 3, "holds no text"),
        ("ids.json", b'{"prompt_tokens": [1], "tokens": [2, 99999999]}', 3, "token ids that the model does not have"),
        ("bools.json", b'{"prompt_tokens": [true], "tokens": [2, 3]}', 3, "token ids that the model does not have"),
        ("cut.txt.gz", gzip.compress(b"some text", mtime=0)[:-6], 3, "cannot read the text"),
        ("damaged.txt.gz", b"\x1f\x8bnot gzip at all", 3, "cannot read the text"),
        ("deep.json", b"[" * 100_000, 3, "is not JSON"),
    ],
)
def test_text_that_is_none(run: Run, name: str, data: bytes, code: int, says: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    assert says in refused(run, FULL, "--stream", "--text", path, code=code)


def test_text_that_cannot_be_read(run: Run, tmp_path: Path) -> None:
    err = refused(run, FULL, "--stream", "--text", tmp_path / "none.txt", code=3)
    assert "no such file" in err
    assert "hint: check the path" in err
    assert "cannot read the text" in refused(run, FULL, "--stream", "--text", tmp_path, code=3)
    refused(run, FULL, "--stream", "--text", "")


@pytest.mark.parametrize(
    "rest", [("--text", "t"), ("--positions", "9"), ("--window", "9"), ("--state", "d"), ("--exact",)]
)
def test_options_that_need_it(run: Run, rest: tuple[str, ...]) -> None:
    assert f"{rest[0]} needs --stream" in refused(run, FULL, *rest)
    assert f"{rest[0]} needs --stream" in refused(run, FULL, "--parity", *rest)


@pytest.mark.parametrize(
    "rest",
    [("--tokens", "9"), ("--serial",), ("--probe",), ("--baseline", "x"), ("--offload",), ("--temperature", "1")],
)
def test_options_that_are_of_decoding(run: Run, rest: tuple[str, ...]) -> None:
    err = refused(run, FULL, "--stream", *rest)
    assert "--parity" in err
    assert "leave" in err


def test_not_both(run: Run, own: Path) -> None:
    assert "--parity" in refused(run, FULL, "--stream", "--parity")
    assert "two texts" in refused(run, FULL, "--stream", "--text", own, "--prompts", own)


@pytest.mark.parametrize("layers", ["2", "a:b", ":3", "3:", "3:3", "3:1", "-1:2", "0:2:4", "1.0:2", ""])
def test_ranges_that_are_none(run: Run, layers: str, tmp_path: Path) -> None:
    err = refused(run, FULL, *BRIEF, "--layers", layers, "--state", tmp_path)
    assert ("as A:B" in err) == (layers in (":3", "3:"))


def test_layers(run: Run, own: Path, tmp_path: Path) -> None:
    """Apart, joined by their states: what to type next is what then works."""
    state = tmp_path / "state"
    text = ("--text", own)
    assert "--state" in refused(run, FULL, *BRIEF, "--layers", "0:2")
    assert "of a model of 4" in refused(run, FULL, *BRIEF, "--layers", "0:9", "--state", state)
    err = refused(run, FULL, "--stream", *text, "--layers", "2:4", "--state", state, code=3)
    assert "--layers 0:2" in err
    code, out, _ = run("verify", FULL, "--stream", *text, "--layers", "0:2", "--state", state, "--json")
    assert code == 0
    partial = json.loads(out)
    assert partial["layers"] == [0, 2]
    assert partial["of"] == LAYERS
    assert partial["next"] == "the same command with --layers 2:4"
    code, out, _ = run("verify", FULL, "--stream", *text, "--layers", "2:4", "--state", state)
    assert code == 0
    assert "the same command without --layers" in out
    code, joined = stream(run, FULL, *text, "--state", state)
    assert code == 0
    assert joined["stream"]["went_on_after"] == LAYERS
    code, out, err = run("verify", FULL, "--stream", *text, "--state", state)
    assert code == 0
    assert "going on after layer 4 of 4" in err
    assert "went on        after layer 4 of 4" in out
    assert "this run alone" in out
    assert joined["stream"]["layers"] == []
    whole = stream(run, FULL, *text)[1]["stream"]
    for key in ("trunk", "rates", "walked", "controls", "text_digest"):
        assert joined["stream"][key] == whole[key]
    assert "other text" in refused(run, FULL, *BRIEF, "--state", state, code=3)


def test_states_that_cannot_be_kept(run: Run, own: Path) -> None:
    assert "--state" in refused(run, FULL, "--stream", "--text", own, "--state", own, code=7)


def test_other_and_states_do_not_go_together(run: Run, tmp_path: Path) -> None:
    """States of one of two would be kept or asked for: neither is done, so neither is promised."""
    for rest in (("--state", tmp_path), ("--state", tmp_path, "--layers", "0:2")):
        assert "--against" in refused(run, FULL, *BRIEF, "--against", FULL, *rest)


def test_a_broken_head(run: Run, own: Path, tmp_path: Path) -> None:
    path = broken(tmp_path / "broken.gguf")
    code, data = stream(run, path, "--text", own, "--against", FULL)
    assert code == 1
    assert not data["ok"]
    assert any(line.startswith("L3 acceptance") for line in data["failures"])
    assert any("halves of eh_proj swapped" in line for line in data["failures"])
    assert data["stream"]["compared"]["shared"] == LAYERS
    assert data["stream"]["compared"]["rates"]["conditional"][0] > 0.5
    code, out, _ = run("verify", path, "--stream", "--text", own)
    assert code == 1
    assert "FAIL" in out
    assert "diagnosis      with the halves of eh_proj swapped" in out


def test_against(run: Run, own: Path, tmp_path: Path) -> None:
    """A copy: nothing differs. A quantized trunk: what differs is told, and fails nothing."""
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(FULL.read_bytes())
    code, out, _ = run("verify", FULL, "--stream", "--text", own, "--against", copy)
    assert code == 0
    assert "the trunks are the same, layer by layer" in out
    out_path = tmp_path / "graft.gguf"
    assert run("graft", TRUNK, FULL, "-o", out_path, "-q")[0] == 0
    code, out, _ = run("verify", out_path, "--stream", "--text", own, "--against", FULL)
    assert code == 0, out
    assert "states differ by" in out
    assert "first choice differs at" in out
    assert out.count("| draft | tried |") == 2


def test_against_another_model(run: Run, own: Path) -> None:
    refused(run, FULL, "--stream", "--text", own, "--against", FIXTURES / "glm4moe" / "hf", code=4)


def test_a_sidecar(run: Run, own: Path, tmp_path: Path) -> None:
    head = tmp_path / "head.gguf"
    assert run("extract", FULL, "-o", head, "-q")[0] == 0
    code, data = stream(run, TRUNK, "--head", head, "--text", own)
    assert code == 0
    assert data["stream"]["rates"]["conditional"][0] > 0.5
    code, data = stream(run, FULL, "--against", head, "--text", own)
    assert code == 0
    assert data["stream"]["compared"]["name"] == "head.gguf"
    assert data["stream"]["compared"]["shared"] == LAYERS
    assert data["stream"]["compared"]["rates"] == data["stream"]["rates"]
    assert "--head" in refused(run, head, *BRIEF, code=3)


def test_thresholds(run: Run, own: Path, tmp_path: Path) -> None:
    """Absolute, and relative to --against; asked for, they hold as they stand."""
    text = ("--stream", "--text", own)
    first = stream(run, FULL, "--text", own)[1]["stream"]["rates"]["conditional"][0]
    assert 0.5 < first < 0.95
    assert run("verify", FULL, *text, "--min-acceptance", f"{first - 0.01:.3f}", "-q")[0] == 0
    code, out, _ = run("verify", FULL, *text, "--min-acceptance", f"{first + 0.01:.3f}")
    assert code == 1
    assert f"L3 acceptance: {first:.1%} of first drafts" in out
    assert "--against" in refused(run, FULL, *text, "--min-acceptance", "95%")
    assert run("verify", FULL, *text, "--against", FULL, "--min-acceptance", "100%", "-q")[0] == 0
    worse = rewrite.gguf(
        FULL,
        tmp_path / "worse.gguf",
        edit={name: lambda a: a * 0.6 for name in head_names(open_checkpoint(FULL)) if "ffn_down" in name},
    )
    code, out, _ = run("verify", worse, *text, "--against", FULL, "--min-acceptance", "100%")
    assert code == 1, out
    assert "model-BF16.gguf has" in out


def test_quiet(run: Run, own: Path) -> None:
    assert run("verify", FULL, "--stream", "--text", own, "-q") == (0, "", "")
    code, out, err = run("verify", FULL, "--stream", "--text", own, "--json")
    assert (code, err) == (0, "")
    json.loads(out)


def test_how_much_is_read(run: Run, long: str, tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_text(long)
    text = ("--text", path, "--min-acceptance", "0")
    assert stream(run, FULL, *text, "--positions", "2")[1]["stream"]["positions"] == 2
    found = stream(run, FULL, *text, "--positions", "50", "--window", "20")[1]["stream"]
    assert (found["positions"], found["passages"]) == (50, 3)
    for flag in ("--positions", "--window"):
        refused(run, FULL, "--stream", flag, "1")
        assert "16777216" in refused(run, FULL, "--stream", flag, "99999999999999999999")
    builtin = stream(run, FULL, "--limit", "2", "--min-acceptance", "0")[1]["stream"]
    assert builtin["passages"] == 2
    prompts = tmp_path / "p.txt"
    prompts.write_text(f"{long}\nshort text\n")
    given = stream(run, FULL, "--prompts", prompts, "--min-acceptance", "0", "--limit", "1")[1]["stream"]
    assert given["passages"] == 1


@pytest.mark.parametrize("place", ["deepseekv3/hf", "deepseekv4/hf", "qwen35moe/gguf/model-BF16.gguf"])
def test_two_positions_of_any_family(run: Run, place: str) -> None:
    """The least text there is: one token to predict, one first draft."""
    code, data = stream(run, FIXTURES / place, "--positions", "2", "--min-acceptance", "0")
    assert code in (0, 1)
    assert data["stream"]["trunk"]["counted"] == 1
    assert data["stream"]["rates"]["tried"] == [1, 0, 0]


def test_damage_is_named(run: Run, own: Path, tmp_path: Path) -> None:
    """A value that is not finite, in the third layer."""
    nan = rewrite.gguf(FULL, tmp_path / "nan.gguf", edit={"blk.2.ffn_down.weight": lambda a: a * np.inf})
    with np.errstate(all="ignore"):
        code, out, err = run("verify", nan, "--stream", "--text", own)
    assert code in (1, 3)
    assert "blk.2.ffn_down.weight" in out + err


def test_devices(run: Run) -> None:
    refused(run, FULL, *BRIEF, "--device", "nowhere")
    code, _, err = run("verify", FULL, *BRIEF, "--device", "cuda:0,cuda:1")
    assert code in (2, 7)
    assert "hint:" in err
