"""What `check` found of one artifact or several: a verdict and a first line that names the fault, text and JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from mtptools import __version__
from mtptools.errors import IncompatibleError, MtpToolsError, NoDecoderError
from mtptools.report.cases import Case, cases
from mtptools.report.escape import visible
from mtptools.report.faults import Fault, error_title, faults
from mtptools.report.levels import Level, levels

__all__ = ["Checked", "Gate", "error_record", "short_name"]

SCHEMA: Final = 1
_VERDICTS: Final = {0: "PASS", 1: "FAIL", NoDecoderError.exit_code: "NOT CHECKED"}
# Exit codes from the least bad: what fails for sure is worse than what nobody looked at, what cannot be read is worse.
_WORSE: Final = (0, NoDecoderError.exit_code, 1)


def error_record(error: MtpToolsError) -> dict[str, Any]:
    """An error as the command line's --json prints it."""
    return {
        "error": type(error).__name__,
        "what": error.what,
        "where": error.where,
        "hint": error.hint,
        "findings": list(error.findings) if isinstance(error, IncompatibleError) else [],
        "exit_code": error.exit_code,
    }


def short_name(path: str) -> str:
    """The last part of a path or an address; `.` and `..` as the folders they stand for."""
    last = path.rstrip("/").rsplit("/", 1)[-1]
    return (Path(path).resolve().name or path) if last in ("", ".", "..") else last


@dataclass(frozen=True, eq=False)
class Checked:
    """One artifact. Either its verification, as `verify --json` prints it, or the error that kept it from being judged.

    path  as it was given, or as the settings have it;  seconds  of the whole check
    """

    path: str
    exit_code: int
    seconds: float
    verification: Mapping[str, Any] | None = None
    error: Mapping[str, Any] | None = None

    @property
    def verdict(self) -> str:
        return _VERDICTS.get(self.exit_code, "ERROR")

    @property
    def name(self) -> str:
        return short_name(self.path)

    @cached_property
    def faults(self) -> list[Fault]:
        """The nearest to the cause first; empty when it passes."""
        if self.verification is not None:
            return faults(self.verification)
        error = self.error or {}
        where = error.get("where")
        place = f"{where}: " if where and where != self.path else ""  # another file than the one that was asked about
        lines = [f"{place}{error.get('what', '')}", *error.get("findings", ())]
        return [Fault("opening", error_title(str(error.get("error")), lines[0]), "; ".join(lines), error.get("hint"))]

    @cached_property
    def cases(self) -> list[Case]:
        if self.verification is not None:
            return cases(self.verification)
        return [Case("opening", fault.title, "error", fault.text) for fault in self.faults]

    @cached_property
    def levels(self) -> list[Level]:
        return [] if self.verification is None else levels(self.verification)

    @property
    def line(self) -> str:
        """What there is to say in one line, without the verdict."""
        data = self.verification or {}
        if self.faults:
            return visible(self.faults[0])
        if data.get("not_run"):
            return visible(data["not_run"])
        if not any(data.get(part) for part in ("decoder", "stream", "runtime")):
            return "L0 and L1 only: nothing was decoded"
        passed = [level for level in self.levels if level.verdict == "pass"]
        facts = [level.what for level in passed if level.key in ("L2", "L3", "L5")]
        facts += [level.what for level in self.levels if (level.key, level.verdict) == ("L4", "not checked")]
        return visible(f"{', '.join(level.key for level in passed)}: {'; '.join(facts)}")

    def to_json(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "line": self.line,
            "seconds": round(self.seconds, 3),
            "levels": {level.key: level.verdict for level in self.levels},
            "faults": [
                {"level": one.level, "title": one.title, "text": one.text, "fix": one.fix} for one in self.faults
            ],
            "verification": self.verification,
            "error": self.error,
        }

    def lines(self, *, verbose: bool = False) -> list[str]:
        """Everything below the first line."""
        out = []
        for level in self.levels:
            out.append(f"  {level.key} {level.name:<14} {level.verdict:<12} {visible(level.what)}")
            own = [case for case in self.cases if case.level.startswith(level.key)]
            out += [f"      {case.status:<8} {visible(case.name)}" for case in own if verbose]
        out += [f"  also: {visible(fault)}" for fault in self.faults[1:]]
        fix = next((fault.fix for fault in self.faults if fault.fix), None)
        return out + ([f"hint: {visible(fix)}"] if fix else [])


@dataclass(frozen=True)
class Gate:
    """Every artifact that was checked, in order."""

    checked: Sequence[Checked]

    @property
    def exit_code(self) -> int:
        """The worst: an error before a failure, a failure before what was not checked."""
        codes = [one.exit_code for one in self.checked]
        errors = [code for code in codes if code not in _WORSE]
        return min(errors) if errors else max(codes, key=_WORSE.index)

    @property
    def line(self) -> str:
        """The first line: the verdict, and the fault of the artifact that is to blame for it."""
        worst = next(one for one in self.checked if one.exit_code == self.exit_code)
        total, bad = len(self.checked), sum(1 for one in self.checked if one.exit_code)
        if total == 1:
            return f"{worst.verdict}  {worst.line}"
        if not bad:
            return f"{worst.verdict}  {total} of {total}"
        return f"{worst.verdict}  {bad} of {total}: {visible(worst.name)}: {worst.line}"

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "version": __version__,
            "ok": self.exit_code == 0,
            "exit_code": self.exit_code,
            "line": self.line,
            "artifacts": [one.to_json() for one in self.checked],
        }

    def render(self, *, verbose: bool = False) -> str:
        """Text for a terminal and a log: the first line says it all, a table of several artifacts is the end."""
        out = [self.line]
        for one in self.checked:
            out += ["", f"{visible(one.path)}  {one.verdict}  {one.seconds:.1f} s", *one.lines(verbose=verbose)]
        if len(self.checked) > 1:
            width = max(len(visible(one.name)) for one in self.checked)
            out += ["", *(f"{one.verdict:<11}  {visible(one.name):<{width}}  {one.line}" for one in self.checked)]
        return "\n".join(out)
