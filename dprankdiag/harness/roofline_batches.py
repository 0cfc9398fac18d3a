"""Who decodes which requests: each with its own KV length, which grows until the request ends and another comes.

Requests are placed as a router does that knows every rank's KV tokens, so that ranks are even but for what chance does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dprankdiag.harness.activity import fault_activity
from dprankdiag.harness.dealt import Dealt, share_evenly
from dprankdiag.harness.draws import open_stream
from dprankdiag.harness.durations import Batches
from dprankdiag.harness.events import Array
from dprankdiag.harness.faults import Fault
from dprankdiag.harness.roofline_kernels import CACHE_PAGE
from dprankdiag.harness.world import World

_MEAN_OUTPUT_STEPS = 400
_KEPT_DRAFTS = 0.7
_LONGEST_CHUNK = 8_192

Lengths = list[Array]
"""KV lengths of the requests of each DP rank."""


@dataclass(frozen=True, slots=True)
class Work:
    """The batches, and what attention does for them: `(steps, ranks)` each.

    Attributes:
        pages: pages of the cache that decoding requests read, each request's last one counted in full.
        prompt_pairs: pairs of a computed token and one before it.
        prefill: `(steps,)` bool, some rank computes a part of a prompt.
        eager: `(steps,)` bool, no graph is replayed.
    """

    batches: Batches
    pages: Array
    prompt_pairs: Array
    prefill: Array
    eager: Array


def deal_work(world: World) -> Work:
    """Deal requests and prompts to the ranks in every step, faults included, or take what was dealt elsewhere."""
    spread = _draw_work(world) if world.dealt is None else _take_dealt(world.dealt)
    prefill = np.asarray((spread["prompt_tokens"] > 0).any(axis=1))
    on_gpus = {name: np.repeat(values, world.attention_tp, axis=1) for name, values in spread.items()}
    pages, pairs = on_gpus.pop("pages"), on_gpus.pop("prompt_pairs")
    lost = _lost_graphs(world) if world.dealt is None else _lost_graphs(world) | world.dealt.eager
    eager: Array = prefill | lost if world.graph else np.ones(world.run_steps, bool)
    return Work(Batches(**on_gpus), pages, pairs, prefill, eager)


def _draw_work(world: World) -> dict[str, Array]:
    lengths = _apply_faults(world, run_requests(world))
    tokens = _chunk_tokens(world)
    prefix = np.where(tokens > 0, _draw_prefixes(world), 0)
    return {
        "decode_requests": np.asarray([[len(own) for own in step] for step in lengths]),
        "decode_tokens": np.asarray([[int(own.sum()) for own in step] for step in lengths]),
        "pages": np.asarray([[int((-(-own // CACHE_PAGE)).sum()) for own in step] for step in lengths]),
        "prompt_requests": -(-tokens // _LONGEST_CHUNK),
        "prompt_tokens": tokens,
        "prompt_context": tokens + prefix,
        "prompt_pairs": tokens * prefix + tokens * (tokens + 1) // 2,
    }


def _take_dealt(dealt: Dealt) -> dict[str, Array]:
    """Take the sums of each rank; on the mean half of every request's last page is empty."""
    return {
        "decode_requests": dealt.decode_requests,
        "decode_tokens": dealt.decode_tokens,
        "pages": (dealt.read_tokens + dealt.decode_requests * (CACHE_PAGE // 2)) // CACHE_PAGE,
        "prompt_requests": dealt.prompt_requests,
        "prompt_tokens": dealt.prompt_tokens,
        "prompt_context": dealt.prompt_context,
        "prompt_pairs": dealt.prompt_pairs,
    }


def run_requests(world: World) -> list[Lengths]:
    """Run requests from step to step without any fault: lengths by step and DP rank."""
    random = open_stream(world.seed, "roofline", "requests")
    ranks: Lengths = [np.zeros(0, np.int64) for _ in range(world.dp_size)]
    left: Lengths = [np.zeros(0, np.int64) for _ in range(world.dp_size)]
    history = []
    for step in range(world.run_steps):
        missing = round(world.requests * world.dp_size * _level(world, step)) - sum(map(len, ranks))
        new = _draw_lengths(world, random, max(missing, 0))
        outputs = 1 + random.geometric(1 / _MEAN_OUTPUT_STEPS, len(new))
        for place in np.argsort(-new, kind="stable") if not step else range(len(new)):
            rank = _choose_rank(ranks)
            ranks[rank] = np.append(ranks[rank], new[place])
            left[rank] = np.append(left[rank], outputs[place])
        for _ in range(max(-missing, 0)):
            rank = max(range(world.dp_size), key=lambda at: int(ranks[at].sum()))
            ranks[rank], left[rank] = ranks[rank][:-1], left[rank][:-1]
        history.append(list(ranks))
        for rank in range(world.dp_size):
            accepted = 1 + random.binomial(world.verify_tokens - 1, _KEPT_DRAFTS, len(ranks[rank]))
            stays = left[rank] > 1
            ranks[rank], left[rank] = (ranks[rank] + accepted)[stays], left[rank][stays] - 1
    return history


def _choose_rank(ranks: Lengths) -> int:
    return min(range(len(ranks)), key=lambda at: int(ranks[at].sum()))


def _level(world: World, step: int) -> float:
    if not world.load_levels:
        return 1.0
    return world.load_levels[step * len(world.load_levels) // world.run_steps]


def _draw_lengths(world: World, random: np.random.Generator, count: int) -> Array:
    """Draw KV lengths, log-normal around the world's mean."""
    spread = world.length_spread
    drawn = world.context_tokens * np.exp(spread * random.standard_normal(count) - spread**2 / 2)
    lengths: Array = np.maximum(np.rint(drawn), 1).astype(np.int64)
    return lengths


def _apply_faults(world: World, history: list[Lengths]) -> list[Lengths]:
    for position, fault in enumerate(world.faults):
        change = {
            "load_context": _lengthen,
            "load_requests": _add_requests,
            "load_idle": _gather_requests,
            "structural_graph": _empty,
        }.get(fault.kind)
        if change is None:
            continue
        active = fault_activity(world, position)[:, :: world.attention_tp]
        extra = _draw_extra(world, position, history, fault)
        for step in np.flatnonzero(active.any(axis=1)):
            history[step] = change(fault, history[step], active[step], [own + int(step) for own in extra])
    return history


def _draw_extra(world: World, position: int, history: list[Lengths], fault: Fault) -> Lengths:
    """Draw the lengths of requests that a fault may add to each rank."""
    most = max((len(own) for step in history for own in step), default=0)
    count = round(max(fault.size - 1, 0.0) * most)
    random = [open_stream(world.seed, "roofline", "extra", position, rank) for rank in range(world.dp_size)]
    return [_draw_lengths(world, own, count) for own in random]


def _lengthen(fault: Fault, lengths: Lengths, active: Array, _: Lengths) -> Lengths:
    factors = np.where(active, fault.size, 1.0).tolist()
    longer = [np.rint(own * factor).astype(np.int64) for own, factor in zip(lengths, factors, strict=True)]
    if not fault.spread:
        return longer
    share = sum(int(own.sum()) for own in longer) / max(sum(int(own.sum()) for own in lengths), 1)
    return [np.rint(own * share).astype(np.int64) for own in lengths]


def _add_requests(fault: Fault, lengths: Lengths, active: Array, extra: Lengths) -> Lengths:
    added = [
        more[: round((fault.size - 1) * len(own))] if on else more[:0]
        for own, more, on in zip(lengths, extra, active, strict=True)
    ]
    if not fault.spread:
        return [np.append(own, more) for own, more in zip(lengths, added, strict=True)]
    return _deal(lengths, np.concatenate(added))


def _gather_requests(fault: Fault, lengths: Lengths, active: Array, extra: Lengths) -> Lengths:
    """Leave requests to the busy ranks only; or deal these same requests to all."""
    held = _add_requests(Fault("load_requests", size=fault.size), lengths, active, extra)
    nothing = [own[:0] for own in lengths]
    if not fault.spread:
        return [own if on else none for own, none, on in zip(held, nothing, active, strict=True)]
    return _deal(nothing, np.concatenate([own for own, on in zip(held, active, strict=True) if on]))


def _empty(_: Fault, lengths: Lengths, active: Array, __: Lengths) -> Lengths:
    return [own[:0] if on else own for own, on in zip(lengths, active, strict=True)]


def _deal(lengths: Lengths, new: Array) -> Lengths:
    """Deal requests to whoever has the fewest tokens, the longest first."""
    dealt = list(lengths)
    for length in np.sort(new)[::-1]:
        rank = _choose_rank(dealt)
        dealt[rank] = np.append(dealt[rank], length)
    return dealt


def _chunk_tokens(world: World) -> Array:
    """Count the tokens of prompts that each DP rank computes: `(steps, dp_size)`."""
    tokens = np.zeros((world.run_steps, world.dp_size), np.int64)
    if world.prefill_every:
        tokens[world.prefill_every - 1 :: world.prefill_every] = world.chunk_tokens
    for position, fault in enumerate(world.faults):
        if fault.kind == "load_prefill":
            active = fault_activity(world, position)[:, :: world.attention_tp]
            own = active * round((fault.size - 1) * world.context_tokens)
            tokens += share_evenly(own) if fault.spread else own
    return tokens


def _draw_prefixes(world: World) -> Array:
    """Draw how much of a prompt was computed before: `(steps, dp_size)`."""
    random = open_stream(world.seed, "roofline", "prefix")
    drawn: Array = random.integers(0, max(world.context_tokens // 2, 1), (world.run_steps, world.dp_size))
    return drawn


def _lost_graphs(world: World) -> Array:
    lost = np.zeros(world.run_steps, bool)
    for position, fault in enumerate(world.faults):
        if fault.kind == "structural_graph" and not fault.spread:
            lost |= fault_activity(world, position).any(axis=1)
    return lost
