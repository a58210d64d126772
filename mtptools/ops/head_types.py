"""Which type each matrix of a head gets in a GGUF, by what weights, and what cannot have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from math import prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mtptools.checkpoint import Checkpoint
from mtptools.codecs import CODECS, ENCODABLE, EXACT, LIBRARY, NEEDS_IMPORTANCE, ggml_library
from mtptools.errors import CodecError, IncompatibleError, UsageError
from mtptools.head import Found, Head
from mtptools.importance import Importance
from mtptools.ops.presets import KEPT, PRESETS, Mixture, preset_type
from mtptools.ops.style import Style
from mtptools.plan import Entry, Used, human_bytes
from mtptools.tensors import Tensor

__all__ = ["SMALL", "HeadTypes", "mixture_of", "takes_importance", "type_facts", "used_by"]

SMALL: Final = ("norm", "router", "vector")
"""Kinds of roles that are F32 in GGUF."""

# Importance above this overflows float32 in ggml's sums of weighted squares. Real means are below 1e6.
HEAVIEST: Final = 1e30

# Matrices that take the same input, fused in one file and apart in another: what was measured of one holds for all.
_SAME_INPUT: Final = {
    "attn_qkv": ("attn_q", "attn_k", "attn_v"),
    **dict.fromkeys(("attn_q", "attn_k", "attn_v"), ("attn_qkv",)),
    "ffn_gate_up_exps": ("ffn_gate_exps", "ffn_up_exps"),
    **dict.fromkeys(("ffn_gate_exps", "ffn_up_exps"), ("ffn_gate_up_exps",)),
}


def takes_importance(codec: str) -> bool:
    """Does it make a difference to this type which columns matter?"""
    return CODECS[codec].kind == "block" and codec not in EXACT


@dataclass(frozen=True)
class HeadTypes:
    """style       what was asked
    mixture     the whole model, which a mixture's rules ask about; None where none was asked for
    importance  weights of columns, by tensor name
    measured    tensors that go by another name in it: a sidecar's output matrix, which the head alone reads
    """

    style: Style
    mixture: Mixture | None = None
    importance: Importance | None = None
    measured: Mapping[str, str] = field(default_factory=dict)

    def matrices(self, heads: Sequence[Head]) -> list[str]:
        """Names of the roles that can have another type."""
        found = (one for head in heads for one in head.roles.values() if not self.pinned(one))
        return list(dict.fromkeys(one.role.name for one in found))

    def pinned(self, found: Found) -> bool:
        """Is it F32 whatever is asked? Norms, routers and vectors, as llama.cpp has them, and what releases keep so."""
        return found.role.kind in SMALL or found.role.f32

    def wanted(self, found: Found, name: str) -> str | None:
        """The type for a role that will stand under `name`; None: nothing was asked of it."""
        kind = self.style.wanted(found.role.name)
        if kind is None or kind not in PRESETS:
            return kind
        if self.mixture is None:
            raise UsageError(f"{kind} is a mixture of types for a whole block", hint=f"one type: {PRESETS[kind]}")
        if any(part in name for part in KEPT):
            return None
        return preset_type(kind, name, len(found.tensor.shape), self.mixture)

    def require(self, found: Found, name: str, codec: str) -> None:
        """Refuse a type that the matrix cannot have. Raises CodecError."""
        role = found.role.name.removesuffix(".weight")
        if codec not in ENCODABLE:
            raise CodecError(
                f"no encoder for {codec}" if codec in CODECS else f"{codec} is no type of GGUF",
                where=name,
                hint=f"types: {', '.join(ENCODABLE)}",
            )
        shape = found.tensor.shape
        try:
            CODECS[codec].row_bytes(shape[-1] if shape else 1)
        except CodecError as error:
            raise CodecError(error.what, where=name, hint=f"{error.hint}: --role {role}=TYPE") from error
        if codec in NEEDS_IMPORTANCE and self.weights(name, found.tensor, codec) is None:
            why = "no --imatrix was given" if self.importance is None else "the importance matrix has no entry for it"
            raise CodecError(
                f"{codec} without importance is noise, and {why}",
                where=name,
                hint=f"mtptools imatrix MODEL --text FILE -o head.imatrix.gguf, or --role {role}=Q4_K",
            )

    def weights(self, name: str, tensor: Tensor, codec: str) -> NDArray[np.float32] | None:
        """float32 [matrices, columns] of the columns of a tensor; None for none, and for types that take none.

        Raises IncompatibleError when the importance matrix is another model's.
        """
        if self.importance is None or not takes_importance(codec):
            return None
        *lead, _, columns = (1, 1, *tensor.shape)[-max(len(tensor.shape), 2) :]
        name = self.measured.get(name, name)
        role = name.removesuffix(".weight").rpartition(".")[2]
        names = [name, *(name.replace(role, other) for other in _SAME_INPUT.get(role, ()))]
        found = (self.importance.importance_of(one, columns, prod(lead)) for one in names)
        weights = next((weights for weights in found if weights is not None), None)
        if weights is not None and weights.max(initial=0) > HEAVIEST:
            raise CodecError(
                f"the importance matrix has means of {weights.max():.3g}: sums of these overflow",
                where=name,
                hint="measure again: mtptools imatrix MODEL --text FILE -o head.imatrix.gguf",
            )
        if weights is not None and not weights.any(axis=1).all():
            raise CodecError(
                "the importance matrix says that no column matters: it would be quantized to nothing",
                where=name,
                hint="measure again, on more text: mtptools imatrix MODEL --text FILE -o head.imatrix.gguf",
            )
        return weights


def type_facts(heads: Sequence[Head], head: Sequence[Entry], importance: Importance | None) -> list[str]:
    """Facts about the types of a head: what it weighs, what was quantized twice, what was not weighted.

    heads  as they were;  head  the entries of the output

    Raises IncompatibleError when importance was given and weights nothing: it is another model's, or a trunk's.
    """
    before, after = sum(one.nbytes for one in heads), sum(entry.nbytes for entry in head if entry.head)
    facts = [f"head: {human_bytes(before)} -> {human_bytes(after)}"] if before != after else []
    made = [entry for entry in head if not entry.passes and CODECS[entry.codec].kind == "block"]
    twice = [entry for entry in made if CODECS[entry.source.codec].kind == "block"]
    if twice:
        facts.append(
            f"{len(twice)} matrices were quantized already ({twice[0].source.codec}): a head in BF16 gives a better one"
        )
    if importance is not None:
        weighed = [entry for entry in made if takes_importance(entry.codec)]
        bare = [entry.name for entry in weighed if entry.importance is None]
        if bare and len(bare) == len(weighed):
            raise IncompatibleError(
                "the importance matrix has no entry for any matrix of this head",
                [f"not in it: {name}" for name in bare],
                where=importance.where,
                hint="llama-imatrix measures trunks alone: mtptools imatrix MODEL --text FILE --merge THAT -o OUT.gguf",
            )
        facts.append(f"weighted by {importance.label}: {len(weighed) - len(bare)} of {len(made)} matrices")
        if bare:
            facts.append(f"not in the importance matrix, so not weighted: {', '.join(bare[:4])}")
    return facts


def used_by(entries: Sequence[Entry], importance: Importance | None) -> tuple[Used, ...]:
    """What decided the bytes of these entries beside this package: an importance matrix, ggml's own code."""
    out = []
    if importance is not None and any(entry.importance is not None for entry in entries):
        out.append(Used("importance matrix", importance.label, f"sha256 {importance.sha256}"))
    if any(not entry.passes and entry.codec in LIBRARY for entry in entries):
        wheel = ggml_library.available() or ""
        out.append(Used("ggml", wheel, version(wheel) if wheel else ""))
    return tuple(out)


def mixture_of(ckpt: Checkpoint, names: list[str], layers: int) -> Mixture:
    """The model of a GGUF as a mixture's rules see it: `names` of all its tensors, `layers` with the head's."""
    h = ckpt.hparams
    return Mixture.of(names, layers, h.n_heads // h.n_kv_heads if h.n_kv_heads else 0, h.n_experts)
