"""Matrices of a head in encodings of safetensors, made again of the donor's: they are the same bytes, or others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from mtptools.checkpoint import Checkpoint
from mtptools.codecs import CODECS
from mtptools.errors import CodecError, ConventionError
from mtptools.head import Found, Head, Stored
from mtptools.ops.donor import renamed
from mtptools.ops.head_alike import sharing
from mtptools.ops.head_asked import stored_encoding
from mtptools.ops.quant_fit import fit_of
from mtptools.ops.render import place_of, safetensors_entries
from mtptools.ops.style import Style
from mtptools.plan import Entry
from mtptools.quantized import BLOCK, ENCODINGS, encoded
from mtptools.quantized.names import value_name
from mtptools.tensors import Tensor

__all__ = ["Again", "Apart"]

_STEP: Final = BLOCK[0]  # rows that are compared together, or a multiple: those under one scale of FP8


@dataclass(frozen=True)
class Apart:
    """A matrix whose bytes are not those that the donor's gives: [rows, columns] of the donor, made again, as it is."""

    donor: Tensor
    again: Tensor
    stored: Tensor


@dataclass(frozen=True)
class Again:
    """The head of `ckpt` made of `donor`'s again; `ours` and `theirs` are their MTP layers."""

    ckpt: Checkpoint
    donor: Checkpoint
    ours: Sequence[Head]
    theirs: Sequence[Head]

    def knows(self, found: Found) -> bool:
        """Are all weights of a role in encodings that are written here?"""
        return found.scaled and all(one.tensor.name in self._coded for one in found.stored)

    def apart(self, found: Found, progress: Callable[[int], None]) -> list[Apart]:
        """Of a role that it knows, the matrices whose bytes differ."""
        return [one for each in found.stored if (one := self._apart(each, progress)) is not None]

    def _apart(self, one: Stored, progress: Callable[[int], None]) -> Apart | None:
        entry = self._coded[one.tensor.name]
        partners = [other.source for other in self._partners[entry.name]]
        encoding = ENCODINGS[str(stored_encoding(one))]
        stored = {self._names[tensor.name]: tensor for tensor in (one.tensor, *one.scales.values())}
        scale = one.scales.get(".weight_scale_inv")
        made = encoded(
            entry.source,
            encoding,
            entry.name,
            dtype=_dtype(one, entry),
            scales="UE8M0" if self._powers else scale.codec if scale is not None else "F32",
            fused=partners,
        )
        if all(
            (ours := stored.get(part.name)) is not None
            and (ours.shape, ours.codec) == (part.shape, part.codec)
            and _same_bytes(ours, part, progress)
            for part in made
        ):
            return None
        own = {tensor.name: tensor for tensor in made}
        again = Stored(
            own[self._names[one.tensor.name]].renamed(one.tensor.name),
            {suffix: own[name] for suffix, tensor in one.scales.items() if (name := self._names[tensor.name]) in own},
            one.config,
        )
        return Apart(entry.source, again.logical(), one.logical())

    @cached_property
    def _names(self) -> Mapping[str, str]:
        """Name of a tensor of our head -> the name under which it would be written."""
        return dict(renamed(self.ckpt, place_of(self.ckpt, len(self.theirs))))

    @cached_property
    def _coded(self) -> Mapping[str, Entry]:
        """Name of a weight of our head in an encoding that is written here -> the donor's matrix."""
        scaled = {name for head in self.ours for name, found in head.roles.items() if found.scaled}
        if self.ckpt.dialect == "gguf" or not scaled:
            return {}
        heads = [Head(h.block, {n: f for n, f in h.roles.items() if n in scaled}, (), ()) for h in self.theirs]
        style = Style(experts="single" if self.ckpt.dialect == "hf" else None)
        try:
            entries = safetensors_entries(self.donor, heads, place_of(self.ckpt, len(heads)), style)
        except (CodecError, ConventionError):  # nothing of this donor could have been written so
            return {}
        made_of = {entry.name: entry for entry in entries}
        weights = [one for head in self.ours for found in head.roles.values() for one in found.stored if one.scales]
        by_name = {one.tensor.name: made_of.get(value_name(self._names[one.tensor.name])) for one in weights}
        known = {one.tensor.name for one in weights if stored_encoding(one) in ENCODINGS}
        return {name: entry for name, entry in by_name.items() if entry is not None and name in known}

    @cached_property
    def _partners(self) -> Mapping[str, Sequence[Entry]]:
        """Name of a matrix -> all that share its second scale."""
        every = {one.tensor.name: one for head in self.ours for f in head.roles.values() for one in f.stored}
        kinds = {entry.name: ENCODINGS[str(stored_encoding(every[name]))] for name, entry in self._coded.items()}
        return sharing(list(self._coded.values()), kinds)

    @cached_property
    def _powers(self) -> bool:
        return self.ckpt.dialect == "hf" and fit_of(self.ckpt).scales == "UE8M0"


def _dtype(one: Stored, entry: Entry) -> str:
    """The float type that values were rounded to first: scales that are floats tell."""
    for suffix in (".weight_scale", ".scales"):
        scale = one.scales.get(suffix)
        if scale is not None and CODECS[scale.codec].kind == "float":
            return scale.codec
    return entry.codec


def _same_bytes(ours: Tensor, made: Tensor, progress: Callable[[int], None]) -> bool:
    step = max(_STEP, (1 << 20) // max(made.row_bytes, 1) // _STEP * _STEP)
    for start in range(0, made.n_rows, step):
        stop = min(start + step, made.n_rows)
        size = made.row_bytes
        if ours.read(start * size, (stop - start) * size) != made.read(start * size, (stop - start) * size):
            return False
        progress((stop - start) * size)
    return True
