"""How public runtimes connect the heads that our decoder runs, where they differ from each other.

Read in their sources: vLLM 0.33 (`model_executor/models/*_mtp.py`), SGLang 0.5.23 (`models/*_nextn.py`, `mimo_mtp.py`),
transformers 5.23 (`generation/candidate_generator.py`, `modeling_layers.MtpModel`), llama.cpp build 11549 (graphs under
`src/models`, `common/speculative.cpp`), mlx-vlm 0.7.10 (`speculative`). The columns of a fusion matrix are data of the
checkpoint and the same everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["READ", "RUNTIMES", "RuntimeWiring"]

READ: Final[Mapping[str, str]] = {
    "llama.cpp": "build 11549",
    "vLLM": "0.33",
    "SGLang": "0.5.23",
    "transformers": "5.23",
    "mlx-vlm": "0.7.10",
}
"""The version of each that was read. Older ones may do the same; that was not looked at."""


@dataclass(frozen=True, slots=True)
class RuntimeWiring:
    """tap, recycle, mask_first as in `Wiring`; recurrence: how layers take turns ("cycle", "exact", "first")."""

    runtime: str
    tap: str
    recycle: str
    mask_first: bool
    recurrence: str = "cycle"


_QWEN: Final = (
    RuntimeWiring("vLLM", "post", "post", False),
    RuntimeWiring("SGLang", "post", "post", False),
    RuntimeWiring("llama.cpp", "post", "post", False),
    RuntimeWiring("mlx-vlm", "post", "post", False),
)

RUNTIMES: Final[Mapping[str, tuple[RuntimeWiring, ...]]] = {
    "qwen35": _QWEN,
    "qwen35moe": _QWEN,
    "qwen3next": _QWEN,
    "glm4moe": (
        RuntimeWiring("vLLM", "post", "pre", True),
        RuntimeWiring("SGLang", "post", "post", False),
        RuntimeWiring("transformers", "post", "post", False, "exact"),
        RuntimeWiring("llama.cpp", "post", "post", False),
    ),
    # GLM-4.7-Flash runs in vLLM as GLM-4.5 does: recycled before the norm.
    "deepseek_v3": (
        RuntimeWiring("vLLM", "post", "post", True),
        RuntimeWiring("SGLang", "post", "post", False),
        RuntimeWiring("transformers", "post", "post", False, "exact"),
        RuntimeWiring("llama.cpp", "post", "post", False),
    ),
    "deepseek4": (
        RuntimeWiring("vLLM", "streams", "streams", True),
        RuntimeWiring("SGLang", "streams", "streams", False),
        RuntimeWiring("llama.cpp", "streams", "streams", False),
        RuntimeWiring("mlx-vlm", "streams", "streams", False),
    ),
    "mimo": (
        RuntimeWiring("vLLM", "pre", "post", True),
        RuntimeWiring("SGLang", "post", "post", True),
    ),
}
"""Family name -> runtimes."""
