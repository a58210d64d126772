"""The exact reference decoder: plain and speculative decoding give the same logits bit for bit.

Only this package, and what imports it, loads torch.
"""

from __future__ import annotations

from typing import Final

from mtptools.checkpoint import Checkpoint

__all__ = ["DIALECTS", "FAMILIES", "undecodable"]

# What the decoder knows: names of families (`mtptools.families`), and dialects of their checkpoints.
FAMILIES: Final = ("qwen35", "qwen35moe", "qwen3next", "glm4moe", "deepseek_v3", "mimo", "deepseek4")
DIALECTS: Final = ("hf", "gguf", "mlx")


def undecodable(ckpt: Checkpoint) -> str | None:
    """Why the decoder cannot run a checkpoint: no formulas for its family, or no map of its names. None: it can."""
    if ckpt.family.name not in FAMILIES:
        return f"the decoder does not know {ckpt.family.title} (it knows {', '.join(FAMILIES)})"
    if ckpt.dialect not in DIALECTS or (ckpt.family.name, ckpt.dialect) == ("deepseek4", "mlx"):
        return f"the decoder does not read {ckpt.family.title} in the {ckpt.dialect} dialect"
    return None
