"""The section of a model card about the head: what it is, what was measured, and what was not.

Every number is from the artifact's own headers, its receipt, or the report: none is estimated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mtptools.errors import typed
from mtptools.plan import human_bytes
from mtptools.report.document import Block, Code, Items, Paragraph, Section, Table
from mtptools.report.escape import markdown_code, markdown_text
from mtptools.report.levels import NAMES, levels, maybe, percent, verdict
from mtptools.report.markdown import section_markdown
from mtptools.report.mtp_bench import OWN_SPEED, mtp_bench, prompt_rows
from mtptools.report.sections.acceptance import by_domain_table, by_k_table
from mtptools.report.sections.made import head_line
from mtptools.report.sections.runtime import runtime_table

__all__ = ["Card", "Reader", "card"]

LEVELS: Final = {
    "L0": "bytes against a receipt, trunk or donor",
    "L1": "what the file declares against what it holds",
    "L2": "the same logits with and without drafts",
    "L3": "acceptance of drafts",
    "L4": "whether the texts could have shown a fault of the head",
    "L5": "whether a runtime loads this file and drafts with its head",
}


@dataclass(frozen=True, slots=True)
class Reader:
    """A runtime whose source was read: does it connect the head as its family was trained?"""

    name: str
    version: str
    same: bool


@dataclass(frozen=True)
class Card:
    """artifact  of `ops.artifact`;  report, bench  JSON objects of verify and of bench, None without
    sums  name of the file with the head's digests;  runtimes  those whose sources were read
    """

    artifact: Mapping[str, Any]
    report: Mapping[str, Any] | None = None
    bench: Mapping[str, Any] | None = None
    sums: str | None = None
    runtimes: Sequence[Reader] = ()


def card(told: Card) -> str:
    """GitHub Markdown, for README.md of a repo."""
    lines = ["<!-- mtptools card -->", "## Multi-token prediction head", ""]
    if told.report is not None and verdict(told.report)[0] == "FAIL":
        lines += ["**This file did not pass its verification:**", ""]
        lines += [*(f"- {markdown_text(line)}" for line in told.report["failures"]), ""]
    lines += _what(told.artifact)
    for section in _sections(told):
        lines += ["", *section_markdown(section)]
    return "\n".join(lines) + "\n"


def _what(found: Mapping[str, Any]) -> list[str]:
    declared, receipt = found["declared"], found.get("receipt")
    rows = [("file", markdown_code(found["path"]) + f", {human_bytes(found['bytes'])}")]
    if found.get("family"):
        rows.append(("architecture", markdown_text(f"{found['title']} ({found['family']})")))
    rows.append(("tensors", str(found["tensors"])))
    rows += [
        (key, str(declared[key])) for key in ("block_count", "nextn_predict_layers") if declared.get(key) is not None
    ]
    if "block_count" not in declared and declared.get("depth") is not None:
        rows.append(("MTP layers declared", str(declared["depth"])))
    rows.append(("head", markdown_text(head_line(found.get("head")))))
    if drafts := found.get("draft_vocabulary"):
        rows.append(("drafts over", f"{drafts['tokens']:,} of {drafts['of']:,} tokens"))
    for source in (receipt or {}).get("sources") or ():
        rows.append((markdown_text(source["label"]), _source(source)))
    if receipt:
        rows.append(("made by", f"mtptools {markdown_text(receipt['version'])} {markdown_text(receipt['verb'])}"))
    return ["| | |", "| :-- | :-- |", *("| " + " | ".join(row) + " |" for row in rows)]


def _source(source: Mapping[str, Any]) -> str:
    origin = source.get("origin") or {}
    name = markdown_code(origin.get("repo") or source["name"])
    if origin.get("commit"):
        return f"{name} at {markdown_code(origin['commit'])}"
    files: Sequence[Mapping[str, Any]] = source.get("files") or ()
    digest = f", sha256 of its header {markdown_code(files[0]['header_sha256'])}" if len(files) == 1 else ""
    return f"{name}, revision not recorded{digest}"


def _sections(told: Card) -> Iterator[Section]:
    report = told.report or {}
    decoder = report.get("decoder")
    if decoder and decoder.get("acceptance"):
        base = report.get("baseline") or {}
        tables = [by_k_table(decoder, base)]
        tables += [by_domain_table(decoder, base)] if decoder.get("categories") else []
        lead = f"{decoder['prompts']} prompts, {decoder['tokens']} tokens each, greedy"
        lead += f"; baseline: {base['name']}." if base.get("name") else "."
        yield Section("acceptance", "Acceptance", tables, lead)
    yield from _of_stream(report.get("stream"))
    if told.bench is not None:
        yield from _timed(told.bench["decoder"])
    proved = list(_proved(report))
    if proved:
        yield Section("proved", "What was verified", [Items(proved)])
    yield Section("open", "What was not verified", [Items(list(_open(told)))])
    yield from _running(told)
    if again := list(_again(told)):
        yield Section("again", "To repeat it", again)


def _timed(decoder: Mapping[str, Any]) -> Iterator[Section]:
    if (listed := prompt_rows(decoder)) is not None:
        k, rows = listed
        yield Section("prompts", "Prompt by prompt", [Code(mtp_bench(rows))], f"k = {k}. {OWN_SPEED}")


def _of_stream(stream: Mapping[str, Any] | None) -> Iterator[Section]:
    if not stream or not stream.get("rates"):
        return
    rates = stream["rates"]
    rows = [
        [str(n + 1), percent(rates["conditional"][n]), percent(rates["rate"][n]), maybe(rates["mean_length"][n], ".2f")]
        for n in range(len(rates["tried"]))
    ]
    header = ("draft", "right, if all before it were", "rate at k", "tokens a step at k")
    lead = f"Expected, from one pass over {stream['positions']:,} tokens of a text."
    yield Section("acceptance", "Acceptance", [Table(header, rows)], lead)


def _proved(report: Mapping[str, Any]) -> Iterator[str]:
    if not report:
        return
    for level in levels(report):
        if level.verdict == "pass":
            yield f"{level.key} {level.name}: {level.what}"
    decoder = report.get("decoder")
    if decoder and decoder["parity"]["equal"]:
        told = decoder["fingerprint"]
        yield (
            f"Parity is bit for bit, in mtptools' own decoder ({told['dtype']} on {told['device']}): the logits of "
            "every emitted token are the same with drafts and without."
        )


def _open(told: Card) -> Iterator[str]:
    """Said plainly: what a reader might take for granted and nobody looked at."""
    report = told.report
    if report is None:
        yield "Nothing was verified: no report was given for this card."
    else:
        for level in levels(report):
            if level.verdict in ("not run", "not checked"):
                yield f"{level.key} {NAMES[level.key]}: {level.verdict}, {level.what} ({LEVELS[level.key]})"
    if told.bench is None and not (report or {}).get("runtime"):
        yield "Speed was not measured."
    receipt = told.artifact.get("receipt")
    if receipt is None:
        yield "What this file was made from is not recorded."
    elif any(not (source.get("origin") or {}).get("commit") for source in receipt["sources"]):
        yield "Sources without a revision were local files: their digests are known, not where they came from."


def _running(told: Card) -> Iterator[Section]:
    found, blocks = told.artifact, list[Block]()
    runtime = (told.report or {}).get("runtime")
    if runtime:
        blocks.append(Paragraph(f"Run in {runtime['name']} {runtime['version']}: {runtime['how']}."))
        blocks.append(runtime_table(runtime))
    if found["dialect"] == "gguf" and found.get("head") and not found.get("loaders"):
        name = typed(found["path"])
        model = f"-m TRUNK.gguf -md {name}" if found.get("sidecar") else f"-m {name}"
        blocks.append(Code(f"llama-server {model} --spec-type draft-mtp", "sh"))
    blocks += [Paragraph(str(line)) for line in found.get("loaders") or ()]
    for one in told.runtimes:
        how = "connects the head as it was trained" if one.same else "connects the head OTHERWISE than it was trained"
        blocks.append(Paragraph(f"{one.name} {one.version} {how}, by its source; older versions were not looked at."))
    if blocks:
        oldest = "none: the one above failed" if runtime else "not known: none was run"
        if runtime and runtime["ok"]:
            oldest = f"{runtime['name']} {runtime['version']}, the one above"
        yield Section("running", "Running it", [*blocks, Paragraph(f"Oldest build known to run it: {oldest}.")])


def _again(told: Card) -> Iterator[Block]:
    receipt = told.artifact.get("receipt") or {}
    made = receipt.get("command") and f"{receipt['command']} -o {typed(told.artifact['path'])}"  # receipts leave it out
    given = (made, (told.report or {}).get("command"), (told.bench or {}).get("command"))
    commands = [str(command) for command in given if command]
    if receipt.get("beside"):
        commands.append(f"mtptools receipt {typed(told.artifact['path'])} --verify")
    version = (told.report or {}).get("version") or receipt.get("version")
    if version:
        yield Paragraph(f"With mtptools {version}:")
    if commands:
        yield Code("\n".join(commands), "sh")
    if told.sums:
        yield Paragraph(f"sha256 of every tensor of the head, of its bytes as they are stored: {told.sums}.")
