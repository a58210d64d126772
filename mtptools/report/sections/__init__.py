"""The sections of a report, in the order they are read in, from the JSON object of a verification or a bench."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from mtptools.report.document import Section
from mtptools.report.sections.acceptance import acceptance, sampled
from mtptools.report.sections.controls import controls
from mtptools.report.sections.made import artifact, checks, how
from mtptools.report.sections.parity import parity
from mtptools.report.sections.runtime import runtime
from mtptools.report.sections.stream import stream
from mtptools.report.sections.wiring import probe

__all__ = ["sections"]

PARTS: Final[tuple[Callable[[Mapping[str, Any]], Iterator[Section]], ...]] = (
    acceptance,
    stream,
    controls,
    parity,
    runtime,
    sampled,
    probe,
    checks,
    artifact,
    how,
)


def sections(data: Mapping[str, Any]) -> list[Section]:
    """What was not measured has no section."""
    return [section for part in PARTS for section in part(data)]
