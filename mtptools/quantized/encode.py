"""A matrix of floats as the tensors of a quantized release: what `values.py` reads, written.

Everything is lazy: the tensors of an encoding make their bytes from a chunk of rows of the matrix when they are asked
for, so that memory is a chunk. Values are rounded to the float type that the matrix would be written in before
anything else, and the arithmetic is that of the library whose releases these are: see `mtptools.codecs`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from mtptools.codecs.integers import BITS
from mtptools.errors import CodecError
from mtptools.quantized.config import MlxLayout
from mtptools.quantized.encodings import BLOCK, ENCODINGS, Encoding, fitting
from mtptools.quantized.matrix import Matrix, largest_of
from mtptools.quantized.names import CARRIED
from mtptools.quantized.schemes import FLOAT
from mtptools.tensors import Tensor

__all__ = ["encoded", "encoding_of"]


def encoding_of(
    weight: Tensor,
    beside: Mapping[str, Tensor],
    *,
    block: tuple[int, int] = BLOCK,
    layout: MlxLayout | None = None,
) -> str | None:
    """Name of the encoding in which a weight is stored, None for one that is not written here. Arguments: `logical`."""
    used = {suffix: tensor for suffix, tensor in beside.items() if suffix not in CARRIED}
    names, scale = set(used), used.get(".weight_scale")
    if not used:
        return weight.codec if weight.codec in FLOAT else None
    if layout is not None and ".scales" in names:
        key = (layout.mode, layout.bits, layout.group)
        return next((one.name for one in ENCODINGS.values() if one.layout == key), None)
    if weight.codec == "F8_E4M3" and names == {".weight_scale_inv"} and block == BLOCK and len(weight.shape) == 2:
        return "fp8-block128" if used[".weight_scale_inv"].codec in FLOAT else None
    if scale is None or len(weight.shape) != 2 or len(scale.shape) != 2:
        return None
    if weight.codec == "I32" and names == {".weight_scale", ".weight_shape"} and scale.shape[-1]:
        name = f"int4-g{weight.shape[-1] * 32 // BITS // scale.shape[-1]}"
        return name if name in ENCODINGS else None
    if weight.codec == "U8" and scale.codec == "F8_E4M3":
        second = {".weight_global_scale": "nvfp4", ".weight_scale_2": "nvfp4-modelopt"}
        return second.get(next(iter(names - {".weight_scale"}), "")) if len(names) == 2 else None
    return None


def encoded(
    source: Tensor,
    encoding: Encoding,
    name: str,
    *,
    dtype: str = "BF16",
    scales: str = "F32",
    fused: Sequence[Tensor] = (),
) -> tuple[Tensor, ...]:
    """The tensors that stand for a matrix.

    source    logical values [rows, columns], or stacked in front of that; errors about values give its name
    encoding  not a float type
    name      X.weight, as a float matrix would be called; the tensors are X.weight and so on
    dtype     float type of that matrix: values are rounded to it, and scales that are floats have it
    scales    of FP8: F32, BF16, or UE8M0 for powers of two in F32
    fused     all matrices that runtimes join with this one, itself too: they get one second scale (NVFP4)

    Raises CodecError when rows are not whole groups, naming what fits, and, when bytes are made, for NaN and infinity.
    """
    if encoding.make is None or encoding.dialect is None:
        raise ValueError(f"{encoding.name} is one tensor")
    columns = source.shape[-1]
    if columns % encoding.group or len(source.shape) < 2:
        raise CodecError(
            f"rows of {columns} values are not whole groups of {encoding.group} ({encoding.name})",
            where=name,
            hint=f"types that fit: {', '.join(fitting(columns, encoding.dialect))}",
        )
    if encoding.blocks and len(source.shape) != 2:
        raise CodecError(
            f"{encoding.name} is of matrices one by one, this is {list(source.shape)}",
            where=name,
            hint="--experts single",
        )
    matrices = fused or (source,)
    matrix = Matrix(source, name.removesuffix(".weight"), dtype, scales, cache(lambda: largest_of(matrices, dtype)))
    return encoding.make(matrix)
