# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-untyped"
"""The programs of the gated delta rule: what a token brings, what it does to the memory, and how its reads leave.

Formulas: `decoder/deltanet.py`. `bring` and `gate` have a row and a head. `remember` has a head and some columns of
its memory, and takes one row after the other: a column is changed by the row's key and by its own values alone, so
that a state does not depend on how rows are cut into passes. Divisions and roots are rounded as IEEE has it, but that
triton 3.3 takes subnormals for zeros there; of what is approximate there is the exponential alone.
"""

from __future__ import annotations

import triton
import triton.language as tl

from mtptools.decoder.kernels.programs_attention import SUM
from mtptools.decoder.kernels.programs_rows import sigmoid, silu, softplus

__all__ = ["bring", "gate", "remember"]


@triton.jit
def over(x, square):
    """x over the root of `square`."""
    return x * tl.div_rn(1.0, tl.sqrt_rn(square))


@triton.jit
def convolved(
    fused,
    taps,
    conv,
    at,
    channel,
    rows,
    kept,
    slots,
    kernel: tl.constexpr,
    channels: tl.constexpr,
    width: tl.constexpr,
    size: tl.constexpr,
    padded: tl.constexpr,
):
    """silu of `size` channels' convolution, for the program's row; the window behind it goes to the ring."""
    r = tl.program_id(0).to(tl.int64)
    i = channel + tl.arange(0, padded)
    has = tl.arange(0, padded) < size
    start = tl.load(at)
    number = r - (rows - kept)  # among the kept ones
    to = conv + (start + 1 + number) % slots * ((kernel - 1) * channels)
    total = tl.full((padded,), 0.0, tl.float32)
    for tap in tl.static_range(kernel):
        row = r + (tap - (kernel - 1))
        if row >= 0:
            x = tl.load(fused + row * width + i, mask=has, other=0.0)
        else:
            x = tl.load(conv + (start * (kernel - 1) + kernel - 1 + row) * channels + i, mask=has, other=0.0)
        total += x * tl.load(taps + tap * channels + i, mask=has, other=0.0)
        if tap > 0:
            tl.store(to + (tap - 1) * channels + i, x, mask=has & (number >= 0))
    return silu(total)


# A number that is 1, or a multiple of 16, would be compiled into a program of its own, and so would another address.
@triton.jit(do_not_specialize=["at", "rows", "kept", "slots"])
def bring(
    fused,
    taps,
    decay,
    dt,
    conv,
    at,
    brought,
    rows,
    kept,
    slots,
    kernel: tl.constexpr,
    k_heads: tl.constexpr,
    v_heads: tl.constexpr,
    k_dim: tl.constexpr,
    v_dim: tl.constexpr,
    k_padded: tl.constexpr,
    v_padded: tl.constexpr,
    l2_eps: tl.constexpr,
    scale: tl.constexpr,
):
    """What a row brings to each head. A program has a row, and a head of the queries, of the keys, or of the values.

    fused    float32 [rows, channels + v_heads * v_dim + 2 * v_heads]: q, k, v, z, b, a
    taps     float32 [kernel, channels];  decay, dt  float32 [v_heads]
    conv     float32 [slots, kernel - 1, channels], a ring from slot `at` on: see `ring.py`
    brought  float32 [rows, channels + 2 * v_heads]: unit queries times `scale`, unit keys, values; then of each value
             head how strongly it writes (beta), then what it keeps of its memory (exp of the decay)
    """
    channels: tl.constexpr = 2 * k_heads * k_dim + v_heads * v_dim
    width: tl.constexpr = channels + v_heads * v_dim + 2 * v_heads
    r = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    line = brought + r * (channels + 2 * v_heads)
    if head < 2 * k_heads:
        at_k = head * k_dim
        x = convolved(fused, taps, conv, at, at_k, rows, kept, slots, kernel, channels, width, k_dim, k_padded)
        x = over(x, tl.reduce(x * x, 0, SUM) + l2_eps) * tl.where(head < k_heads, scale, 1.0)
        i = tl.arange(0, k_padded)
        tl.store(line + at_k + i, x, mask=i < k_dim)
    else:
        v_head = head - 2 * k_heads
        at_v = 2 * k_heads * k_dim + v_head * v_dim
        x = convolved(fused, taps, conv, at, at_v, rows, kept, slots, kernel, channels, width, v_dim, v_padded)
        i = tl.arange(0, v_padded)
        tl.store(line + at_v + i, x, mask=i < v_dim)
        b = fused + r * width + channels + v_heads * v_dim + v_head
        beta = sigmoid(tl.load(b))
        rate = softplus(tl.load(b + v_heads) + tl.load(dt + v_head)) * tl.load(decay + v_head)
        tl.store(line + channels + v_head, beta)
        tl.store(line + channels + v_heads + v_head, tl.exp(rate))


@triton.jit(do_not_specialize=["at", "rows", "kept", "slots"])
def remember(
    brought,
    memory,
    at,
    reads,
    rows,
    kept,
    slots,
    k_heads: tl.constexpr,
    v_heads: tl.constexpr,
    k_dim: tl.constexpr,
    v_dim: tl.constexpr,
    k_padded: tl.constexpr,
    block: tl.constexpr,
):
    """The rule, a row after the other, for a value head and `block` columns of its memory.

    brought  as `bring` leaves it;  memory  float32 [slots, v_heads, k_dim, v_dim], a ring from slot `at` on
    reads    float32 [rows, v_heads * v_dim]: what queries read after their own row has written
    """
    channels: tl.constexpr = 2 * k_heads * k_dim + v_heads * v_dim
    head = tl.program_id(0)
    key_head = head // (v_heads // k_heads)
    column = tl.program_id(1) * block + tl.arange(0, block)
    has = column < v_dim
    i = tl.arange(0, k_padded)
    own = i < k_dim
    cells = (head * k_dim + i)[:, None] * v_dim + column[None, :]
    here = own[:, None] & has[None, :]
    start = tl.load(at)
    state = tl.load(memory + start * (v_heads * k_dim * v_dim) + cells, mask=here, other=0.0)
    r = tl.full((), 0, tl.int64)
    while r < rows:  # not a range: triton 3.3's interpreter takes no tensor for its end
        line = brought + r * (channels + 2 * v_heads)
        query = tl.load(line + key_head * k_dim + i, mask=own, other=0.0)
        key = tl.load(line + (k_heads + key_head) * k_dim + i, mask=own, other=0.0)
        value = tl.load(line + 2 * k_heads * k_dim + head * v_dim + column, mask=has, other=0.0)
        beta = tl.load(line + channels + head)
        state = state * tl.load(line + channels + v_heads + head)
        delta = (value - tl.reduce(key[:, None] * state, 0, SUM)) * beta
        state = state + key[:, None] * delta[None, :]
        read = tl.reduce(query[:, None] * state, 0, SUM)
        tl.store(reads + (r * v_heads + head) * v_dim + column, read, mask=has)
        number = r - (rows - kept)  # among the kept ones
        if number >= 0:
            slot = (start + 1 + number) % slots
            tl.store(memory + slot * (v_heads * k_dim * v_dim) + cells, state, mask=here)
        r += 1


@triton.jit
def gate(
    fused,
    norm,
    reads,
    eps: tl.constexpr,
    k_heads: tl.constexpr,
    v_heads: tl.constexpr,
    k_dim: tl.constexpr,
    v_dim: tl.constexpr,
    v_padded: tl.constexpr,
):
    """reads [rows, v_heads * v_dim], in place: over their root mean square, times norm [v_dim] and silu(z)."""
    channels: tl.constexpr = 2 * k_heads * k_dim + v_heads * v_dim
    width: tl.constexpr = channels + v_heads * v_dim + 2 * v_heads
    r = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    i = tl.arange(0, v_padded)
    has = i < v_dim
    to = reads + (r * v_heads + head) * v_dim + i
    x = tl.load(to, mask=has, other=0.0)
    z = tl.load(fused + r * width + channels + head * v_dim + i, mask=has, other=0.0)
    x = over(x, tl.div_rn(tl.reduce(x * x, 0, SUM), v_dim * 1.0) + eps)
    tl.store(to, x * tl.load(norm + i, mask=has, other=0.0) * silu(z), mask=has)
