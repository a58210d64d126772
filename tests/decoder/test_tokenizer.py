"""Text and ids, from tokenizer.json and from GGUF metadata."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest

from mtptools.checkpoint import Checkpoint, open_checkpoint
from mtptools.decoder.tokenizer import PATTERNS, load_tokenizer
from mtptools.errors import TokenizerError

tokenizers = pytest.importorskip("tokenizers")

TEXT = "Hello wörld's naïve café\u0301,  don't 12345\n\n  tabs\tand 日本語 🎉🎉 end  "
CORPUS = [TEXT, "the quick brown fox jumps over the lazy dog " * 3, "Hello hello world, 日本語 and 🎉 again"] * 3
SPECIALS = ["<|end|>", "<|im_start|>"]


def trained(pre: str) -> tokenizers.Tokenizer:
    """A byte-level BPE of about 400 tokens, in the form releases have."""
    tok = tokenizers.Tokenizer(tokenizers.models.BPE())
    tok.normalizer = tokenizers.normalizers.NFC()
    cut = tokenizers.pre_tokenizers.Split(tokenizers.Regex(PATTERNS[pre]), "isolated")
    level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tok.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([cut, level])
    tok.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=370, initial_alphabet=alphabet, show_progress=False)
    tok.train_from_iterator(CORPUS, trainer)
    tok.add_special_tokens(SPECIALS)
    return tok


def write_gguf(path: Path, tok: tokenizers.Tokenizer, pre: str | None, model: str = "gpt2") -> Checkpoint:
    state = json.loads(tok.to_str())
    tokens = [tok.id_to_token(i) for i in range(tok.get_vocab_size())]
    writer = gguf.GGUFWriter(path, "qwen35")
    writer.add_tokenizer_model(model)
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in SPECIALS else 1 for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in state["model"]["merges"]])
    writer.add_eos_token_id(tokens.index("<|end|>"))
    writer.add_tensor("x", __import__("numpy").zeros(4, "f4"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return open_checkpoint(path)


@pytest.mark.parametrize("pre", ["qwen2", "qwen35"])
def test_gguf_and_json_agree(pre: str, tmp_path: Path, toy_path: Callable[..., Path]) -> None:
    source = trained(pre)
    from_gguf = load_tokenizer(write_gguf(tmp_path / "t.gguf", source, pre))
    folder = toy_path(False)
    (folder / "tokenizer.json").write_text(source.to_str(), encoding="utf-8")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 4]}))
    from_json = load_tokenizer(open_checkpoint(folder), 384)
    for text in (TEXT, "", " ", "<|im_start|>user\nhi<|end|>", "a" * 50, "it's I'LL we'Re"):
        wanted = source.encode(text, add_special_tokens=False).ids
        assert from_gguf.encode(text) == wanted == from_json.encode(text)
        assert from_gguf.decode(wanted) == source.decode(wanted, skip_special_tokens=False) == from_json.decode(wanted)
    assert from_gguf.stop_ids == {source.token_to_id("<|end|>")}
    assert from_json.stop_ids == {3, 4}
    with pytest.raises(TokenizerError, match=r"knows \d+ tokens, the model 100"):
        load_tokenizer(open_checkpoint(folder), 100)
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(TokenizerError, match="cannot be read"):
        load_tokenizer(open_checkpoint(folder))
    (folder / "tokenizer.json").unlink()
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json"):
        load_tokenizer(open_checkpoint(folder))
    (folder / "generation_config.json").unlink()


def test_stream_holds_half_characters(tmp_path: Path) -> None:
    tok = load_tokenizer(write_gguf(tmp_path / "t.gguf", trained("qwen35"), "qwen35"))
    for text in (TEXT, "🎉日本語" * 3, "\u00e9" * 5):
        stream, out = tok.stream(), []
        for i in tok.encode(text):
            out.append(stream.push([i]))
            assert "\ufffd" not in out[-1]
        out.append(stream.close())
        assert "".join(out) == tok.decode(tok.encode(text))
    stream = tok.stream()
    lone = tok.encode("日")[:1] if len(tok.encode("日")) > 1 else [tok.backend.token_to_id("æ")]
    assert stream.push(lone) == ""
    assert stream.close() == "\ufffd"  # bytes that never became a character are shown, not lost


@pytest.mark.parametrize(("pre", "model"), [("unheard-of", "gpt2"), ("qwen2", "llama")])
def test_unknown_kinds(pre: str, model: str, tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="is not known") as error:
        load_tokenizer(write_gguf(tmp_path / "t.gguf", trained("qwen2"), pre, model))
    assert "qwen35" in str(error.value.hint)


def test_gguf_without_a_tokenizer(toy_path: Callable[..., Path]) -> None:
    with pytest.raises(TokenizerError, match="no tokenizer in this file"):
        load_tokenizer(open_checkpoint(toy_path(False, "F32")))
