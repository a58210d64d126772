"""What can be said of a tokenizer without running it: its kind, its size, and a digest to compare."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from mtptools.checkpoint import Checkpoint
from mtptools.containers.safetensors import parse_json

__all__ = ["TokenizerFacts", "tokenizer_facts"]


@dataclass(frozen=True)
class TokenizerFacts:
    """kind as stated ("gpt2", "BPE"), number of real tokens, sha256 over them in id order.

    The digest is the same for one tokenizer in GGUF and in tokenizer.json: both list the same strings. Rows that a
    converter adds to fill the embedding ("[PAD151936]") are not counted.
    """

    kind: str
    size: int
    digest: str


def tokenizer_facts(ckpt: Checkpoint) -> TokenizerFacts | None:
    """Facts of the checkpoint's tokenizer, or None when it brings none."""
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
    tokens: list[str] = stored.value
    while tokens and tokens[-1] == f"[PAD{len(tokens) - 1}]":
        tokens.pop()
    return TokenizerFacts(str(ckpt.metadata.get("tokenizer.ggml.model", "unknown")), len(tokens), _digest(tokens))


@lru_cache(maxsize=8)
def _hf(path: Path, _stamp: int) -> TokenizerFacts:
    tree: Any = parse_json(path.read_bytes(), path)
    model = tree.get("model", {}) if isinstance(tree, dict) else {}
    vocab = model.get("vocab", {})
    by_id: dict[int, str] = {}
    if isinstance(vocab, dict):
        by_id = {number: token for token, number in vocab.items()}
    elif isinstance(vocab, list):  # Unigram: [token, score] in id order
        by_id = {number: str(entry[0]) for number, entry in enumerate(vocab)}
    for added in tree.get("added_tokens", []) if isinstance(tree, dict) else []:
        by_id[added["id"]] = added["content"]
    tokens = [by_id[number] for number in sorted(by_id)]
    return TokenizerFacts(str(model.get("type", "unknown")), len(tokens), _digest(tokens))
