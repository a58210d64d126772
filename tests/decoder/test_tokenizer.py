"""Text and ids, from tokenizer.json and from GGUF metadata."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest

from mtptools.checkpoint import Checkpoint, open_checkpoint
from mtptools.containers.gguf_values import array_value, scalar_value, string_value
from mtptools.decoder.tokenizer import KINDS, Tokenizer, load_tokenizer
from mtptools.errors import TokenizerError
from mtptools.ops.convert_gguf import convert_gguf
from mtptools.prompts import builtin_prompts
from mtptools.writer import write
from tests import rewrite
from tests.conftest import FIXTURES

tokenizers = pytest.importorskip("tokenizers")
from tests.texts import texts, unsplit  # noqa: E402  # needs tokenizers

TEXT = "Hello wörld's naïve café\u0301,  don't 12345\n\n  tabs\tand 日本語 🎉🎉 end  "
CORPUS = [TEXT, "the quick brown fox jumps over the lazy dog " * 3, "Hello hello world, 日本語 and 🎉 again"] * 3
SPECIALS = ["<|end|>", "<|im_start|>"]


def trained(pre: str) -> tokenizers.Tokenizer:
    """A byte-level BPE of about 400 tokens, in the form releases have."""
    tok = tokenizers.Tokenizer(tokenizers.models.BPE())
    tok.normalizer = tokenizers.normalizers.NFC()
    cuts = [tokenizers.pre_tokenizers.Split(tokenizers.Regex(one), "isolated") for one in KINDS[pre].splits]
    level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tok.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([*cuts, level])
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
    assert all(kind in str(error.value.hint) for kind in KINDS)


# What tokenizer.json and tokenizer_config.json of the trained models make of a text, by their own libraries.


@pytest.fixture(scope="module", params=["deepseekv3", "glm4moe", "qwen35", "qwen35moe"])
def converted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A trained model's folder, and the GGUF made of it."""
    folder = FIXTURES / request.param / "hf"
    out = tmp_path_factory.mktemp(request.param) / "x.gguf"
    write(convert_gguf(open_checkpoint(folder), out.name), out)
    return folder, out


def test_converted_models_are_tokenized_as_transformers_does(converted: tuple[Path, Path]) -> None:
    transformers = pytest.importorskip("transformers")
    folder, out = converted
    theirs, plain = (
        transformers.AutoTokenizer.from_pretrained(folder),
        tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")),
    )
    ours, of_json = load_tokenizer(open_checkpoint(out)), load_tokenizer(open_checkpoint(folder))
    for text in [*texts(1000, 3), TEXT, "", *builtin_prompts()]:
        wanted = theirs(text)["input_ids"]
        assert ours.encode(text) == wanted == of_json.encode(text) == plain.encode(text).ids
        assert ours.decode(wanted) == theirs.decode(wanted) == of_json.decode(wanted)
    assert ours.start == of_json.start == ((0,) if folder.parent.name == "deepseekv3" else ())


def as_kind(pre: str, tmp_path: Path, **more: object) -> Tokenizer:
    """The vocabulary in which every cut shows, cut as `pre` has it."""
    tokens, merges = unsplit(2045)
    stated = {
        "tokens": array_value("string", [*tokens, *SPECIALS, "x"]),
        "merges": array_value("string", merges),
        "pre": string_value(pre),
        **more,
    }
    out = tmp_path / f"{pre}.gguf"
    source = FIXTURES / "qwen35" / "gguf" / "trunk-Q4_K.gguf"
    rewrite.gguf(source, out, metadata={f"tokenizer.ggml.{key}": value for key, value in stated.items()})
    return load_tokenizer(open_checkpoint(out))


def test_another_kind_gives_other_ids(tmp_path: Path) -> None:
    """Otherwise the tests above and tests/interop/test_tokenizer_ids.py could not tell them apart."""
    asked = texts(300, 4)
    found = {pre: [tok.encode(text) for text in asked] for pre in KINDS for tok in (as_kind(pre, tmp_path),)}
    same = [{a, b} for a in KINDS for b in KINDS if a < b and found[a] == found[b]]
    assert sorted(map(sorted, same)) == [["deepseek-v3", "joyai-llm"], ["glm4", "glm5"]]


def test_kimi_cuts_as_its_expression_in_another_engine(tmp_path: Path) -> None:
    """The expression of Kimi-K2's tokenization_kimi.py, which has set intersections, in Python's `regex`."""
    regex = pytest.importorskip("regex")
    tail = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
    parts = [
        r"[\p{Han}]+",
        rf"[^\r\n\p{{L}}\p{{N}}]?{upper}*{lower}+{tail}",
        rf"[^\r\n\p{{L}}\p{{N}}]?{upper}+{lower}*{tail}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
    theirs = regex.compile("|".join(parts), regex.V1)
    ours = as_kind("kimi-k2", tmp_path).backend.pre_tokenizer
    for text in texts(1000, 5):
        cut = [text[begin:end] for _, (begin, end) in ours.pre_tokenize_str(text)]
        assert cut == theirs.findall(text)


def test_ignored_merges(tmp_path: Path) -> None:
    """A whole word that no merges lead to is one token in GLM's tokenizer, and in no other."""
    tokens, merges = unsplit(2045)
    made = {merge.replace(" ", "") for merge in merges}
    word = max((token for token in tokens if token not in made and token.isascii() and token.isalpha()), key=len)
    assert len(word) > 1
    assert len(as_kind("glm4", tmp_path).encode(word)) == 1 < len(as_kind("qwen2", tmp_path).encode(word))


@pytest.mark.parametrize("stated", [None, 9999, "0"])
def test_bos_without_an_id(stated: object, tmp_path: Path) -> None:
    value = {int: "u32", str: "string"}.get(type(stated))
    more = {"bos_token_id": scalar_value(value, stated) if value == "u32" else value and string_value(stated)}
    with pytest.raises(TokenizerError, match="add_bos_token is set, and bos_token_id is"):
        as_kind("deepseek-v3", tmp_path, add_bos_token=scalar_value("bool", True), **more)


BOS, SOP = SPECIALS


@pytest.mark.parametrize(
    ("config", "template", "wanted"),
    [
        (None, [], []),
        (None, [BOS], [BOS]),
        ({"bos_token": BOS}, [BOS, SOP], [BOS, SOP]),  # as GLM-4's [gMASK]<sop>
        ({"bos_token": BOS, "add_bos_token": True}, [BOS], [BOS]),
        # DeepSeek-V3 as released: transformers 4 and llama.cpp add BOS.
        ({"bos_token": {"content": BOS}, "add_bos_token": True}, [], [BOS]),
        ({"bos_token": BOS, "add_bos_token": False}, [BOS], []),
        ({"bos_token": None, "add_bos_token": True}, [], []),
    ],
)
def test_bos_of_a_folder(
    config: dict[str, object] | None, template: list[str], wanted: list[str], toy_path: Callable[..., Path]
) -> None:
    folder, source = toy_path(False), trained("qwen2")
    ids = [(token, source.token_to_id(token)) for token in SPECIALS]
    source.post_processor = tokenizers.processors.TemplateProcessing(" ".join([*template, "$A"]), special_tokens=ids)
    (folder / "tokenizer.json").write_text(source.to_str(), encoding="utf-8")
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(config or {}))
    try:
        found = load_tokenizer(open_checkpoint(folder)).encode("hello")
        assert found == [dict(ids)[token] for token in wanted] + source.encode("hello", add_special_tokens=False).ids
        path.write_text(json.dumps({"bos_token": "<s>", "add_bos_token": True}))
        with pytest.raises(TokenizerError, match="'<s>' is no token of"):
            load_tokenizer(open_checkpoint(folder))
        path.write_text("{")
        with pytest.raises(TokenizerError, match="cannot be read"):
            load_tokenizer(open_checkpoint(folder))
    finally:
        path.unlink()


def test_gguf_without_a_tokenizer(toy_path: Callable[..., Path]) -> None:
    with pytest.raises(TokenizerError, match="no tokenizer in this file"):
        load_tokenizer(open_checkpoint(toy_path(False, "F32")))
