"""Configs, tokenizers and receipts that are not what they should be: errors that say what and where."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

from mtptools.checkpoint import open_checkpoint
from mtptools.containers.gguf_values import GgufValue, array_value, scalar_value, string_value
from mtptools.errors import CorruptError, TokenizerError
from mtptools.ops.inspect import inspect
from mtptools.ops.lineage import lineage
from mtptools.receipt import FOLDER_NAME, RECEIPT_KEY, load_beside, load_inside
from mtptools.tokens import tokenizer_facts
from tests import rewrite
from tests.conftest import FIXTURES

HF = FIXTURES / "qwen35" / "hf"
MOE = FIXTURES / "qwen35moe" / "hf"
GGUF = FIXTURES / "qwen35" / "gguf" / "model-BF16.gguf"
LINEAR, FULL = "linear_attention", "full_attention"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shutil.copytree(HF, tmp_path / "hf")


def bare(folder: Path, name: str, metadata: dict[str, str] | None = None) -> Path:
    """A safetensors file with one tensor of two bytes."""
    header: dict[str, Any] = {name: {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}}
    text = json.dumps(({"__metadata__": metadata} if metadata else {}) | header).encode()
    path = folder / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(2))
    return path


# --- config.json and GGUF metadata

CONFIGS: dict[str, dict[str, Any]] = {
    "layer types a number": {"layer_types": 5},
    "layer types a word": {"layer_types": FULL},
    "layer types an object": {"layer_types": {LINEAR: 1, FULL: 2, "x": 3, "y": 4}},
    "layer type unknown": {"layer_types": [LINEAR, LINEAR, "sliding_attention", FULL]},
    "layer type a list": {"layer_types": [[LINEAR]] * 4},
    "layer type a number": {"layer_types": [0, 0, 0, 1]},
    "layer types too few": {"layer_types": [LINEAR, FULL]},
    "hidden size a fraction": {"hidden_size": 256.5},
    "hidden size a list": {"hidden_size": [256]},
    "hidden size a word": {"hidden_size": "256"},
    "head size a float": {"head_dim": 64.0},
    "interval a float": {"full_attention_interval": 2.5},
    "heads true": {"num_attention_heads": True},
    "heads negative": {"num_attention_heads": -4},
    "heads enormous": {"num_attention_heads": 10**400},
    "layers enormous": {"num_hidden_layers": 10**9, "layer_types": None},
    "depth enormous": {"mtp_num_hidden_layers": 65},
    "epsilon a word": {"rms_norm_eps": "small"},
    "epsilon not a number": {"rms_norm_eps": float("nan")},
    "rope base infinite": {"rope_parameters": {"rope_theta": float("inf")}},
    "rope parameters a number": {"rope_parameters": 5},
    "rope parameters none, and no base": {"rope_parameters": None},
    "rotated more than there is": {"rope_parameters": {"rope_theta": 10000, "partial_rotary_factor": 3}},
    "tied a word": {"tie_word_embeddings": "false"},
    "tied a number": {"tie_word_embeddings": 0},
    "text configuration a list": {"text_config": [1]},
    "activation unknown": {"hidden_act": ["silu"]},
}


def configured(folder: Path, **changes: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


@pytest.mark.parametrize("case", CONFIGS)
def test_config(case: str, folder: Path) -> None:
    ckpt = open_checkpoint(configured(folder, **CONFIGS[case]))
    with pytest.raises(CorruptError) as caught:
        _ = ckpt.family, ckpt.hparams
    assert caught.value.where
    assert caught.value.hint
    assert len(str(caught.value)) < 400
    assert inspect(ckpt)["family_error"] == str(caught.value)


@pytest.mark.parametrize("count", [10**8, 4097, 8.0, "8", -1])
def test_experts(count: object, tmp_path: Path) -> None:
    folder = rewrite.hf(MOE, tmp_path / "hf", config=lambda tree: tree["text_config"].update(num_experts=count))
    with pytest.raises(CorruptError, match="num_experts"):
        _ = open_checkpoint(folder).hparams


@pytest.mark.parametrize(
    "changes",
    [
        {"layer_types": None},
        {"layer_types": [LINEAR, LINEAR, LINEAR, FULL, FULL]},
        {"text_config": None},
        {"rope_parameters": None, "rope_theta": 10000, "partial_rotary_factor": 0.25},
        {"rope_parameters": {"rope_theta": 1e6, "partial_rotary_factor": None}},
        {"full_attention_interval": None},
        {"intermediate_size": None},
    ],
)
def test_what_may_be_absent(changes: dict[str, Any], folder: Path) -> None:
    hparams = open_checkpoint(configured(folder, **changes)).hparams
    assert hparams.layer_types == ("linear", "linear", "linear", "full")
    assert hparams.rope_dim == 16


@pytest.mark.parametrize(
    ("inner", "outer", "tied"), [(True, None, True), (True, False, False), (None, True, True), (None, None, False)]
)
def test_tied(inner: bool | None, outer: bool | None, tied: bool, folder: Path) -> None:
    text = json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": inner}
    config = {"model_type": "qwen3_5", "text_config": text, "tie_word_embeddings": outer}
    (folder / "config.json").write_text(json.dumps(config))
    assert open_checkpoint(folder).hparams.tie_embeddings is tied


GGUF_VALUES = {
    "recurrent layers a number": ("attention.recurrent_layers", scalar_value("u32", 3)),
    "recurrent layers words": ("attention.recurrent_layers", array_value("string", [LINEAR] * 5)),
    "recurrent layers real": ("attention.recurrent_layers", array_value("f32", [1.0] * 5)),
    "recurrent layers 2": ("attention.recurrent_layers", array_value("u32", [2] * 5)),
    "size a float": ("embedding_length", scalar_value("f32", 256.0)),
    "size a word": ("embedding_length", string_value("256")),
    "heads a list of words": ("attention.head_count", array_value("string", ["4"] * 5)),
    "heads a list of floats": ("attention.head_count", array_value("f32", [4.0] * 5)),
    "epsilon a flag": ("attention.layer_norm_rms_epsilon", scalar_value("bool", True)),
    "epsilon negative": ("attention.layer_norm_rms_epsilon", scalar_value("f32", -1.0)),
    "blocks a flag": ("block_count", scalar_value("bool", True)),
    "blocks enormous": ("block_count", scalar_value("u32", 1 << 31)),
    "depth signed": ("nextn_predict_layers", scalar_value("i32", -1)),
}


@pytest.mark.parametrize("case", GGUF_VALUES)
def test_gguf_metadata(case: str, tmp_path: Path) -> None:
    key, value = GGUF_VALUES[case]
    ckpt = open_checkpoint(rewrite.gguf(GGUF, tmp_path / "x.gguf", metadata={f"qwen35.{key}": value}))
    with pytest.raises(CorruptError) as caught:
        _ = ckpt.hparams
    assert str(ckpt.path) in str(caught.value)
    assert inspect(ckpt)["family_error"] == str(caught.value)


def test_recurrent_layers_as_numbers(tmp_path: Path) -> None:
    stated = array_value("u32", [1, 1, 1, 0, 0])
    path = rewrite.gguf(GGUF, tmp_path / "x.gguf", metadata={"qwen35.attention.recurrent_layers": stated})
    assert open_checkpoint(path).hparams.layer_types == ("linear", "linear", "linear", "full")


@pytest.mark.parametrize(
    ("kind", "items"), [("u32", [-1]), ("u32", [1.5]), ("u8", ["a"]), ("u64", [None]), ("f32", [1e300])]
)
def test_array_of_what_does_not_fit(kind: str, items: list[Any]) -> None:
    with pytest.raises(CorruptError, match=kind):
        array_value(kind, items)
    with pytest.raises(CorruptError, match="string"):
        array_value("string", ["a", 5])


# --- tokenizers

VOCAB = {"a": 0, "b": 1, "ü": 2}


def tokenizer(**changes: Any) -> dict[str, Any]:
    added = [{"id": 3, "content": "<end>", "special": True}]
    return {"version": "1.0", "added_tokens": added, "model": {"type": "BPE", "vocab": VOCAB, "merges": []}} | changes


TOKENIZERS: dict[str, Any] = {
    "a list": [],
    "a string": "tokenizer",
    "no model": {"added_tokens": []},
    "model null": tokenizer(model=None),
    "model a list": tokenizer(model=[]),
    "model a string": tokenizer(model="BPE"),
    "type a number": tokenizer(model={"type": 5, "vocab": VOCAB}),
    "no vocabulary": tokenizer(model={"type": "BPE"}),
    "vocabulary a string": tokenizer(model={"type": "BPE", "vocab": "a"}),
    "vocabulary of numbers": tokenizer(model={"type": "Unigram", "vocab": [1, 2]}),
    "vocabulary of empty pairs": tokenizer(model={"type": "Unigram", "vocab": [[]]}),
    "vocabulary of pairs of numbers": tokenizer(model={"type": "Unigram", "vocab": [[1, 2]]}),
    "ids are words": tokenizer(model={"type": "BPE", "vocab": {"a": "0"}}),
    "ids are floats": tokenizer(model={"type": "BPE", "vocab": {"a": 0.0}}),
    "ids are flags": tokenizer(model={"type": "BPE", "vocab": {"a": True}}),
    "ids of several types": tokenizer(model={"type": "BPE", "vocab": {"a": 0, "b": "1", "c": None}}),
    "ids negative": tokenizer(model={"type": "BPE", "vocab": {"a": -1}}),
    "ids enormous": tokenizer(model={"type": "BPE", "vocab": {"a": 1 << 32}}),
    "half a character": tokenizer(model={"type": "BPE", "vocab": {"\ud800": 0}}),
    "half a character that stands for a byte": tokenizer(model={"type": "BPE", "vocab": {"\udcff": 0}}),
    "added null": tokenizer(added_tokens=None),
    "added an object": tokenizer(added_tokens={"id": 3, "content": "x"}),
    "added of strings": tokenizer(added_tokens=["<end>"]),
    "added without id": tokenizer(added_tokens=[{"content": "<end>"}]),
    "added without content": tokenizer(added_tokens=[{"id": 3}]),
    "added with a list": tokenizer(added_tokens=[{"id": 3, "content": ["<end>"]}]),
}


@pytest.mark.parametrize("case", TOKENIZERS)
def test_tokenizer(case: str, tmp_path: Path) -> None:
    bare(tmp_path, "w")
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(TOKENIZERS[case]))
    with pytest.raises(TokenizerError) as caught:
        tokenizer_facts(open_checkpoint(tmp_path))
    assert caught.value.where == str(path)
    assert caught.value.hint


def test_tokenizers_that_are_sound(tmp_path: Path) -> None:
    bare(tmp_path, "w")
    found = []
    unigram = {"type": "Unigram", "vocab": [["a", -1.5], ["b", 0], ["ü", 0]]}
    for number, tree in enumerate((tokenizer(), tokenizer(model=unigram), tokenizer(model={"vocab": VOCAB}))):
        folder = shutil.copytree(tmp_path, tmp_path / str(number), ignore=lambda *_: map(str, range(3)))
        (folder / "tokenizer.json").write_text(json.dumps(tree))
        facts = tokenizer_facts(open_checkpoint(folder))
        assert facts is not None
        found.append((facts.kind, facts.size, facts.digest))
    assert [kind for kind, _, _ in found] == ["BPE", "Unigram", "unknown"]
    assert {rest for _, *rest in map(tuple, found) for rest in [tuple(rest)]} == {(4, found[0][2])}


@pytest.mark.parametrize("value", [scalar_value("u32", 5), array_value("u32", [1, 2]), string_value("a")])
def test_gguf_tokens(value: GgufValue, tmp_path: Path) -> None:
    path = rewrite.gguf(GGUF, tmp_path / "x.gguf", metadata={"tokenizer.ggml.tokens": value})
    with pytest.raises(TokenizerError, match=r"tokenizer\.ggml\.tokens") as caught:
        tokenizer_facts(open_checkpoint(path))
    assert caught.value.where == str(path)


# --- receipts

INSIDE: dict[str, Any] = {
    "schema": 1,
    "version": "0.1.0",
    "verb": "graft",
    "sources": [{"label": "trunk", "name": "a.gguf"}],
    "tokenizer_sha256": None,
    "head_sha256": {},
}
BESIDE: dict[str, Any] = {
    "schema": 1,
    "version": "0.1.0",
    "verb": "graft",
    "sources": [{"label": "trunk", "name": "a.gguf"}],
    "tensors": [{"name": "w", "xxh3_128": "0" * 32, "bytes_pass": True}],
}
LOST: Any = object()
EITHER: list[dict[str, Any]] = [
    {"schema": LOST},
    {"schema": None},
    {"schema": 2},
    {"schema": [1]},
    {"version": LOST},
    {"version": 1},
    {"verb": None},
    {"sources": LOST},
    {"sources": 1},
    {"sources": [1]},
    {"sources": [{}]},
    {"sources": [{"label": "trunk", "name": None}]},
]
ONLY_INSIDE: list[dict[str, Any]] = [
    {"tokenizer_sha256": 5},
    {"head_sha256": LOST},
    {"head_sha256": ["w"]},
    {"head_sha256": {"w": 5}},
]
ONLY_BESIDE: list[dict[str, Any]] = [
    {"tensors": LOST},
    {"tensors": {}},
    {"tensors": [5]},
    {"tensors": [{}]},
    {"tensors": [{"name": "w", "xxh3_128": "0"}]},
    {"tensors": [{"name": ["w"], "xxh3_128": "0", "bytes_pass": True}]},
]


def changed(record: dict[str, Any], changes: dict[str, Any]) -> str:
    return json.dumps({key: value for key, value in (record | changes).items() if value is not LOST})


@pytest.mark.parametrize(
    "text", [*(changed(INSIDE, c) for c in EITHER + ONLY_INSIDE), "{}", "[]", "5", "", "{", "\xff"]
)
def test_receipt_inside(text: str, tmp_path: Path) -> None:
    ckpt = open_checkpoint(bare(tmp_path, "w", {RECEIPT_KEY: text}))
    for read in (load_inside, inspect, lineage):
        with pytest.raises(CorruptError) as caught:
            read(ckpt)
        assert str(ckpt.path) in str(caught.value)
        assert caught.value.hint


@pytest.mark.parametrize("value", [scalar_value("u32", 5), array_value("bool", [True]), string_value("\udcff")])
def test_receipt_inside_a_gguf(value: GgufValue, tmp_path: Path) -> None:
    with pytest.raises(CorruptError):
        load_inside(open_checkpoint(rewrite.gguf(GGUF, tmp_path / "x.gguf", metadata={RECEIPT_KEY: value})))


@pytest.mark.parametrize("text", [*(changed(BESIDE, c) for c in EITHER + ONLY_BESIDE), "{}", "[]", "5", "", "{"])
def test_receipt_beside(text: str, tmp_path: Path) -> None:
    bare(tmp_path, "w")
    (tmp_path / FOLDER_NAME).write_text(text)
    ckpt = open_checkpoint(tmp_path)
    for read in (load_beside, lineage):
        with pytest.raises(CorruptError) as caught:
            read(ckpt)
        assert str(tmp_path / FOLDER_NAME) in str(caught.value)


def test_receipts_that_are_sound(tmp_path: Path) -> None:
    bare(tmp_path, "w", {RECEIPT_KEY: changed(INSIDE, {"tokenizer_sha256": "0" * 64})})
    (tmp_path / FOLDER_NAME).write_text(changed(BESIDE, {}).replace('"schema"', '"verb": "strip", "schema"', 1))
    ckpt = open_checkpoint(tmp_path)
    inside, beside = load_inside(ckpt), load_beside(ckpt)
    assert inside is not None
    assert beside is not None
    assert (inside["verb"], beside["verb"]) == ("graft", "graft")
