"""The encodings that are written: a table, and how each makes its tensors of a matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from mtptools.codecs import fp8, integers, mlx, nvfp4
from mtptools.errors import UsageError
from mtptools.quantized.matrix import Matrix
from mtptools.quantized.schemes import FLOAT
from mtptools.tensors import Tensor

__all__ = ["BLOCK", "ENCODINGS", "NAMES", "Dialect", "Encoding", "encoding_named", "fitting"]

Floats = NDArray[np.float32]
Dialect = Literal["hf", "mlx"]

BLOCK: Final = (128, 128)  # of FP8: rows and columns under one scale


@dataclass(frozen=True, slots=True)
class Encoding:
    """One way to store a matrix.

    name     of a float type: "BF16"
    dialect  whose releases have it; None: both
    group    values of a row that share a scale; rows are whole groups
    make     the tensors; None for a float type, which is one tensor of its own
    shared   matrices that runtimes join must share a scale
    blocks   scales stand for rows, too: only of a matrix by itself
    layout   an MLX config's mode, bits and group size
    """

    name: str
    dialect: Dialect | None
    group: int
    make: Callable[[Matrix], tuple[Tensor, ...]] | None
    shared: bool = False
    blocks: bool = False
    layout: tuple[str, int, int] | None = None

    @property
    def is_float(self) -> bool:
        return self.make is None


def _fp8(m: Matrix) -> tuple[Tensor, ...]:
    def codes(values: Floats) -> NDArray[np.uint8]:
        return fp8.encode_blocks(values, BLOCK, m.scales)[0]

    def scales(values: Floats) -> Floats:
        return fp8.block_scales(values, BLOCK, m.scales)

    columns, stored = m.source.shape[-1], "F32" if m.scales == "UE8M0" else m.scales
    return (
        m.part(".weight", "F8_E4M3", columns, codes, block=BLOCK[0]),
        m.part(".weight_scale_inv", stored, -(-columns // BLOCK[1]), scales, block=BLOCK[0], each=BLOCK[0]),
    )


def _int4(group: int) -> Callable[[Matrix], tuple[Tensor, ...]]:
    def make(m: Matrix) -> tuple[Tensor, ...]:
        def scales(values: Floats) -> Floats:
            return integers.scales(values, m.dtype, group)

        def codes(values: Floats) -> NDArray[np.int32]:
            return integers.packed(integers.codes(values, scales(values), m.dtype))

        shape = m.source.shape
        return (
            m.part(".weight_packed", "I32", shape[-1] * integers.BITS // 32, codes),
            m.part(".weight_scale", m.dtype, shape[-1] // group, scales),
            m.whole(".weight_shape", "I64", (len(shape),), lambda: np.array(shape, "<i8").tobytes()),
        )

    return make


def _nvfp4(library: nvfp4.Library, stored: str, second: str) -> Callable[[Matrix], tuple[Tensor, ...]]:
    def make(m: Matrix) -> tuple[Tensor, ...]:
        @cache
        def over_all() -> np.float32:
            return library.second(m.largest(), m.dtype)

        def first(values: Floats) -> NDArray[np.uint8]:
            return library.first(values, over_all(), m.dtype)

        def codes(values: Floats) -> NDArray[np.uint8]:
            return library.codes(values, first(values), over_all(), m.dtype)

        columns = m.source.shape[-1]
        return (
            m.part(stored, "U8", columns // 2, codes),
            m.part(".weight_scale", "F8_E4M3", columns // nvfp4.GROUP, first),
            m.whole(second, "F32", (1,) if library.divides else (), lambda: over_all().astype("<f4").tobytes()),
        )

    return make


def _affine(bits: int, group: int) -> Callable[[Matrix], tuple[Tensor, ...]]:
    def make(m: Matrix) -> tuple[Tensor, ...]:
        def codes(values: Floats) -> NDArray[np.uint32]:
            return mlx.quantize(values, m.dtype, bits, group)[0]

        def scale(which: int) -> Callable[[Floats], Floats]:
            return lambda values: mlx.affine_scales(values, m.dtype, bits, group)[which]

        columns = m.source.shape[-1]
        return (
            m.part(".weight", "U32", columns * bits // 32, codes),
            m.part(".scales", m.dtype, columns // group, scale(0)),
            m.part(".biases", m.dtype, columns // group, scale(1)),
        )

    return make


def _mlx_float(mode: str, bits: int, group: int) -> Callable[[Matrix], tuple[Tensor, ...]]:
    def make(m: Matrix) -> tuple[Tensor, ...]:
        columns = m.source.shape[-1]
        return (
            m.part(".weight", "U32", columns * bits // 32, lambda values: mlx.quantize_fp(values, m.dtype, mode)[0]),
            m.part(".scales", "U8", columns // group, lambda values: mlx.fp_scales(values, m.dtype, mode)),
        )

    return make


def _of_mlx() -> Iterator[Encoding]:
    for mode, known in mlx.MODES.items():
        for bits in known.bits if known.largest else known.bits[1:]:  # of 1 bit nothing is known but how to read it
            for group in known.groups:
                name = f"mlx-{mode}" if known.largest else f"mlx-affine-g{group}b{bits}"
                make = _mlx_float(mode, bits, group) if known.largest else _affine(bits, group)
                yield Encoding(name, "mlx", group, make, layout=(mode, bits, group))


_CT, _MODELOPT = nvfp4.COMPRESSED_TENSORS, nvfp4.MODELOPT

ENCODINGS: Final = {
    one.name: one
    for one in (
        *(Encoding(name, None, 1, None) for name in FLOAT),
        Encoding("fp8-block128", "hf", 1, _fp8, blocks=True),
        *(Encoding(f"int4-g{group}", "hf", group, _int4(group)) for group in (128, 64, 32)),
        Encoding("nvfp4", "hf", nvfp4.GROUP, _nvfp4(_CT, ".weight_packed", ".weight_global_scale"), shared=True),
        Encoding("nvfp4-modelopt", "hf", nvfp4.GROUP, _nvfp4(_MODELOPT, ".weight", ".weight_scale_2"), shared=True),
        *_of_mlx(),
    )
}

_ALIASES: Final[dict[Dialect, dict[str, str]]] = {
    "hf": {"fp8": "fp8-block128", "int4": "int4-g128", "w4a16": "int4-g128", "nvfp4a16": "nvfp4"},
    "mlx": {f"{bits}bit": f"mlx-affine-g64b{bits}" for bits in mlx.MODES["affine"].bits[1:]},
}


# Every spelling of every encoding, in lower case.
NAMES: Final = tuple(
    dict.fromkeys(
        [name.lower() for name in ENCODINGS]
        + [name.lower().removeprefix("mlx-") for name in ENCODINGS]
        + [alias for table in _ALIASES.values() for alias in table]
    )
)


def _of(dialect: Dialect) -> list[Encoding]:
    return [one for one in ENCODINGS.values() if one.dialect in (None, dialect)]


def encoding_named(text: str, dialect: Dialect, where: str = "--head") -> Encoding:
    """The encoding of that name, in any case; in MLX `mlx-` may be left out. Raises UsageError listing what there is.

    where  the option it was typed at
    """
    known = {one.name.lower(): one for one in _of(dialect)}
    key = text.lower()
    found = known.get(_ALIASES[dialect].get(key, key)) or known.get(f"{dialect}-{key}")
    if found is not None:
        return found
    names = [one.name for one in _of(dialect) if not one.name.startswith("mlx-affine")]
    if dialect == "mlx":
        names += ["mlx-affine-gGbB, G 32, 64 or 128, B 2, 3, 4, 5, 6 or 8", "short: 2bit to 8bit, G 64"]
    raise UsageError(f"{dialect.upper()} has no type {text!r}", where=where, hint=f"types: {', '.join(names)}")


def fitting(columns: int, dialect: Dialect) -> list[str]:
    """Names of the encodings whose groups divide a row of `columns` values."""
    return [one.name for one in _of(dialect) if columns % one.group == 0]
