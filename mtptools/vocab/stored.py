"""The map of a reduced head as a checkpoint holds it: `d2t`, and in safetensors `t2d` beside it.

    GGUF         d2t  I64 [n]         absolute ids      llama.cpp PR #29143; as its converter writes EAGLE-3's
    safetensors  d2t  I64, I32 [n]    offsets           EAGLE-3
                 t2d  BOOL [vocab]    may be drafted?

Only these two small tensors are read. Which of the two ways a safetensors `d2t` is written in is told by `t2d`, which
marks the same tokens; without one, only a `d2t` that cannot be absolute ids is taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from mtptools.checkpoint import Checkpoint
from mtptools.errors import CorruptError
from mtptools.tensors import Tensor
from mtptools.vocab.maps import Absolute, DraftVocabulary, Offsets, Problem, absolute, problems

__all__ = [
    "ABSOLUTE_IDS",
    "D2T",
    "SIZE_KEY",
    "T2D",
    "Kind",
    "Mask",
    "Raw",
    "Values",
    "disagreement",
    "draft_vocabulary",
    "map_names",
    "marks",
    "raw",
    "read_d2t",
    "read_t2d",
    "told",
]

D2T: Final = "d2t"
T2D: Final = "t2d"
SIZE_KEY: Final = "draft_vocab_size"  # in config.json, and in metadata of safetensors
ABSOLUTE_IDS: Final = "these are absolute ids, offsets belong here"
Kind = Literal["absolute", "offsets"]
Values = NDArray[np.int64]  # of a d2t, of either kind
Mask = NDArray[np.bool_]  # t2d [size]
_TYPES: Final = {"I64": "<i8", "I32": "<i4"}


@dataclass(frozen=True)
class Raw:
    """What is stored, judged and not refused.

    kind      how this container writes it
    rows      of d2t; 0 when it has no shape of a map
    ids       absolute [rows], whether right or wrong; None when d2t is no list of whole numbers
    problems  everything that is wrong with it
    """

    kind: Kind
    size: int
    rows: int
    ids: Absolute | None
    problems: tuple[Problem, ...]


def map_names(ckpt: Checkpoint) -> tuple[str, ...]:
    """Names of the map's tensors that are there."""
    return tuple(name for name in (D2T, T2D) if name in ckpt)


def draft_vocabulary(ckpt: Checkpoint) -> DraftVocabulary | None:
    """The draft vocabulary of a reduced head; None without a map.

    Raises CorruptError that says everything that is wrong with it.
    """
    found = raw(ckpt)
    if found is None:
        return None
    if found.problems or found.ids is None:
        raise CorruptError(
            "the draft vocabulary is damaged: " + "; ".join(f"{what} ({why})" for what, why in found.problems),
            where=ckpt.path,
            hint="make the reduced head again from the whole one: mtptools prune-vocab --help",
        )
    return DraftVocabulary(found.ids, found.size)


def raw(ckpt: Checkpoint, size: int | None = None) -> Raw | None:
    """The stored map; None when there is none. Raises what reading raises; faults of the map are in `problems`.

    size  of the target's vocabulary, where it is known better than by the checkpoint
    """
    if not map_names(ckpt):
        return None
    kind: Kind = "absolute" if ckpt.dialect == "gguf" else "offsets"
    size = ckpt.hparams.vocab_size if size is None else size
    d2t, t2d = ckpt.tensors.get(D2T), ckpt.tensors.get(T2D)
    if d2t is None:
        return Raw(kind, size, 0, None, (("t2d stands without d2t", "both belong to a reduced head"),))
    values, wrong = read_d2t(d2t, size, ("I64",) if kind == "absolute" else ("I64", "I32"))
    if values is None:
        return Raw(kind, size, 0, None, tuple(wrong))
    if kind == "absolute":
        return Raw(kind, size, len(values), Absolute(values), tuple(_of_gguf(values, size, t2d)))
    ids = absolute(Offsets(values))
    wrong = _without_mask(values, ids, size) if t2d is None else _with_mask(values, ids, size, t2d)
    return Raw(kind, size, len(values), ids, tuple(wrong))


def read_d2t(d2t: Tensor, size: int, types: tuple[str, ...] = tuple(_TYPES)) -> tuple[Values | None, list[Problem]]:
    """The values of d2t [n] as int64; None and why when its form is another."""
    wrong: list[Problem] = []
    if d2t.codec not in types:
        wrong.append((f"d2t is {d2t.codec}", f"{' or '.join(types)} belongs here"))
    if len(d2t.shape) != 1 or not 0 < d2t.n_values <= size:
        wrong.append((f"d2t has shape {list(d2t.shape)}", f"a list of 1 to {size} ids belongs here"))
    return (None, wrong) if wrong else (np.frombuffer(d2t.read(), _TYPES[d2t.codec]).astype(np.int64), [])


def read_t2d(t2d: Tensor, size: int) -> tuple[Mask | None, list[Problem]]:
    """The mask [size]; None and why when its form is another."""
    if t2d.codec != "BOOL" or t2d.shape != (size,):
        return None, [(f"t2d is {t2d.codec} {list(t2d.shape)}", f"BOOL [{size}] belongs here")]
    return np.frombuffer(t2d.read(), np.uint8) != 0, []


def told(values: Values, size: int) -> tuple[Kind, ...]:
    """The ways in which values [n] can be read as a draft vocabulary of `size` tokens: none, one or both.

    Absolute ids may stand in any order (lists by frequency do), offsets in none but their own.
    """
    ways: dict[Kind, Absolute] = {"absolute": Absolute(np.sort(values)), "offsets": absolute(Offsets(values))}
    return tuple(kind for kind, ids in ways.items() if not problems(ids, size))


def marks(mask: Mask, ids: Absolute) -> bool:
    """Does `mask` [size] mark these tokens and no other?"""
    inside = len(ids) > 0 and int(ids.min()) >= 0 and int(ids.max()) < len(mask)
    return inside and bool(mask[ids].all()) and int(mask.sum()) == len(np.unique(ids))


def disagreement(mask: Mask, ids: Absolute) -> Problem:
    """How a mask that does not mark `ids` differs from them."""
    known = np.unique(ids[(ids >= 0) & (ids < len(mask))])
    apart = np.setxor1d(known, np.flatnonzero(mask))
    first = f", token {int(apart[0])} the first" if len(apart) else ""
    return f"t2d disagrees with d2t on {len(apart)} tokens{first}", f"t2d marks {int(mask.sum())} tokens"


def _of_gguf(values: Values, size: int, t2d: Tensor | None) -> list[Problem]:
    wrong = problems(Absolute(values), size)
    if wrong and told(values, size) == ("offsets",):
        wrong.append(("these are offsets, absolute ids belong here", "with each row's number added they are a map"))
    if t2d is not None:
        wrong.append(("a GGUF holds t2d", "no runtime reads it there, and llama.cpp refuses a tensor too many"))
    return wrong


def _without_mask(values: Values, ids: Absolute, size: int) -> list[Problem]:
    wrong = problems(ids, size)
    if "absolute" in told(values, size):
        other = "they are no map as offsets" if wrong else "they are a map as offsets too"
        wrong.append(("no t2d stands beside d2t to say what these are", f"they are a map as absolute ids; {other}"))
    return wrong


def _with_mask(values: Values, ids: Absolute, size: int, t2d: Tensor) -> list[Problem]:
    mask, wrong = read_t2d(t2d, size)
    if mask is not None and not marks(mask, ids):
        if marks(mask, Absolute(values)):
            return [(ABSOLUTE_IDS, "t2d marks the tokens that d2t names as it stands")]
        wrong.append(disagreement(mask, ids))
    return [*problems(ids, size), *wrong]
