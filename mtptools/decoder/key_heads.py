"""Rows of Qwen3-Next's joined DeltaNet projections, which go by key head in HF (and in `ssm_in`, `ssm_ba` of GGUF).

`in_proj_qkvz`: per key head its query, its key, the values of its value heads, their output gates z.
`in_proj_ba`: per key head the b, then the a, of its value heads. Source: transformers 5.23,
`Qwen3NextGatedDeltaNet.fix_query_key_value_ordering`.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Final

from mtptools.decoder.parts import Part
from mtptools.hparams import HParams

__all__ = ["JOINED", "pick"]

JOINED: Final = {
    "delta_qkv": ("delta_qkvz", (0, 1, 2)),
    "delta_z": ("delta_qkvz", (3,)),
    "delta_b": ("delta_ba", (0,)),
    "delta_a": ("delta_ba", (1,)),
}
"""Role -> the joined role it may stand in, and which of its pieces it is."""


def pick(whole: Part, role: str, hp: HParams) -> list[Part]:
    """The rows of `role`, each piece for all key heads, then the next piece."""
    joined, wanted = JOINED[role]
    ratio = hp.linear_v_heads // hp.linear_k_heads
    keys, values = hp.linear_k_head_dim, ratio * hp.linear_v_head_dim
    sizes = (keys, keys, values, values) if joined == "delta_qkvz" else (ratio, ratio)
    ends = list(accumulate(sizes))
    if whole.n_rows != ends[-1] * hp.linear_k_heads:
        return [whole]  # of a shape that `fill` refuses by name
    return [
        whole.rows(head * ends[-1] + ends[piece] - sizes[piece], head * ends[-1] + ends[piece])
        for piece in wanted
        for head in range(hp.linear_k_heads)
    ]
