"""The Triton kernels of a real layer, and collectives that wait on the GPU itself.

Each kernel takes a fixed number of programs, which go through its work in turns, so that the ranks of one GPU can be
given a part of its processors each. `rounds` is how often all of it is done.

Only what runs on a GPU imports this file: it needs triton.
"""

from __future__ import annotations

import triton
import triton.language as tl

_SIZES, _COUNTS = ("tokens", "capacity", "rounds"), ("count", "capacity", "rounds")
_MEETING = ("rank", "ranks", "target", "most_spins", "count", "messages")
"""Numbers that change from step to step: a kernel compiled anew for some of them would stall its host."""


@triton.jit
def mark_rank_kernel(out):
    """Do next to nothing, with as many programs as the rank's number and one: so a stream tells whose it is."""
    tl.store(out + tl.program_id(0), 1)


@triton.jit
def _attend(query, cache, out, tokens, capacity, rounds, GROUPS: tl.constexpr, HEADS: tl.constexpr,
            WIDTH: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Attend to a program's share of the tokens, head group by head group; the cache serves as keys and values alike.

    Args:
        query: `(GROUPS, HEADS, WIDTH)`.
        cache: `(capacity, WIDTH)`; tokens beyond it read it again from the start.
        out: `(programs, GROUPS, HEADS, WIDTH)`, each program's part, not joined.
    """
    part, parts = tl.program_id(0), tl.num_programs(0)
    head, column = tl.arange(0, HEADS), tl.arange(0, WIDTH)
    place = head[:, None] * WIDTH + column[None, :]
    for turn in range(rounds):
        group = turn % GROUPS
        wanted = tl.load(query + group * HEADS * WIDTH + place)
        top = tl.full([HEADS], -1.0e30, tl.float32)
        weight = tl.zeros([HEADS], tl.float32)
        found = tl.zeros([HEADS, WIDTH], tl.float32)
        for begin in range(part * BLOCK, tokens, parts * BLOCK):
            token = begin + tl.arange(0, BLOCK)
            held = tl.load(cache + (token % capacity)[:, None] * WIDTH + column[None, :])
            score = tl.where((token < tokens)[None, :], tl.dot(wanted, tl.trans(held)), -1.0e30)
            higher = tl.maximum(top, tl.max(score, axis=1))
            share = tl.exp(score - higher[:, None])
            fade = tl.exp(top - higher)
            weight = weight * fade + tl.sum(share, axis=1)
            found = found * fade[:, None] + tl.dot(share.to(held.dtype), held)
            top = higher
        result = found / tl.maximum(weight, 1.0e-30)[:, None]
        tl.store(out + (part * GROUPS + group) * HEADS * WIDTH + place, result.to(out.dtype.element_ty))


@triton.jit(do_not_specialize=_SIZES)
def decode_attention_kernel(query, cache, out, tokens, capacity, rounds, GROUPS: tl.constexpr, HEADS: tl.constexpr,
                            WIDTH: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Attend to all that the requests hold."""
    _attend(query, cache, out, tokens, capacity, rounds, GROUPS, HEADS, WIDTH, BLOCK)


@triton.jit(do_not_specialize=_SIZES)
def prefill_attention_kernel(query, cache, out, tokens, capacity, rounds, GROUPS: tl.constexpr, HEADS: tl.constexpr,
                             WIDTH: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Attend to what the tokens of a prompt see of it."""
    _attend(query, cache, out, tokens, capacity, rounds, GROUPS, HEADS, WIDTH, BLOCK)


@triton.jit
def _multiply(rows, weights, out, count, capacity, rounds, EXPERTS: tl.constexpr, DEPTH: tl.constexpr,
              WIDTH: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr,
              BLOCK_DEPTH: tl.constexpr):  # fmt: skip
    """Multiply rows by the weights of the expert that they are routed to, an equal part of them by each, tile by tile.

    Args:
        rows: `(capacity, DEPTH)`; rows beyond it are read again from the start.
        weights: `(EXPERTS, DEPTH, WIDTH)`.
        out: `(capacity, WIDTH)`.
    """
    part, parts = tl.program_id(0), tl.num_programs(0)
    own = (count + EXPERTS - 1) // EXPERTS
    high, wide = (own + BLOCK_ROWS - 1) // BLOCK_ROWS, WIDTH // BLOCK_COLUMNS
    for turn in range(rounds):
        for tile in range(part, EXPERTS * high * wide, parts):
            expert, inside = tile // (high * wide), tile % (high * wide)
            row = (inside // wide) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
            column = (inside % wide) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
            place = (expert * own + row + turn) % capacity
            total = tl.zeros([BLOCK_ROWS, BLOCK_COLUMNS], tl.float32)
            for deep in range(0, DEPTH, BLOCK_DEPTH):
                depth = deep + tl.arange(0, BLOCK_DEPTH)
                left = tl.load(rows + place[:, None] * DEPTH + depth[None, :])
                right = tl.load(weights + (expert * DEPTH + depth[:, None]) * WIDTH + column[None, :])
                total += tl.dot(left, right)
            target = out + place[:, None] * WIDTH + column[None, :]
            tl.store(target, total.to(out.dtype.element_ty), mask=(row < own)[:, None])


@triton.jit(do_not_specialize=_COUNTS)
def router_gate_kernel(rows, weights, out, count, capacity, rounds, EXPERTS: tl.constexpr, DEPTH: tl.constexpr,
                       WIDTH: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr,
                       BLOCK_DEPTH: tl.constexpr):  # fmt: skip
    """Score all rows for all experts: the same work on every rank."""
    _multiply(rows, weights, out, count, capacity, rounds, EXPERTS, DEPTH, WIDTH, BLOCK_ROWS, BLOCK_COLUMNS,
              BLOCK_DEPTH)  # fmt: skip


@triton.jit(do_not_specialize=_COUNTS)
def fused_moe_kernel(rows, weights, out, count, capacity, rounds, EXPERTS: tl.constexpr, DEPTH: tl.constexpr,
                     WIDTH: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr,
                     BLOCK_DEPTH: tl.constexpr):  # fmt: skip
    """Run the rank's experts over the rows routed to them."""
    _multiply(rows, weights, out, count, capacity, rounds, EXPERTS, DEPTH, WIDTH, BLOCK_ROWS, BLOCK_COLUMNS,
              BLOCK_DEPTH)  # fmt: skip


@triton.jit(do_not_specialize=("count", "capacity"))
def argmax_sampling_kernel(scores, out, count, capacity, WIDTH: tl.constexpr):
    """Choose the best of `(capacity, WIDTH)` scores for each of so many requests."""
    for request in range(tl.program_id(0), count, tl.num_programs(0)):
        row = request % capacity
        found = tl.load(scores + row * WIDTH + tl.arange(0, WIDTH))
        tl.store(out + row, tl.argmax(found.to(tl.float32), axis=0).to(tl.int32))


@triton.jit
def _wait(arrived, lost, rank, target, most_spins):
    """Arrive, then spin until all have, or give up and say so: a lost rank is to end in an error, not in a hang."""
    tl.atomic_add(arrived, 1, sem="acq_rel", scope="gpu")
    seen = tl.atomic_add(arrived, 0, sem="acq_rel", scope="gpu")
    spins = 0
    while (seen < target) & (spins < most_spins):
        seen = tl.atomic_add(arrived, 0, sem="acq_rel", scope="gpu")
        spins += 1
    if seen < target:
        tl.store(lost + rank, 1)


@triton.jit
def _now():
    """Read the GPU's clock of nanoseconds, which all its processors share.

    Source: PTX ISA, special register %globaltimer.
    """
    return tl.inline_asm_elementwise(
        "mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
    )  # fmt: skip


@triton.jit(do_not_specialize=_MEETING)
def all_gather_spin_kernel(arrived, lost, stamps, parts, out, rank, ranks, target, most_spins, count, messages,
                           STAMPED: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Wait for all ranks, then copy what each has.

    Args:
        arrived: one counter of all ranks' arrivals, which only grows.
        lost: `(ranks,)`, set for a rank that gave up.
        stamps: `(3,)`, when it came, when it was released, and when it had what it came for (ns of the GPU's clock).
        parts: `(ranks, count)`, what every rank brings.
        out: `(ranks, count)`, of this rank.
        target: of the counter, once all have come.
        messages: how often everything is copied.
    """
    if STAMPED:
        tl.store(stamps, _now())
    _wait(arrived, lost, rank, target, most_spins)
    if STAMPED:
        tl.store(stamps + 1, _now())
    total = ranks * count
    for _ in range(messages):
        for begin in range(0, total, BLOCK):
            place = begin + tl.arange(0, BLOCK)
            tl.store(out + place, tl.load(parts + place, mask=place < total), mask=place < total)
    if STAMPED:
        tl.store(stamps + 2, _now())


@triton.jit(do_not_specialize=_MEETING)
def reduce_scatter_spin_kernel(arrived, lost, stamps, parts, out, rank, ranks, target, most_spins, count, messages,
                               STAMPED: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Wait for all ranks, then add up what each has for this one: arguments as above, `out` is `(count,)`."""
    if STAMPED:
        tl.store(stamps, _now())
    _wait(arrived, lost, rank, target, most_spins)
    if STAMPED:
        tl.store(stamps + 1, _now())
    for _ in range(messages):
        for begin in range(0, count, BLOCK):
            place = begin + tl.arange(0, BLOCK)
            total = tl.zeros([BLOCK], tl.float32)
            for peer in range(ranks):
                total += tl.load(parts + peer * count + place, mask=place < count, other=0.0).to(tl.float32)
            tl.store(out + place, total.to(out.dtype.element_ty), mask=place < count)
    if STAMPED:
        tl.store(stamps + 2, _now())
