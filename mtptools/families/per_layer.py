"""GGUF metadata keys that hold one entry per block when they are arrays, and what a head's blocks add to them.

Source: llama.cpp 0c1e57098, `get_key_or_arr` and `get_arr` calls per architecture. Explicit, because "its length is
the block count" is wrong twice: rope.dimension_sections has 4 entries on a 4-layer model, and indexer.types counts the
trunk alone. A wrong length is refused by llama.cpp, but for the keys in SILENT: there the last blocks read 0, which
turns a sliding head into a full one. Every key is preceded by `{arch}.`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

__all__ = ["FIXED_LENGTH", "PER_LAYER", "SILENT", "TRUNK_ONLY", "Rule"]

# "donor"  the donor's entries for its head's blocks, or its scalar
# "false"  False: a head's block is attention, never recurrent
Rule = Literal["donor", "false"]

PER_LAYER: Final[Mapping[str, Rule]] = {
    # any architecture
    "attention.head_count": "donor",
    "attention.head_count_kv": "donor",
    "feed_forward_length": "donor",
    "expert_used_count": "donor",
    "expert_feed_forward_length": "donor",
    # qwen3next, qwen35, qwen35moe, qwen4exp
    "attention.recurrent_layers": "false",
    # mimo2, step35, dots3note
    "attention.sliding_window_pattern": "donor",
    # deepseek4, qwen4exp
    "attention.compress_ratios": "donor",
    # step35, deepseek4, bailingmoe3, glm5-next, hy-v4
    "swiglu_clamp_exp": "donor",
    "swiglu_clamp_shexp": "donor",
}

# Their length is not checked by llama.cpp (compress_ratios: in deepseek4).
SILENT: Final = frozenset({"attention.sliding_window_pattern", "attention.compress_ratios"})

# One entry per trunk block, and none for the head's: glm-dsa, glm5-next, hy-v4. Never extended, never cut.
TRUNK_ONLY: Final = frozenset({"attention.indexer.types"})

# Arrays of a length of their own: never extended, never cut.
FIXED_LENGTH: Final[Mapping[str, int]] = {"rope.dimension_sections": 4}
