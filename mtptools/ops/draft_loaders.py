"""Who loads a reduced head, in one line that is said wherever one is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mtptools.checkpoint import Checkpoint
from mtptools.vocab.stored import map_names

__all__ = ["draft_facts", "loads"]

_REFUSED: Final = "build 11549 refuses a tensor it does not expect, and PR #29143 reads d2t"
_ARCHITECTURES: Final = ("qwen35", "qwen35moe")
_SAFETENSORS: Final[Mapping[str, str]] = {
    "hf": "NO MTP CLASS OF vLLM OR SGLang READS d2t (vLLM 0.33, SGLang 0.5.23: EAGLE-3, DFlash and DSpark do). SGLang "
    "takes a token map beside the checkpoint as it is: --map-only --to sglang",
    "mlx": "mlx-lm AND mlx-vlm READ NO d2t (0.32.2, 0.7.10). MTPLX takes a list of ids beside the checkpoint as it is: "
    "--map-only --to json",
}


def loads(dialect: str, arch: str, *, alone: bool) -> str:
    """What loads a reduced head. arch: GGUF's name of the architecture; alone: no trunk stands in the file."""
    if dialect != "gguf":
        return _SAFETENSORS[dialect]
    if arch not in _ARCHITECTURES:
        return f"NO BUILD OF llama.cpp LOADS THIS FILE: {_REFUSED} for {' and '.join(_ARCHITECTURES)} alone"
    if not alone:
        return (
            f"NO BUILD OF llama.cpp LOADS THIS FILE, not even its trunk: {_REFUSED} from a file that holds a head "
            "alone. --sidecar writes that one"
        )
    return (
        "RELEASED llama.cpp REFUSES THIS FILE (build 11549: wrong shape of output.weight). It takes a build with PR "
        "#29143 or unslothai/llama.cpp #225: -m TRUNK -md THIS --spec-type draft-mtp"
    )


def draft_facts(ckpt: Checkpoint, *, alone: bool) -> list[str]:
    """The line for an output that keeps the reduced head of `ckpt`; none for a whole one."""
    return [loads(ckpt.dialect, ckpt.family.gguf_arch, alone=alone)] if map_names(ckpt) else []
