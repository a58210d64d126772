"""What the artifact is, what it was made from, and how the report came about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mtptools.plan import human_bytes
from mtptools.report.document import Block, Cell, Code, Facts, Items, Paragraph, Section, Table, Tone

__all__ = ["artifact", "artifact_facts", "checks", "how", "source_rows"]

Data = Mapping[str, Any]
SOURCES = ("source", "what it was", "revision", "size", "header sha256")


def checks(data: Data) -> Iterator[Section]:
    """L0 and L1."""
    if not isinstance(data.get("lineage"), list):
        return
    tones: dict[str, Tone] = {"pass": "good", "fail": "bad", "not checked": "warn"}
    lineage: list[list[Cell | str]] = [
        [str(row["against"]), Cell(str(row["verdict"]), tones.get(row["verdict"], "")), str(row["what"])]
        for row in data["lineage"]
    ]
    static = data["static"]
    found: list[Cell | str] = [
        Cell(f"{one['severity']}: [{one['check']}] {one['what']}", "bad" if one["severity"] == "error" else "warn")
        for one in static["findings"]
    ]
    blocks: list[Block] = [Table(("compared with", "verdict", "what was found"), lineage, left=3)]
    if found:
        blocks.append(Items(found))
    told = f"Static checks: {len(static['passed'])} without a finding"
    if static.get("skipped"):
        told += f", {len(static['skipped'])} that do not apply or need what is not here"
    blocks.append(Paragraph(told + ".", "quiet"))
    yield Section("checks", "Lineage and static checks", blocks)


def artifact(data: Data) -> Iterator[Section]:
    """Sizes, the head, and the receipt; of a head's own file, too."""
    for key, title in (("artifact", "The artifact"), ("head_artifact", "The head's own file")):
        if data.get(key):
            yield Section(key.replace("_", "-"), title, list(_artifact(data[key])))


def _artifact(found: Data) -> Iterator[Block]:
    yield Facts(artifact_facts(found))
    receipt = found.get("receipt")
    if not receipt:
        yield Paragraph(f"No receipt: {found.get('receipt_error') or 'what it was made from is not known'}.", "warn")
        return
    yield Table(SOURCES, source_rows(receipt), f"Made by mtptools {receipt['version']} {receipt['verb']}", 5)
    if receipt.get("command"):
        yield Code(str(receipt["command"]), "sh")
    yield Facts(_made(receipt))
    if receipt.get("facts"):
        yield Items([str(fact) for fact in receipt["facts"]])


def artifact_facts(found: Data) -> list[tuple[str, str]]:
    """Container, family, sizes and the head's types; what is not known is left out."""
    files = f", {len(found['files'])} files" if len(found["files"]) > 1 else ""
    rows = [("container", f"{found['container']} ({found['dialect']} dialect){files}, {human_bytes(found['bytes'])}")]
    if found.get("family"):
        rows.append(("family", f"{found['title']} ({found['family']}), {found['trunk_layers']} layers"))
    types = ", ".join(f"{name} × {count}" for name, count in found["types"].items())
    rows.append(("tensors", f"{found['tensors']}: {types}"))
    declared = found.get("declared") or {}
    told = [
        f"{key} {declared[key]}" for key in ("block_count", "nextn_predict_layers") if declared.get(key) is not None
    ]
    if not told and declared.get("depth") is not None:
        told = [f"{declared['depth']} MTP layer(s)"]
    if told:
        rows.append(("declares", ", ".join(told)))
    rows.append(("head", head_line(found.get("head"))))
    if drafts := found.get("draft_vocabulary"):
        rows.append(("drafts over", f"{drafts['tokens']:,} of {drafts['of']:,} tokens"))
    if tokens := found.get("tokenizer"):
        rows.append(("tokenizer", f"{tokens['kind']}, {tokens['size']:,} tokens, sha256 {tokens['sha256']}"))
    return rows


def head_line(head: Data | None) -> str:
    """Tensors, bytes and types of the head."""
    if not head:
        return "none"
    types = ", ".join(f"{one['type']} × {one['tensors']} ({human_bytes(one['bytes'])})" for one in head["types"])
    return f"{head['tensors']} tensors, {human_bytes(head['bytes'])}: {types}"


def source_rows(receipt: Data) -> list[list[str]]:
    """One row per weight file of a source; the revision is the commit it was read at, where that is known."""
    rows = []
    for source in receipt["sources"]:
        origin = source.get("origin") or {}
        name = str(origin.get("repo") or source["name"])
        revision = str(origin.get("commit") or origin.get("revision") or "not recorded: a local file")
        files: Sequence[Data] = source.get("files") or ({},)
        for number, file in enumerate(files):
            shown = (
                name if file.get("name") in (None, name) else f"{name}: {file['name']}" if number == 0 else file["name"]
            )
            size = human_bytes(file["bytes"]) if isinstance(file.get("bytes"), int) else ""
            label = str(source["label"]) if number == 0 else ""
            rows.append(
                [label, str(shown), revision if number == 0 else "", size, str(file.get("header_sha256") or "")]
            )
    return rows


def _made(receipt: Data) -> list[tuple[str, str]]:
    if "tensors" not in receipt:
        return [("receipt", "the short form inside the file: digests of the head alone")]
    actions = ", ".join(f"{count} {name}" for name, count in receipt["actions"].items())
    rows = [("plan", f"{receipt['tensors']} tensors: {actions}")]
    rows.append(("bytes", f"{receipt['bytes_pass']} tensors are byte for byte those of a source"))
    if receipt.get("versions"):
        rows.append(("versions", ", ".join(f"{name} {value}" for name, value in receipt["versions"].items())))
    if receipt.get("linked"):
        rows.append(("linked", f"{receipt['linked']} files are hard links and have no digest"))
    return rows


def how(data: Data) -> Iterator[Section]:
    """The command, versions, machine and settings."""
    report = data.get("decoder") or data.get("stream") or {}
    told = report.get("fingerprint") or {}
    rows = [("mtptools", str(data.get("version")))]
    names = ("torch", "device", "gpu", "driver", "cuda", "dtype", "arithmetic", "threads", "machine", "cpu_capability")
    rows += [(name.replace("_", " "), str(told[name])) for name in (*names, "graphs") if told.get(name) is not None]
    if told.get("weights"):
        rows.append(("weights", ", ".join(map(str, told["weights"]))))
    for key, name in (("prompts_digest", "prompts, sha256 of their tokens"), ("text_digest", "text, sha256")):
        if report.get(key):
            rows.append((name, str(report[key])))
    if isinstance(data.get("threshold"), Mapping):
        limits = data["threshold"]
        rows.append(("wanted", f"{limits['absolute']:.0%} of first drafts, {limits['relative']:.0%} of the baseline"))
    blocks: list[Block] = [Facts(rows)]
    if data.get("command"):
        blocks.insert(0, Code(str(data["command"]), "sh"))
    yield Section("how", "How this was measured", blocks)
