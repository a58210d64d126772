"""What is wrong with an artifact, in the plain words of those who meet it. From the JSON object of `verify` alone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mtptools.threshold import DEAD, LEAST

__all__ = ["Fault", "error_title", "faults"]

# Titles of what `validate` finds, by the id of the check.
_STATIC: Final = {
    "head-declared-missing": "declared but missing",
    "head-undeclared": "there but not declared",
    "head-depth": "wrong depth",
    "head-not-mtp": "not an MTP head",
    "depth-place": "depth declared in the wrong place",
    "layer-lists": "wrong layer lists",
    "block-count": "wrong block_count",
    "per-layer-arrays": "wrong per-layer metadata",
    "fixed-arrays": "wrong metadata arrays",
    "index": "incomplete index",
    "index-size": "wrong size in the index",
    "quantization-config": "wrong quantization config",
    "tokenizer-size": "foreign tokenizer",
    "tokenizer-hash": "foreign tokenizer",
    "tensor-missing": "tensors missing",
    "tensor-unknown": "unknown tensors",
    "head-readable": "unreadable head",
    "tensor-shape": "wrong shapes",
    "expert-layout": "wrong expert layout",
    "tensor-order": "wrong tensor order in the file",
    "draft-map": "wrong draft vocabulary",
    "trunk-norms": "wrong norm in the trunk",
    "head-norms": "wrong norm",
    "head-values": "dead head",
}
# Titles of lineage, by what was compared.
_LINEAGE: Final = {
    "tokenizer": "foreign tokenizer",
    "trunk": "another trunk",
    "donor": "another head than the donor's",
}
# Of a fine-tune whose tokenizer has tokens more than the release's.
_EXTENDED: Final = "where tokens were added on purpose, --trunk TRUNK: its tokenizer is then the measure"
# Titles of faults of the head's reading, by the control that cures them.
_CURES: Final = {
    "swapped halves": "wrong order",
    "other tap": "wrong tap",
    "shifted state": "wrong position of the trunk state",
    "shifted token": "wrong position of the token",
    "norms without +1": "wrong norm",
    "norms with +1": "wrong norm",
    "other recycle": "wrong recycle",
}
# Titles of errors, by class: the file could not be judged at all.
_ERRORS: Final = {
    "CorruptError": "damaged",
    "NotACheckpointError": "not a checkpoint",
    "UnknownFamilyError": "unknown architecture",
    "MissingHeadError": "no head",
    "MissingRoleError": "tensors missing",
    "ConventionError": "unknown convention",
    "TokenizerError": "unusable tokenizer",
    "IncompatibleError": "another model",
    "CodecError": "unreadable values",
    "MissingExtraError": "missing package",
}
_TRUNCATED: Final = re.compile(
    r"ends at byte \d+, the file (has|at) \d+|needs \d+ bytes, \d+ are left|header of \d+ bytes in a file of"
    r"|run past the end of the file|claims \d{1,6} tensors and \d{1,6} metadata keys in \d+ bytes"
)
_BY_EVIDENCE: Final = ("head-declared-missing",)  # findings whose title says all that their first clause does

# What is nearest to the cause goes first.
_FOREIGN, _FOUND, _CURED, _PARITY, _DEAD, _LOST, _RUNTIME, _BYTES, _OTHER = range(9)


@dataclass(frozen=True)
class Fault:
    """title  a few words;  text  the facts;  fix  what to type or do, where it is known;  level  "L1 static" …"""

    level: str
    title: str
    text: str
    fix: str | None = None

    def __str__(self) -> str:
        return self.text if self.text.startswith(f"{self.title}: ") else f"{self.title}: {self.text}"


def faults(data: Mapping[str, Any]) -> list[Fault]:
    """Every failure of a verification, the nearest to its cause first: one wrong norm also loses acceptance."""
    ranked = [*_lineage(data), *_static(data), *_measured(data)]
    return [fault for _, fault in sorted(ranked, key=lambda pair: pair[0])]


def error_title(name: str, what: str) -> str:
    """A few words for an error that kept an artifact from being judged."""
    return "truncated" if _TRUNCATED.search(what) else _ERRORS.get(name, "could not be checked")


def _lineage(data: Mapping[str, Any]) -> Iterator[tuple[int, Fault]]:
    own = any(item["against"] == "trunk" for item in data["lineage"])  # then the tokenizer was compared with its
    for item in data["lineage"]:
        if item["verdict"] == "fail":
            against = item["against"]
            title = _LINEAGE.get(against.removesuffix(" of the head"), "not what its receipt says")
            foreign = against == "tokenizer"
            fix = _EXTENDED if foreign and not own else None
            yield _FOREIGN if foreign else _BYTES, Fault("L0 lineage", title, item["what"], fix)


def _static(data: Mapping[str, Any]) -> Iterator[tuple[int, Fault]]:
    for found in data["static"]["findings"]:
        if found["severity"] == "error":
            text = found["evidence"] if found["check"] in _BY_EVIDENCE else found["what"]
            yield _FOUND, Fault("L1 static", _STATIC.get(found["check"], found["check"]), text, found["fix"])


def _measured(data: Mapping[str, Any]) -> Iterator[tuple[int, Fault]]:
    """L2 and above. A level that is not known here keeps its own words."""
    controls = (data.get("decoder") or data.get("stream") or {}).get("controls") or []
    for line in data["failures"]:
        level, _, text = line.partition(": ")
        if level in ("L0 lineage", "L1 static"):
            continue
        if level in ("diagnosis", "L4 controls"):
            cure = next((one["name"] for one in controls if one["cure"] in text), None)
            yield _CURED, Fault("L4 controls", _CURES.get(cure or "", "dead head"), text)
        elif level == "L2 parity":
            yield _PARITY, Fault(level, "speculative decoding differs", text)
        elif level == "L3 acceptance":
            first = _first_drafts(data)
            dead = first is not None and first < DEAD
            title = "nothing measured" if first is None else "dead head" if dead else "lost acceptance"
            yield _DEAD if dead else _LOST, Fault(level, title, text)
        elif level == "L5 runtime":
            yield _RUNTIME, Fault(level, "the runtime disagrees", text)
        else:
            yield _OTHER, Fault(level, level, text or line)


def _first_drafts(data: Mapping[str, Any]) -> float | None:
    """Share of first drafts that were right; None when nothing was drafted, or too little to judge."""
    if data.get("decoder"):
        first = data["decoder"]["acceptance"][0]
        return float(first["per_position"][0]) if sum(first["drafted"]) else None
    rates = (data.get("stream") or {}).get("rates")
    return float(rates["conditional"][0]) if rates and rates["tried"][0] >= LEAST else None
