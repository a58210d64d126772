"""GGUF metadata keys that hold one entry per block when they are arrays, and what a head's blocks add to them.

Source: llama.cpp 0c1e57098, `get_key_or_arr` calls per architecture. Explicit, because "its length is the block
count" is wrong twice: rope.dimension_sections has 4 entries on a 4-layer model, and indexer.types counts the
trunk alone. Every key is preceded by `{arch}.`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

__all__ = ["FIXED_LENGTH", "PER_LAYER", "Rule"]

# "donor"  the donor's entries for its head's blocks, or its scalar
# "false"  False: a head's block is attention, never recurrent
Rule = Literal["donor", "false"]

PER_LAYER: Final[Mapping[str, Rule]] = {
    "attention.head_count": "donor",
    "attention.head_count_kv": "donor",
    "feed_forward_length": "donor",
    "expert_used_count": "donor",
    "expert_feed_forward_length": "donor",
    "attention.recurrent_layers": "false",
    "attention.sliding_window_pattern": "donor",
    "attention.compress_ratios": "donor",
    "swiglu_clamp_exp": "donor",
    "swiglu_clamp_shexp": "donor",
}

# Arrays of a length of their own: never extended, never cut. (attention.indexer.types counts the trunk alone.)
FIXED_LENGTH: Final[Mapping[str, int]] = {"rope.dimension_sections": 4}
