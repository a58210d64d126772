"""One pass over a text in place of decoding: the trunk on it, acceptance of every draft, another checkpoint beside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mtptools.plan import human_bytes
from mtptools.report.document import Beside, Block, Columns, Facts, Paragraph, Section, Series, Table
from mtptools.report.levels import NOT_TRIED, maybe, percent

__all__ = ["stream"]

Data = Mapping[str, Any]


def stream(data: Data) -> Iterator[Section]:
    found = data.get("stream")
    if not found:
        return
    plural = "s" * (found["passages"] != 1)
    lead = f"{found['positions']:,} tokens in {found['passages']} passage{plural}, one layer in memory at a time. "
    if found["own_text"]:
        lead += "The text is the model's own: rate and tokens a step are the loop's counts, the rest of all positions."
    else:
        lead += "The trunk would not always have written the text: shares of all steps, and what follows, are products."
    other = found.get("compared")
    blocks: list[Block] = [Paragraph(f"Warning: {one}.", "warn") for one in found.get("warnings") or ()]
    trunk = Facts([*_trunk(found["trunk"], "trunk"), *_read(found)])
    if found.get("rates"):
        drawn = _chart(found["rates"], (other or {}).get("rates"), str((other or {}).get("name") or ""))
        blocks += [Beside([drawn, trunk]), _rates(found["rates"], found.get("walked") or (), "Drafts")]
    else:
        blocks.append(trunk)
    if other:
        blocks.append(Facts([*_trunk(other["trunk"], str(other["name"])), *_apart(other)]))
        if other.get("rates"):
            blocks.append(_rates(other["rates"], (), f"Drafts of {other['name']}"))
    yield Section("stream", "One pass over a text", blocks, lead)


def _rates(rates: Data, walked: Any, caption: str) -> Table:
    rows = []
    for n, tried in enumerate(rates["tried"]):
        rate, length = rates["rate"][n], rates["mean_length"][n]
        if n < len(walked) and tried:
            rate, length = walked[n]["rate"], walked[n]["mean_length"]
        right = f"{percent(rates['conditional'][n])} ± {percent(rates['error'][n])}" if tried else NOT_TRIED
        rows.append(
            [str(n + 1), f"{tried:,}", right, percent(rates["per_position"][n]), percent(rate), maybe(length, ".2f")]
        )
    header = ("draft", "tried", "right, if all before it were", "of all steps", "rate at k", "tokens a step at k")
    return Table(header, rows, caption)


def _chart(rates: Data, other: Data | None, name: str) -> Columns:
    groups = [str(n + 1) for n in range(len(rates["tried"]))]
    marks = [] if other is None else list(other["conditional"])
    series = (Series("right, if all before were", list(rates["conditional"]), marks),)
    told = ", ".join(percent(share) for share in rates["conditional"])
    return Columns("Right, if all before it were", groups, series, told, name if marks else "", axis="draft of a step")


def _trunk(facts: Data, name: str) -> list[tuple[str, str]]:
    margins = facts["margins"]
    return [
        (name, f"{percent(facts['agreement'])} of {facts['counted']:,} tokens are its first choice"),
        ("perplexity", f"{facts['perplexity']:.3f}"),
        (
            "margin of the best token",
            f"median {margins['0.5']:.3g}, 10% below {margins['0.1']:.3g}, {facts['ties']} ties",
        ),
    ]


def _read(found: Data) -> list[tuple[str, str]]:
    if not found.get("seconds"):
        return []
    speed, after = found["bytes"] / found["seconds"] / 1e6, found.get("went_on_after")
    told = f"{human_bytes(found['bytes'])} in {found['seconds']:.1f} s, {speed:.0f} MB/s"
    if not after:
        return [("read", told)]
    return [("went on", f"after layer {after} of {found['n_layers']}"), ("read", f"{told}, this run alone")]


def _apart(other: Data) -> list[tuple[str, str]]:
    if other["shared"] == len(other["drift"]):
        return [("trunks", "the same, layer by layer")]
    divergence = other["divergence"]
    return [
        (
            "first choice differs",
            f"at {other['flips']} positions, margins there {other['flip_median']:.3g} in the middle",
        ),
        ("divergence", f"{divergence['mean']:.2e} nats, at most {divergence['max']:.2e}"),
        ("states after the last layer", f"{other['drift'][-1]:.2%} apart"),
    ]
