"""mtptools inspect"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mtptools.cli.options import PATH, examples, generic_option, output_options
from mtptools.cli.output import emit, table

__all__ = ["command"]


@click.command(
    epilog=examples(
        "mtptools inspect model.gguf",
        "mtptools inspect ./Qwen3.5-27B --json | jq .sizes",
        "mtptools inspect Qwen/Qwen3.5-27B",
    )
)
@click.argument("path", type=PATH)
@generic_option
@output_options
def command(path: Path, generic: bool, as_json: bool, quiet: bool, verbose: bool) -> None:
    """Show what is in a checkpoint: container, family, head by role, sizes, tokenizer, receipt."""
    from mtptools.checkpoint import open_checkpoint
    from mtptools.ops.inspect import inspect

    ckpt = open_checkpoint(path, generic=generic)
    data = inspect(ckpt)
    if verbose:
        data["all_tensors"] = [{"name": n, "shape": list(t.shape), "type": t.codec} for n, t in ckpt.items()]
    emit(data, _text(data), as_json=as_json, quiet=quiet)


def _text(data: dict[str, Any]) -> str:
    from mtptools.plan import human_bytes

    types = ", ".join(f"{name} x{n}" for name, n in data["types"].items())
    rows = [
        ("container", f"{data['container']} ({data['dialect']} dialect), {len(data['files'])} file(s)"),
        ("tensors", f"{data['tensors']}, {human_bytes(data['bytes']['tensors'])}: {types}"),
    ]
    tokens = data["tokenizer"]
    rows.append(("tokenizer", f"{tokens['kind']}, {tokens['size']} tokens" if tokens else "none"))
    if data["family"] is None:
        rows.append(("family", str(data["family_error"])))
        return table(rows)
    sizes = data["sizes"]
    rows[:0] = [("family", f"{data['family']} ({data['title']})")]
    rows += [
        ("trunk", f"{data['trunk_layers']} layers, {human_bytes(sizes['trunk'])}"),
        ("embeddings", human_bytes(sizes["embeddings"])),
        ("declares", f"{data['declared']['depth']} MTP layer(s), vocabulary {data['declared']['vocab_size']}"),
    ]
    if not data["head"]:
        missing = " (declared and missing)" if data["declared"]["depth"] else ""
        return table([*rows, ("head", "no head" + missing)])
    rows.append(("head", f"{len(data['head'])} layer(s), {human_bytes(sizes['head'])}"))
    if data["draft_vocabulary"]:
        rows.append(("drafts over", _drafts_over(data["draft_vocabulary"])))
    made = data["receipt"]
    if made:
        origin = ", ".join(f"{s['label']} {s['name']}" for s in made["sources"])
        rows.append(("made by", f"mtptools {made['version']} {made['verb']} from {origin}"))
    parts = [table(rows)]
    for head in data["head"]:
        listed = [
            (r["role"], r["type"], "x".join(map(str, r["shape"])), human_bytes(r["bytes"])) for r in head["roles"]
        ]
        parts.append(f"\nhead, block {head['block']}\n" + table(listed, header=("role", "type", "shape", "size")))
        parts += [f"  missing: {name}" for name in head["missing"]]
        parts += [f"  unknown: {name}" for name in head["unknown"]]
    for tensor in data.get("all_tensors", ()):
        parts.append(f"{tensor['name']}  {tensor['type']}  {tensor['shape']}")
    return "\n".join(parts)


def _drafts_over(found: dict[str, Any]) -> str:
    from mtptools.plan import human_bytes

    if found["damaged"]:
        return "a draft vocabulary that is damaged: mtptools validate says how"
    written = "absolute ids" if found["written_as"] == "absolute" else "offsets"
    tokens = f"{found['tokens']} of {found['of']} tokens ({found['share']:.1%}), {found['first']} to {found['last']}"
    sizes = f"{human_bytes(found['bytes'])} of output matrix for {human_bytes(found['whole_bytes'])}"
    return f"{tokens}, written as {written}: {sizes}"
