"""What config.json says of quantized weights and their tensors do not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mtptools.errors import CorruptError

__all__ = ["MlxLayout", "block_of", "mlx_layout"]


@dataclass(frozen=True)
class MlxLayout:
    """An entry of an MLX config's `quantization`."""

    bits: int
    group: int
    mode: str = "affine"


# What MLX takes for an entry's group size and bits when it leaves them out (`mx.quantize`), by its mode.
_DEFAULTS: Final = {"affine": (64, 4), "mxfp4": (32, 4), "mxfp8": (32, 8), "nvfp4": (16, 4)}


def mlx_layout(config: Mapping[str, Any], module: str) -> MlxLayout | None:
    """How config.json says `module` (X of X.weight) is quantized; None: it is not. Raises CorruptError.

    A module's own entry may leave out `language_model.` (mlx-vlm 0.7.10 finds it either way), and takes nothing from
    the table around it: mlx-lm 0.32.2 writes routers of an mxfp4 checkpoint as 8 bits in groups of 64 and no mode,
    which is affine.
    """
    table = config.get("quantization")
    if not isinstance(table, dict):
        return None
    names = (module, module.removeprefix("language_model."))
    entry = next((table[name] for name in names if name in table), True)
    if entry is None or entry is False:
        return None
    stated = table if entry is True else entry if isinstance(entry, dict) else {}
    mode = stated.get("mode", "affine")
    defaults = _DEFAULTS.get(mode, (0, 0)) if stated is not table and stated and isinstance(mode, str) else (0, 0)
    group, bits = stated.get("group_size", defaults[0]), stated.get("bits", defaults[1])
    if not (isinstance(bits, int) and isinstance(group, int) and isinstance(mode, str) and 0 < bits <= 8 and group > 0):
        raise CorruptError(
            f"quantization of {module} is {entry!r}",
            where="config.json",
            hint="take config.json from the release again",
        )
    return MlxLayout(bits, group, mode)


def block_of(config: Mapping[str, Any]) -> tuple[int, int]:
    """quantization_config.weight_block_size, rows and columns; 128x128, every release's, when there is none."""
    quant = config.get("quantization_config")
    block = quant.get("weight_block_size") if isinstance(quant, dict) else None
    if block is None:
        return 128, 128
    if not (isinstance(block, list) and len(block) == 2 and all(isinstance(n, int) and n > 0 for n in block)):
        raise CorruptError(
            f"weight_block_size is {block!r}, not two sizes", where="config.json", hint="take config.json again"
        )
    return block[0], block[1]
