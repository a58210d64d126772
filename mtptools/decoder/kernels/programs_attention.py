# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-untyped"
"""The programs of attention: what a row finds in a segment of its text, and all segments of a row together.

A program has one row, and the keys that the row may see: nothing else can be in its arithmetic. Keys come in steps of a
fixed number, steps in segments of a fixed number, both counted from the text's first key; segments run beside each
other, and are added in their order.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["HEADS", "PAGE", "join", "look"]

HEADS = tl.constexpr(16)
"""Query heads of a program, which share a key head: the least that a product has."""

PAGE = tl.constexpr(64)
"""Slots of a chunk of the cache."""

# tl.max and tl.sum are jitted functions of triton's library, and the interpreter has them only if it was on when that
# was imported; it knows a reduction by these wherever they are from.
LARGEST, SUM = tl.standard._elementwise_max, tl.standard._sum_combine


# A number that is 1, or a multiple of 16, or an address that is not one, would be compiled into a program of its own.
@triton.jit(do_not_specialize=["pages", "last", "row", "ahead", "place", "first", "stop", "segments"])
def look(
    queries,
    pages,
    last,
    seen,
    peaks,
    totals,
    mixed,
    row,
    ahead,
    place,
    first,
    stop,
    segments,
    cached: tl.constexpr,
    group: tl.constexpr,
    kv_heads: tl.constexpr,
    key_dim: tl.constexpr,
    width: tl.constexpr,
    value_at: tl.constexpr,
    value_dim: tl.constexpr,
    keys: tl.constexpr,
    columns: tl.constexpr,
    values: tl.constexpr,
    segment: tl.constexpr,
):
    """An online softmax over one segment of slots, for 16 heads of a row and `values` columns of its values.

    queries  float32 [rows, kv_heads * group, key_dim], scaled;  row  the first one of this launch
    pages    int64 [chunks]: where a chunk of the cache is, [kv_heads, 64, width] of type `cached`; a slot's values are
             `value_dim` columns from value_at on. Of chunks that a row does not see nothing is read
    last     int64 [rows]: the last slot that a row sees;  or None, and
    seen     uint8 [rows, (stop - first) * 64]: which of the slots of chunks first … stop - 1 it sees
    peaks, totals  float32 [launched rows, segments, heads], and  mixed  [launched rows, segments, heads, value_dim]:
             the largest score, the sum of weights, the weighted values. A total of 0: nothing is seen, and the others
             are not written. Written from segment `place` on, of which the first has the text's segment `ahead`
    """
    heads: tl.constexpr = kv_heads * group
    tiles: tl.constexpr = (group + HEADS - 1) // HEADS
    blocks: tl.constexpr = (value_dim + values - 1) // values
    r = row + tl.program_id(0).to(tl.int64)
    low = (tl.program_id(1) + ahead) * segment
    kv = tl.program_id(2) // (tiles * blocks)
    member = tl.program_id(2) // blocks % tiles * HEADS + tl.arange(0, HEADS)
    block = tl.program_id(2) % blocks
    here = member < group
    head = kv * group + member
    column = block * values + tl.arange(0, values)
    has = column < value_dim

    q = queries + ((r * heads + head) * key_dim)[:, None]
    peak = tl.full((HEADS,), float("-inf"), tl.float32)
    total = tl.full((HEADS,), 0.0, tl.float32)
    mix = tl.full((HEADS, values), 0.0, tl.float32)
    if seen is None:
        step = low // keys
        end = tl.load(last + r).to(tl.int32) + 1
        until = (tl.minimum(low + segment, end) + keys - 1) // keys
    else:
        step = tl.maximum(low, first * PAGE) // keys
        until = tl.minimum(low + segment, stop * PAGE) // keys
        seeing = seen + r * (stop - first) * PAGE - first * PAGE
    while step < until:  # not a range: triton 3.3's interpreter takes no tensor for its end
        slot = step * keys + tl.arange(0, keys)
        sees = slot < end if seen is None else tl.load(seeing + slot) != 0
        if (
            tl.reduce(sees.to(tl.int32), 0, LARGEST) != 0
        ):  # a step out of sight changes nothing, not even the sign of a zero
            page = tl.multiple_of(tl.load(pages + step * keys // PAGE).to(tl.pointer_type(cached)), 16)
            slots = page + kv * (PAGE * width) + (slot % PAGE) * width
            scores = tl.full((HEADS, keys), 0.0, tl.float32)
            for piece in range((key_dim + columns - 1) // columns):
                i = piece * columns + tl.arange(0, columns)
                a = tl.load(q + i[None, :], mask=here[:, None] & (i < key_dim)[None, :], other=0.0)
                b = tl.load(slots[None, :] + i[:, None], mask=(i < key_dim)[:, None] & sees[None, :], other=0.0)
                scores = tl.dot(a, b.to(tl.float32), scores, input_precision="ieee")
            scores = tl.where(sees[None, :], scores, float("-inf"))
            higher = tl.maximum(peak, tl.reduce(scores, 1, LARGEST))
            weights = tl.exp(scores - higher[:, None])
            decay = tl.exp(peak - higher)
            total = total * decay + tl.reduce(weights, 1, SUM)
            found = tl.load(slots[:, None] + (value_at + column)[None, :], mask=sees[:, None] & has[None, :], other=0.0)
            mix = tl.dot(weights, found.to(tl.float32), mix * decay[:, None], input_precision="ieee")
            peak = higher
        step += 1

    at = (tl.program_id(0).to(tl.int64) * segments + place + tl.program_id(1)) * heads + head
    any_seen = here & (total != 0)
    if block == 0:
        tl.store(peaks + at, peak, mask=any_seen)
        tl.store(totals + at, total, mask=here)
    tl.store(mixed + (at * value_dim)[:, None] + column[None, :], mix, mask=any_seen[:, None] & has[None, :])


@triton.jit(do_not_specialize=["last", "gate", "row", "room", "gate_row", "gate_head"])
def join(
    peaks,
    totals,
    mixed,
    sinks,
    last,
    gate,
    out,
    row,
    room,
    gate_row,
    gate_head,
    heads: tl.constexpr,
    value_dim: tl.constexpr,
    padded: tl.constexpr,
    length: tl.constexpr,
):
    """Segments of a row and head, in their order: out [rows, heads, value_dim] float32.

    peaks, totals, mixed  as `look` leaves them, of `room` segments of `length` slots
    sinks  float32 [heads]: the score of what takes a share and gives nothing; None: there is none
    last   int64 [rows]: the last slot that a row sees, behind whose segment none is looked at; None: all are
    gate   float32 [rows, heads, value_dim], a row and a head every gate_row and gate_head values: its sigmoid
           multiplies what was found; None: nothing does
    """
    r, head = row + tl.program_id(0).to(tl.int64), tl.program_id(1)
    segments = room if last is None else tl.minimum(room, tl.load(last + r).to(tl.int32) // length + 1)
    column = tl.arange(0, padded)
    has = column < value_dim
    mix = tl.full((padded,), 0.0, tl.float32)
    if sinks is None:
        peak = tl.full((), float("-inf"), tl.float32)
        total = tl.full((), 0.0, tl.float32)
    else:
        peak = tl.load(sinks + head)
        total = tl.full((), 1.0, tl.float32)
    segment = 0
    while segment < segments:
        at = (tl.program_id(0).to(tl.int64) * room + segment) * heads + head
        more = tl.load(totals + at)
        if more != 0:
            top = tl.load(peaks + at)
            higher = tl.maximum(peak, top)
            decay, weight = tl.exp(peak - higher), tl.exp(top - higher)
            total = total * decay + more * weight
            mix = mix * decay + tl.load(mixed + at * value_dim + column, mask=has, other=0.0) * weight
            peak = higher
        segment += 1
    to = ((row + tl.program_id(0).to(tl.int64)) * heads + head) * value_dim
    found = mix / total
    if gate is not None:
        opening = tl.load(gate + r * gate_row + head * gate_head + column, mask=has, other=0.0)
        found = found * (1 / (1 + tl.exp(-opening)))
    tl.store(out + to + column, found, mask=has)
