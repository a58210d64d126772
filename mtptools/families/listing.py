"""The known families as rows for people: what `mtptools families` and docs/families.md show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from mtptools.families import known_families
from mtptools.families.runtimes import RUNTIMES
from mtptools.families.spec import Family

__all__ = ["describe", "markdown", "rows"]


def rows(decodable: Sequence[str]) -> list[dict[str, Any]]:
    """One row per family; `decodable` names the ones the decoder knows."""
    return [describe(family, family.name in decodable) for family in known_families()]


def describe(family: Family, decodes: bool) -> dict[str, Any]:
    wiring = family.wiring
    return {
        "name": family.name,
        "title": family.title,
        "hf_types": list(family.hf_types),
        "gguf_arch": family.gguf_arch,
        "depth_field": " or ".join(family.hf_depth) if family.hf_depth else "not stated: counted",
        "head_prefix": family.hf_head.replace("^", "model.").replace("{n}", "N").replace("{d}", "D"),
        "head_roles": [role.name for role in family.head],
        "concat": wiring.concat,
        "tap": wiring.tap,
        "recycle": wiring.recycle,
        "mask_first": wiring.mask_first,
        "recurrence": wiring.recurrence,
        "runtimes": [asdict(one) for one in RUNTIMES.get(family.name, ())],
        "norms": sorted({role.convention("hf") for role in family.head if role.kind == "norm"}),
        "operations": operations(family),
        "decoder": decodes,
        "evidence": wiring.evidence,
    }


def operations(family: Family) -> list[str]:
    """What can be done to a head of the family, and what would run it."""
    if not family.ships:
        return ["validate"]
    # llama.cpp reads roles outside of the head's block from a file of the head's own.
    own_file = any(role.root for role in family.head)
    out = ["extract", "strip", "graft (not into a GGUF)" if own_file else "graft", "validate", "convert to hf"]
    if family.gguf_arch:
        out.append(
            "convert to gguf" if family.gguf_head else "convert to gguf (llama.cpp keeps it and does not run it)"
        )
    if family.mlx != "breaks":
        out.append("convert to mlx" if family.mlx == "drafts" else "convert to mlx (no runtime drafts from it)")
    if family.gguf_pre and "all" in family.trunk and family.layers != "unknown":
        out.append("convert the whole model to gguf")
    return out


def markdown(decodable: Sequence[str]) -> str:
    """docs/families.md."""
    lines = [
        "# Families",
        "",
        "Made by `mtptools families --markdown`. One file per family in `mtptools/families/`; a GGUF of an",
        "architecture that is not here can be moved with `--generic`. The columns: [conventions.md](conventions.md).",
        "",
        "| family | GGUF | `model_type` | depth | head in HF | norms | order | tap | recycle | decoder |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows(decodable):
        types = ", ".join(f"`{name}`" for name in row["hf_types"])
        cells = (
            f"{row['title']} (`{row['name']}`)",
            f"`{row['gguf_arch']}`" if row["gguf_arch"] else "–",
            types,
            row["depth_field"],
            f"`{row['head_prefix']}`",
            ", ".join(row["norms"]),
            row["concat"],
            row["tap"],
            row["recycle"],
            "yes" if row["decoder"] else "–",
        )
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "## What runtimes do",
        "",
        "Where a runtime connects a head otherwise than the table above, its drafts differ; only acceptance shows it:",
        "`mtptools verify PATH --parity --probe` measures all variants. Sources: `mtptools/families/runtimes.py`.",
        "",
        "| family | runtime | tap | recycle | position 0 zeroed | layers take turns |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows(decodable):
        for one in row["runtimes"]:
            zeroed = "yes" if one["mask_first"] else "no"
            line = (row["name"], one["runtime"], one["tap"], one["recycle"], zeroed, one["recurrence"])
            lines.append(f"| {' | '.join(line)} |")
    lines += ["", "## Operations and evidence", ""]
    for row in rows(decodable):
        lines += [f"**{row['title']}**: {'; '.join(row['operations'])}. Wiring: {row['evidence']}.", ""]
    return "\n".join(lines).rstrip() + "\n"
