"""Tokens that every draft vocabulary keeps, and why.

A head drafts them at places where nothing else will do: the ends of turns, tool calls, and the bytes that every text
outside of the vocabulary is made of. Rows that no token has ("[PAD248077]", type unused) are not kept: a trunk never
says them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from mtptools.checkpoint import Checkpoint
from mtptools.containers.safetensors import load_json
from mtptools.errors import CorruptError, TokenizerError
from mtptools.tensors import need
from mtptools.tokens import tokenizer_facts
from mtptools.vocab.bytelevel import CHARACTERS
from mtptools.vocab.template import literals

__all__ = ["pinned"]

TYPES: Final = {3: "control token", 4: "added token", 6: "byte"}
"""`tokenizer.ggml.token_type`. 5 is unused; 1 and 2 are a text's own and the unknown token."""
_BYTE: Final = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_HALF: Final = re.compile("[\ud800-\udfff]")
_HINT: Final = "take the file from the model's release again"
_NAMED: Final = re.compile("(.*_token|additional_special_tokens|extra_special_tokens)$")
_GGUF: Final = "tokenizer.ggml."


@dataclass
class _Facts:
    """What a checkpoint says of its tokens.

    tokens     real ones, by id
    kinds      id -> why it is kept, as the tokenizer itself says
    named      texts and ids that settings name, with the name
    templates  of chats
    bytewise   single characters stand for bytes
    """

    tokens: dict[int, str]
    kinds: dict[int, str]
    bytewise: bool
    named: list[tuple[str | int, str]] = field(default_factory=list)
    templates: list[str] = field(default_factory=list)


def pinned(ckpt: Checkpoint, encode: Callable[[str], list[int]] | None = None) -> dict[int, str]:
    """Token id -> why it is always kept, by ascending id. {} where the checkpoint brings no tokenizer.

    encode  text to ids, special tokens recognized; None leaves out what only the chat template's own text needs

    Where several reasons hold the first is said: control, added, byte, named by a setting, chat template.
    Raises TokenizerError, and CorruptError for a file beside the weights that is not JSON.
    """
    if tokenizer_facts(ckpt) is None:  # also checks every token and id
        return {}
    facts = _gguf(ckpt) if ckpt.dialect == "gguf" else _folder(ckpt)
    out = dict(facts.kinds)
    alphabet = set(CHARACTERS) if facts.bytewise else set()
    for number, token in facts.tokens.items():
        if token in alphabet or _BYTE.fullmatch(token):
            out.setdefault(number, "byte")
    ids = {token: number for number, token in facts.tokens.items()}
    for what, name in facts.named:
        found = ids.get(what) if isinstance(what, str) else what
        if found in facts.tokens:
            out.setdefault(found, name)
    for template in facts.templates if encode is not None else ():
        for text in literals(template):
            for number in encode(text) if encode is not None and not _HALF.search(text) else ():
                out.setdefault(number, "chat template")
    return {number: out[number] for number in sorted(out) if number in facts.tokens}


def _gguf(ckpt: Checkpoint) -> _Facts:
    """`tokenizer_facts` has checked that the tokens are strings."""
    stored = ckpt.metadata.stored
    tokens: list[str] = stored[_GGUF + "tokens"].value
    types = ckpt.metadata.get(_GGUF + "token_type") or [1] * len(tokens)
    if not isinstance(types, list) or len(types) != len(tokens):
        raise TokenizerError(
            f"{_GGUF}token_type is not one number for each of {len(tokens)} tokens",
            where=ckpt.path,
            hint="convert the model again from its Hugging Face release",
        )
    real = {i: one for i, one in enumerate(tokens) if types[i] != 5 and one != f"[PAD{i}]"}
    kinds = {i: TYPES[types[i]] for i in real if types[i] in TYPES}
    facts = _Facts(real, kinds, bytewise=ckpt.metadata.get(_GGUF + "model") == "gpt2")
    for key in stored:
        if key.startswith(_GGUF) and key.endswith(("_token_id", "_token_ids")):
            facts.named += [(number, key.removeprefix(_GGUF)) for number in _ids(ckpt.metadata.get(key))]
        elif key.startswith("tokenizer.chat_template"):  # of a name, too: tokenizer.chat_template.tool_use
            facts.templates += _texts(ckpt.metadata.get(key))
    return facts


def _folder(ckpt: Checkpoint) -> _Facts:
    folder = ckpt.folder or ckpt.path.parent
    tree = _object(folder / "tokenizer.json")
    config = _object(folder / "tokenizer_config.json")
    vocab = tree["model"]["vocab"]
    pairs = vocab.items() if isinstance(vocab, dict) else ((entry[0], number) for number, entry in enumerate(vocab))
    tokens = {number: token for token, number in pairs}
    added = {int(one["id"]): one for one in tree.get("added_tokens", [])}
    more = config.get("added_tokens_decoder")
    for number, one in more.items() if isinstance(more, dict) else ():
        if str(number).isdigit() and isinstance(one, dict) and isinstance(one.get("content"), str):
            added.setdefault(int(number), one)
    tokens |= {number: str(one["content"]) for number, one in added.items()}
    kinds = {number: TYPES[3 if one.get("special") else 4] for number, one in added.items()}
    # Either end tells: a Unigram or byte-fallback tokenizer has neither.
    parts = [*_nodes(tree.get("pre_tokenizer")), *_nodes(tree.get("decoder"))]
    facts = _Facts(tokens, kinds, bytewise=any(part.get("type") == "ByteLevel" for part in parts))
    for name in ("generation_config.json", "config.json"):
        facts.named += list(_named_ids(_object(folder / name)))
    for source in (config, _object(folder / "special_tokens_map.json")):
        facts.named += [(text, key) for key in source if _NAMED.fullmatch(key) for text in _texts(source[key])]
    facts.templates = list(_templates(folder, config))
    return facts


def _object(path: Path) -> dict[str, Any]:
    """{} where there is no such file."""
    tree = load_json(path) if path.is_file() else {}
    if not isinstance(tree, dict):
        raise CorruptError("not an object", where=path, hint=_HINT)
    return tree


def _nodes(node: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(node, dict):
        yield node
        for key in ("pretokenizers", "decoders"):
            for one in node.get(key) or ():
                yield from _nodes(one)


def _named_ids(config: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    """Every `…_token_id` of a configuration and of the ones inside of it (text_config, vision_config …)."""
    for key, value in config.items():
        if key.endswith(("_token_id", "_token_ids")):
            yield from ((number, key) for number in _ids(value))
        elif isinstance(value, dict):
            yield from _named_ids(value)


def _ids(value: Any) -> list[int]:
    given = value if isinstance(value, list) else [value]
    return [number for number in given if isinstance(number, int) and not isinstance(number, bool)]


def _texts(value: Any) -> list[str]:
    """Of a token's text, an object that holds it, or several of either."""
    if isinstance(value, dict):
        value = value["content"] if isinstance(value.get("content"), str) else list(value.values())
    if isinstance(value, list):
        return [text for one in value for text in _texts(one)]
    return [value] if isinstance(value, str) else []


def _templates(folder: Path, config: Mapping[str, Any]) -> Iterator[str]:
    """Chat templates, wherever releases put them: one, or several by name."""
    stated = [config.get("chat_template"), _object(folder / "chat_template.json").get("chat_template")]
    for one in stated:
        named = one if isinstance(one, list) else [one]
        if isinstance(one, dict):
            named = list(one.values())
        for entry in named:
            text = entry.get("template") if isinstance(entry, dict) else entry
            if isinstance(text, str):
                yield text
    for path in [folder / "chat_template.jinja", *sorted((folder / "additional_chat_templates").glob("*.jinja"))]:
        if path.is_file():
            need(path)
            yield path.read_text(encoding="utf-8", errors="replace")
