"""Every verb that decodes takes the same options of where and how, and says what memory that takes."""

from __future__ import annotations

import builtins
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import torch

from mtptools.decoder import memory

FIXTURES = Path(__file__).parents[2] / "fixtures"
MODEL = FIXTURES / "qwen35/gguf/model-BF16.gguf"

VERBS = ("verify", "generate", "bench", "imatrix", "prune_vocab", "quantize")
OPTIONS = ("device", "dtype", "threads", "offload", "context", "graphs")
TRUNK = FIXTURES / "qwen35/gguf/trunk-Q8_0.gguf"
SHORT = ("-p", "The whale", "--tokens", "4", "--ignore-eos")


def options_of(verb: str) -> dict[str, click.Parameter]:
    command: click.Command = importlib.import_module(f"mtptools.cli.{verb}").command
    return {str(one.name): one for one in command.params}


def described(option: click.Parameter) -> tuple[Any, ...]:
    """All that two spellings of an option could differ in."""
    told = option.to_info_dict()
    return tuple(str(told[key]) for key in ("opts", "default", "type", "is_flag", "multiple"))


@pytest.mark.parametrize("verb", VERBS)
def test_the_same_options(verb: str) -> None:
    ours, first = options_of(verb), options_of("generate")
    for name in OPTIONS:
        if (verb, name) == ("imatrix", "graphs"):  # it reads long passes alone: there is nothing to record
            continue
        assert name in ours, f"{verb} has no --{name}"
        if (verb, name) != ("imatrix", "context"):  # tokens of a chunk there, which is what memory is planned for
            assert described(ours[name]) == described(first[name]), f"--{name} of {verb}"
            assert str(getattr(ours[name], "help", "")).endswith(str(getattr(first[name], "help", ".")))


def test_what_it_takes_is_told_before(run: Any) -> None:
    code, out, err = run("generate", MODEL, *SHORT)
    assert code == 0
    assert err.startswith("memory: ")
    assert "MiB on cpu of" in err.splitlines()[0]
    assert "(loaded, float32, " in err.splitlines()[0]
    assert "memory" not in run("generate", MODEL, *SHORT, "-q")[2]
    rows = run("generate", MODEL, *SHORT, "-v")[2].splitlines()[1:]
    assert rows[0].split() == ["device", "what", "size"]
    assert any("caches of " in row for row in rows)
    code, said, err = run("generate", MODEL, *SHORT, "--json")
    data = json.loads(said)
    assert "memory" not in err
    assert data["text"] == out.rstrip("\n")
    (device,) = data["memory"]["devices"]
    assert device["needed"] == sum(device["parts"].values()) < device["free"]
    assert data["memory"]["context"] < 20


@pytest.mark.parametrize(
    "arguments",
    [
        ("bench", MODEL, "--k", "1", "--tokens", "2", "--runs", "1", "--limit", "1"),
        ("imatrix", MODEL, "--text", FIXTURES / "README.md", "--chunks", "1", "--context", "16", "-o", "OUT"),
    ],
)
def test_it_is_in_the_report(arguments: tuple[object, ...], run: Any, tmp_path: Path) -> None:
    code, out, err = run(*(tmp_path / "out.gguf" if one == "OUT" else one for one in arguments), "--json")
    assert code == 0, err
    assert json.loads(out)["memory"]["weights"] == "loaded"


def test_two_devices_give_the_bits_of_one(run: Any) -> None:
    one = run("generate", MODEL, *SHORT, "--k", "2", "--json")
    two = run("generate", MODEL, *SHORT, "--k", "2", "--json", "--device", "cpu,cpu")
    assert (one[0], two[0]) == (0, 0), two[2]
    ours, theirs = json.loads(one[1]), json.loads(two[1])
    assert ours["tokens"] == theirs["tokens"]
    layers = [device["layers"] for device in theirs["memory"]["devices"]]
    assert layers[0][0] == 0
    assert layers[0][1] == layers[1][0]
    assert layers[1][1] == 4


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--offload",), 2, "--device cuda --offload"),
        (("--context", "5"), 2, "hint: --context 6"),
        (("--device", "cpu,cuda:0"), 2, "--offload keeps layers"),
        (("--device", "mps"), 2, "does not run on 'mps'"),
        (("--device", ""), 2, "no device is named"),
        (("--context", "8388608"), 2, "hint: --context 4096"),
    ],
)
def test_what_cannot_be(arguments: tuple[str, ...], code: int, said: str, run: Any) -> None:
    found = run("generate", MODEL, "-p", "The whale", "--tokens", "4", *arguments)
    assert found[0] == code
    assert said in found[2]
    assert found[1] == ""


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch is built with CUDA")
@pytest.mark.parametrize("flag", [(), ("--offload",)])
def test_a_torch_without_cuda(flag: tuple[str, ...], run: Any) -> None:
    code, _, err = run("generate", MODEL, *SHORT, "--device", "cuda", *flag)
    assert code == 7
    assert "built without CUDA" in err
    assert "--device cpu" in err


def test_too_large_says_what_was_needed(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda device: 1 << 20)
    code, _, err = run("generate", MODEL, *SHORT)
    assert code == 7
    assert "the model does not fit: " in err
    assert "on cpu of 1 MiB free (weights that are not matrices" in err


def test_out_of_memory_half_way(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*arguments: object, **named: object) -> None:
        torch.empty(1 << 50)

    monkeypatch.setattr("mtptools.decoder.speculate.decode_plain", exhausted)
    code, _, err = run("generate", MODEL, *SHORT, "--context", "4000")
    assert code == 7
    assert "out of memory, 4194304.0 GiB more were needed; " in err
    assert "hint: --context 2048" in err


@pytest.mark.parametrize("option", [("--offload",), ("--context", "9"), ("--device", "cpu")])
def test_options_of_what_is_not_asked(option: tuple[str, ...], run: Any, tmp_path: Path) -> None:
    code, _, err = run("quantize", MODEL, "-o", tmp_path / "out.gguf", "--head", "Q8_0", *option)
    assert (code, "only a sweep takes it" in err) == (2, True)
    code, _, err = run("prune-vocab", MODEL, "-o", tmp_path / "out.gguf", "--size", "100", *option)
    assert (code, "it is for measuring" in err) == (2, True)
    code, _, err = run("quantize", MODEL, "-o", tmp_path / "out.gguf", "--head", "Q8_0", "--no-graphs")
    assert (code, "--no-graphs: only a sweep takes it" in err) == (2, True)


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing may come as far as loading."""

    def load(*arguments: object, **named: object) -> None:
        pytest.fail("a model was loaded")

    monkeypatch.setattr("mtptools.decoder.load.load_model", load)


@pytest.mark.usefixtures("unloaded")
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("generate", TRUNK, "-p", "The", "--k", "2"), 3, "none declared"),
        (("verify", TRUNK, "--parity"), 3, "none declared"),
        (("verify", MODEL, "--parity", "--against", TRUNK), 3, "none declared"),
        (("bench", TRUNK), 3, "none declared"),
        (("imatrix", TRUNK, "--text", FIXTURES / "README.md", "-o", "no.gguf"), 3, "none declared"),
        (("generate", MODEL, "-p", ""), 2, "the prompt is empty"),
        (("generate", MODEL, "-p", "The", "--tokens", "5000"), 2, "more do not fit the model's context of 4096"),
        (("verify", MODEL, "--parity", "--tokens", "5000"), 2, "more do not fit the model's context of 4096"),
        (("bench", MODEL, "--tokens", "5000"), 2, "it does not fit the model's context of 4096"),
        (("quantize", MODEL, "--sweep", "Q8_0", "--tokens", "5000"), 2, "fit the model's context of 4096"),
        (("prune-vocab", MODEL, "--from-model", "PROMPTS", "--tokens", "8", "--context", "10"), 2, "--context 23"),
        (("prune-vocab", MODEL, "--from-model", "PROMPTS", "--tokens", "5000"), 2, "model's context of 4096"),
        (
            ("prune-vocab", MODEL, "--corpus", FIXTURES / "README.md", "--measure", "--tokens", "8", "--context", "20"),
            2,
            "--context 136",
        ),
    ],
)
def test_refused_before_loading(arguments: tuple[object, ...], code: int, said: str, run: Any, tmp_path: Path) -> None:
    """By the words that the decoder says after it; of texts, what the longest takes."""
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("The whale\nThe whale and the sea and the man and the boat and the sky\n", encoding="utf-8")
    found = run(*(prompts if one == "PROMPTS" else one for one in arguments))
    assert (found[0], said in found[2]) == (code, True), found[2]
    assert "memory: " not in found[2]


@pytest.mark.parametrize(
    ("device", "said"),
    [
        ("auto", "no device is chosen for you"),
        ("CPU", "hint: --device cpu\n"),
        ("cpu:5", "there is one CPU"),
        ("cuda:", "numbered from 0"),
        ("cuda:x", "numbered from 0"),
        ("cuda:-1", "numbered from 0"),
    ],
)
def test_devices_that_are_none(device: str, said: str, run: Any) -> None:
    """Before anything is opened."""
    code, _, err = run("generate", "no-such.gguf", "-p", "The", "--device", device)
    assert (code, said in err) == (2, True), err


def test_their_names_take_no_torch() -> None:
    code = "import sys, mtptools.cli.generate, mtptools.decoder.device_names; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_more_threads_than_cores(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mtptools.cli.loading._cores", lambda: 2)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    assert "3 threads on 2 core(s) wait for each other" in run("generate", MODEL, *SHORT, "--threads", "3")[2]
    assert "core" not in run("generate", MODEL, *SHORT, "--threads", "2")[2]
    assert "core" not in run("generate", MODEL, *SHORT, "--threads", "3", "-q")[2]


@pytest.mark.parametrize(
    ("error", "said", "hint"),
    [
        (ImportError("libtorch.so: failed to map segment from shared object", name="_C"), "cannot be loaded", "memory"),
        (ImportError("undefined symbol: x", name="_C"), "undefined symbol", "--force-reinstall"),
        (ModuleNotFoundError("No module named 'sympy'", name="sympy"), "sympy", "--force-reinstall"),
        (ModuleNotFoundError("No module named 'torch'", name="torch"), "the package torch", "mtptools[decoder]"),
    ],
)
def test_a_torch_that_cannot_be_loaded(
    error: ImportError, said: str, hint: str, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only one that is not there is to be installed."""
    genuine = builtins.__import__

    def importing(name: str, *rest: Any) -> Any:
        if name == "torch":
            raise error
        return genuine(name, *rest)

    monkeypatch.setattr(builtins, "__import__", importing)
    code, _, err = run("generate", MODEL, *SHORT)
    assert (code, said in err, hint in err.partition("hint: ")[2]) == (7, True, True), err
    assert ("mtptools[decoder]" in err) == (error.name == "torch")


def test_drafts_that_were_not_tried(run: Any) -> None:
    """Of four tokens the first comes with the prompt and the last with a step: two can be drafted."""
    code, _, err = run("generate", MODEL, *SHORT, "--k", "64")
    assert code == 0
    shares = err.partition("by position ")[2].partition(")")[0].split()
    assert len(shares) == 2
