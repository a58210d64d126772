"""Text to token ids and back: from tokenizer.json beside the weights, or from a GGUF's own metadata."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mtptools.checkpoint import Checkpoint
from mtptools.errors import MissingExtraError, TokenizerError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

__all__ = ["StreamDecoder", "Tokenizer", "load_tokenizer"]

# How text is cut before byte-pair merging, by `tokenizer.ggml.pre`. Source: the tokenizer.json files of the
# releases, as llama.cpp's src/llama-vocab.cpp quotes them.
_CONTRACTIONS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
PATTERNS: Final = {
    "qwen2": _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen35": _CONTRACTIONS
    + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "gpt-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
}
NFC: Final = ("qwen2", "qwen35")
"""Kinds whose tokenizer.json composes Unicode first; a GGUF does not say so."""

CONTROL, USER_DEFINED = 3, 4
"""`tokenizer.ggml.token_type` of tokens that are matched whole: control tokens, and added ordinary ones."""


class Tokenizer:
    """Byte-level BPE. `stop_ids` are the ids that end a text."""

    def __init__(self, backend: Backend, stop_ids: Sequence[int]) -> None:
        self.backend = backend
        self.stop_ids = frozenset(stop_ids)

    @property
    def size(self) -> int:
        return int(self.backend.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str) -> list[int]:
        """Ids of `text`; nothing is added before or after. Special tokens in the text become their ids."""
        return list(self.backend.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens included."""
        return str(self.backend.decode(list(ids), skip_special_tokens=False))

    def stream(self) -> StreamDecoder:
        return StreamDecoder(self)


class StreamDecoder:
    """Decodes ids as they come; a character whose bytes are spread over tokens is held until it is whole."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.held: list[int] = []

    def push(self, ids: Sequence[int]) -> str:
        """The text that is certain now."""
        self.held.extend(ids)
        text = self.tokenizer.decode(self.held)
        # Up to three bytes of a character can be missing; more tokens than that are not one character.
        if text.endswith("\ufffd") and len(self.held) < 4 + len(ids):
            return ""
        self.held = []
        return text

    def close(self) -> str:
        """What was still held."""
        text = self.tokenizer.decode(self.held) if self.held else ""
        self.held = []
        return text


def load_tokenizer(ckpt: Checkpoint, vocab_size: int | None = None) -> Tokenizer:
    """The checkpoint's tokenizer.

    vocab_size  rows of the embedding; a tokenizer with more ids does not belong to it

    Raises TokenizerError (none, unreadable, of an unknown kind, too large) or MissingExtraError.
    """
    try:
        import tokenizers  # noqa: F401  # only to say clearly what is missing
    except ImportError as error:
        raise MissingExtraError("tokenizers", "decoder", "text") from error
    built = _from_gguf(ckpt.metadata, ckpt.path) if ckpt.dialect == "gguf" else _from_folder(ckpt)
    if vocab_size is not None and built.size > vocab_size:
        raise TokenizerError(
            f"the tokenizer knows {built.size} tokens, the model {vocab_size}",
            where=ckpt.path,
            hint="use the tokenizer of this very model",
        )
    return built


def _from_folder(ckpt: Checkpoint) -> Tokenizer:
    from tokenizers import Tokenizer as Backend

    folder = ckpt.path if ckpt.path.is_dir() else ckpt.path.parent
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise TokenizerError(
            "no tokenizer.json beside the weights", where=folder, hint="copy tokenizer.json from the model's repository"
        )
    try:
        backend = Backend.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise TokenizerError(f"cannot be read: {error}", where=path, hint="download it again") from error
    return Tokenizer(backend, _stop_ids(folder, ckpt.config))


def _stop_ids(folder: Path, config: Mapping[str, Any]) -> list[int]:
    """eos_token_id of generation_config.json, else of config.json."""
    sources: list[Mapping[str, Any]] = []
    with contextlib.suppress(OSError, ValueError):  # optional: the model's own configuration says it too
        stated = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))
        sources.append(stated if isinstance(stated, Mapping) else {})
    text = config.get("text_config")
    sources += [config, text if isinstance(text, Mapping) else {}]
    for source in sources:
        found = source.get("eos_token_id")
        if found is not None:
            return _ids(found, folder)
    return []


def _ids(stated: object, where: object) -> list[int]:
    """One id or a list of ids. Raises TokenizerError for anything else."""
    given = stated if isinstance(stated, list) else [stated]
    ids = [i for i in given if isinstance(i, int) and not isinstance(i, bool)]
    if len(ids) < len(given):
        raise TokenizerError(
            f"eos_token_id is {stated!r}, not a token id", where=where, hint="take the file from the release again"
        )
    return ids


def _from_gguf(metadata: Mapping[str, Any], where: object) -> Tokenizer:
    from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
    from tokenizers import Tokenizer as Backend

    def stated(key: str) -> Any:
        return metadata.get(f"tokenizer.ggml.{key}")

    model, pre, tokens, merges = (stated(key) for key in ("model", "pre", "tokens", "merges"))
    if tokens is None:
        raise TokenizerError("no tokenizer in this file", where=where, hint="give token ids, or another file")
    pre = {"default": "gpt-2", None: "gpt-2"}.get(pre, pre)
    if model != "gpt2" or pre not in PATTERNS or merges is None:
        raise TokenizerError(
            f"a tokenizer of model {model!r} and kind {pre!r} is not known",
            where=where,
            hint=f"known: model 'gpt2' of kind {', '.join(PATTERNS)}",
        )
    types = stated("token_type") or [1] * len(tokens if isinstance(tokens, list) else ())
    texts = [part if isinstance(part, list) else [None] for part in (tokens, merges)]
    if not isinstance(types, list) or not all(isinstance(text, str) for part in texts for text in part):
        raise TokenizerError(
            "tokens, merges or token types are not arrays", where=where, hint="the metadata is damaged: convert again"
        )
    vocab = {token: index for index, token in enumerate(tokens)}
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    try:
        backend = Backend(models.BPE(vocab=vocab, merges=pairs, ignore_merges=False))
    except Exception as error:  # the library raises plain Exception
        raise TokenizerError(f"vocabulary and merges do not fit: {error}", where=where) from error
    if pre in NFC:
        backend.normalizer = normalizers.NFC()
    cut = pre_tokenizers.Split(Regex(PATTERNS[pre]), "isolated")
    bytewise = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([cut, bytewise])
    backend.decoder = decoders.ByteLevel()
    whole = [(token, kind) for token, kind in zip(tokens, types, strict=False) if kind in (CONTROL, USER_DEFINED)]
    backend.add_tokens([AddedToken(t, special=kind == CONTROL, normalized=False) for t, kind in whole])
    stops = (stated(key) for key in ("eos_token_id", "eot_token_id"))
    return Tokenizer(backend, [i for stop in stops if stop is not None for i in _ids(stop, where)])
