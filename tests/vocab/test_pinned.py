"""What is always kept, of folders and GGUF files, against what the fixtures' tokenizers say of themselves."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter
from tokenizers import Tokenizer, pre_tokenizers

from mtptools.checkpoint import Checkpoint, open_checkpoint
from mtptools.errors import CorruptError, TokenizerError
from mtptools.vocab.pinned import pinned
from mtptools.vocab.template import literals

FIXTURES = Path(__file__).parents[2] / "fixtures"
HF = FIXTURES / "qwen35" / "hf"
TEMPLATE = (
    "{#- don't say {{ this }} -#}{%- for message in messages %}\n<|im_start|>{{ message.role + '\\n' }}"
    "{%- if message['role'] == \"tool\" %}{{ '}} %} quoted' }}{% endif %}{{ message.content }}<|im_end|>\n{% endfor %}"
)


def folder(tmp_path: Path, **files: Any) -> Checkpoint:
    """The fixture's folder with other side files; None takes one away."""
    path = tmp_path / "model"
    shutil.copytree(HF, path)
    for name, tree in files.items():
        target = path / (name.replace("__", ".") if "__" in name else f"{name}.json")
        if tree is None:
            target.unlink()
        else:
            target.write_text(tree if isinstance(tree, str) else json.dumps(tree), encoding="utf-8")
    return open_checkpoint(path)


def gguf(tmp_path: Path, tokens: list[str], types: list[int], **more: Any) -> Checkpoint:
    path = tmp_path / "t.gguf"
    writer = GGUFWriter(path, "qwen35")
    writer.add_tokenizer_model(more.pop("model", "gpt2"))
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    for key, value in more.items():
        getattr(writer, f"add_{key}")(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return open_checkpoint(path)


@pytest.mark.parametrize("name", ["qwen35", "qwen35moe", "qwen3next", "glm4moe", "deepseekv3", "deepseekv4"])
def test_fixtures(name: str) -> None:
    """All 256 bytes, by the library's own account of them, and every added token."""
    path = FIXTURES / name / "hf"
    backend = Tokenizer.from_file(str(path / "tokenizer.json"))
    found = pinned(open_checkpoint(path))
    assert list(found) == sorted(found)
    single = {backend.token_to_id(char) for char in pre_tokenizers.ByteLevel.alphabet()}
    assert {number for number, why in found.items() if why == "byte"} == single
    assert len(single) == 256
    added = set(backend.get_added_tokens_decoder())
    assert {number for number, why in found.items() if why == "control token"} == added


def test_folder_and_gguf_agree() -> None:
    of_folder = pinned(open_checkpoint(HF))
    assert pinned(open_checkpoint(FIXTURES / "qwen35" / "gguf" / "model-BF16.gguf")) == of_folder


def test_settings_name_tokens(tmp_path: Path) -> None:
    backend = Tokenizer.from_file(str(HF / "tokenizer.json"))
    word = backend.id_to_token(1000)
    ckpt = folder(
        tmp_path,
        generation_config={"eos_token_id": [1001, 1002], "pad_token_id": None},
        config=json.loads((HF / "config.json").read_text()) | {"vision_config": {"image_token_id": 1003}},
        tokenizer_config={
            "extra_special_tokens": {"boi_token": word},
            "eos_token": {"content": backend.id_to_token(999)},
        },
        special_tokens_map={"additional_special_tokens": [backend.id_to_token(998), "no token"]},
    )
    found = pinned(ckpt)
    assert {number: found[number] for number in (998, 999, 1000, 1001, 1002, 1003)} == {
        998: "additional_special_tokens",
        999: "eos_token",
        1000: "extra_special_tokens",
        1001: "eos_token_id",
        1002: "eos_token_id",
        1003: "image_token_id",
    }


def test_ids_of_no_token(tmp_path: Path) -> None:
    """An id that a setting names and no token has is not kept."""
    assert 2_000_000 not in pinned(
        folder(tmp_path, generation_config={"eos_token_id": 2_000_000, "bos_token_id": True})
    )


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer_config": {"chat_template": TEMPLATE}},
        {
            "tokenizer_config": {
                "chat_template": [{"name": "default", "template": ""}, {"name": "x", "template": TEMPLATE}]
            }
        },
        {"chat_template": {"chat_template": TEMPLATE}},
        {"chat_template__jinja": TEMPLATE},
    ],
)
def test_chat_templates(files: dict[str, Any], tmp_path: Path) -> None:
    ckpt = folder(tmp_path, **files)
    backend = Tokenizer.from_file(str(HF / "tokenizer.json"))

    def encode(text: str) -> list[int]:
        return list(backend.encode(text, add_special_tokens=False).ids)

    found = pinned(ckpt, encode)
    by_template = {number for number, why in found.items() if why == "chat template"}
    assert by_template >= {i for text in ("tool", "role", "}} %} quoted") for i in encode(text)} - set(pinned(ckpt))
    assert by_template
    assert not by_template & set(pinned(ckpt))


def test_literals() -> None:
    assert literals(TEMPLATE) == [
        "\n<|im_start|>",
        "<|im_start|>",
        "\n",
        "role",
        "tool",
        "}} %} quoted",
        "<|im_end|>\n",
        "<|im_end|>",
    ]
    assert literals("a {{ 'it\\'s' ~ \"\\u00e9\" }}") == ["a ", "a", "it's", "é"]
    assert literals("open {{ 'never closed }") == ["open ", "open"]
    assert literals("") == []


def test_gguf_types(tmp_path: Path) -> None:
    """Control, added, byte; padding never, whatever its type says; named ids; templates by name."""
    tokens = ["plain", "Ġ", "<ctl>", "<user>", "<0x0A>", "[PAD5]", "unused", "named", "say"]
    ckpt = gguf(
        tmp_path,
        tokens,
        [1, 1, 3, 4, 6, 3, 5, 1, 1],
        eot_token_id=7,
        eos_token_id=5,
        chat_template=[{"name": "tool_use", "template": "say"}],
    )
    assert pinned(ckpt, lambda text: [tokens.index(text)] if text in tokens else []) == {
        1: "byte",
        2: "control token",
        3: "added token",
        4: "byte",
        7: "eot_token_id",
        8: "chat template",
    }


def test_characters_are_bytes_only_where_they_are(tmp_path: Path) -> None:
    """ "a" is a byte of byte-level BPE, and a word of SentencePiece."""
    assert pinned(gguf(tmp_path, ["a", "<0x41>"], [1, 6])) == {0: "byte", 1: "byte"}
    assert pinned(gguf(tmp_path, ["a", "<0x41>"], [1, 6], model="llama")) == {1: "byte"}


def test_sentencepiece_folder(tmp_path: Path) -> None:
    tree = {
        "model": {"type": "BPE", "vocab": {"<unk>": 0, "<0x41>": 1, "A": 2, "▁the": 3}, "merges": []},
        "added_tokens": [
            {"id": 0, "content": "<unk>", "special": True},
            {"id": 4, "content": "<tool>", "special": False},
        ],
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
    }
    expected = {0: "control token", 1: "byte", 4: "added token", 9: "control token"}
    more = {"added_tokens_decoder": {"9": {"content": "<more>", "special": True}}}
    found = pinned(folder(tmp_path, tokenizer=tree, tokenizer_config=more, generation_config=None))
    assert {number: found[number] for number in expected} == expected
    assert found.keys() <= expected.keys()


def test_no_tokenizer(tmp_path: Path) -> None:
    assert pinned(folder(tmp_path, tokenizer=None)) == {}


def test_damaged(tmp_path: Path) -> None:
    with pytest.raises(CorruptError, match="not an object") as found:
        pinned(folder(tmp_path, tokenizer_config=[1]))
    assert found.value.where.endswith("tokenizer_config.json")
    with pytest.raises(TokenizerError, match="token_type is not one number for each of 2 tokens"):
        pinned(gguf(tmp_path, ["a", "b"], [1]))


def test_reasons_are_few() -> None:
    """They are counted by kind for the reader."""
    assert Counter(pinned(open_checkpoint(HF)).values()) == {"byte": 256, "control token": 3}
