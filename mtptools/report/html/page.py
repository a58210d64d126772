"""The page: verdict and failures first, the levels, then the sections, and the report itself as JSON at the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mtptools.report.escape import html_text
from mtptools.report.html.blocks import section
from mtptools.report.html.embedded import embed
from mtptools.report.html.style import STYLE
from mtptools.report.levels import Level, levels, verdict
from mtptools.report.sections import sections

__all__ = ["html_report"]

# Nothing is loaded from anywhere, whatever a name in the report tries, and no script runs.
POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


def html_report(data: Mapping[str, Any]) -> str:
    """One self-contained page from the JSON object of a verification (`Verification.to_json()`) or a bench.

    Parts that are missing have no section. The object itself stands at the end: `embedded.read_embedded` gets it back.
    """
    word, tone = verdict(data)
    name = html_text(data.get("path") or "a checkpoint")
    found = sections(data)
    links = "".join(f'<a href="#{html_text(one.key)}">{html_text(one.title)}</a>' for one in found)
    body = "".join(section(one) for one in found)
    kind = "verification" if isinstance(data.get("lineage"), list) else "bench"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="generator" content="mtptools {html_text(data.get("version") or "")}">
<meta name="referrer" content="no-referrer">
<meta name="color-scheme" content="light dark">
<title>{html_text(word)}: {name}</title>
<style>
{STYLE}
</style>
</head>
<body>
<main>
<header>
<p class="tool">mtptools {html_text(data.get("version") or "")} · {kind} of a multi-token-prediction head</p>
<div class="title"><h1><bdi>{name}</bdi></h1><span class="verdict {tone}">{html_text(word)}</span></div>
{_why(data)}
<ul class="levels">{"".join(map(_level, levels(data)))}</ul>
<nav aria-label="Sections">{links}</nav>
</header>
{body}
<footer>Made from the report's JSON object, which this page holds. It loads nothing and runs no script.</footer>
</main>
{embed(data)}
</body>
</html>
"""


def _why(data: Mapping[str, Any]) -> str:
    failures = list(data.get("failures") or ())
    if failures:
        items = "".join(f"<li>{html_text(line)}</li>" for line in failures)
        return f'<div class="why bad" role="alert"><ul>{items}</ul></div>'
    if data.get("not_run"):
        return f'<div class="why warn"><p>Not run: {html_text(data["not_run"])}</p></div>'
    return ""


def _level(level: Level) -> str:
    return (
        f'<li><div class="key"><span><b>{level.key}</b>{html_text(level.name)}</span>'
        f'<span class="state {level.tone}">{html_text(level.verdict)}</span></div>'
        f'<div class="what">{html_text(level.what)}</div></li>'
    )
