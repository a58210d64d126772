"""The rules of the two published JUnit schemas (Jenkins' and Ant's) that a report of ours could break."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import Final

__all__ = ["read"]

_SUITE: Final = {"name", "package", "id", "timestamp", "hostname", "tests", "failures", "errors", "skipped", "time"}
_RESULTS: Final = {"failure": {"message", "type"}, "error": {"message", "type"}, "skipped": {"message"}}


def read(text: str) -> list[ET.Element]:
    """The test suites of a document that keeps the rules. Fails with the rule that is broken."""
    root = ET.fromstring(text.encode("utf-8"))
    assert root.tag == "testsuites"
    assert not root.attrib, "Ant's schema allows none, Jenkins' asks for none"
    for number, suite in enumerate(root):
        assert suite.tag == "testsuite"
        assert set(suite.attrib) == _SUITE
        assert suite.attrib["id"] == str(number)
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", suite.attrib["timestamp"])
        assert suite.attrib["hostname"]
        assert suite.attrib["name"]
        assert float(suite.attrib["time"]) >= 0
        tags = [child.tag for child in suite]
        assert tags == ["properties", *["testcase"] * (len(tags) - 3), "system-out", "system-err"]
        _properties(suite)
        cases = suite.findall("testcase")
        for case in cases:
            _case(case)
        found = [child.tag for case in cases for child in case]
        counts = {"tests": len(cases)} | {
            name: found.count(tag)
            for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped"))
        }
        assert {name: int(suite.attrib[name]) for name in counts} == counts
    return list(root)


def _properties(suite: ET.Element) -> None:
    for one in suite.find("properties") or ():
        assert one.tag == "property"
        assert set(one.attrib) == {"name", "value"}
        assert all(one.attrib.values()), "Ant's schema: at least one character"


def _case(case: ET.Element) -> None:
    assert set(case.attrib) == {"name", "classname", "time"}
    assert case.attrib["name"]
    assert case.attrib["classname"]
    assert float(case.attrib["time"]) >= 0
    assert len(case) <= 1, "one result, or none: it passed"
    for result in case:
        assert set(result.attrib) == _RESULTS[result.tag]
        assert all(result.attrib.values())
