"""Which codes and scales make the values of a weight: a table, and the tensors that no row of it describes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from mtptools.tensors import Tensor

__all__ = ["BETTER", "CODES", "FLOAT", "INTEGERS", "REFUSED", "SCHEMES", "Scheme", "scheme_of"]

FLOAT: Final = ("F32", "BF16", "F16")
CODES: Final = ("I8", "U8", "I32", "U32")  # integers that are never values of a weight
_FP8: Final = ("F8_E4M3", "F8_E5M2")
_E8M0: Final = ("F8_E8M0", "U8")  # older safetensors have no name for the type


@dataclass(frozen=True)
class Scheme:
    """How codes and scales make values.

    weight   types of the codes; `packed`: two FP4 a byte, the stored row half as wide as the logical one
    scale    suffix of the scales, and `scales` their types
    group    values of a row that share a scale; None: the shapes say (block, channel, tensor)
    second   suffix of a scale of the scales; `divides`: it divides them
    """

    name: str
    weight: tuple[str, ...]
    scale: str
    scales: tuple[str, ...]
    group: int | None = None
    packed: bool = False
    second: str | None = None
    divides: bool = False
    source: str = ""


SCHEMES: Final = (
    Scheme(
        "fp8", _FP8, ".weight_scale_inv", (*FLOAT, "F8_E8M0"),
        source="transformers FineGrainedFP8Config, weight_block_size; DeepSeek-V3, MiMo-V2, Step-3.7-FP8",
    ),
    Scheme(
        "mxfp8", _FP8, ".weight_scale_inv", ("U8",), 32,
        source="transformers Fp8Dequantize: exponents stored as bytes",
    ),
    Scheme(
        "fp8", _FP8, ".weight_scale", FLOAT,
        source="compressed-tensors float-quantized, ModelOpt FP8; GLM-4.5-FP8 [r, 1]",
    ),
    Scheme("mxfp8", _FP8, ".weight_scale", _E8M0, 32, source="compressed-tensors mxfp8-quantized"),
    Scheme(
        "fp8-e8m0", _FP8, ".scale", ("F8_E8M0",), source="DeepSeek-V4: 128x128 blocks, scale_fmt ue8m0",
    ),
    Scheme("fp8", _FP8, ".scale", FLOAT, source="DeepSeek-V4-Base: the same with float32 scales"),
    Scheme(
        "fp4-e8m0", ("I8", "U8"), ".scale", _E8M0, 32, True,
        source="DeepSeek-V4 experts, expert_dtype fp4: I8 of two E2M1, the low nibble first",
    ),
    Scheme(
        "fp4-e8m0", ("U8",), ".weight_scale", ("U8", "F8_E8M0"), 32, True,
        source="compressed-tensors mxfp4-pack-quantized; llama.cpp repacks it as DeepSeek-V4's experts",
    ),
    Scheme(
        "nvfp4", ("U8",), ".weight_scale", ("F8_E4M3",), 16, True, ".weight_scale_2",
        source="ModelOpt NVFP4QTensor: code * (weight_scale * weight_scale_2)",
    ),
    Scheme(
        "nvfp4", ("U8",), ".weight_scale", ("F8_E4M3",), 16, True, ".weight_global_scale", divides=True,
        source="compressed-tensors nvfp4-pack-quantized: code * (weight_scale / weight_global_scale)",
    ),
    Scheme("nvfp4-gguf", ("NVFP4",), ".scale", ("F32",), source="llama.cpp: ModelOpt's second scale, [1] or [experts]"),
)  # fmt: skip

# What to do about a weight that is not read.
BETTER: Final = "use a BF16 or FP8 release of this model, or a GGUF of it"

# Of compressed-tensors' integers (`integers.py`), beside their scales.
INTEGERS: Final = (".weight_shape", ".weight_zero_point", ".weight_g_idx")

# Of tensors that say that values are made in a way that is not known here.
REFUSED: Final[Mapping[str, str]] = {
    ".g_idx": "GPTQ",
    ".qzeros": "GPTQ or AWQ",
    ".scale_packed": "compressed-tensors marlin-24 (2:4 sparse)",
    ".bitmask": "compressed-tensors sparse-bitmask",
    ".global_scale": "MLX nvfp4 with a global scale",
    ".pre_quant_scale": "ModelOpt AWQ (pre_quant_scale)",
    ".weight.absmax": "bitsandbytes 4-bit",
    ".weight.quant_map": "bitsandbytes 4-bit",
    ".weight.nested_absmax": "bitsandbytes 4-bit",
    ".weight.nested_quant_map": "bitsandbytes 4-bit",
    ".weight.quant_state.bitsandbytes__nf4": "bitsandbytes NF4",
    ".weight.quant_state.bitsandbytes__fp4": "bitsandbytes FP4",
    ".SCB": "bitsandbytes 8-bit",
    ".weight_format": "bitsandbytes 8-bit",
}


def scheme_of(weight: Tensor, beside: Mapping[str, Tensor]) -> Scheme | None:
    """The row of SCHEMES that describes a weight; None when it has no scale that says so."""
    for scheme in SCHEMES:
        scale = beside.get(scheme.scale)
        whole = scheme.second is None or scheme.second in beside
        if whole and weight.codec in scheme.weight and scale is not None and scale.codec in scheme.scales:
            return scheme
    return None
