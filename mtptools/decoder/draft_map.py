"""The map of a reduced head, read by the decoder itself: which token each row of its output matrix drafts.

    GGUF         d2t  I64 [draft]       the tokens' ids: llama.cpp's EAGLE-3 loader, and its PR #29143 for MTP heads
    safetensors  d2t  I64, I32 [draft]  ids less row numbers;  t2d  BOOL [vocab]  the same tokens as a mask: EAGLE-3

It shares nothing but types with `mtptools.vocab.stored`, by which the rest of the package reads maps: read the wrong
way most maps are still in range, and then only two readers that disagree can tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mtptools.errors import CorruptError, typed
from mtptools.tensors import Tensor
from mtptools.vocab.maps import Absolute, DraftVocabulary, Offsets, absolute, problems

__all__ = ["D2T", "T2D", "damaged_map", "gguf_map", "hf_map"]

D2T: Final = "d2t"
T2D: Final = "t2d"
_WHOLE: Final = {"I64": "<i8", "I32": "<i4"}


def gguf_map(tensors: Mapping[str, Tensor], size: int, where: Path) -> DraftVocabulary | None:
    """Of a target with `size` tokens; None without a map. Raises CorruptError."""
    if D2T not in tensors:
        return None
    ids = Absolute(_numbers(tensors[D2T], ("I64",), where))
    return _checked(DraftVocabulary(ids, size), where)


def hf_map(tensors: Mapping[str, Tensor], size: int, where: Path) -> DraftVocabulary | None:
    """As `gguf_map`. Without `t2d`, which tells offsets from ids, only numbers that cannot be ids are taken."""
    if D2T not in tensors:
        return None
    numbers = _numbers(tensors[D2T], tuple(_WHOLE), where)
    found = _checked(DraftVocabulary(absolute(Offsets(numbers)), size), where)
    if T2D in tensors:
        _check_mask(tensors[T2D], found, where)
    elif not problems(Absolute(numbers), size):
        raise damaged_map("d2t could be ids as well as offsets, and no t2d stands beside it to tell", where)
    return found


def damaged_map(what: str, where: Path) -> CorruptError:
    return CorruptError(f"the head's draft vocabulary: {what}", where=where, hint=f"mtptools validate {typed(where)}")


def _numbers(tensor: Tensor, types: tuple[str, ...], where: Path) -> NDArray[np.int64]:
    if tensor.codec not in types:
        raise damaged_map(f"{tensor.name} is {tensor.codec}, not {' or '.join(types)}", where)
    return np.frombuffer(tensor.read(), _WHOLE[tensor.codec]).astype(np.int64).reshape(tensor.shape)


def _checked(found: DraftVocabulary, where: Path) -> DraftVocabulary:
    wrong = problems(found.ids, found.size)
    if wrong:
        raise damaged_map("; ".join(f"{what} ({evidence})" for what, evidence in wrong), where)
    return found


def _check_mask(mask: Tensor, found: DraftVocabulary, where: Path) -> None:
    if mask.codec != "BOOL" or mask.shape != (found.size,):
        raise damaged_map(f"t2d is {mask.codec} {list(mask.shape)}, not BOOL [{found.size}]", where)
    apart = np.flatnonzero((np.frombuffer(mask.read(), np.uint8) != 0) != found.mask)
    if len(apart):
        raise damaged_map(
            f"t2d and d2t disagree about {len(apart)} tokens, {int(apart[0])} the first: are these ids, not offsets?",
            where,
        )
