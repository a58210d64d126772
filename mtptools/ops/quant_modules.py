"""The matrices of a head as modules: which are quantized, where they hang, which belong together."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mtptools.ops.quant_methods import FUSED, Fused
from mtptools.quantized import COMPANIONS

__all__ = ["Module", "experts_of", "fused_groups", "head_modules", "lift", "root_of", "tail_of"]

_FLOAT: Final = ("F64", "F32", "BF16", "F16")
_STORED: Final = (".weight", ".weight_packed", ".qweight")
# Scales of activations and of the cache: they say nothing of the weight.
_ACTIVATIONS: Final = (".input_scale", ".input_global_scale", ".q_scale", ".k_scale", ".v_scale")
# Matrices that no method quantizes: routers, embeddings, output matrices.
_OTHERS: Final = re.compile(
    r"(^|\.)(gate|router|classifier|shared_expert_gate|embed_tokens|embeddings|tok_emb|word_embeddings|lm_head|head"
    r"|shared_head\.output)$"
)
_EXPERT: Final = re.compile(r"(.*\.experts)(?:\.\d+\..*)?")
_ROOT: Final = re.compile(r"(?:.*?\.)??(?:mtp\w*(?=\.|$)|layers\.\d+(?=\.|$))")


@dataclass(frozen=True)
class Module:
    """One linear layer, or fused experts, by its name in the checkpoint."""

    name: str
    quantized: bool


def head_modules(tensors: Mapping[str, tuple[str, int]]) -> list[Module]:
    """The modules of a head that a method may quantize, in the order of `tensors`.

    tensors  name -> codec as safetensors spells it, number of dimensions; all of the head's, scales included
    """
    out: dict[str, bool] = {}
    for name, (codec, dimensions) in tensors.items():
        module = _module(name, dimensions, tensors)
        if module is not None and not _OTHERS.search(module):
            scaled = any(beside in tensors for beside in _scales(name))
            out[module] = out.get(module, False) or scaled or codec not in _FLOAT
    return [Module(name, quantized) for name, quantized in out.items()]


def _module(name: str, dimensions: int, names: Mapping[str, tuple[str, int]]) -> str | None:
    suffix = next((s for s in _STORED if name.endswith(s)), None)
    if suffix is not None:
        return name.removesuffix(suffix) if dimensions > 1 else None
    own = re.fullmatch(r"(.*\.experts)\.\w+", name)  # one tensor of all experts: a parameter, not a weight
    if own is None or dimensions < 3 or any(name in _scales(other) for other in names if other != name):
        return None
    return own[1]


def _scales(name: str) -> Iterator[str]:
    suffix = next((s for s in _STORED if name.endswith(s)), None)
    for companion in COMPANIONS:
        if companion in _ACTIVATIONS:
            continue
        if suffix is not None:
            yield name.removesuffix(suffix) + companion
        elif companion.startswith(".weight_"):
            yield name + companion.removeprefix(".weight")


def experts_of(name: str) -> str | None:
    """`a.experts` of `a.experts.7.up_proj` and of itself; None for a module that is no expert's."""
    match = _EXPERT.fullmatch(name)
    return match[1] if match is not None else None


def root_of(name: str) -> str:
    """The head's own part of a name: `mtp`, `model.mtp`, `model.layers.61`; the whole of any other."""
    match = _ROOT.match(name)
    return match[0] if match is not None else name


def tail_of(name: str) -> str:
    """A name from `mtp` or `layers.N` on: what every runtime's spelling has in common."""
    match = re.search(r"(?:^|\.)(mtp\w*(?:\.|$).*|layers\.\d+(?:\.|$).*)", name)
    return match[1] if match is not None else name


def fused_groups(modules: Sequence[Module]) -> Iterator[tuple[str, Fused, tuple[Module, ...]]]:
    """The fused matrices of a head: full name, the row, the modules that make it."""
    by_name = {m.name: m for m in modules if experts_of(m.name) is None}
    for parent in dict.fromkeys(name.rpartition(".")[0] for name in by_name):
        for row in FUSED:
            parts = tuple(by_name[f"{parent}.{p}"] for p in row.parts if f"{parent}.{p}" in by_name)
            if len(parts) > 1:
                yield f"{parent}.{row.name}", row, parts


def lift(wanted: Sequence[Module], quantized: Sequence[Module]) -> tuple[list[str], list[str]]:
    """The fewest names that stand for `wanted` and for no quantized module: trees, and single modules."""
    trees: dict[str, None] = {}
    leaves: dict[str, None] = {}
    for module in wanted:
        parts = (f"{module.name}.0" if experts_of(module.name) == module.name else module.name).split(".")
        start = root_of(module.name).count(".") + 1
        above = (".".join(parts[:n]) for n in range(start, len(parts)))
        tree = next((a for a in above if not any(f"{q.name}.".startswith(f"{a}.") for q in quantized)), None)
        if tree is None:
            leaves[module.name] = None
        else:
            trees[tree] = None
    return list(trees), list(leaves)
