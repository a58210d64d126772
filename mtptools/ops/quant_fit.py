"""Which encoding runtimes read of a head beside a given trunk: what its configuration says of all quantized matrices.

A runtime builds each module by the configuration before it looks at a tensor. A head in another encoding than the
configuration's does not load, or is read as something else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mtptools.checkpoint import Checkpoint
from mtptools.errors import CodecError
from mtptools.ops.declare import modelopt_config
from mtptools.ops.quant_own import OWN, is_own
from mtptools.ops.quant_places import Place, places, unknown_methods
from mtptools.quantized import BLOCK, Encoding, encoding_named
from mtptools.quantized.schemes import FLOAT

__all__ = ["Fit", "encoding_for", "fit_of"]


@dataclass(frozen=True)
class Fit:
    """encoding  name of the one that is read, None for none
    why       what the configuration says
    scales    type of the trunk's own scales, "UE8M0" for powers of two in F32
    own       the trunk is float: the head may have a configuration of its own
    """

    encoding: str | None
    why: str
    scales: str = "F32"
    own: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Of all encodings that are read."""
        return tuple(OWN) if self.own else (self.encoding,) if self.encoding else ()


# Of a configuration's table: (name of the encoding or None, what it says).
Answer = tuple[str | None, str]


def _fp8(tree: Mapping[str, Any]) -> Answer:
    block, scheme = tree.get("weight_block_size"), tree.get("activation_scheme", "dynamic")
    if block != list(BLOCK):
        return None, f"FP8 with weight_block_size {block}, not {list(BLOCK)}"
    if scheme != "dynamic":
        return None, f"FP8 with activation_scheme {scheme}: every module needs an input scale, from calibration"
    return "fp8-block128", "FP8 in blocks of 128x128"


def _compressed_tensors(tree: Mapping[str, Any]) -> Answer:
    groups = tree.get("config_groups")
    groups = [group for group in groups.values() if isinstance(group, dict)] if isinstance(groups, dict) else []
    answers = [_group(group, str(group.get("format") or tree.get("format"))) for group in groups]
    if not answers:
        return None, "compressed-tensors without config_groups"
    if len(set(answers)) > 1:
        return None, f"compressed-tensors with {len(answers)} config_groups that differ"
    return answers[0]


def _group(group: Mapping[str, Any], form: str) -> Answer:
    """One config group. A BF16 head beside W4A4 stays the answer: vLLM's `CompressedTensorsW4A4Fp4` takes a missing
    input_global_scale from memory that nobody wrote, and has no default."""
    weights, active = group.get("weights"), group.get("input_activations")
    weights = weights if isinstance(weights, dict) else {}
    kind, bits, size = weights.get("type", "int"), weights.get("num_bits"), weights.get("group_size")
    said = f"compressed-tensors {form}, {bits}-bit {kind} in groups of {size}"
    if (kind, bits, form) == ("int", 4, "pack-quantized"):
        order = weights.get("actorder")
        if weights.get("symmetric") is False:
            return None, f"{said} with zero points, which are read here and not written"
        if order not in (None, "static", "weight"):
            return None, f"{said}, columns reordered (actorder {order})"
        if active:
            return None, f"{said} and quantized activations"
        if weights.get("strategy", "group") != "group" or size not in (32, 64, 128):
            return None, f"{said}: 32, 64 and 128 are written"
        return f"int4-g{size}", said
    if (kind, bits, size, form) == ("float", 4, 16, "nvfp4-pack-quantized"):
        if active:
            return None, f"{said}, and 4-bit activations: every module needs an input_global_scale, from calibration"
        return "nvfp4", said
    return None, said


def _modelopt(tree: Mapping[str, Any]) -> Answer:
    """W4A16_NVFP4 is weights alone; of NVFP4, vLLM and SGLang want an input_scale of every module, with no default."""
    algo = str(tree.get("quant_algo") or "").upper()
    if algo == "W4A16_NVFP4":
        return "nvfp4-modelopt", "ModelOpt W4A16_NVFP4"
    if algo == "NVFP4":
        return None, "ModelOpt NVFP4, with 4-bit activations: every module needs an input_scale, from calibration"
    return None, f"ModelOpt {algo or 'without quant_algo'}"


_METHODS: Final[Mapping[str, Callable[[Mapping[str, Any]], Answer]]] = {
    "fp8": _fp8,
    "compressed-tensors": _compressed_tensors,
    "modelopt": _modelopt,
}


def fit_of(trunk: Checkpoint) -> Fit:
    """What beside this trunk is read, in HF."""
    if is_own(trunk):
        return Fit(None, "not quantized", own=True)
    found = places(trunk.config, modelopt_config(trunk))
    if not found:
        unknown = unknown_methods(trunk.config)
        why = f"quantized by {', '.join(unknown)}" if unknown else "not quantized"
        return Fit(None, f"{why}: a runtime looks for no scales that are written here" if unknown else why)
    encoding, why = _answer(found[0])
    if encoding == "fp8-block128" and any(name.endswith(".scale") for name in trunk):
        return Fit(None, "FP8 with scales of its own kind (X.scale, DeepSeek-V4), which are read here and not written")
    return Fit(encoding, why, _scales(trunk, found[0].tree))


def _answer(place: Place) -> Answer:
    read = _METHODS.get(place.method)
    return (None, f"quantized by {place.method}") if read is None else read(place.tree)


def _scales(trunk: Checkpoint, tree: Mapping[str, Any]) -> str:
    if tree.get("scale_fmt") == "ue8m0":
        return "UE8M0"
    stored = next((trunk[name].codec for name in trunk if name.endswith(".weight_scale_inv")), "F32")
    return stored if stored in FLOAT else "F32"


def encoding_for(text: str, trunk: Checkpoint, fit: Fit | None, where: str = "--head") -> Encoding:
    """What was typed, as the encoding that runtimes read beside `trunk`; `fit` is its own, None in MLX.

    where  the option it was typed at

    Raises UsageError for no encoding of the dialect, CodecError for one that the trunk's configuration does not read.
    """
    asked = encoding_named(text, "mlx" if trunk.dialect == "mlx" else "hf", where)
    if fit is None or asked.is_float or asked.name in fit.names:
        return asked
    kind = asked.name.partition("-")[0]
    if fit.encoding is not None and text.lower() in _OPEN and fit.encoding.startswith(kind):
        return encoding_named(fit.encoding, "hf")
    types = ", ".join([*fit.names, *FLOAT])
    raise CodecError(
        f"runtimes would not read a head in {asked.name}: the trunk is {fit.why}",
        where=trunk.path,
        hint=f"types that fit beside it: {types}; or put the head onto a trunk that is quantized so",
    )


# What leaves open which of several encodings is meant.
_OPEN: Final = ("int4", "w4a16", "nvfp4", "nvfp4a16")
