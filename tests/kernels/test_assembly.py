"""What the kernels tell the assembler, tried by its manual: the same numbers as the interpreter makes another way.

The functions run as they are compiled, on arrays instead of tensors, with an assembler of our own.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import triton.language as tl
from numpy.typing import NDArray

from mtptools.decoder.kernels import numbers, tiles_codes
from tests.kernels import ptx

TYPES = {"uint8": np.uint8, "int8": np.int8, "int32": np.int32, "float32": np.float32}
OCTETS = np.arange(256, dtype=np.uint8)
MORE = np.random.default_rng(0).permutation(OCTETS)


class Array:
    """As much of a tensor as the functions ask for."""

    def __init__(self, values: NDArray[Any]) -> None:
        self.values, self.shape = values, values.shape

    def to(self, dtype: tl.dtype, *, bitcast: bool = False) -> Array:
        kind = TYPES[dtype.name.replace("fp32", "float32")]
        return Array(self.values.view(kind) if bitcast else self.values.astype(kind))

    def __sub__(self, less: float) -> Array:
        return Array(self.values - np.float32(less))

    def __mul__(self, by: int) -> Array:
        return Array((self.values.astype(np.int64) * by & 0xFFFFFFFF).astype(np.uint32).view(np.int32))

    def __and__(self, mask: int) -> Array:
        return Array(self.values & np.int32(mask))


def assembled(assembly: Any, constraints: str, args: list[Array], dtype: Any, is_pure: bool, pack: int) -> Array:
    text = str(getattr(assembly, "value", assembly))
    assert constraints.split(",") == ["=r"] * pack + ["r"] * len(args)
    assert ptx.operands(text) == pack + len(args)
    packed = [arg.values.reshape(-1).view(np.uint8).view("<u4").tolist() for arg in args]
    found = [ptx.run(text, pack, given) for given in zip(*packed, strict=True)]
    return Array(np.array(found, np.uint32).reshape(args[0].shape).view(TYPES[dtype.name]))


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    stub = SimpleNamespace(
        uint8=tl.uint8,
        int8=tl.int8,
        int32=tl.int32,
        float32=tl.float32,
        full=lambda shape, value, dtype: Array(np.full(shape, value, TYPES[dtype.name])),
        inline_asm_elementwise=assembled,
    )
    for module in (numbers, tiles_codes):
        monkeypatch.setattr(module, "tl", stub)
        monkeypatch.setattr(module, "INTERPRETED", False)
        monkeypatch.setattr(module, "four", numbers.four.fn if module is numbers else numbers.four)


def moved(octets: NDArray[np.uint8], up: int, mask: int) -> NDArray[np.int64]:
    wide = octets.astype(np.int64)
    return (wide << up if up >= 0 else wide >> -up) & mask


@pytest.mark.parametrize(("up", "mask"), [(0, 15), (-4, 15), (0, 255), (0, 3), (-2, 3), (-6, 3)])
@pytest.mark.parametrize("less", [0, 8])
def test_codes(up: int, mask: int, less: int) -> None:
    got = numbers.codes.fn(Array(OCTETS), up, mask, less).values
    assert got.dtype == np.float32
    assert np.array_equal(got, moved(OCTETS, up, mask) - less)


JOINED = [(0, -4 * half, 15, 4 - bit, 16) for half in (0, 1) for bit in range(8)]  # Q5_K
JOINED += [(32, -4 * half, 15, up, 48) for half in (0, 1) for up in (4, 2, 0, -2)]  # Q6_K
JOINED += [(4, -2 * pair, 3, 2 - bit, 4) for pair in range(4) for bit in (2 * pair, 2 * pair + 1)]  # Q3_K


@pytest.mark.parametrize(("less", "up", "mask", "more_up", "more_mask"), JOINED)
def test_joined(less: int, up: int, mask: int, more_up: int, more_mask: int) -> None:
    got = numbers.joined.fn(Array(OCTETS), up, mask, Array(MORE), more_up, more_mask, less).values
    assert np.array_equal(got, (moved(OCTETS, up, mask) | moved(MORE, more_up, more_mask)) - less)


def test_signed() -> None:
    assert np.array_equal(numbers.signed.fn(Array(OCTETS.view(np.int8))).values, OCTETS.view(np.int8))


@pytest.mark.parametrize("half", [0, 1])
def test_lists(half: int) -> None:
    from gguf.quants import IQ4_NL

    codes = moved(OCTETS, -4 * half, 15)
    assert np.array_equal(tiles_codes._uneven.fn(Array(OCTETS), half).values, np.array(IQ4_NL.kvalues)[codes])
    e2m1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    got = tiles_codes._e2m1.fn(Array(OCTETS), half).values * np.float32(2) ** 126
    want = np.concatenate([e2m1, -e2m1])[codes]
    assert np.array_equal(got.view(np.int32), want.view(np.int32))
