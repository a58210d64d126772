"""Checks of stored values: are norms in the convention their dialect states, is the head alive?

Norms are a few kilobytes. Trunk and head are judged apart, because both conventions have been seen in one file
(omlx#1507); the head is judged by the trunk's norms of the same kind (the method of Rapid-MLX#1233).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mtptools.checkpoint import Checkpoint
from mtptools.codecs import CODECS, decode
from mtptools.head import Found, find_head, find_trunk
from mtptools.tensors import Tensor

Report = Iterator[tuple[str, str, str]]

# A head norm's trunk counterpart: the same role, or for the fusion's norms the ones of the same width.
_COUNTERPART: Final = {
    "nextn.enorm.weight": "attn_norm.weight",
    "nextn.hnorm.weight": "attn_norm.weight",
    "nextn.shared_head_norm.weight": "output_norm.weight",
}
# Effective weights of trained RMSNorms lie around 1. A trunk whose layer norms average below this, or a head norm
# whose mean is nearer to the trunk's after a shift by one, is stored in the other convention.
_LOWEST_TRUNK_MEAN: Final = 0.15
_SAMPLE_ROWS: Final = 64


def _is_offset(found: Found) -> bool:
    return found.role.kind == "norm" and "unit_offset" in found.role.values.values()


def _mean(tensor: Tensor) -> float:
    return float(decode(tensor).astype(np.float64).mean())


def _trunk_means(ckpt: Checkpoint) -> dict[str, float]:
    """Mean stored value per norm role over the trunk's layers."""
    means: dict[str, list[float]] = {}
    for role, _, found in find_trunk(ckpt):
        if found is not None and _is_offset(found):
            means.setdefault(role.name, []).append(_mean(found.tensor))
    return {name: float(np.mean(values)) for name, values in means.items()}


def _effective(ckpt: Checkpoint, stored: float) -> float:
    """A stored mean as the mean of what the norm multiplies by, under the dialect's convention."""
    return stored if ckpt.dialect == "gguf" else stored + 1.0


def trunk(ckpt: Checkpoint) -> Report:
    means = _trunk_means(ckpt)
    if not means:
        return
    effective = {name: _effective(ckpt, mean) for name, mean in means.items()}
    low = [name for name, mean in effective.items() if mean < _LOWEST_TRUNK_MEAN]
    if len(low) * 2 > len(effective):
        evidence = ", ".join(f"{name} {effective[name]:.3f}" for name in low[:4])
        yield (
            f"{len(low)} of {len(effective)} kinds of trunk norms multiply by almost nothing",
            f"mean effective weights: {evidence}; the dialect {ckpt.dialect} stores "
            f"{'1 + w' if ckpt.dialect == 'gguf' else 'w'}",
            "the file was probably converted without the +1 of this family: convert it again",
        )


def head(ckpt: Checkpoint) -> Report:
    means = _trunk_means(ckpt)
    found_head = find_head(ckpt)
    if not means or found_head is None:
        return
    shifted: dict[int, list[str]] = {1: [], -1: []}
    judged = 0
    for name, found in found_head.roles.items():
        if not _is_offset(found):
            continue
        reference = means.get(_COUNTERPART.get(name, name))
        if reference is None:
            continue
        judged += 1
        mean = _mean(found.tensor)
        for shift in (1, -1):
            if abs(mean + shift - reference) + 0.25 < abs(mean - reference):
                shifted[shift].append(f"{name} {mean:.3f} (trunk {reference:.3f})")
    for shift, names in shifted.items():
        if judged and len(names) * 2 > judged:
            word = "without the +1" if shift == 1 else "with 1 added twice"
            yield (
                f"{len(names)} of {judged} head norms are stored {word}: trunk and head are in different conventions",
                "stored means: " + ", ".join(names[:4]),
                "graft the head again with mtptools from its Hugging Face release; verify --parity would show "
                "acceptance near 0",
            )


def values(ckpt: Checkpoint) -> Report:
    layers = [find_head(ckpt, layer) for layer in range(max(ckpt.hparams.depth, 1))]
    for found_head in layers:
        for name, found in found_head.roles.items() if found_head is not None else ():
            if CODECS[found.tensor.codec].kind not in ("float", "block") or not found.tensor.n_values:
                continue
            sample = _sample(found.tensor)
            if not np.isfinite(sample).all():
                yield (
                    f"{name} holds values that are not finite",
                    f"{int((~np.isfinite(sample)).sum())} of {sample.size} values looked at",
                    "take the head from its release again",
                )
            elif not sample.any() and (found.role.kind == "matrix" or name.startswith("nextn.")):
                yield (
                    f"{name} is all zero: this head is dead",
                    f"{sample.size} values looked at, all zero",
                    "take the head from its release again",
                )


def _sample(tensor: Tensor) -> NDArray[np.float32]:
    """All rows of a small tensor, a spread of rows of a large one."""
    rows = tensor.n_rows
    if rows <= _SAMPLE_ROWS:
        return decode(tensor)
    picked = np.linspace(0, rows - 1, _SAMPLE_ROWS).astype(int)
    return np.concatenate([decode(tensor, int(row), int(row) + 1) for row in picked])
