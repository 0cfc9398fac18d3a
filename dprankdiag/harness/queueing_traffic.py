"""Who decodes what in the queueing physics: counts of requests and tokens, of which no single request is followed.

Arrivals come in bursts that a router shares out by count, so that every rank's number of requests rises and falls with
all others'. Contexts grow by a token a step until as many requests leave as come. How many tokens a rank holds wanders
about the mean and returns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dprankdiag.harness.activity import fault_activity
from dprankdiag.harness.draws import open_stream
from dprankdiag.harness.durations import Batches
from dprankdiag.harness.events import Array
from dprankdiag.harness.faults import Fault
from dprankdiag.harness.world import World

_BURST_BEGINS, _BURST_ENDS = 0.05, 0.12
_BURST_HEIGHT, _BURST_RISE = 0.25, 0.3
_STAY_STEPS = 90.0
"""Steps after which a request leaves, on the mean: contexts grow no further once all are of mixed age."""
_RETURNS = 0.15
"""Share of a rank's distance from the mean that is gone a step later."""
_DEALT_STEPS = 8
_PROMPT_TOKENS = 4_096


@dataclass(frozen=True, slots=True)
class Traffic:
    """The batches of every rank, and how steps run because of them.

    Attributes:
        mixed: `(steps,)` bool, some rank computes a part of a prompt.
        eager: `(steps,)` bool, no graph is replayed.
    """

    batches: Batches
    mixed: Array
    eager: Array


def deal_traffic(world: World) -> Traffic:
    """Deal requests, tokens and prompts to the ranks in every step, faults included."""
    requests = _share_out(np.rint(world.requests * world.dp_size * _draw_levels(world)).astype(np.int64), world)
    weights = _draw_weights(world)
    tokens = requests * _mean_context(world)[:, None] * weights
    for position, fault in enumerate(world.faults):
        if (change := _CHANGES.get(fault.kind)) is not None:
            active = fault_activity(world, position)[:, :: world.attention_tp]
            requests, tokens = change(world, fault, active, requests, tokens, weights)
    prompts = _prompt_tokens(world)
    held = np.rint(open_stream(world.seed, "queueing", "held").gamma(2.0, world.context_tokens / 6, prompts.shape))
    batches = {
        "decode_requests": requests,
        "decode_tokens": np.where(requests > 0, np.maximum(np.rint(tokens), requests), 0).astype(np.int64),
        "prompt_requests": -(-prompts // _PROMPT_TOKENS),
        "prompt_tokens": prompts,
        "prompt_context": np.where(prompts > 0, prompts + held.astype(np.int64), 0),
    }
    mixed: Array = np.asarray((prompts > 0).any(axis=1))
    eager: Array = mixed | _lost_graphs(world) if world.graph else np.ones(world.run_steps, bool)
    on_gpus = {name: np.repeat(values, world.attention_tp, axis=1) for name, values in batches.items()}
    return Traffic(Batches(**on_gpus), mixed, eager)


def _draw_levels(world: World) -> Array:
    """Draw the load against the usual one, `(steps,)`: bursts of a chain of two states that fill and drain slowly."""
    random = open_stream(world.seed, "queueing", "bursts").random(world.run_steps)
    levels = np.ones(world.run_steps)
    busy, filled = False, 0.0
    for step, drawn in enumerate(random.tolist()):
        busy = drawn >= _BURST_ENDS if busy else drawn < _BURST_BEGINS
        filled += _BURST_RISE * (busy - filled)
        levels[step] += _BURST_HEIGHT * filled
    if world.load_levels:
        part = np.arange(world.run_steps) * len(world.load_levels) // world.run_steps
        levels = levels * np.asarray(world.load_levels)[part]
    return levels


def _share_out(totals: Array, world: World) -> Array:
    """Share whole requests among the DP ranks, `(steps, dp_size)`; who has one more changes every few steps."""
    turn = (np.arange(world.dp_size) + np.arange(len(totals))[:, None] // _DEALT_STEPS) % world.dp_size
    shared: Array = totals[:, None] // world.dp_size + (turn < totals[:, None] % world.dp_size)
    return shared


def _mean_context(world: World) -> Array:
    grown: Array = world.context_tokens + _STAY_STEPS * (1 - np.exp(-np.arange(world.run_steps) / _STAY_STEPS))
    return grown


def _draw_weights(world: World) -> Array:
    """Draw the tokens of a rank's requests against the mean: `(steps, dp_size)`."""
    random = open_stream(world.seed, "queueing", "weights")
    push = random.standard_normal((world.run_steps, world.dp_size))
    at = push[0]
    logs = np.empty_like(push)
    for step in range(world.run_steps):
        at = (1 - _RETURNS) * at + np.sqrt(1 - (1 - _RETURNS) ** 2) * push[step]
        logs[step] = at
    weights: Array = np.exp(world.load_spread * logs)
    return weights


def _lengthen(
    world: World, fault: Fault, active: Array, requests: Array, tokens: Array, weights: Array
) -> tuple[Array, Array]:
    longer = tokens * np.where(active, fault.size, 1.0)
    if fault.spread:
        longer = tokens * longer.sum(axis=1, keepdims=True) / np.maximum(tokens.sum(axis=1, keepdims=True), 1.0)
    return requests, longer


def _add(
    world: World, fault: Fault, active: Array, requests: Array, tokens: Array, weights: Array
) -> tuple[Array, Array]:
    more = np.where(active, np.rint(requests * fault.size), requests).astype(np.int64)
    return _settle(world, fault, active, requests, more, tokens, weights)


def _gather(
    world: World, fault: Fault, active: Array, requests: Array, tokens: Array, weights: Array
) -> tuple[Array, Array]:
    """Leave requests to the busy ranks only."""
    acts = active.any(axis=1, keepdims=True)
    kept = np.where(active, np.maximum(np.rint(requests * fault.size), 1), np.where(acts, 0, requests))
    return _settle(world, fault, active, requests, kept.astype(np.int64), tokens, weights)


def _settle(
    world: World, fault: Fault, active: Array, before: Array, after: Array, tokens: Array, weights: Array
) -> tuple[Array, Array]:
    """Give requests their tokens; or share the same requests and tokens among all ranks where the fault acts."""
    held = tokens / np.maximum(before, 1) * after
    if not fault.spread:
        return after, held
    acts = active.any(axis=1, keepdims=True)
    shared = _share_out(after.sum(axis=1), world)
    even = shared * weights
    even = even * held.sum(axis=1, keepdims=True) / np.maximum(even.sum(axis=1, keepdims=True), 1e-9)
    return np.where(acts, shared, after), np.where(acts, even, held)


def _empty(
    world: World, fault: Fault, active: Array, requests: Array, tokens: Array, weights: Array
) -> tuple[Array, Array]:
    return np.where(active, 0, requests), np.where(active, 0.0, tokens)


_CHANGES = {
    "load_context": _lengthen,
    "load_requests": _add,
    "load_idle": _gather,
    "structural_graph": _empty,
}


def _prompt_tokens(world: World) -> Array:
    """Count the tokens of prompts that each DP rank computes: `(steps, dp_size)`."""
    tokens = np.zeros((world.run_steps, world.dp_size), np.int64)
    if world.prefill_every:
        tokens[world.prefill_every - 1 :: world.prefill_every] = world.chunk_tokens
    for position, fault in enumerate(world.faults):
        if fault.kind == "load_prefill":
            active = fault_activity(world, position)[:, :: world.attention_tp]
            own = active * round((fault.size - 1) * world.context_tokens)
            tokens = tokens + (_share_out(own.sum(axis=1), world) if fault.spread else own)
    return tokens


def _lost_graphs(world: World) -> Array:
    lost = np.zeros(world.run_steps, bool)
    for position, fault in enumerate(world.faults):
        if fault.kind == "structural_graph" and not fault.spread:
            lost |= fault_activity(world, position).any(axis=1)
    return lost
