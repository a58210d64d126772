"""8-bit floats: every code against torch's own types, and scales laid out for MX and back."""

from __future__ import annotations

import numpy as np
import pytest

from mtptools.codecs import decode_bytes, fp8
from mtptools.errors import CodecError

TORCH = {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu"}
CODES = np.arange(256, dtype=np.uint8)


def bits(values: np.ndarray) -> list[int]:
    """Bits of float32 values, every NaN as one."""
    values = np.where(np.isnan(values), np.float32(np.nan), values).astype(np.float32)
    return values.view(np.uint32).tolist()


@pytest.mark.parametrize("codec", TORCH)
def test_every_code_is_torchs(codec: str) -> None:
    torch = pytest.importorskip("torch")
    theirs = torch.from_numpy(CODES.copy()).view(getattr(torch, TORCH[codec])).float().numpy()
    ours = decode_bytes(CODES.tobytes(), codec, 16)
    assert ours.shape == (16, 16)
    assert bits(ours.reshape(-1)) == bits(theirs)


@pytest.mark.parametrize(
    ("codec", "code", "value"),
    [
        ("F8_E4M3", 0x01, 2.0**-9),
        ("F8_E4M3", 0x38, 1.0),
        ("F8_E4M3", 0x7E, 448.0),
        ("F8_E4M3", 0xFE, -448.0),
        ("F8_E5M2", 0x7B, 57344.0),
        ("F8_E5M2", 0x7C, np.inf),
        ("F8_E8M0", 0, 2.0**-127),
        ("F8_E8M0", 127, 1.0),
        ("F8_E8M0", 254, 2.0**127),
    ],
)
def test_values_of_the_specification(codec: str, code: int, value: float) -> None:
    assert fp8.decode(bytes([code]), codec).tolist() == [value]


def test_nan_codes() -> None:
    assert np.flatnonzero(np.isnan(fp8.decode(CODES, "F8_E4M3"))).tolist() == [0x7F, 0xFF]
    assert np.flatnonzero(np.isnan(fp8.decode(CODES, "F8_E8M0"))).tolist() == [255]


def test_encode_rounds_as_torch_below_saturation() -> None:
    torch = pytest.importorskip("torch")
    grid = np.unique(np.abs(fp8.decode(CODES, "F8_E4M3")[:0x7F]))
    between = (grid[1:] + grid[:-1]) / 2  # ties
    beside = [np.nextafter(between, np.float32(np.inf)), np.nextafter(between, np.float32(0))]
    random = np.random.default_rng(0).standard_normal(20000).astype(np.float32) * np.float32(2.0) ** np.tile(
        np.arange(-12, 8, dtype=np.float32), 1000
    )
    values = np.concatenate([grid, between, *beside, random[np.abs(random) <= 448]]).astype(np.float32)
    values = np.concatenate([values, -values])
    theirs = torch.from_numpy(values).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    assert fp8.encode_e4m3(values).tolist() == theirs.tolist()


def test_encode_saturates_and_keeps_nan() -> None:
    values = np.array([[464.0, 1e30, np.inf], [-449.0, -np.inf, np.nan]], np.float32)
    assert fp8.encode_e4m3(values).tolist() == [[0x7E, 0x7E, 0x7E], [0xFE, 0xFE, 0x7F]]


def test_encode_inverts_decode() -> None:
    finite = CODES[~np.isin(CODES, (0x7F, 0xFF))]
    assert fp8.encode_e4m3(fp8.decode(finite, "F8_E4M3")).tolist() == finite.tolist()


@pytest.mark.parametrize(("rows", "columns"), [(256, 256), (300, 160), (5, 32)])
def test_scales_of_blocks_as_mx_and_back(rows: int, columns: int) -> None:
    shape = (2, -(-rows // 128), -(-columns // 128))
    scale = np.random.default_rng(1).integers(0, 255, shape, np.uint8)
    spread = fp8.spread_scale(scale, rows, columns, (128, 128))
    assert spread.shape == (2, rows, columns // 32)
    for row, group in ((0, 0), (rows - 1, columns // 32 - 1), (min(127, rows - 1), min(3, columns // 32 - 1))):
        assert spread[1, row, group] == scale[1, row // 128, group * 32 // 128]
    assert fp8.gather_scale(spread, (128, 128)).tolist() == scale.tolist()


def test_scales_that_differ_in_a_block_are_refused() -> None:
    spread = np.full((128, 4), 127, np.uint8)
    spread[100, 2] += 1
    with pytest.raises(CodecError, match="differ within a block"):
        fp8.gather_scale(spread, (128, 128))


def test_rows_that_are_not_groups_are_refused() -> None:
    with pytest.raises(CodecError, match="not groups of 32"):
        fp8.spread_scale(np.zeros((1, 1), np.uint8), 4, 40, (128, 128))
