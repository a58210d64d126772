"""Which tensors of a plan can be had back bit for bit, and why the others cannot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from mtptools.codecs import CODECS, decode, decode_bytes, encode
from mtptools.conventions import convert_values
from mtptools.errors import CodecError
from mtptools.plan import Entry
from mtptools.quantized import COMPANIONS

__all__ = ["loses", "require_lossless", "statement"]

# Types whose every value another type holds too.
_WIDER: Final = {"F32": ("F32",), "F16": ("F16", "F32"), "BF16": ("BF16", "F32")}
# Values are looked at in tensors up to this size: norms, vectors and routers, not matrices.
_SMALL: Final = 1 << 22
_FLOATS: Final = "--head-type BF16, or F32; or leave out --lossless"


def loses(entry: Entry) -> str | None:
    """Why the source's bits cannot be had back from this entry of the output; None when they can.

    Small tensors are judged by their values, large ones by their types.
    """
    if entry.passes:
        return None
    source = entry.source
    if entry.encoding:
        return f"{entry.origin} becomes {entry.encoding}"
    if source.packed is not None and entry.codec == source.codec:  # laid out anew, never decoded
        return None
    if any(name.endswith(COMPANIONS) for name in entry.names):
        return f"codes and scales become {entry.codec}"
    if source.stored and CODECS[source.codec].kind == "float" and source.n_values <= _SMALL:
        return None if _comes_back(entry) else f"{_kind(entry)} does not give every value back"
    if entry.values is None and entry.codec in _WIDER.get(source.codec, ()):
        return None
    return f"{_kind(entry)} rounds"


def _kind(entry: Entry) -> str:
    values = f" and {entry.values[0]} to {entry.values[1]}" if entry.values else ""
    return f"{entry.source.codec} to {entry.codec}{values}"


def _comes_back(entry: Entry) -> bool:
    """Convert, and convert back: the same bytes?"""
    columns = entry.source.shape[-1] if entry.source.shape else 1
    before = decode(entry.source)
    there = before if entry.values is None else convert_values(before, *entry.values)
    try:
        with np.errstate(over="ignore"):  # what does not fit is refused when it is written
            kept = decode_bytes(encode(there, entry.codec), entry.codec, columns)
    except CodecError:
        return False
    back = kept if entry.values is None else convert_values(kept, entry.values[1], entry.values[0])
    return np.frombuffer(encode(back, entry.source.codec), np.uint8).tobytes() == entry.source.read()


def statement(entries: Sequence[Entry]) -> list[str]:
    """Facts for people: how many head tensors can be had back bit for bit, and what happens to the others."""
    lost: dict[str, list[str]] = {}
    for entry in entries:
        reason = loses(entry)
        if reason is not None:
            lost.setdefault(reason, []).append(entry.name)
    exact = len(entries) - sum(map(len, lost.values()))
    out = [f"exact: {exact} of {len(entries)} head tensors can be had back bit for bit"]
    out += [f"not exact: {reason}: {len(names)} tensor(s), {names[0]}" for reason, names in lost.items()]
    return out


def require_lossless(entries: Sequence[Entry]) -> None:
    """Raise CodecError when any entry cannot be had back bit for bit."""
    lost = [(entry, reason) for entry in entries if (reason := loses(entry)) is not None]
    if lost:
        entry, reason = lost[0]
        norms = all(one.values is not None for one, _ in lost)
        coded = any(name.endswith(COMPANIONS) for name in entry.names)
        other = "use a trunk quantized as the donor is; or leave out --lossless" if coded else _FLOATS
        raise CodecError(
            f"{len(lost)} tensor(s) would lose bits, {entry.name} first: {reason}",
            where="--lossless",
            hint="--norm-type F32" if norms else other,
        )
