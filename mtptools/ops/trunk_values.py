"""Trunk weights that GGUF orders otherwise than their role's layout says: value heads of Gated DeltaNet.

Several value heads share a key head. Hugging Face keeps those of one key head together; llama.cpp repeats the keys head
by head, and so wants value head v of key head k at v * key_heads + k (conversion/qwen.py, llama.cpp#19468). Qwen3-Next
keeps the order of Hugging Face, and interleaves four projections by key head instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from mtptools.errors import CorruptError
from mtptools.families import Role
from mtptools.hparams import HParams
from mtptools.tensors import Tensor
from mtptools.views import pick_columns, pick_rows, reshaped

__all__ = ["trunk_tensors"]


@dataclass(frozen=True, slots=True)
class ValueHeads:
    """Where the value heads stand in a role.

    axis    along rows or columns; the values of a vector are its columns
    each    rows or columns a head, as a size expression
    before  rows that come first and stay (queries and keys)
    """

    axis: Literal["rows", "columns"]
    each: str | int
    before: str | int = 0


_KEYS: Final = "2*linear_k_heads*linear_k_head_dim"
_QWEN35: Final = {
    "attn_qkv.weight": ValueHeads("rows", "linear_v_head_dim", _KEYS),
    "attn_gate.weight": ValueHeads("rows", "linear_v_head_dim"),
    "ssm_beta.weight": ValueHeads("rows", 1),
    "ssm_alpha.weight": ValueHeads("rows", 1),
    "ssm_conv1d.weight": ValueHeads("rows", "linear_v_head_dim", _KEYS),
    "ssm_dt.bias": ValueHeads("columns", 1),
    "ssm_a": ValueHeads("columns", 1),
    "ssm_out.weight": ValueHeads("columns", "linear_v_head_dim"),
}
# family -> role -> its value heads, in layers of the kind "linear": full attention has roles of the same names
TILED: Final[Mapping[str, Mapping[str, ValueHeads]]] = {"qwen35": _QWEN35, "qwen35moe": _QWEN35}

# family -> role that holds several, row groups interleaved by key head -> role, and which of the groups are its rows
INTERLEAVED: Final[Mapping[str, Mapping[str, Mapping[str, Sequence[str]]]]] = {
    "qwen3next": {"ssm_in.weight": {"attn_qkv.weight": ("q", "k", "v"), "attn_gate.weight": ("z",)}},
}


def trunk_tensors(role: Role, tensor: Tensor, hparams: HParams, layer: int | None) -> list[tuple[str, Tensor]]:
    """What a trunk role is in GGUF: (name without its block, tensor), one of each as a rule.

    tensor  in canonical layout, as `Found.tensor` gives it
    layer   number of the trunk layer, None outside of layers

    Raises CorruptError when its shape is not what the configuration says.
    """
    shaped = _shaped(role, tensor, hparams)
    family, linear = hparams.family, layer is not None and hparams.layer_types[layer] == "linear"
    parts = INTERLEAVED.get(family, {}).get(role.name)
    if parts is not None:
        return [(name, _taken_out(shaped, groups, hparams, name)) for name, groups in parts.items()]
    heads = TILED.get(family, {}).get(role.name) if linear else None
    if heads is not None and hparams.linear_v_heads != hparams.linear_k_heads:
        shaped = _tiled(shaped, heads, hparams)
    return [(role.name, shaped)]


def _shaped(role: Role, tensor: Tensor, hparams: HParams) -> Tensor:
    """The tensor in the shape of its role: a convolution's kernel has a dimension of 1 more in HF."""
    if not role.shape or "" in role.shape:
        return tensor
    wanted = tuple(hparams.size(size) for size in role.shape)
    if wanted == tensor.shape:
        return tensor
    if [n for n in wanted if n != 1] != [n for n in tensor.shape if n != 1]:
        raise CorruptError(
            f"shape {list(tensor.shape)}; by the configuration it is {list(wanted)}",
            where=role.name,
            hint="config.json and the weights are of different models; mtptools validate lists every such tensor",
        )
    return reshaped(tensor, wanted, tensor.name)


def _order(hparams: HParams) -> list[int]:
    """Numbers of the value heads as GGUF has them in a row: first the first of every key head."""
    keys = hparams.linear_k_heads
    shared = hparams.linear_v_heads // keys
    return [key * shared + value for value in range(shared) for key in range(keys)]


def _tiled(tensor: Tensor, heads: ValueHeads, hparams: HParams) -> Tensor:
    each, before = hparams.size(heads.each), hparams.size(heads.before)
    ranges = [(before + head * each, before + (head + 1) * each) for head in _order(hparams)]
    if heads.axis == "rows":
        return pick_rows(tensor, [(0, before), *ranges], tensor.shape, tensor.name)
    return pick_columns(tensor, [at for low, high in ranges for at in range(low, high)], tensor.name)


def _taken_out(tensor: Tensor, groups: Sequence[str], hparams: HParams, name: str) -> Tensor:
    """Rows of the named groups, every key head's of the first group first."""
    keys, key = hparams.linear_k_heads, hparams.linear_k_head_dim
    value = hparams.linear_v_heads // keys * hparams.linear_v_head_dim
    sizes = {"q": key, "k": key, "v": value, "z": value}
    stride = sum(sizes.values())
    starts = {group: sum(list(sizes.values())[:at]) for at, group in enumerate(sizes)}
    ranges = [
        (head * stride + starts[group], head * stride + starts[group] + sizes[group])
        for group in groups
        for head in range(keys)
    ]
    rows = sum(high - low for low, high in ranges)
    return pick_rows(tensor, ranges, (rows, tensor.shape[-1]), name)
