# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-untyped"
"""The programs of a row's arithmetic between its products: norms, gates, the choice of experts and their sum.

A program has one row, or a piece of one, and nothing else can be in its arithmetic. Divisions and roots are rounded
as IEEE has it; of what is approximate there is the exponential alone: within 2^-21 + |x| 2^-23 of itself.
"""

from __future__ import annotations

import triton
import triton.language as tl

from mtptools.decoder.kernels.programs_attention import LARGEST, SUM

__all__ = ["gate", "mix", "norm", "route"]

SMALLEST = tl.standard._elementwise_min

# None of a program's numbers and addresses is regarded when it is compiled: by default each that is 1, or is divisible
# by 16, would make another program, of which a sum may have another order.


@triton.jit(do_not_specialize=["x", "y", "weight", "total", "out", "x_row", "x_group", "y_row", "weight_group", "eps"])
def norm(
    x,
    y,
    weight,
    total,
    out,
    x_row,
    x_group,
    y_row,
    weight_group,
    eps,
    width: tl.constexpr,
    padded: tl.constexpr,
):
    """out = v / rms(v) * weight, where v is x, or x + y: float32 [rows, groups, width], a program a row and group.

    x       its rows are x_row apart, its groups x_group
    y       [rows, width], its rows y_row apart, for which there is one group; v goes to total.  None: neither
    weight  its groups are weight_group apart, 0 where there is one for all
    """
    r, g = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = tl.arange(0, padded)
    has = i < width
    to = (r * tl.num_programs(1) + g) * width + i
    v = tl.load(x + r * x_row + g * x_group + i, mask=has, other=0.0)
    if y is not None:
        v = v + tl.load(y + r * y_row + i, mask=has, other=0.0)
        tl.store(total + to, v, mask=has)
    mean = tl.div_rn(tl.reduce(v * v, 0, SUM), width * 1.0)
    factor = tl.div_rn(1.0, tl.sqrt_rn(mean + eps))
    tl.store(out + to, v * factor * tl.load(weight + g * weight_group + i, mask=has, other=0.0), mask=has)


@triton.jit(do_not_specialize=["x", "out", "x_row"])
def gate(x, out, x_row, half: tl.constexpr, limit: tl.constexpr, block: tl.constexpr):
    """out [rows, half] = silu(gate) * up of x = [gate | up], a program a row and `block` columns.

    limit  gate above it, and up beyond +- it, are cut first; 0 for none. NaN stays NaN
    """
    r = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * block + tl.arange(0, block)
    has = i < half
    a = tl.load(x + r * x_row + i, mask=has, other=0.0)
    b = tl.load(x + r * x_row + half + i, mask=has, other=0.0)
    if limit != 0:
        a = tl.where(a > limit, limit, a)
        b = tl.where(b > limit, limit, tl.where(b < -limit, -limit, b))
    tl.store(out + r * half + i, silu(a) * b, mask=has)


@triton.jit(do_not_specialize=["logits", "bias", "experts", "weights", "row"])
def route(
    logits,
    bias,
    experts,
    weights,
    row,
    n: tl.constexpr,
    scoring: tl.constexpr,
    used: tl.constexpr,
    groups: tl.constexpr,
    groups_used: tl.constexpr,
    normalized: tl.constexpr,
    scale: tl.constexpr,
    switch: tl.constexpr,
    tile_groups: tl.constexpr,
    tile_members: tl.constexpr,
    slots: tl.constexpr,
):
    """The experts of one row, best first, of equals the lowest number first; what is NaN comes before all.

    logits   float32, rows `row` apart: one of each of n experts, and with `switch` the shared expert's
    bias     float32 [n], added where experts are chosen; None: nothing is
    experts  int32 [rows, used], each below n whatever the logits are
    weights  float32 [rows, used (+ 1)], the last the sigmoid of the switch
    """
    members: tl.constexpr = n // groups
    r = tl.program_id(0).to(tl.int64)
    group = tl.arange(0, tile_groups)[:, None]
    member = tl.arange(0, tile_members)[None, :]
    open_ = (group < groups) & (member < members)
    number = tl.where(open_, group * members + member, -1)
    found = scores(tl.load(logits + r * row + number, mask=open_, other=float("-inf")), scoring)
    key = found
    if bias is not None:
        key = key + tl.load(bias + number, mask=open_, other=0.0)
    key = first_if_nan(key)
    if groups > 1:
        open_ = open_ & in_best(key, open_, group, member, groups, groups_used)

    slot = tl.arange(0, slots)
    names = tl.full((slots,), 0, tl.int32)
    shares = tl.full((slots,), 0.0, tl.float32)
    total = tl.full((), 0.0, tl.float32)
    for rank in range(used):
        expert = best(key, open_, number, n - 1)
        share = added(tl.where(number == expert, found, 0.0))
        open_ = open_ & (number != expert)
        names = tl.where(slot == rank, expert, names)
        shares = tl.where(slot == rank, share, shares)
        total = total + share
    if normalized:
        shares = tl.div_rn(shares, total + 1e-20)
    if scale != 1:
        shares = shares * scale
    width: tl.constexpr = used + 1 if switch else used
    tl.store(experts + r * used + slot, names, mask=slot < used)
    tl.store(weights + r * width + slot, shares, mask=slot < used)
    if switch:
        tl.store(weights + r * width + used, sigmoid(tl.load(logits + r * row + n)))


@triton.jit
def in_best(key, open_, group, member, groups: tl.constexpr, groups_used: tl.constexpr):
    """Which experts are in the best groups: bool [groups, 1]. A group is as good as its two best together."""
    high = tl.reduce(tl.where(open_, key, float("-inf")), 1, LARGEST)[:, None]
    at = tl.reduce(tl.where(open_ & (key == high), member, key.shape[1]), 1, SMALLEST)[:, None]
    next_ = tl.reduce(tl.where(open_ & (member != at), key, float("-inf")), 1, LARGEST)[:, None]
    score = first_if_nan(high + next_)
    left = group < groups
    for _ in range(groups_used):
        left = left & (group != best(score, left, group, groups - 1))
    return (group < groups) & (left == 0)


@triton.jit
def scores(logits, scoring: tl.constexpr):
    """What stands for each expert, of a tile of logits; 0 where they are -inf."""
    if scoring == "softmax":
        powers = tl.exp(logits - largest(logits))
        found = tl.div_rn(powers, added(powers))
    elif scoring == "sigmoid":
        found = sigmoid(logits)
    else:
        tl.static_assert(scoring == "sqrtsoftplus")
        found = tl.sqrt_rn(softplus(logits))
    return found


@triton.jit
def sigmoid(x):
    return tl.div_rn(1.0, 1.0 + tl.exp(-x))


@triton.jit
def silu(x):
    """x sigmoid(x), with one division and no product."""
    return tl.div_rn(x, 1.0 + tl.exp(-x))


@triton.jit
def softplus(x):
    """log(1 + e^x) = max(x, 0) + 2 atanh(e / (2 + e)), e = e^-|x| <= 1: by its series, cut off at 2^-29 of it.

    A logarithm of 1 + e would have lost the digits of a small e, and triton has none of e itself. Thousands of tokens
    multiply what it gets wrong, where a memory's decay is made of it.
    """
    e = tl.exp(-tl.abs(x))
    s = tl.div_rn(e, 2.0 + e)
    q = s * s
    series = q * (1.0 / 15) + 1.0 / 13
    series = series * q + 1.0 / 11
    series = series * q + 1.0 / 9
    series = series * q + 1.0 / 7
    series = series * q + 1.0 / 5
    series = series * q + 1.0 / 3
    series = series * q + 1.0
    return tl.where(x > 0, x, 0.0) + 2.0 * s * series


@triton.jit
def first_if_nan(key):
    """NaN is what torch takes first too: a row that it is in must not go on as if it were not."""
    return tl.where(key == key, key, float("inf"))


@triton.jit
def best(key, open_, number, last: tl.constexpr):
    """The lowest number of the largest key among those that are open; `last` where none is."""
    high = largest(tl.where(open_, key, float("-inf")))
    return smallest(tl.where(open_ & (key == high), number, last))


@triton.jit
def largest(x):
    """Of a tile."""
    return tl.reduce(tl.reduce(x, 1, LARGEST), 0, LARGEST)


@triton.jit
def smallest(x):
    return tl.reduce(tl.reduce(x, 1, SMALLEST), 0, SMALLEST)


@triton.jit
def added(x):
    return tl.reduce(tl.reduce(x, 1, SUM), 0, SUM)


@triton.jit(do_not_specialize=["parts", "weights", "shared", "out"])
def mix(
    parts,
    weights,
    shared,
    out,
    hidden: tl.constexpr,
    used: tl.constexpr,
    switch: tl.constexpr,
    block: tl.constexpr,
):
    """out [rows, hidden] = sum of parts [rows, used, hidden] times weights, in rank order, a program a row and piece.

    weights  [rows, used (+ 1)], with `switch` one more, which shared [rows, hidden] is multiplied by
    shared   added last; None: nothing is
    """
    width: tl.constexpr = used + 1 if switch else used
    r = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * block + tl.arange(0, block)
    has = i < hidden
    part, weight = parts + r * used * hidden + i, weights + r * width
    mixed = tl.load(part, mask=has, other=0.0) * tl.load(weight)
    for rank in range(1, used):
        mixed = mixed + tl.load(part + rank * hidden, mask=has, other=0.0) * tl.load(weight + rank)
    if shared is not None:
        more = tl.load(shared + r * hidden + i, mask=has, other=0.0)
        if switch:
            more = more * tl.load(weight + used)
        mixed = mixed + more
    tl.store(out + r * hidden + i, mixed, mask=has)
