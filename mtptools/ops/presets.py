"""The mixtures that people name: which type llama-quantize gives each matrix of a block.

Read from llama.cpp's `src/llama-quant.cpp` (ggml 0.25.3): rules by a tensor's name, its place among the layers, and
the model's sizes. A name that is also a type (Q4_K, Q6_K, IQ4_XS) is that type for every matrix, here and everywhere
in this package; these are the names that are none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from mtptools.gguf_blocks import block_of

__all__ = ["KEPT", "PRESETS", "Mixture", "preset_type"]

# What each is mostly made of.
PRESETS: Final[Mapping[str, str]] = {
    "IQ2_M": "IQ2_S",
    "IQ3_XS": "IQ3_S",
    "IQ3_M": "IQ3_S",
    "Q2_K_S": "Q2_K",
    "Q3_K_S": "Q3_K",
    "Q3_K_M": "Q3_K",
    "Q3_K_L": "Q3_K",
    "Q4_K_S": "Q4_K",
    "Q4_K_M": "Q4_K",
    "Q5_K_S": "Q5_K",
    "Q5_K_M": "Q5_K",
    "MXFP4_MOE": "MXFP4",
}

# Parts of names of matrices that llama-quantize leaves as they are, beside norms and routers (`Role.kind`).
KEPT: Final = ("ffn_gate_inp", "indexer.k_proj.weight", "indexer.q_proj.weight", "altup", "laurel", "ssm_conv1d")

_VALUES: Final = ("attn_qkv.weight", "attn_kv_b.weight", "attn_v.weight")
_CATEGORIES: Final = (
    *((name, "values") for name in _VALUES),
    ("attn_k.weight", "keys"),
    ("attn_q.weight", "queries"),
    ("attn_output.weight", "attention_out"),
    ("ffn_up", "up"),
    ("ffn_gate", "gate"),
    ("ffn_down", "down"),
)


@dataclass(frozen=True)
class Mixture:
    """What the rules ask about a model.

    layers     blocks, the head's included
    values     names of the matrices that make attention values, in the order of blocks: the rules count them
    groups     query heads per key head
    experts    per layer
    """

    layers: int
    values: tuple[str, ...]
    groups: int
    experts: int

    @classmethod
    def of(cls, names: Collection[str], layers: int, groups: int, experts: int) -> Mixture:
        """From the names of all tensors, trunk and head."""
        values = [name for name in names if name.endswith(_VALUES) and block_of(name) is not None]
        return cls(layers, tuple(sorted(values, key=_block)), groups, experts)


def _block(name: str) -> int:
    at = block_of(name)
    return at[0] if at is not None else -1


@dataclass(frozen=True)
class _Where:
    """One tensor in its model."""

    name: str
    mixture: Mixture

    @property
    def layer(self) -> int:
        return _block(self.name)

    @property
    def value(self) -> tuple[int, int]:
        """Its number among the matrices of values, and how many there are; as a block's where they are not known."""
        values = self.mixture.values
        return (values.index(self.name), len(values)) if self.name in values else (self.layer, self.mixture.layers)


def _more(at: int, of: int) -> bool:
    """The first eighth, the last eighth, and every third between."""
    return at < of // 8 or at >= 7 * of // 8 or (at - of // 8) % 3 == 2


_CONDITIONS: Final[Mapping[str, Callable[[_Where], bool]]] = {
    "": lambda w: True,
    "8 experts": lambda w: w.mixture.experts == 8,
    "not 8 experts": lambda w: w.mixture.experts != 8,
    "4 groups": lambda w: w.mixture.groups >= 4,
    "4 groups or 4 experts": lambda w: w.mixture.groups >= 4 or w.mixture.experts >= 4,
    "more": lambda w: _more(w.layer, w.mixture.layers),
    "more, 8 experts": lambda w: w.mixture.experts == 8 and _more(w.layer, w.mixture.layers),
    "first eighth": lambda w: w.layer < w.mixture.layers // 8,
    "first sixteenth": lambda w: w.layer < w.mixture.layers // 16,
    "middle": lambda w: w.mixture.layers // 8 <= w.layer < 7 * w.mixture.layers // 8,
    "more values": lambda w: _more(*w.value),
    "first 2 values": lambda w: w.value[0] < 2,
    "first 4 values": lambda w: w.value[0] < 4,
}

_MIXED: Final = ("Q3_K_S", "Q3_K_M", "Q4_K_S", "Q4_K_M", "IQ3_XS", "IQ3_M")
# (category, presets, condition, type); the first row that fits, else the type the preset is mostly made of. Left out:
# IQ2_M gives the first matrices of a file more, which are never a head's.
_RULES: Final = (
    ("values", ("IQ2_M",), "4 groups or 4 experts", "Q4_K"),
    ("values", ("IQ2_M",), "", "IQ3_S"),
    ("values", tuple(name for name in PRESETS if name not in ("IQ2_M", "MXFP4_MOE")), "8 experts", "Q8_0"),
    ("values", ("Q2_K_S", "IQ3_XS"), "4 groups", "Q4_K"),
    ("values", ("IQ3_M",), "", "Q4_K"),
    ("values", ("Q3_K_M",), "first 2 values", "Q5_K"),
    ("values", ("Q3_K_M",), "", "Q4_K"),
    ("values", ("Q3_K_L",), "", "Q5_K"),
    ("values", ("Q4_K_M", "Q5_K_M"), "more values", "Q6_K"),
    ("values", ("Q4_K_S",), "first 4 values", "Q5_K"),
    ("keys", ("IQ2_M",), "8 experts", "Q4_K"),
    ("keys", tuple(name for name in PRESETS if name not in ("IQ2_M", "MXFP4_MOE")), "8 experts", "Q8_0"),
    ("keys", ("IQ3_XS",), "", "IQ3_XXS"),
    ("queries", ("IQ3_XS",), "", "IQ3_XXS"),
    ("down", ("Q2_K_S", "IQ3_M"), "first eighth", "Q4_K"),
    ("down", ("IQ3_M",), "more, 8 experts", "Q4_K"),
    ("down", ("Q3_K_M",), "first sixteenth", "Q5_K"),
    ("down", ("Q3_K_M",), "", "Q4_K"),
    ("down", ("Q3_K_L",), "", "Q5_K"),
    ("down", ("Q4_K_M", "Q5_K_M"), "more", "Q6_K"),
    ("down", ("Q4_K_S",), "first eighth", "Q5_K"),
    ("attention_out", ("IQ2_M",), "8 experts", "Q5_K"),
    ("attention_out", ("IQ2_M",), "", "IQ3_S"),
    ("attention_out", _MIXED, "8 experts", "Q5_K"),
    ("attention_out", ("Q3_K_M", "IQ3_M"), "", "Q4_K"),
    ("attention_out", ("Q3_K_L",), "not 8 experts", "Q5_K"),
    ("gate", ("IQ3_XS",), "middle", "IQ3_XXS"),
    ("up", ("IQ3_XS",), "middle", "IQ3_XXS"),
)


def preset_type(preset: str, name: str, dimensions: int, mixture: Mixture) -> str:
    """The type llama-quantize gives one matrix of a block.

    preset      a key of PRESETS
    name        the tensor's GGUF name
    dimensions  3 for stacked experts
    """
    if preset == "MXFP4_MOE":
        return "MXFP4" if dimensions > 2 else "Q8_0"
    category = next((kind for part, kind in _CATEGORIES if part in name), "other")
    where = _Where(name, mixture)
    for kind, presets, condition, codec in _RULES:
        if kind == category and preset in presets and _CONDITIONS[condition](where):
            return codec
    return PRESETS[preset]
