"""JUnit XML: one test suite an artifact, one test case for each thing that was asked.

It keeps to what both published schemas allow (Jenkins' and Ant's): order of elements, required attributes, no others.
"""

from __future__ import annotations

import platform
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, Final

from mtptools.report.cases import Case
from mtptools.report.escape import visible
from mtptools.report.gate import Checked, Gate

__all__ = ["junit"]

# The element of a case that did not pass.
_ELEMENTS: Final = {"failed": "failure", "error": "error", "skipped": "skipped"}


def junit(gate: Gate, *, now: datetime | None = None) -> str:
    """The XML document. `now` is the time of the run, UTC."""
    stamp = (now or datetime.now(timezone.utc)).strftime("%Y-%m-%dT%H:%M:%S")
    root = ET.Element("testsuites")
    for number, checked in enumerate(gate.checked):
        root.append(_suite(checked, number, stamp))
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _suite(checked: Checked, number: int, stamp: str) -> ET.Element:
    found = checked.cases
    counts = {element: sum(1 for case in found if case.status == status) for status, element in _ELEMENTS.items()}
    suite = ET.Element(
        "testsuite",
        {
            "name": visible(checked.name),
            "package": "mtptools.check",
            "id": str(number),
            "timestamp": stamp,
            "hostname": visible(platform.node()) or "localhost",
            "tests": str(len(found)),
            "failures": str(counts["failure"]),
            "errors": str(counts["error"]),
            "skipped": str(counts["skipped"]),
            "time": f"{checked.seconds:.3f}",
        },
    )
    properties = ET.SubElement(suite, "properties")
    for name, value in (("path", checked.path), ("verdict", checked.verdict), ("line", checked.line)):
        ET.SubElement(properties, "property", {"name": name, "value": visible(value) or "-"})
    times = _times(checked)
    for case in found:
        suite.append(_case(case, checked, times.pop(case.level[:2], 0.0)))
    ET.SubElement(suite, "system-out").text = _lines("\n".join([checked.line, *checked.lines()]))
    ET.SubElement(suite, "system-err")
    return suite


def _case(case: Case, checked: Checked, seconds: float) -> ET.Element:
    level = case.level.replace(" ", ".")
    element = ET.Element("testcase", {"name": visible(case.name), "classname": level, "time": f"{seconds:.3f}"})
    if case.status == "passed":
        return element
    first = next(iter(case.text.splitlines()), "") or case.name
    told = ET.SubElement(element, _ELEMENTS[case.status], {"message": visible(first)})
    if case.status != "skipped":
        # Class of the error, or the title of the fault: what services group by.
        error = (checked.error or {}).get("error")
        told.set("type", visible(error or next((f.title for f in checked.faults if f.level == case.level), case.level)))
        told.text = _lines(case.text)
    return element


def _times(checked: Checked) -> dict[str, float]:
    """Seconds of each level where the verification states them; they stand at the level's first case."""
    stated: Mapping[str, Any] = (checked.verification or {}).get("seconds") or {}
    return {level: float(seconds) for level, seconds in stated.items()}


def _lines(text: str) -> str:
    return "\n".join(map(visible, text.split("\n")))
