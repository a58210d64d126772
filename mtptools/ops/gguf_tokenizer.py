"""A Hugging Face tokenizer as GGUF metadata: byte-level BPE, the one kind that the families converted whole have."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from mtptools.checkpoint import Checkpoint
from mtptools.containers.gguf_values import GgufValue, array_value, scalar_value, string_value
from mtptools.containers.safetensors import load_json
from mtptools.errors import TokenizerError
from mtptools.tokens import tokenizer_facts

__all__ = ["PRE_TOKENIZERS", "tokenizer_metadata"]

_WORDS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?"
_SPACES: Final = r"[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# llama.cpp's name of a pre-tokenizer -> the expressions tokenizer.json splits by, in order (llama-vocab.cpp).
PRE_TOKENIZERS: Final[Mapping[str, tuple[str, ...]]] = {
    "qwen2": (_WORDS + r"\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+" + _SPACES,),
    "qwen35": (_WORDS + r"[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+" + _SPACES,),
    "glm4": (_WORDS + r"\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+" + _SPACES,),
    "deepseek-v3": (
        r"\p{N}{1,3}",
        "[一-龥぀-ゟ゠-ヿ]+",
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"""
        + _SPACES,
    ),
}

# Special tokens that the converter names itself, beside those of tokenizer_config.json (conversion/base.py, GLM).
_GLM: Final = {"bos": "[gMASK]", "eot": "<|user|>", "unk": "<|endoftext|>", "eom": "<|observation|>"}
NAMED: Final[Mapping[str, Mapping[str, str]]] = {
    "glm4_moe": _GLM,
    "glm4v_moe": _GLM,
    "glm4v_moe_text": _GLM,
    "glm4_moe_lite": _GLM,
}

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
_HINT: Final = "download the tokenizer again from the model's release"
_ROLES: Final = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


def tokenizer_metadata(
    source: Checkpoint, vocab_size: int, model_type: str, pre: str | None = None
) -> dict[str, GgufValue]:
    """The `tokenizer.*` keys of `source`.

    vocab_size  rows of the embedding; ids that no token has are filled up as `[PAD…]`
    pre         llama.cpp's name of the pre-tokenizer, where tokenizer.json does not tell

    Raises TokenizerError when there is none, when it is of another kind, or does not fit the vocabulary.
    """
    folder = source.folder
    facts = tokenizer_facts(source)  # also checks every token and id
    if folder is None or facts is None:
        raise TokenizerError(
            "no tokenizer.json", where=source.path, hint="put the release's tokenizer.json beside the weights"
        )
    path = folder / "tokenizer.json"
    tree = load_json(path)
    if facts.kind != "BPE":
        raise TokenizerError(
            f"a tokenizer of kind {facts.kind}; byte-level BPE is what can be converted",
            where=path,
            hint="convert with llama.cpp's convert_hf_to_gguf.py, then mtptools graft",
        )
    config = _config(folder / "tokenizer_config.json")
    name = _pre_tokenizer(tree, source.family.gguf_pre, path) if pre is None else pre
    tokens, types = _tokens(tree, config, vocab_size, path)
    return {
        "tokenizer.ggml.model": string_value("gpt2"),
        "tokenizer.ggml.pre": string_value(name),
        "tokenizer.ggml.tokens": array_value("string", tokens),
        "tokenizer.ggml.token_type": array_value("i32", types),
        **_special(folder, tokens, NAMED.get(model_type, {}), path),
    }


def _config(path: Path) -> Mapping[str, Any]:
    tree = load_json(path) if path.is_file() else {}
    if not isinstance(tree, dict):
        raise TokenizerError("not an object", where=path, hint=_HINT)
    return tree


def _expressions(node: Any) -> Iterator[str]:
    if not isinstance(node, dict):
        return
    inner = node.get("pretokenizers")
    for one in inner if isinstance(inner, list) else ():
        yield from _expressions(one)
    pattern = node.get("pattern")
    if node.get("type") == "Split" and isinstance(pattern, dict):
        yield str(pattern.get("Regex", pattern.get("String")))


def _pre_tokenizer(tree: Mapping[str, Any], usual: str, path: Path) -> str:
    """llama.cpp's name for how a text is split, by the expressions themselves: a finetune may bring another tokenizer.

    usual  the name the family's releases have, for the hint
    """
    found = tuple(_expressions(tree.get("pre_tokenizer")))
    for name, expressions in PRE_TOKENIZERS.items():
        if found == expressions:
            return name
    raise TokenizerError(
        f"splits texts by {' then '.join(found)[:200] or 'no expression'}, which has no name here",
        where=path,
        hint=f"--pre NAME with llama.cpp's name for it; releases of this family have {usual}",
    )


def _added(tree: Mapping[str, Any], config: Mapping[str, Any]) -> dict[int, tuple[str, bool]]:
    """id -> (token, is it special) of tokens that are matched whole."""
    found = {int(one["id"]): (str(one["content"]), bool(one.get("special"))) for one in tree.get("added_tokens", [])}
    more = config.get("added_tokens_decoder")
    for number, one in more.items() if isinstance(more, dict) else ():
        if isinstance(one, dict) and isinstance(one.get("content"), str) and str(number).isdigit():
            found.setdefault(int(number), (one["content"], bool(one.get("special"))))
    return found


def _named(config: Mapping[str, Any]) -> set[str]:
    """Tokens that tokenizer_config.json names as special: the tokenizers library matches these whole, too."""
    entries = [config.get(f"{role}_token") for role in _ROLES]
    more = config.get("additional_special_tokens")
    entries += more if isinstance(more, list) else []
    texts = [entry.get("content") if isinstance(entry, dict) else entry for entry in entries]
    return {text for text in texts if isinstance(text, str)}


def _looks_special(token: str) -> bool:
    """Control tokens that releases forgot to mark as such (conversion/base.py, does_token_look_special)."""
    ends = (("<|", "|>"), ("<｜", "｜>"), ("<unused", ">"))
    known = ("<pad>", "<mask>", "<2mass>", "[@BOS@]")
    return token in known or any(token.startswith(low) and token.endswith(high) for low, high in ends)


def _tokens(
    tree: Mapping[str, Any], config: Mapping[str, Any], vocab_size: int, path: Path
) -> tuple[list[str], list[int]]:
    """Every row of the embedding as a token and its type."""
    vocab = {int(number): str(token) for token, number in tree["model"]["vocab"].items()}
    added, named = _added(tree, config), _named(config)
    highest = max((*vocab, *added), default=-1)
    if highest >= vocab_size:
        raise TokenizerError(
            f"a token has the id {highest}, the embedding {vocab_size} rows",
            where=path,
            hint="tokenizer.json and config.json are of different models",
        )
    tokens, types = [], []
    for number in range(vocab_size):
        token, special = added.get(number, (vocab.get(number), False))
        if token is None:
            token, kind = f"[PAD{number}]", UNUSED
        elif number not in added and token not in named:
            kind = NORMAL
        elif special or token in named or _looks_special(token):
            kind = CONTROL
        else:
            token, kind = token.replace("▁", " "), USER_DEFINED
        tokens.append(token)
        types.append(kind)
    return tokens, types


def _special(folder: Path, tokens: Sequence[str], named: Mapping[str, str], path: Path) -> dict[str, GgufValue]:
    """Merges, ids of special tokens, what is added to a text, chat templates: as gguf-py reads and names them."""
    from gguf import GGUFWriter, SpecialVocab

    log = logging.getLogger("gguf.vocab")
    if not log.handlers:  # its warnings are for a converter's log; what matters of them is refused below
        log.addHandler(logging.NullHandler())
    try:
        special = SpecialVocab(folder, load_merges=True)
        keys = GGUFWriter(None, "")
        ids = {token: number for number, token in enumerate(tokens)}
        for role, token in named.items():
            if token not in ids:
                raise TokenizerError(f"no token {token}, which is this family's {role}", where=path, hint=_HINT)
            special.special_token_ids.setdefault(role, ids[token])
        special.add_to_gguf(keys, quiet=True)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        raise TokenizerError(f"merges or special tokens cannot be read: {error}", where=folder, hint=_HINT) from error
    if not special.merges:
        raise TokenizerError("no merges: BPE without them splits every text into bytes", where=path, hint=_HINT)
    beyond = [role for role, number in special.special_token_ids.items() if number >= len(tokens)]
    if beyond:
        raise TokenizerError(f"the id of {', '.join(beyond)} is beyond the vocabulary", where=folder, hint=_HINT)
    stated = keys.kv_data[0]
    return {key: _value(value.value) for key, value in stated.items() if key.startswith("tokenizer.")}


def _value(value: Any) -> GgufValue:
    if isinstance(value, bool):
        return scalar_value("bool", value)
    if isinstance(value, int):
        return scalar_value("u32", value)
    return string_value(value) if isinstance(value, str) else array_value("string", list(value))
