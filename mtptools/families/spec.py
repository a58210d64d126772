"""What a family is: names, conventions, wiring and hyperparameters of one architecture, as frozen data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Family", "Field", "Role", "Source", "Wiring"]

Kind = Literal["matrix", "norm", "router", "vector", "embedding", "output"]


@dataclass(frozen=True, slots=True)
class Source:
    """Where the HF dialect keeps a role: a name pattern and the layout convention of what stands there.

    Placeholders: `{d}` the head's MTP layer, `{n}` the trunk layer, `{e}` the expert; a leading `^` stands for the
    trunk's prefix (`Family.hf_prefixes`).
    """

    pattern: str
    layout: str = "whole"


@dataclass(frozen=True, slots=True)
class Role:
    """One weight by its canonical meaning, spelled as GGUF spells it without `blk.N.`.

    shape     torch order; each dimension a name in `HParams.dims()` or a number
    hf        places it may stand in HF, every one of them known from a release
    kind      decides the default type: norms, routers and vectors stay F32 in GGUF
    values    value convention per dialect, "plain" when absent
    required  False: may be absent, then the trunk's is used (see `borrows`)
    borrows   the trunk role that stands in when this one is absent
    """

    name: str
    shape: tuple[str | int, ...]
    hf: tuple[Source, ...]
    kind: Kind = "matrix"
    values: Mapping[str, str] = field(default_factory=dict)
    required: bool = True
    borrows: str | None = None

    def convention(self, dialect: str) -> str:
        return self.values.get(dialect, "plain")


@dataclass(frozen=True, slots=True)
class Wiring:
    """How a head is connected; see docs/conventions.md for what each field means.

    concat      "eh": fusion input is [embedding, hidden]; "he": the other way round
    tap         "post" or "pre": the trunk state that feeds hnorm, after or before the final norm
    recycle     "post" or "pre": the head state that feeds the next draft step, after or before the head's norm
    mask_first  the embedding is zeroed at position 0
    evidence    where each of these is known from
    """

    concat: Literal["eh", "he"]
    tap: Literal["post", "pre"]
    recycle: Literal["post", "pre"]
    mask_first: bool
    evidence: str


@dataclass(frozen=True, slots=True)
class Field:
    """Where one hyperparameter stands in each dialect. Alternatives are tried in order.

    hf       dotted paths in the text configuration of config.json
    gguf     metadata keys without the `{arch}.` prefix
    default  value when no dialect states it; `...` makes it required
    """

    hf: tuple[str, ...]
    gguf: tuple[str, ...]
    default: object = ...


@dataclass(frozen=True)
class Family:
    """One architecture.

    hf_types     model_type values of config.json, top level or text_config
    hf_prefixes  what stands before `layers.N.` in HF names, longest first
    hf_ignored   name prefixes in HF that belong to neither trunk nor head (a vision tower)
    hf_depth     key in the text configuration that declares the number of MTP layers
    hf_head      prefix of every head tensor in HF
    expected     config.json values without which the tables below do not hold
    trunk        role tables of the trunk's layers by layer type, and "all" for the ones outside of layers
    """

    name: str
    title: str
    gguf_arch: str
    hf_types: tuple[str, ...]
    hf_prefixes: tuple[str, ...]
    hf_ignored: tuple[str, ...]
    hf_depth: str
    hf_head: str
    expected: Mapping[str, object]
    fields: Mapping[str, Field]
    wiring: Wiring
    trunk: Mapping[str, tuple[Role, ...]]
    head: tuple[Role, ...]
