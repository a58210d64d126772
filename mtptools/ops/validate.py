"""validate: what the config declares against what the file holds. Static: headers, and the values of norms.

Each check has a stable id and a severity; `CHECKS` lists them all, with what each asks. An error is something that
keeps the head from loading or from being accepted; a warning is something a reader should know. Without weights, from
config.json and the index, the checks that need neither headers nor values still run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal

from mtptools.checkpoint import Checkpoint, Known
from mtptools.errors import UnknownFamilyError
from mtptools.families import Family
from mtptools.head import head_layers, head_names, not_a_head
from mtptools.ops import (
    validate_config,
    validate_declared,
    validate_norms,
    validate_quant,
    validate_tensors,
    validate_vocab,
)

__all__ = ["CHECKS", "Check", "Finding", "Result", "validate"]

Severity = Literal["error", "warning"]
Report = Iterator[tuple[str, str, str]]


@dataclass(frozen=True)
class Check:
    """`run(checkpoint)` yields (what, evidence, fix) for every finding; `needs` is what must be known of weights."""

    id: str
    severity: Severity
    asks: str
    run: Callable[[Checkpoint], Report]
    needs: Known = "values"


@dataclass(frozen=True)
class Finding:
    """One finding: what is wrong, the evidence, and what to type or do."""

    check: str
    severity: Severity
    what: str
    evidence: str
    fix: str


@dataclass(frozen=True)
class Result:
    """`ok` is False when any finding is an error.

    passed   checks that found nothing
    skipped  checks that could not run: no weights were there to look at
    head     one line on the head: what is declared and what is there
    """

    findings: tuple[Finding, ...]
    passed: tuple[str, ...]
    skipped: tuple[str, ...] = ()
    head: str = ""

    @property
    def ok(self) -> bool:
        return not any(finding.severity == "error" for finding in self.findings)

    def joined(self, other: Result, what: str) -> Result:
        """With what was found of a second checkpoint, which is decoded with this one; `what` stands before that."""
        findings = (*self.findings, *(replace(one, what=what + one.what) for one in other.findings))
        passed = tuple(check for check in self.passed if check not in {one.check for one in other.findings})
        return Result(findings, passed, self.skipped, f"{self.head}; {what}{other.head}")

    def to_json(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "head": self.head,
            "findings": [asdict(f) for f in self.findings],
            "passed": list(self.passed),
            "skipped": list(self.skipped),
        }


CHECKS: Final = (
    Check("head-declared-missing", "error", "a declared head is there", validate_declared.declared_missing, "names"),
    Check("head-undeclared", "error", "a head that is there is declared", validate_declared.undeclared, "names"),
    Check("head-depth", "error", "as many MTP layers as declared", validate_declared.depth_differs, "names"),
    Check("head-not-mtp", "error", "what is there is an MTP head", validate_declared.another_kind, "config"),
    Check("depth-place", "error", "the depth stands where runtimes read it", validate_config.depth_place, "config"),
    Check("layer-lists", "error", "lists in config.json have one entry per layer", validate_config.lists, "config"),
    Check("block-count", "error", "block_count counts the head's blocks", validate_declared.block_count),
    Check("per-layer-arrays", "error", "per-layer metadata has one entry per block", validate_declared.arrays),
    Check("fixed-arrays", "error", "metadata arrays of a fixed length have it", validate_declared.fixed_arrays),
    Check("index", "error", "the index names every tensor", validate_declared.unindexed),
    Check("index-size", "error", "the index states the size there is", validate_declared.index_size, "names"),
    Check("quantization-config", "error", "quantization_config covers the head", validate_quant.listed),
    Check("quantization-loose", "warning", "it covers it in every runtime", validate_quant.tolerated),
    Check("quantization-method", "warning", "the quantization method is known", validate_quant.method, "names"),
    Check("tokenizer-size", "error", "the tokenizer fits the embedding", validate_declared.tokenizer_size, "config"),
    Check("tokenizer-hash", "error", "the tokenizer is the one the receipt names", validate_declared.tokenizer_hash),
    Check("tokenizer-missing", "warning", "there is a tokenizer", validate_declared.tokenizer_missing),
    Check("tensor-missing", "error", "every required tensor is there", validate_tensors.missing, "names"),
    Check("tensor-unknown", "error", "no tensor without a role", validate_tensors.unknown, "names"),
    Check("head-readable", "error", "the head's values can be read", validate_tensors.readable),
    Check("tensor-shape", "error", "shapes agree with the config", validate_tensors.shapes),
    Check("expert-layout", "error", "experts are fused or single, not both", validate_tensors.expert_layout, "names"),
    Check("tensor-order", "error", "GGUF data is gapless, in header order", validate_tensors.order),
    Check("draft-map", "error", "the draft vocabulary agrees with what it is for", validate_vocab.agrees),
    Check("draft-map-runtime", "warning", "released runtimes load the reduced head", validate_vocab.runtime),
    Check("trunk-norms", "error", "the trunk's norms are in its dialect's convention", validate_norms.trunk),
    Check("trunk-norms-high", "warning", "no 1 was added twice to the trunk's norms", validate_norms.trunk_high),
    Check("head-norms", "error", "the head's norms are in the trunk's convention", validate_norms.head),
    Check("head-values", "error", "the head's values are finite and not all zero", validate_norms.values),
)


# Checks that need no table of the family: all that is asked of a GGUF of an unknown architecture.
_WITHOUT_TABLES: Final = (
    "head-declared-missing", "head-undeclared", "head-depth", "block-count", "per-layer-arrays", "fixed-arrays",
    "tokenizer-size", "tokenizer-hash", "tokenizer-missing", "tensor-order", "head-values",
)  # fmt: skip
# Beginnings of the ids of checks that ask for an MTP head: nothing to ask where another kind of drafter stands.
_OF_A_HEAD: Final = ("head-", "depth-", "layer-", "quantization-", "tensor-", "draft-")
_LEVELS: Final[tuple[Known, ...]] = ("config", "names", "values")


def validate(ckpt: Checkpoint) -> Result:
    """Run every check. Raises what opening and family lookup raise; findings are no errors.

    An architecture that is not known passes when nothing in it declares a head or looks like one.
    """
    try:
        family = ckpt.family
    except UnknownFamilyError:
        if validate_config.speaks_of_a_head(ckpt):
            raise
        every = tuple(check.id for check in CHECKS)
        return Result((), (), every, "no head: none is declared and none is there (an architecture not known here)")
    findings: list[Finding] = []
    passed: list[str] = []
    skipped: list[str] = []
    other_kind = not_a_head(ckpt) is not None
    for check in CHECKS:
        unknown = family.generic and check.id not in _WITHOUT_TABLES
        of_a_head = other_kind and check.id.startswith(_OF_A_HEAD) and check.id != "head-not-mtp"
        if unknown or of_a_head or _LEVELS.index(check.needs) > _LEVELS.index(ckpt.known):
            skipped.append(check.id)
            continue
        found = [Finding(check.id, check.severity, *row) for row in check.run(ckpt)]
        findings += found
        if not found:
            passed.append(check.id)
    return Result(tuple(findings), tuple(passed), tuple(skipped), _head_line(ckpt, family))


def _head_line(ckpt: Checkpoint, family: Family) -> str:
    depth, there = ckpt.hparams.depth, head_names(ckpt)
    declared = f"{depth} MTP layer(s) declared" if depth else "none declared"
    if not family.ships:
        declared += " (its releases ship none)"
    elif not depth and not family.depth_stated:
        declared = "not declared, as in its releases"
    if ckpt.known == "config":
        return f"{family.title}: {declared}; no weights and no index to look at"
    if not depth and not there and family.depth_stated:
        return f"{family.title}: no head: none is declared and none is there"
    return f"{family.title}: {declared}, {len(head_layers(ckpt))} there in {len(there)} tensors"
