"""Level L0 of the tokenizer: are the tokens those of the model that the trunk, or the head, came from?"""

from __future__ import annotations

from mtptools.checkpoint import Checkpoint
from mtptools.tokens import tokenizer_facts

__all__ = ["other_tokenizer"]


def other_tokenizer(ckpt: Checkpoint, other: Checkpoint) -> str | None:
    """How the tokenizers of two checkpoints differ, in a line; None when they do not, or one of them brings none.

    Tokens in id order are compared, as `graft` does: a tokenizer of another model with as many tokens fits every
    shape, and nothing in one file alone contradicts it.
    """
    ours, theirs = tokenizer_facts(ckpt), tokenizer_facts(other)
    if ours is None or theirs is None or ours.digest == theirs.digest:
        return None
    return (
        f"the tokenizer is not that of {other.path.name}: {ours.size} tokens {ours.digest[:12]}, "
        f"there {theirs.size} tokens {theirs.digest[:12]}"
    )
