"""validate: what the config declares against what the file holds. Static: headers, and the values of norms.

Each check has a stable id and a severity; `CHECKS` lists them all, with what each asks. An error is something that
keeps the head from loading or from being accepted; a warning is something a reader should know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from mtptools.checkpoint import Checkpoint
from mtptools.ops import validate_declared, validate_norms, validate_tensors

__all__ = ["CHECKS", "Check", "Finding", "Result", "validate"]

Severity = Literal["error", "warning"]
Report = Iterator[tuple[str, str, str]]


@dataclass(frozen=True)
class Check:
    """`run(checkpoint)` yields (what, evidence, fix) for every finding."""

    id: str
    severity: Severity
    asks: str
    run: Callable[[Checkpoint], Report]


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
    """`ok` is False when any finding is an error; `passed` lists the checks that found nothing."""

    findings: tuple[Finding, ...]
    passed: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not any(finding.severity == "error" for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        return {"ok": self.ok, "findings": [asdict(f) for f in self.findings], "passed": list(self.passed)}


CHECKS: Final = (
    Check("head-declared-missing", "error", "a declared head is there", validate_declared.declared_missing),
    Check("head-undeclared", "error", "a head that is there is declared", validate_declared.undeclared),
    Check("head-depth", "error", "as many MTP layers as declared", validate_declared.depth_differs),
    Check("block-count", "error", "block_count counts the head's blocks", validate_declared.block_count),
    Check("per-layer-arrays", "error", "per-layer metadata has one entry per block", validate_declared.arrays),
    Check("fixed-arrays", "error", "metadata arrays of a fixed length have it", validate_declared.fixed_arrays),
    Check("index", "error", "the index names every tensor", validate_declared.unindexed),
    Check("quantization-config", "error", "quantization_config covers the head", validate_declared.quantization),
    Check("quantization-method", "warning", "the quantization method is known", validate_declared.quantization_method),
    Check("tokenizer-size", "error", "the tokenizer fits the embedding", validate_declared.tokenizer_size),
    Check("tokenizer-hash", "error", "the tokenizer is the one the receipt names", validate_declared.tokenizer_hash),
    Check("tokenizer-missing", "warning", "there is a tokenizer", validate_declared.tokenizer_missing),
    Check("tensor-missing", "error", "every required tensor is there", validate_tensors.missing),
    Check("tensor-unknown", "error", "no tensor without a role", validate_tensors.unknown),
    Check("tensor-shape", "error", "shapes agree with the config", validate_tensors.shapes),
    Check("expert-layout", "error", "experts are fused or single, not both", validate_tensors.expert_layout),
    Check("tensor-order", "error", "GGUF data is gapless, in header order", validate_tensors.order),
    Check("trunk-norms", "error", "the trunk's norms are in its dialect's convention", validate_norms.trunk),
    Check("trunk-norms-high", "warning", "no 1 was added twice to the trunk's norms", validate_norms.trunk_high),
    Check("head-norms", "error", "the head's norms are in the trunk's convention", validate_norms.head),
    Check("head-values", "error", "the head's values are finite and not all zero", validate_norms.values),
)


def validate(ckpt: Checkpoint) -> Result:
    """Run every check. Raises what opening and family lookup raise; findings are no errors."""
    findings: list[Finding] = []
    passed: list[str] = []
    for check in CHECKS:
        found = [Finding(check.id, check.severity, *row) for row in check.run(ckpt)]
        findings += found
        if not found:
            passed.append(check.id)
    return Result(tuple(findings), tuple(passed))
