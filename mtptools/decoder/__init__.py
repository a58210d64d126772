"""The exact reference decoder: plain and speculative decoding give the same logits bit for bit.

Only this package, and what imports it, loads torch.
"""

from __future__ import annotations

from typing import Final

__all__ = ["DIALECTS", "FAMILIES"]

# What the decoder knows: names of families (`mtptools.families`), and dialects of their checkpoints.
FAMILIES: Final = ("qwen35", "qwen35moe")
DIALECTS: Final = ("hf", "gguf")
