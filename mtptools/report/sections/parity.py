"""L2: what was compared, where a difference is, and how sure the trunk was along the texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mtptools.report.document import Beside, Block, Cell, Columns, Excerpt, Facts, Section, Series, Table
from mtptools.report.levels import percent

__all__ = ["margin_facts", "parity"]

Data = Mapping[str, Any]
SHOWN = 8


def parity(data: Data) -> Iterator[Section]:
    decoder = data.get("decoder")
    if not decoder:
        return
    arms = decoder["parity"]["arms"]
    wrong = [arm for arm in arms if not arm["equal"]]
    rows = sum(arm["compared"] for arm in arms)
    told = "all equal" if not wrong else f"{len(wrong)} run{'s differ' if len(wrong) > 1 else ' differs'}"
    lead = (
        f"{len(arms)} runs with drafts against plain decoding of the same prompts: {rows:,} rows of logits, "
        f"{told}. Bits are compared, with no tolerance."
    )
    blocks: list[Block] = []
    if wrong:
        header = ("run", "at token", "tokens", "margin there", "largest difference of a logit")
        blocks.append(Table(header, [_row(arm) for arm in wrong]))
        excerpts = [excerpt for arm in wrong[:SHOWN] if (excerpt := _excerpt(arm)) is not None]
        blocks += [Beside(excerpts)] if excerpts else []
    if decoder.get("margins"):
        blocks.append(Beside([_histogram(decoder["margins"]), Facts(margin_facts(decoder["margins"]))]))
    yield Section("parity", "Parity", blocks, lead)


def _row(arm: Data) -> list[Cell | str]:
    margin, gap = arm.get("margin"), arm.get("max_difference")
    return [
        str(arm["arm"]),
        str(arm["first_difference"]),
        Cell("the same", "warn") if arm["same_tokens"] else Cell("others", "bad"),
        "" if margin is None else f"{margin:.4g}",
        "" if gap is None else f"{gap:.3g}",
    ]


def _excerpt(arm: Data) -> Excerpt | None:
    context = arm.get("context")
    if not context:
        return None
    texts = context.get("text") or [" ".join(map(str, context[key])) for key in ("before", "plain", "other")]
    before, plain, other = map(str, texts)
    title = f"{arm['arm']}, from token {arm['first_difference']}"
    return Excerpt(title, before, (("plain", plain), ("with drafts", other)))


def _histogram(margins: Data) -> Columns:
    edges, counts, total = margins["edges"], margins["counts"], max(margins["counted"], 1)
    names = [f"{low:g}" for low in edges]
    told = "; ".join(
        f"{low:g} to {high}: {count}"
        for low, high, count in zip(edges, [*(f"{e:g}" for e in edges[1:]), "more"], counts, strict=True)
    )
    series = (Series("tokens", [count / total for count in counts]),)
    axis = "margin of the best token, logits: lower edge of each column"
    return Columns("How sure the trunk was", names, series, told, share=False, axis=axis, alone=True)


def margin_facts(margins: Data) -> list[tuple[str, str]]:
    """Ties and quantiles of the margins, in words."""
    found = margins["quantiles"]
    rows = [("tokens", f"{margins['counted']:,}"), ("exact ties", str(margins["ties"]))]
    for point in ("0.5", "0.1", "0.01", "0.001"):
        if point in found:
            name = "median margin" if point == "0.5" else f"{percent(float(point)).replace('.0%', '%')} are below"
            rows.append((name, f"{found[point]:.4g}"))
    return rows
