"""The matrices that a head drafts with, whole and cut down to the rows of a draft vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mtptools.checkpoint import Checkpoint
from mtptools.errors import MissingRoleError
from mtptools.head import Found, Head, Stored, find_shared
from mtptools.ops.own_output import OUTPUT
from mtptools.plan import Entry
from mtptools.quantized import beside
from mtptools.tensors import Tensor
from mtptools.views import gathered, repacked
from mtptools.vocab.maps import DraftVocabulary
from mtptools.vocab.stored import D2T, T2D

__all__ = [
    "EMBED",
    "LABEL",
    "Matrix",
    "drafts_with",
    "is_copy",
    "map_entries",
    "reduced_bytes",
    "same_bytes",
    "with_outputs",
]

LABEL: Final = "source"
EMBED: Final = "nextn.embed_tokens.weight"
_CHUNK: Final = 8 << 20


@dataclass(frozen=True)
class Matrix:
    """The output matrix of one MTP layer: what it is found as, and whether it is the layer's own."""

    ckpt: Checkpoint
    found: Found
    own: bool

    @property
    def stored(self) -> Stored:
        return self.found.stored[0]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.parts)

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """The tensors that it is stored as."""
        return (self.stored.tensor, *self._scales().values())

    def same(self, other: Matrix) -> bool:
        """Is it the other one, or a copy of it?"""
        pairs = list(zip(self.parts, other.parts, strict=False))
        return len(self.parts) == len(other.parts) and all(
            one.name == two.name or same_bytes(one, two) for one, two in pairs
        )

    def _scales(self) -> dict[str, Tensor]:
        """What stands beside its values. A GGUF in NVFP4 has a second scale of the whole matrix there."""
        return self.stored.scales or beside(self.stored.tensor.name, self.ckpt)

    def rows(self, vocabulary: DraftVocabulary, name: str) -> list[Entry]:
        """Entries of its rows for these tokens, the values as `name`: the same bytes.

        Values whose scales are not those of single rows (FP8 blocks), or that are packed together with what says their
        shape, are read, and written in BF16.
        """
        tensor, scales, n = self.stored.tensor, self._scales(), self.stored.tensor.shape[0]
        stem = tensor.name.removesuffix(".weight")
        if stem == tensor.name or not all(_by_row(one, n) or one.n_values == 1 for one in scales.values()):
            values = gathered(self.found.tensor, vocabulary.ids, name)
            return [Entry(name, values, "BF16", LABEL, self.found.names, head=True, of_rows=n)]
        entries = []
        for one in self.parts:
            whole = one.n_values == 1  # a scale of the whole matrix
            new = name.removesuffix(".weight") + one.name.removeprefix(stem)
            source = one if whole else gathered(one, vocabulary.ids, new)
            entries.append(Entry(new, source, one.codec, LABEL, (one.name,), head=True, of_rows=0 if whole else n))
        return entries


def reduced_bytes(entries: Iterable[Entry]) -> int:
    """Bytes of one reduced output matrix among these entries: what a draft reads of it."""
    rows = [entry for entry in entries if entry.of_rows]
    matrices = {entry.name.rpartition(".")[0] for entry in rows}
    return sum(entry.nbytes for entry in rows) // max(len(matrices), 1)


def _by_row(scale: Tensor, rows: int) -> bool:
    return len(scale.shape) == 2 and scale.shape[0] == rows


def drafts_with(ckpt: Checkpoint, heads: Sequence[Head]) -> list[Matrix]:
    """The output matrix of every MTP layer: its own, else the one beside it. Raises MissingRoleError."""
    shared = find_shared(ckpt, "output.weight") or find_shared(ckpt, "token_embd.weight")
    out = []
    for head in heads:
        own = head.roles.get(OUTPUT)
        found = own or shared
        if found is None:
            raise MissingRoleError(
                "no output matrix that the head drafts with is in this file",
                where=ckpt.path,
                hint="it is a bare donor: prune the checkpoint it came from, or a sidecar (mtptools extract)",
            )
        out.append(Matrix(ckpt, found, own is not None))
    return out


def with_outputs(ckpt: Checkpoint, heads: Sequence[Head]) -> list[Head]:
    """The MTP layers of a sidecar, each with the matrix that it drafts with as a role of its own."""
    out = []
    for head, one in zip(heads, drafts_with(ckpt, heads), strict=True):
        role = replace(one.found.role, name=OUTPUT, values={})
        out.append(replace(head, roles={**head.roles, OUTPUT: replace(one.found, role=role)}))
    return out


def map_entries(
    dialect: str, vocabulary: DraftVocabulary, label: str = LABEL, names: tuple[str, ...] = ()
) -> list[Entry]:
    """The tensors that say which tokens the rows are: absolute ids in GGUF; EAGLE-3's offsets and mask elsewhere.

    label, names  the input and the tensors of it that the map is taken from; () for one that is new
    """
    made = [_made(D2T, "I64", vocabulary.ids if dialect == "gguf" else vocabulary.offsets)]
    made += [] if dialect == "gguf" else [_made(T2D, "BOOL", vocabulary.mask)]
    return [Entry(one.name, one, one.codec, label, names, head=True) for one in made]


def _made(name: str, codec: str, values: NDArray[Any]) -> Tensor:
    data = values.astype("<i8" if codec == "I64" else np.uint8).tobytes()
    return repacked(name, (len(values),), codec, lambda start, stop: data)


def is_copy(ckpt: Checkpoint, embed: Found) -> bool:
    """Is a head's own embedding the one beside it, byte for byte?"""
    shared = find_shared(ckpt, "token_embd.weight")
    whole = len(embed.names) == 1 and shared is not None and len(shared.names) == 1
    return whole and shared is not None and same_bytes(embed.stored[0].tensor, shared.stored[0].tensor)


def same_bytes(left: Tensor, right: Tensor) -> bool:
    """The same values in the same type? Read a chunk at a time, up to the first that differs."""
    if (left.shape, left.codec) != (right.shape, right.codec) or left.rows is not None or right.rows is not None:
        return False
    size, row = left.nbytes, max(left.row_bytes, 1)
    step = max(_CHUNK // row, 1) * row
    chunks = ((at, min(step, size - at)) for at in range(0, size, step))
    return all(left.read(*chunk) == right.read(*chunk) for chunk in chunks)
