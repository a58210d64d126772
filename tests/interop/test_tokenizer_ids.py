"""llama.cpp's own tokenizer and ours give the same ids for the same file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mtptools.checkpoint import open_checkpoint
from mtptools.containers.gguf_values import GgufValue, array_value, scalar_value, string_value
from mtptools.decoder.tokenizer import KINDS, load_tokenizer
from mtptools.ops.convert_gguf import convert_gguf
from mtptools.prompts import builtin_prompts
from mtptools.writer import write
from tests import rewrite
from tests.conftest import FIXTURES
from tests.texts import ATOMS, CASES, MARKS, texts, unsplit

pytest.importorskip("xllamacpp", reason="needs llama.cpp: pip install 'mtptools[llama]'")
pytestmark = pytest.mark.interop

MODEL = FIXTURES / "qwen35" / "gguf" / "trunk-Q4_K.gguf"
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# In a process of its own: a server that cannot load a file ends it.
SERVER = """
import json, sys, urllib.request
import xllamacpp
from fixtures.random_llama import _parameters
request = json.load(sys.stdin)
server = xllamacpp.Server(_parameters(request["model"]))
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
def ids(text):
    body = json.dumps({"content": text, "add_special": True, "parse_special": True}).encode()
    call = urllib.request.Request(server.listening_address + "/tokenize", body, {"Content-Type": "application/json"})
    with opener.open(call, timeout=60) as reply:
        return json.load(reply)["tokens"]
print(json.dumps([ids(text) for text in request["texts"]]))
"""


def llama(model: Path, asked: list[str]) -> list[list[int]]:
    done = subprocess.run(
        [sys.executable, "-c", SERVER],
        input=json.dumps({"model": str(model), "texts": asked}),
        capture_output=True,
        text=True,
        cwd=FIXTURES.parent,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[list[int]] = json.loads(done.stdout.splitlines()[-1])
    return found


def disguised(out: Path, kind: str, **more: GgufValue) -> Path:
    """The trained model with another vocabulary, that texts are cut for as `kind` has it."""
    tokens, merges = unsplit(2048 - len(SPECIALS))
    stated = {
        "tokens": array_value("string", [*tokens, *SPECIALS]),
        "merges": array_value("string", merges),
        "pre": string_value(kind),
        **more,
    }
    return rewrite.gguf(MODEL, out, metadata={f"tokenizer.ggml.{key}": value for key, value in stated.items()})


def asked_of(kind: str) -> list[str]:
    """Texts on which llama.cpp is to be the release; see tests/texts.py for what is left out."""
    if kind == "kimi-k2":
        return [text.lower() for text in texts(600, 7, tuple(atom for atom in ATOMS if atom != "İ"))]
    return [*texts(600, 7, (*ATOMS, *CASES) if KINDS[kind].composes else (*ATOMS, *CASES, *MARKS)), *builtin_prompts()]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind(kind: str, tmp_path: Path) -> None:
    path, asked = disguised(tmp_path / "x.gguf", kind), asked_of(kind)
    ours = load_tokenizer(open_checkpoint(path))
    for text, theirs in zip(asked, llama(path, asked), strict=True):
        assert ours.encode(text) == theirs, text


def test_kimi_is_the_release_and_not_llama_cpp(tmp_path: Path) -> None:
    """A deviation on purpose: when llama.cpp cuts words at inner capitals, this fails, and CASES can be asked there."""
    path, asked = disguised(tmp_path / "x.gguf", "kimi-k2"), texts(100, 9, ("the", "naïve", "ß", *CASES[:3]))
    ours = load_tokenizer(open_checkpoint(path))
    assert [word for word, _ in ours.backend.pre_tokenizer.pre_tokenize_str("camelCase")] == ["camel", "Case"]
    differing = [text for text, theirs in zip(asked, llama(path, asked), strict=True) if ours.encode(text) != theirs]
    assert len(differing) > 10


@pytest.mark.parametrize("adds", [True, False, None])
def test_bos(adds: bool | None, tmp_path: Path) -> None:
    more = {"bos_token_id": scalar_value("u32", 2046)}
    if adds is not None:
        more["add_bos_token"] = scalar_value("bool", adds)
    path = disguised(tmp_path / "x.gguf", "deepseek-v3", **more)
    asked = ["", "hello", "<|im_start|>hello"]
    ours = [load_tokenizer(open_checkpoint(path)).encode(text) for text in asked]
    assert ours == llama(path, asked)
    assert ours[0] == ([2046] if adds else [])
    assert ours[2].count(2046) == (2 if adds else 1)


@pytest.mark.parametrize("name", ["deepseekv3", "glm4moe"])
def test_converted_models(name: str, tmp_path: Path) -> None:
    out = tmp_path / "x.gguf"
    write(convert_gguf(open_checkpoint(FIXTURES / name / "hf"), out.name), out)
    asked = [*texts(300, 8), *builtin_prompts()]
    ours = load_tokenizer(open_checkpoint(out))
    assert [ours.encode(text) for text in asked] == llama(out, asked)
