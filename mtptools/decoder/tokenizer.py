"""Text to token ids and back: from tokenizer.json beside the weights, or from a GGUF's own metadata."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mtptools.checkpoint import Checkpoint
from mtptools.errors import MissingExtraError, TokenizerError
from mtptools.tensors import need

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

__all__ = ["StreamDecoder", "Tokenizer", "load_tokenizer"]

_CONTRACTIONS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES: Final = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_UPPER: Final = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_LOWER: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"


@dataclass(frozen=True)
class Kind:
    """How text becomes the words that byte-pair merging works in.

    splits         expressions, in order; each cuts the pieces that the one before left
    composes       Unicode is composed first (NFC), as the kind's tokenizer.json does; a GGUF does not say so
    ignore_merges  a word that is a token is that token, whatever the merges would make of it
    """

    splits: tuple[str, ...]
    composes: bool = False
    ignore_merges: bool = False


_GLM: Final = Kind(
    (_CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES,),
    ignore_merges=True,
)
_DEEPSEEK: Final = Kind(
    (
        r"\p{N}{1,3}",
        "[一-龥\u3040-ゟ゠-ヿ]+",
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
        r"| ?[\p{P}\p{S}]+[\r\n]*|" + _SPACES,
    )
)
# By `tokenizer.ggml.pre`. Sources: tokenizer.json of the releases and tokenization_kimi.py, as llama.cpp's
# src/llama-vocab.cpp quotes them. Two ways llama.cpp leaves its own quotation are not followed: it composes nothing,
# and for kimi-k2 it takes letters of any case for one word, where the release cuts "camelCase" in two.
KINDS: Final[Mapping[str, Kind]] = {
    "qwen2": Kind(
        (_CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES,), composes=True
    ),
    "qwen35": Kind(
        (_CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + _SPACES,),
        composes=True,
    ),
    "glm4": _GLM,
    "glm5": _GLM,
    "deepseek-v3": _DEEPSEEK,
    "joyai-llm": _DEEPSEEK,  # what llama.cpp's converter calls the tokenizer of DeepSeek-V4
    "kimi-k2": Kind(
        (
            r"\p{Han}+"
            rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?"
            rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
            r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES,
        )
    ),
    "gpt-2": Kind((_GPT2,)),
    "default": Kind((r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
}

CONTROL, USER_DEFINED = 3, 4
"""`tokenizer.ggml.token_type` of tokens that are matched whole: control tokens, and added ordinary ones."""


class Tokenizer:
    """Byte-level BPE.

    stop_ids  ids that end a text
    start     ids put before every text: usually none, or BOS
    """

    def __init__(self, backend: Backend, stop_ids: Sequence[int], start: Sequence[int] = ()) -> None:
        self.backend = backend
        self.stop_ids = frozenset(stop_ids)
        self.start = tuple(start)

    @property
    def size(self) -> int:
        return int(self.backend.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str) -> list[int]:
        """`start`, then the ids of `text`; nothing is added after. Special tokens in the text become their ids.

        A text that itself begins with BOS gets two, as in transformers and llama.cpp.
        """
        return [*self.start, *self.backend.encode(text, add_special_tokens=False).ids]

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
    except ModuleNotFoundError as error:
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
        need(path)
        backend = Backend.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise TokenizerError(f"cannot be read: {error}", where=path, hint="download it again") from error
    return Tokenizer(backend, _stop_ids(folder, ckpt.config), _start(backend, folder / "tokenizer_config.json"))


def _start(backend: Backend, path: Path) -> list[int]:
    """What tokenizer.json's post-processor puts before a text, save that add_bos_token has the last word on BOS.

    So transformers 4 has it for Llama's tokenizer class, which DeepSeek names, and llama.cpp's converter for all.
    transformers 5 ignores add_bos_token: DeepSeek's tokenizer.json alone would leave BOS out.
    """
    probe = backend.encode("a")
    start = [i for i, _ in takewhile(lambda one: one[1], zip(probe.ids, probe.special_tokens_mask, strict=True))]
    try:
        config = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (OSError, ValueError) as error:
        raise TokenizerError(f"cannot be read: {error}", where=path, hint="download it again") from error
    adds, token = (config.get(key) if isinstance(config, dict) else None for key in ("add_bos_token", "bos_token"))
    text = token.get("content") if isinstance(token, dict) else token
    if not isinstance(adds, bool) or text is None:  # no BOS named: transformers adds none, whatever add_bos_token says
        return start
    bos = backend.token_to_id(text) if isinstance(text, str) else None
    if bos is None and adds:
        raise TokenizerError(
            f"bos_token {text!r} is no token of tokenizer.json", where=path, hint="take both files from one release"
        )
    rest = [i for i in start if i != bos]
    return [bos, *rest] if adds and bos is not None else rest


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
    kind = KINDS.get("default" if pre is None else pre) if isinstance(pre, str | None) else None
    if model != "gpt2" or kind is None or merges is None:
        raise TokenizerError(
            f"a tokenizer of model {model!r} and kind {pre!r} is not known",
            where=where,
            hint=f"known: model 'gpt2' of kind {', '.join(KINDS)}",
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
        backend = Backend(models.BPE(vocab=vocab, merges=pairs, ignore_merges=kind.ignore_merges))
    except Exception as error:  # the library raises plain Exception
        raise TokenizerError(f"vocabulary and merges do not fit: {error}", where=where) from error
    if kind.composes:
        backend.normalizer = normalizers.NFC()
    cuts = [pre_tokenizers.Split(Regex(split), "isolated") for split in kind.splits]
    bytewise = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*cuts, bytewise])
    backend.decoder = decoders.ByteLevel()
    whole = [(token, mark) for token, mark in zip(tokens, types, strict=False) if mark in (CONTROL, USER_DEFINED)]
    backend.add_tokens([AddedToken(t, special=mark == CONTROL, normalized=False) for t, mark in whole])
    stops = (stated(key) for key in ("eos_token_id", "eot_token_id"))
    start: list[int] = []
    if stated("add_bos_token"):  # not stated: none of KINDS adds BOS of itself
        start = [stated("bos_token_id")]
        if type(start[0]) is not int or not 0 <= start[0] < len(tokens):
            raise TokenizerError(
                f"add_bos_token is set, and bos_token_id is {start[0]!r}, no token id",
                where=where,
                hint="the metadata is damaged: convert again",
            )
    return Tokenizer(backend, [i for stop in stops if stop is not None for i in _ids(stop, where)], start)
