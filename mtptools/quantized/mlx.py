"""MLX's words, scales and biases as values; the arithmetic is `mtptools.codecs.mlx`'s."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mtptools.codecs import decode_bytes
from mtptools.codecs import mlx as codec
from mtptools.errors import CodecError, ConventionError
from mtptools.quantized.config import MlxLayout
from mtptools.quantized.names import value_name
from mtptools.quantized.scales import unfit
from mtptools.quantized.schemes import BETTER, FLOAT
from mtptools.tensors import Tensor
from mtptools.views import computed

__all__ = ["is_mlx", "mlx_values"]

SCALE: Final = ".scales"
BIAS: Final = ".biases"


def is_mlx(weight: Tensor, used: Mapping[str, Tensor]) -> bool:
    return weight.codec == "U32" and SCALE in used and set(used) <= {SCALE, BIAS}


def mlx_values(weight: Tensor, used: Mapping[str, Tensor], layout: MlxLayout | None) -> Tensor:
    """The values of U32 words [.., words]. Raises ConventionError without `layout`, CodecError, CorruptError."""
    scales, biases = used[SCALE], used.get(BIAS)
    if layout is None:
        raise ConventionError(
            "has scales, and the config states no bits and group size for it",
            where=weight.name,
            hint="take config.json, with its quantization table, from the release again",
        )
    words = weight.shape[-1]
    shape = (*weight.shape[:-1], words * 32 // layout.bits)
    how = f"at {layout.bits} bits in groups of {layout.group}"
    for other in (scales, biases):
        if other is not None and other.shape != (*shape[:-1], -(-shape[-1] // layout.group)):
            raise unfit(weight, other, shape, how)
    affine = layout.mode == "affine"
    if affine != (biases is not None) or scales.codec not in (FLOAT if affine else ("U8",)):
        stand = f"{scales.codec} scales and {'no biases' if biases is None else 'biases'}"
        raise CodecError(f"mode {layout.mode} does not go with {stand}", where=weight.name, hint=BETTER)

    def part(tensor: Tensor, start: int, stop: int) -> NDArray[Any]:
        data = tensor.read(start * tensor.row_bytes, (stop - start) * tensor.row_bytes)
        if tensor.codec == "U8":
            return np.frombuffer(data, np.uint8).reshape(stop - start, -1)
        return decode_bytes(data, tensor.codec, tensor.shape[-1])

    def rows(start: int, stop: int) -> NDArray[np.float32]:
        size = weight.row_bytes
        packed = np.frombuffer(weight.read(start * size, (stop - start) * size), "<u4").reshape(-1, words)
        return codec.dequantize(
            packed,
            part(scales, start, stop),
            None if biases is None else part(biases, start, stop),
            bits=layout.bits,
            group=layout.group,
            mode=layout.mode,
            dtype=scales.codec if biases is not None else "F32",
        )

    return computed(value_name(weight.name), shape, "F32", rows)
