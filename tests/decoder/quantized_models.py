"""Models whose matrices are quantized by `quantizers.py`, and what the decoder makes of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

from fixtures import permutation
from mtptools.checkpoint import open_checkpoint
from mtptools.decoder.load import load_model
from mtptools.decoder.speculate import decode_speculative
from mtptools.decoder.trace import Trace
from tests.decoder.quantizers import Arrays, Quantizer, Stored

IDS = [5, 17, 255, 3, 99, 42, 1001]


@cache
def model_of(kind: str) -> Arrays:
    """Float32, experts one by one."""
    return single_experts(permutation.tensors(kind))


def outcome(folder: Path, dtype: str = "float32", *, weights: str = "loaded") -> Trace:
    """Digests of the logits of a few speculative steps."""
    model = load_model(open_checkpoint(folder), dtype=dtype, weights=weights, check=False)
    assert model.head is not None
    return decode_speculative(model, IDS, 6, 2)


def same(ours: Trace, theirs: Trace) -> None:
    """The trunk's logits bit for bit, and the head's drafts."""
    assert ours.digests == theirs.digests
    assert ours.drafts == theirs.drafts


def is_matrix(name: str, a: np.ndarray) -> bool:
    """What these methods quantize: matrices of layers, but for routers."""
    if not (name.startswith("mtp.") or ".layers." in name) or a.ndim < 2:
        return False
    return not name.endswith(("conv1d.weight", "mlp.gate.weight", "shared_expert_gate.weight", "embed_tokens.weight"))


def single_experts(arrays: Arrays) -> Arrays:
    """Fused experts one by one."""
    out: Arrays = {}
    for name, a in arrays.items():
        stem, _, last = name.rpartition(".")
        if not stem.endswith(".experts"):
            out[name] = a
            continue
        for e, rows in enumerate(a):
            halves = np.split(rows, 2) if last == "gate_up_proj" else [rows]
            kinds = ("gate_proj", "up_proj") if last == "gate_up_proj" else ("down_proj",)
            out |= {f"{stem}.{e}.{kind}.weight": half for kind, half in zip(kinds, halves, strict=True)}
    return out


def quantized(arrays: Arrays, choose: Callable[[str, np.ndarray], Quantizer | None]) -> tuple[Stored, Arrays]:
    """(what the release holds, the values it stands for)."""
    stored: Stored = {}
    values: Arrays = {}
    for name, a in arrays.items():
        quantizer = choose(name, a)
        if quantizer is None:
            stored[name], values[name] = ("F32", a), a
            continue
        parts, values[name] = quantizer(a)
        assert values[name].dtype == np.float32
        assert np.isfinite(values[name]).all()
        assert 0 < np.abs(values[name] - a).max() < np.abs(a).max()
        stem = name.removesuffix(".weight")
        stored |= {f"{stem if part.startswith('.') else name}{part}": pair for part, pair in parts.items()}
    return stored, values


def plain(arrays: Arrays) -> Stored:
    return {name: ("F32", a) for name, a in arrays.items()}


def every(quantizer: Quantizer) -> Callable[[str, np.ndarray], Quantizer | None]:
    return lambda name, a: quantizer if is_matrix(name, a) else None
