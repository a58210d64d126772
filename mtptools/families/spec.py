"""What a family is: names, conventions, wiring and hyperparameters of one architecture, as frozen data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Family", "Field", "Role", "Sign", "Source", "Wiring"]

Kind = Literal["matrix", "norm", "router", "vector", "embedding", "output"]


@dataclass(frozen=True, slots=True)
class Source:
    """Where a dialect of safetensors keeps a role: name patterns, and the layout convention of what stands there.

    pattern  placeholders: `{d}` the head's MTP layer, `{n}` its number among all layers, or the trunk layer, `{e}` the
             expert; a leading `^` stands for the trunk's prefix (`Family.hf_prefixes`), `~` for `Family.hf_head`
    also     further patterns whose tensors follow, for layouts that join several (`rows`, `columns`)
    sizes    rows or columns each pattern brings to a joined role, in order, as size expressions
    """

    pattern: str
    layout: str = "whole"
    also: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Role:
    """One weight by its canonical meaning, spelled as GGUF spells it without `blk.N.`.

    shape     torch order; each dimension a size expression (see `HParams.size`), a number, or "" for any; () unchecked
    hf        places it may stand in HF, every one of them known from a release; the first is what is written
    kind      decides the default type: norms, routers and vectors stay F32 in GGUF
    values    value convention per dialect, "plain" when absent
    required  False: may be absent, then the trunk's is used (see `borrows`), or nothing
    borrows   the trunk role that stands in when this one is absent
    when      hyperparameter that must not be 0 for the role to exist; with a leading "!" it must be 0
    mlx       places in MLX; () where they are those of HF
    f32       releases keep it in F32 beside BF16 weights
    scheme    quantization in which releases hold it, where another dialect can take its bits over; "" for none
    root      in GGUF it stands outside of the head's block, where a trunk has one of its own: a sidecar only
    """

    name: str
    shape: tuple[str | int, ...]
    hf: tuple[Source, ...]
    kind: Kind = "matrix"
    values: Mapping[str, str] = field(default_factory=dict)
    required: bool = True
    borrows: str | None = None
    when: str = ""
    mlx: tuple[Source, ...] = ()
    f32: bool = False
    root: bool = False
    scheme: str = ""

    def convention(self, dialect: str) -> str:
        return self.values.get(dialect, "plain")

    def sources(self, dialect: str) -> tuple[Source, ...]:
        return self.mlx if dialect == "mlx" and self.mlx else self.hf


@dataclass(frozen=True, slots=True)
class Wiring:
    """How a head is connected; see docs/conventions.md for what each field means.

    concat      "eh": fusion input is [embedding, hidden]; "he": the other way round; "sum": two projections, added
    tap         "post" or "pre": the trunk state that feeds hnorm, after or before the final norm; "streams": the
                hyper-connection streams before they are mixed down
    recycle     "post" or "pre": the head state that feeds the next draft step, after or before the head's norm;
                "streams"; "none": drafts one token only
    mask_first  the embedding is zeroed at position 0
    evidence    where each of these is known from
    recurrence  which layer drafts the k-th token: "cycle" layer k % depth; "exact" the same, each layer first catching
                up on the slots it has not seen, as it was trained
    """

    concat: Literal["eh", "he", "sum"]
    tap: Literal["post", "pre", "streams"]
    recycle: Literal["post", "pre", "streams", "none"]
    mask_first: bool
    evidence: str
    recurrence: Literal["cycle", "exact"] = "cycle"


@dataclass(frozen=True, slots=True)
class Field:
    """Where one hyperparameter stands in each dialect. Alternatives are tried in order.

    hf       dotted paths in the text configuration of config.json
    gguf     metadata keys without the `{arch}.` prefix; "a - b" is the difference of two
    default  value when no dialect states it; `...` makes it required
    kind     what its value is: a count, a real number, or a list with one entry per layer
    """

    hf: tuple[str, ...]
    gguf: tuple[str, ...]
    default: object = ...
    kind: Literal["count", "real", "layers"] = "count"


@dataclass(frozen=True, slots=True)
class Sign:
    """A mark of something that stands where a head would and is none.

    name  a configuration key, or the end of a tensor's name
    what  what it is, for the refusal
    hint  what to do instead
    """

    name: str
    what: str
    hint: str


@dataclass(frozen=True)
class Family:
    """One architecture.

    gguf_arch     llama.cpp's name for it; "" when it has none
    hf_types      model_type values of config.json, top level or text_config
    hf_flat       model_type of a configuration without a wrapper; "" for the first of hf_types
    hf_prefixes   what stands before `layers.N.` in HF names, longest first
    hf_ignored    name prefixes in HF that belong to neither trunk nor head (a vision tower)
    hf_depth      keys of the configuration that declare the number of MTP layers, the first one is written
    hf_head       prefix of every head tensor in HF; placeholders as in `Source.pattern`
    expected      config.json values without which the tables below do not hold
    layers        which of `trunk`'s tables a layer has: "hybrid" linear or full by layer type, "dense_first" dense up
                  to `first_dense`, then moe; "unknown": the trunk is not described here
    trunk         role tables of the trunk's layers by kind, and "all" for the roles outside of layers
    head          roles of one MTP layer
    depth_stated  False: releases ship a head without declaring it, and runtimes count what is there
    ships         False: releases declare a head and ship none
    not_a_head    marks of what is no MTP head though it stands under the head's names
    per_layer     what GGUF's per-layer metadata says of the head's blocks and config.json does not
    gguf_head     False: llama.cpp has no MTP graph for the architecture
    mlx           what MLX's runtimes do with the head beside a converted trunk: "drafts" with it, "drops" it, or
                  "breaks": the trunk no longer loads. mlx-lm 0.32.2 and mlx-vlm 0.7.10, run or read
    gguf_pre      llama.cpp's name of the pre-tokenizer, for whole-checkpoint conversion
    generic       True: no architecture is known; roles are GGUF's own names, and nothing about them is checked
    """

    name: str
    title: str
    gguf_arch: str
    hf_types: tuple[str, ...]
    hf_prefixes: tuple[str, ...]
    hf_depth: tuple[str, ...]
    hf_head: str
    fields: Mapping[str, Field]
    wiring: Wiring
    head: tuple[Role, ...]
    trunk: Mapping[str, tuple[Role, ...]] = field(default_factory=dict)
    layers: Literal["hybrid", "dense_first", "unknown"] = "unknown"
    hf_ignored: tuple[str, ...] = ()
    expected: Mapping[str, object] = field(default_factory=dict)
    depth_stated: bool = True
    ships: bool = True
    not_a_head: tuple[Sign, ...] = ()
    per_layer: Mapping[str, object] = field(default_factory=dict)
    gguf_head: bool = True
    gguf_pre: str = ""
    hf_flat: str = ""
    mlx: Literal["drafts", "drops", "breaks", "unknown"] = "unknown"
    generic: bool = False
