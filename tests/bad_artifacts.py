"""One good artifact and eight bad ones, as they are found in the wild: what the gate must tell apart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from mtptools.checkpoint import open_checkpoint
from mtptools.containers.gguf_values import array_value, scalar_value
from mtptools.head import head_names
from tests import rewrite
from tests.conftest import FIXTURES

__all__ = ["BAD", "FULL"]

FULL: Final = FIXTURES / "qwen35" / "gguf" / "model-BF16.gguf"


def _names(ending: str) -> list[str]:
    return [name for name in head_names(open_checkpoint(FULL)) if name.endswith(ending)]


def declared_but_missing(out: Path) -> Path:
    """The converter dropped the tensors and kept the keys."""
    return rewrite.gguf(FULL, out, drop=tuple(head_names(open_checkpoint(FULL))))


def dead_head(out: Path) -> Path:
    """Every sign of the fusion turned: a fault that no known mistake makes."""
    return rewrite.gguf(FULL, out, edit={name: lambda rows: -rows for name in _names("eh_proj.weight")})


def wrong_norm(out: Path) -> Path:
    """w where GGUF holds 1 + w."""
    return rewrite.gguf(FULL, out, edit={name: lambda rows: rows - 1 for name in _names("norm.weight")})


def wrong_order(out: Path) -> Path:
    """[state, embedding] where the family has [embedding, state]."""
    return rewrite.gguf(
        FULL,
        out,
        edit={name: lambda rows: np.roll(rows, rows.shape[-1] // 2, axis=-1) for name in _names("eh_proj.weight")},
    )


def foreign_tokenizer(out: Path) -> Path:
    """As many tokens, of another model: nothing in the file alone contradicts it."""
    tokens = list(open_checkpoint(FULL).metadata["tokenizer.ggml.tokens"])
    tokens[300:1300] = reversed(tokens[300:1300])
    return rewrite.gguf(FULL, out, metadata={"tokenizer.ggml.tokens": array_value("string", tokens)})


def truncated(out: Path) -> Path:
    """A download that broke off."""
    data = FULL.read_bytes()
    out.write_bytes(data[: len(data) * 2 // 3])
    return out


def wrong_block_count(out: Path) -> Path:
    """A head was appended, and block_count left as it was."""
    stated = open_checkpoint(FULL).metadata["qwen35.block_count"]
    return rewrite.gguf(FULL, out, metadata={"qwen35.block_count": scalar_value("u32", stated - 1)})


def lost_acceptance(out: Path) -> Path:
    """A head that works, and worse than its donor: quantized too far, or of another fine-tune."""
    noise = np.random.default_rng(8)
    edit = {name: lambda rows: rows + noise.normal(0, rows.std(), rows.shape) for name in _names("eh_proj.weight")}
    return rewrite.gguf(FULL, out, edit=edit)


BAD: Final[dict[str, Callable[[Path], Path]]] = {
    "declared but missing": declared_but_missing,
    "dead head": dead_head,
    "wrong norm": wrong_norm,
    "wrong order": wrong_order,
    "foreign tokenizer": foreign_tokenizer,
    "truncated": truncated,
    "wrong block_count": wrong_block_count,
    "lost acceptance": lost_acceptance,
}
