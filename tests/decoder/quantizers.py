"""Quantized matrices, and checkpoints of them, written without a line of the code under test.

Every quantizer takes float32 [.., r, c] and gives the tensors a release would hold, suffix -> (type, array), and the
values they stand for, computed with torch or plain numpy. Scales and codes need not be good ones, only valid.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

Arrays = dict[str, np.ndarray]
Stored = dict[str, tuple[str, np.ndarray]]
Quantizer = Callable[[np.ndarray], tuple[Stored, np.ndarray]]

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
ORDER = np.random.default_rng(3)


def bf16(a: np.ndarray) -> np.ndarray:
    """Rounded to BF16, as float32."""
    out: np.ndarray = torch.from_numpy(np.ascontiguousarray(a, np.float32)).bfloat16().float().numpy()
    return out


def raw(codec: str, a: np.ndarray) -> bytes:
    if codec == "BF16":
        return bytes(torch.from_numpy(np.ascontiguousarray(a)).bfloat16().view(torch.uint16).numpy().tobytes())
    return a.tobytes()


def e4m3(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bytes and values."""
    codes = torch.from_numpy(np.ascontiguousarray(a, np.float32)).clamp(-448, 448).to(torch.float8_e4m3fn)
    return codes.view(torch.uint8).numpy(), codes.float().numpy()


def powers(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The next power of two, as an E8M0 byte and as its value."""
    power = np.ceil(np.log2(np.maximum(a, 1e-20))).astype(np.int32)
    return (power + 127).astype(np.uint8), np.ldexp(np.float32(1), power).astype(np.float32)


def nearest(a: np.ndarray) -> np.ndarray:
    """E2M1 codes."""
    return np.abs(a[..., None] - E2M1).argmin(-1).astype(np.uint8)


def pairs(codes: np.ndarray) -> np.ndarray:
    return codes[..., 0::2] | codes[..., 1::2] << 4


def grouped(a: np.ndarray, group: int) -> np.ndarray:
    return a.reshape(*a.shape[:-1], -1, group)


def fp8(a: np.ndarray, *, kind: str = "F32", suffix: str = "_scale_inv", block: int = 128) -> tuple[Stored, np.ndarray]:
    """A grid of scales: F32, BF16, or F8_E8M0."""
    rows, columns = a.shape[-2:]
    padded = np.pad(np.abs(a), [(0, 0)] * (a.ndim - 2) + [(0, -rows % block), (0, -columns % block)])
    shape = (*a.shape[:-2], padded.shape[-2] // block, block, padded.shape[-1] // block, block)
    largest = padded.reshape(shape).max((-1, -3)) / np.float32(448)
    exponents, scale = powers(largest)
    if kind != "F8_E8M0":
        scale = bf16(largest) if kind == "BF16" else largest
    spread = scale.repeat(block, -2).repeat(block, -1)[..., :rows, :columns]
    codes, values = e4m3(a / spread)
    return {"": ("F8_E4M3", codes), suffix: (kind, exponents if kind == "F8_E8M0" else scale)}, values * spread


def fp8_channel(a: np.ndarray) -> tuple[Stored, np.ndarray]:
    scale = bf16(np.abs(a).max(-1, keepdims=True) / np.float32(448))
    codes, values = e4m3(a / scale)
    return {"": ("F8_E4M3", codes), "_scale": ("BF16", scale)}, values * scale


def fp4(a: np.ndarray) -> tuple[Stored, np.ndarray]:
    """DeepSeek-V4's experts."""
    groups = grouped(a, 32)
    exponents, scale = powers(np.abs(groups).max(-1) / 6)
    codes = nearest(groups / scale[..., None])
    values = (E2M1[codes] * scale[..., None]).reshape(a.shape)
    return {"": ("I8", pairs(codes.reshape(a.shape)).view(np.int8)), ".scale": ("F8_E8M0", exponents)}, values


def nvfp4(a: np.ndarray, *, library: str) -> tuple[Stored, np.ndarray]:
    """ModelOpt's, whose second scale multiplies, or compressed-tensors', whose divides."""
    groups = grouped(a, 16)
    largest = np.abs(groups).max(-1)
    multiplies = library == "modelopt"
    second = np.float32(largest.max() / (6 * 448) if multiplies else 6 * 448 / largest.max())
    data, scale = e4m3(largest / 6 / second if multiplies else largest / 6 * second)
    both = scale * second if multiplies else scale / second
    codes = nearest(groups / np.where(both == 0, 1, both)[..., None])
    packed, values = pairs(codes.reshape(a.shape)), (E2M1[codes] * both[..., None]).reshape(a.shape)
    if multiplies:
        tail: Stored = {"_scale_2": ("F32", np.array(second)), ".input_scale": ("F32", np.array(second))}
        return {"": ("U8", packed), "_scale": ("F8_E4M3", data), **tail}, values
    tail = {"_global_scale": ("F32", second.reshape(1)), ".input_global_scale": ("F32", second.reshape(1))}
    return {"_packed": ("U8", packed), "_scale": ("F8_E4M3", data), **tail}, values


def words(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes as one stream of bits a row, the lowest first, in words of 32."""
    stream = (codes[..., None] >> np.arange(bits, dtype=np.uint8) & 1).reshape(*codes.shape[:-1], -1)
    stream = np.pad(stream, [(0, 0)] * (codes.ndim - 1) + [(0, -stream.shape[-1] % 32)])
    return np.packbits(stream, axis=-1, bitorder="little").view("<u4")


def integers(
    a: np.ndarray, *, bits: int = 4, group: int = 0, symmetric: bool = True, reorder: bool = False, kind: str = "F32"
) -> tuple[Stored, np.ndarray]:
    """pack-quantized; `group` 0 is one scale a row, `reorder` gives columns of any place a group."""
    place = np.argsort(ORDER.permutation(a.shape[-1]) // group, kind="stable") if reorder else np.arange(a.shape[-1])
    groups = grouped(a[..., place], group or a.shape[-1])
    top = 1 << (bits - 1)
    low, high = np.minimum(groups.min(-1), 0), np.maximum(groups.max(-1), 0)
    scale = np.maximum(-low, high) / (top - 0.5) if symmetric else (high - low) / (2 * top - 1)
    scale = bf16(scale) if kind == "BF16" else scale.astype(np.float32)
    zero = np.zeros_like(scale) if symmetric else np.clip(np.rint(-top - low / scale), -top, top - 1)
    codes = np.clip(np.rint(groups / scale[..., None] + zero[..., None]), -top, top - 1)
    made = ((codes - zero[..., None]) * scale[..., None]).astype(np.float32).reshape(a.shape)
    back = np.argsort(place)
    unsigned = (codes + top).astype(np.uint8).reshape(a.shape)[..., back]
    stored: Stored = {
        "_packed": ("I32", words(unsigned, bits).view("<i4")),
        "_scale": (kind, scale),
        "_shape": ("I64", np.array(a.shape)),
    }
    if not symmetric:
        down = np.swapaxes(words(np.swapaxes((zero + top).astype(np.uint8), -1, -2), bits), -1, -2)
        stored["_zero_point"] = ("I32", np.ascontiguousarray(down).view("<i4"))
    if reorder:
        stored["_g_idx"] = ("I32", (back // group).astype(np.int32))
    return stored, made[..., back]


def int8(a: np.ndarray) -> tuple[Stored, np.ndarray]:
    """int-quantized."""
    scale = (np.abs(a).max(-1, keepdims=True) / np.float32(127)).astype(np.float32)
    codes = np.rint(a / scale).astype(np.int8)
    return {"": ("I8", codes), "_scale": ("F32", scale)}, codes.astype(np.float32) * scale


def mlx_affine(a: np.ndarray, *, bits: int = 4, group: int = 64, kind: str = "BF16") -> tuple[Stored, np.ndarray]:
    """Scales of both signs. BF16: rounded after the product and after the sum."""
    rounded = bf16 if kind == "BF16" else np.asarray
    groups = grouped(a, group)
    low, high = groups.min(-1), groups.max(-1)
    down = np.abs(low) < np.abs(high)
    scale = rounded(np.where(down, low - high, high - low) / np.float32((1 << bits) - 1)).astype(np.float32)
    bias = rounded(np.where(down, high, low)).astype(np.float32)
    codes = np.clip(np.rint((groups - bias[..., None]) / scale[..., None]), 0, (1 << bits) - 1).astype(np.uint8)
    values = rounded(rounded(codes * scale[..., None]) + bias[..., None]).astype(np.float32).reshape(a.shape)
    packed = words(codes.reshape(a.shape), bits)
    return {"": ("U32", packed), ".scales": (kind, scale), ".biases": (kind, bias)}, values


def mlx_floats(a: np.ndarray, *, mode: str) -> tuple[Stored, np.ndarray]:
    """mxfp4, mxfp8 or nvfp4."""
    if mode == "mxfp8":
        exponents, scale = powers(np.abs(grouped(a, 32)).max(-1) / 448)
        codes, values = e4m3((grouped(a, 32) / scale[..., None]).reshape(a.shape))
        made = (grouped(values, 32) * scale[..., None]).reshape(a.shape)
        return {"": ("U32", codes.view("<u4")), ".scales": ("U8", exponents)}, made
    groups = grouped(a, 32 if mode == "mxfp4" else 16)
    largest = np.abs(groups).max(-1) / 6
    data, scale = powers(largest) if mode == "mxfp4" else e4m3(np.maximum(largest, 2**-9))
    codes = nearest(groups / scale[..., None])
    made = (E2M1[codes] * scale[..., None]).reshape(a.shape)
    return {"": ("U32", pairs(codes.reshape(a.shape)).view("<u4")), ".scales": ("U8", data)}, made


def write(folder: Path, tensors: Stored, config: dict[str, Any], metadata: str = "pt") -> Path:
    """A folder of one safetensors file and a config.json."""
    folder.mkdir(parents=True)
    header: dict[str, Any] = {"__metadata__": {"format": metadata}}
    parts: list[bytes] = []
    end = 0
    for name, (codec, array) in tensors.items():
        parts.append(raw(codec, np.ascontiguousarray(array)))
        header[name] = {
            "dtype": codec,
            "shape": list(array.shape),
            "data_offsets": [end, end + len(parts[-1])],
        }
        end += len(parts[-1])
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(b"".join([len(text).to_bytes(8, "little"), text, *parts]))
    (folder / "config.json").write_text(json.dumps(config))
    return folder
