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
from mtptools.conventions import convert_values
from mtptools.head import Found, find_head, find_trunk, layers_of
from mtptools.tensors import Tensor

Report = Iterator[tuple[str, str, str]]

# A head norm's trunk counterpart: the same role, or for the fusion's norms the ones of the same width.
_COUNTERPART: Final = {
    "nextn.enorm.weight": "attn_norm.weight",
    "nextn.hnorm.weight": "attn_norm.weight",
    "nextn.shared_head_norm.weight": "output_norm.weight",
}
# What an RMSNorm multiplies by lies around 1 and is hardly ever negative or 0. Stored without its 1, half of it is.
_NEGATIVE_SHARE: Final = 0.2
# Layer norms of a trunk that all multiply by more than this look as if 1 had been added twice.
_HIGH: Final = 1.85
_SAMPLE_ROWS: Final = 64


def _is_offset(found: Found) -> bool:
    return found.role.kind == "norm" and "unit_offset" in found.role.values.values()


def _effective(ckpt: Checkpoint, found: Found) -> NDArray[np.float32]:
    """What the norm multiplies by, under the convention its dialect states."""
    return convert_values(decode(found.tensor), found.role.convention(ckpt.dialect), "plain")


def _without_one(weights: NDArray[np.float32]) -> bool:
    return bool((weights <= 0).mean() > _NEGATIVE_SHARE) if weights.size else False


def _trunk_norms(ckpt: Checkpoint) -> dict[str, list[NDArray[np.float32]]]:
    out: dict[str, list[NDArray[np.float32]]] = {}
    for role, _, found in find_trunk(ckpt):
        if found is not None and _is_offset(found) and found.problem is None and found.tensor.n_values:
            out.setdefault(role.name, []).append(_effective(ckpt, found))
    return out


def trunk_means(ckpt: Checkpoint) -> dict[str, float]:
    """Mean effective weight per norm role over the trunk's layers; empty when the trunk itself is in doubt."""
    norms = _trunk_norms(ckpt)
    if _low(norms) or _high(norms):
        return {}
    return {name: float(np.concatenate(rows, axis=None).mean(dtype=np.float64)) for name, rows in norms.items()}


def _low(norms: dict[str, list[NDArray[np.float32]]]) -> list[str]:
    return [name for name, rows in norms.items() if sum(map(_without_one, rows)) * 2 > len(rows)]


def _high(norms: dict[str, list[NDArray[np.float32]]]) -> bool:
    layered = [rows for name, rows in norms.items() if name != "output_norm.weight"]
    return bool(layered) and all(np.concatenate(rows, axis=None).mean() > _HIGH for rows in layered)


def _stored(ckpt: Checkpoint) -> str:
    return "1 + w" if ckpt.dialect == "gguf" else "w"


def trunk(ckpt: Checkpoint) -> Report:
    low = _low(_trunk_norms(ckpt))
    if low:
        yield (
            f"trunk norms without their 1: {', '.join(low[:4])}",
            f"over {_NEGATIVE_SHARE:.0%} of what they multiply by is 0 or less; {ckpt.dialect} stores {_stored(ckpt)}",
            "the file was converted without the + 1 of this family: convert it again",
        )


def trunk_high(ckpt: Checkpoint) -> Report:
    norms = _trunk_norms(ckpt)
    if _high(norms):
        mean = np.mean([np.concatenate(rows, axis=None).mean() for rows in norms.values()])
        yield (
            "every kind of trunk norm multiplies by about 2: was 1 added twice?",
            f"mean effective weight {mean:.2f}; {ckpt.dialect} stores {_stored(ckpt)}",
            "compare with the release: mtptools diff RELEASE THIS",
        )


def head(ckpt: Checkpoint) -> Report:
    yield from judge_head(ckpt, trunk_means(ckpt))


def judge_head(ckpt: Checkpoint, reference: dict[str, float]) -> Report:
    """Each head norm by itself for a missing 1; all of them against the trunk's for a shift by one.

    reference  `trunk_means` of the trunk the head is for; empty when there is none to compare with
    """
    layers = [find_head(ckpt, layer) for layer in layers_of(ckpt)]
    for number, found_head in enumerate(layers):
        norms = {
            name: _effective(ckpt, found)
            for name, found in (found_head.roles.items() if found_head is not None else ())
            if _is_offset(found) and found.problem is None and found.tensor.n_values
        }
        low = [name for name, weights in norms.items() if _without_one(weights)]
        if low:
            yield (
                f"head layer {number}: {len(low)} of {len(norms)} norms without the +1: {', '.join(low[:4])}",
                f"more than {_NEGATIVE_SHARE:.0%} of what they multiply by is 0 or less; {ckpt.dialect} stores "
                f"{_stored(ckpt)}",
                "graft the head again with mtptools from its Hugging Face release",
            )
        pairs = [
            (float(weights.mean(dtype=np.float64)), reference[_COUNTERPART.get(name, name)])
            for name, weights in norms.items()
            if name not in low and _COUNTERPART.get(name, name) in reference
        ]
        shifted = [(mean, base) for mean, base in pairs if abs(mean - 1 - base) + 0.25 < abs(mean - base)]
        if len(shifted) * 2 > len(pairs):
            yield (
                f"head layer {number}: {len(shifted)} of {len(pairs)} norms look as if 1 had been added twice",
                "mean effective weights, head and trunk: " + ", ".join(f"{m:.2f} {b:.2f}" for m, b in shifted[:4]),
                "graft the head again with mtptools from its Hugging Face release",
            )


def values(ckpt: Checkpoint) -> Report:
    layers = [find_head(ckpt, layer) for layer in layers_of(ckpt)]
    for found_head in layers:
        for name, found in found_head.roles.items() if found_head is not None else ():
            if (
                found.problem is not None
                or CODECS[found.tensor.codec].kind not in ("float", "block")
                or not found.tensor.n_values
            ):
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
