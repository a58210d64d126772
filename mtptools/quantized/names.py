"""What the tensors beside a weight are called."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Final

from mtptools.quantized.schemes import INTEGERS, REFUSED, SCHEMES
from mtptools.tensors import Tensor

__all__ = ["CARRIED", "COMPANIONS", "STORED", "beside", "companions", "stored_name", "value_name"]

# Suffixes that hold a weight's codes in place of ".weight".
STORED: Final = (".weight", ".weight_packed", ".qweight")
# Of tensors that do not change the weight's values.
CARRIED: Final = (".input_scale", ".input_global_scale", ".q_scale", ".k_scale", ".v_scale")
# Every suffix of a tensor that belongs to a weight.
COMPANIONS: Final = tuple(
    dict.fromkeys(
        [suffix for scheme in SCHEMES for suffix in (scheme.scale, scheme.second) if suffix is not None]
        + [".scales", ".biases", *CARRIED, *INTEGERS, *REFUSED]
    )
)


def _stem(name: str) -> str | None:
    """X of X.weight, however it is stored; None for a parameter with a name of its own (experts.gate_up_proj)."""
    return next((name.removesuffix(suffix) for suffix in STORED if name.endswith(suffix)), None)


def value_name(name: str) -> str:
    """X.weight of X.weight, X.weight_packed, X.qweight; any other name is itself."""
    stem = _stem(name)
    return name if stem is None else f"{stem}.weight"


def _names(name: str) -> dict[str, str]:
    """What each companion of weight `name` would be called: suffix -> name."""
    stem = _stem(name)
    if stem is not None:
        return {suffix: stem + suffix for suffix in COMPANIONS}
    own = [suffix for suffix in COMPANIONS if suffix.startswith(".weight_")]
    return {suffix: name + suffix.removeprefix(".weight") for suffix in own}


def companions(name: str, names: Container[str]) -> tuple[str, ...]:
    """The tensors of `names` that belong to weight `name`: its scales, and what is carried along."""
    return tuple(full for full in _names(name).values() if full in names)


def beside(name: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same as suffix -> tensor, as `logical` takes them."""
    return {suffix: tensors[full] for suffix, full in _names(name).items() if full in tensors}


def stored_name(name: str, names: Container[str]) -> str:
    """The tensor of `names` that holds weight `name`: X.weight, or X.weight_packed, X.qweight in its place."""
    stem = _stem(name)
    if name in names or stem is None:
        return name
    return next((stem + suffix for suffix in STORED if stem + suffix in names), name)
