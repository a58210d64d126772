"""What can be said of a tokenizer without running it: its kind, its size, and a digest to compare."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from reprlib import repr as short  # a damaged value may be a megabyte long
from typing import Any, Final

from mtptools.checkpoint import Checkpoint
from mtptools.containers.gguf_values import ARRAY, STRING
from mtptools.containers.safetensors import load_json
from mtptools.errors import TokenizerError

__all__ = ["TokenizerFacts", "tokenizer_facts"]

MAX_ID: Final = 1 << 32  # ids are u32 in the tokenizers library
_HALF: Final = re.compile("[\ud800-\udfff]")  # half a surrogate pair: no text has it


@dataclass(frozen=True)
class TokenizerFacts:
    """kind as stated ("gpt2", "BPE"), number of real tokens, sha256 over them in id order.

    The digest is the same for one tokenizer in GGUF and in tokenizer.json: both list the same strings. Rows that a
    converter adds to fill the embedding ("[PAD151936]") are not counted.
    """

    kind: str
    size: int
    digest: str


@lru_cache(maxsize=8)
def tokenizer_facts(ckpt: Checkpoint) -> TokenizerFacts | None:
    """Facts of the checkpoint's tokenizer, or None when it brings none.

    Raises TokenizerError, and CorruptError when tokenizer.json is not JSON at all.
    """
    if ckpt.dialect == "gguf":
        return _gguf(ckpt)
    path = ckpt.folder / "tokenizer.json" if ckpt.folder is not None else None
    if path is None or not path.is_file():
        return None
    return _hf(path, path.stat().st_mtime_ns)


def _digest(tokens: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for token in tokens:
        data = token.encode("utf-8", "surrogateescape")
        digest.update(len(data).to_bytes(4, "little") + data)
    return digest.hexdigest()


def _gguf(ckpt: Checkpoint) -> TokenizerFacts | None:
    stored = ckpt.metadata.stored.get("tokenizer.ggml.tokens")
    if stored is None:
        return None
    if (stored.type, stored.item) != (ARRAY, STRING):
        raise TokenizerError(
            f"tokenizer.ggml.tokens is {stored.type_name}, not array[string]",
            where=ckpt.path,
            hint="convert the model again from its Hugging Face release",
        )
    tokens: list[str] = stored.value
    while tokens and tokens[-1] == f"[PAD{len(tokens) - 1}]":
        tokens.pop()
    return TokenizerFacts(str(ckpt.metadata.get("tokenizer.ggml.model", "unknown")), len(tokens), _digest(tokens))


@lru_cache(maxsize=8)
def _hf(path: Path, _stamp: int) -> TokenizerFacts:
    kind, by_id = _checked(load_json(path), path)
    return TokenizerFacts(kind, len(by_id), _digest(by_id[number] for number in sorted(by_id)))


def _checked(tree: Any, path: Path) -> tuple[str, dict[int, str]]:
    """Kind and tokens by id of a tokenizer.json. Raises TokenizerError for what its own library would not load."""

    def refused(what: str) -> TokenizerError:
        return TokenizerError(what, where=path, hint="download tokenizer.json again from the model's release")

    model = tree.get("model") if isinstance(tree, dict) else None
    if not isinstance(model, dict):
        raise refused("not a tokenizer: it has no object called model")
    kind, vocab, added = model.get("type", "unknown"), model.get("vocab"), tree.get("added_tokens", [])
    if not isinstance(kind, str):
        raise refused(f"model.type is {short(kind)}, not a name")
    if isinstance(vocab, dict):
        pairs = list(vocab.items())
    elif isinstance(vocab, list) and all(isinstance(entry, list) and entry for entry in vocab):
        pairs = [(entry[0], number) for number, entry in enumerate(vocab)]  # Unigram: [token, score] in id order
    else:
        raise refused(f"model.vocab is {short(vocab)}: neither tokens with their ids nor a list of pairs")
    if not isinstance(added, list) or not all(isinstance(one, dict) for one in added):
        raise refused(f"added_tokens is {short(added)}, not a list of objects")
    pairs += [(one.get("content"), one.get("id")) for one in added]
    for token, number in pairs:
        if not isinstance(token, str) or _HALF.search(token):
            raise refused(f"the token of id {short(number)} is {short(token)}, not a text")
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < MAX_ID:
            raise refused(f"the id of token {short(token)} is {short(number)}, not a count below {MAX_ID}")
    return kind, {number: token for token, number in pairs}
