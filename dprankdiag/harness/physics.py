"""How long everything takes and when it happens: loads, durations, and the timeline of hosts and GPUs.

A meeting ends, for every member, when the last has arrived and the transfer is done; a host launches in order; a kernel
starts when it is launched and its predecessor has ended.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dprankdiag.harness.draws import KernelDraws, WorldDraws, draw_kernels, draw_world, open_stream
from dprankdiag.harness.events import Array
from dprankdiag.harness.faults import Fault
from dprankdiag.harness.program import Operation, StepKind, list_operations
from dprankdiag.harness.world import World

_FLOORS = {"fixed": 1.0, "rows": 0.85, "context": 0.05, "all_rows": 0.85, "tokens": 0.3}
"""Share of a duration that does not grow with the load: launch latency and reading the weights."""


@dataclass(frozen=True, slots=True)
class Loads:
    """Work of every rank against the mean of a healthy one.

    Attributes:
        context: `(steps, ranks)` KV tokens.
        rows: `(steps, ranks)` requests.
        all_rows: `(steps,)` rows after the gather, padding included.
        tokens: `(steps, layers, ranks)` routed tokens.
    """

    context: Array
    rows: Array
    all_rows: Array
    tokens: Array


@dataclass(frozen=True, slots=True)
class Lane:
    """All steps of one kind: which they are, what they run, how long it takes.

    Attributes:
        steps: `(n,)` positions of the steps in the world.
        work_ns: `(n, operations, ranks)` durations; of meetings, how late after arrival and transfer a member leaves.
        transfer_ns: `(n, operations)`.
    """

    kind: StepKind
    operations: tuple[Operation, ...]
    steps: Array
    draws: KernelDraws
    work_ns: Array
    transfer_ns: Array


def fault_activity(world: World, position: int) -> Array:
    """Mark the steps and ranks in which a fault acts: `(steps, ranks)` bool over all steps that run."""
    fault = world.faults[position]
    random = open_stream(world.seed, "fault", position)
    if fault.kind == "host_burst":
        active = np.zeros((world.run_steps, world.ranks), bool)
        first, last = world.full_steps.start, world.full_steps.stop
        chosen = random.choice(np.arange(first, last), size=min(fault.stalls, last - first), replace=False)
        for turn, step in enumerate(np.sort(chosen)):
            active[step, fault.ranks[turn % len(fault.ranks)]] = True
        return active
    active = fault.activity(world.run_steps, world.ranks, random)
    if fault.kind in ("load_context", "load_requests"):
        groups = active.reshape(world.run_steps, world.dp_size, world.attention_tp).any(axis=2)
        active = np.repeat(groups, world.attention_tp, axis=1)
    return active


def _factors(world: World, kinds: tuple[str, ...], spread: bool) -> Array:
    """Multiply the factors of some kinds of fault: `(steps, ranks)`."""
    factors = np.ones((world.run_steps, world.ranks))
    for position, fault in enumerate(world.faults):
        if fault.kind in kinds and fault.spread == spread:
            factors = factors * np.where(fault_activity(world, position), fault.size, 1.0)
    return factors


def _spread(values: Array, factors: Array) -> Array:
    """Distribute the total of `values * factors` over the ranks (last axis) in proportion to `values`."""
    total = (values * factors).sum(axis=-1, keepdims=True)
    even: Array = values * total / values.sum(axis=-1, keepdims=True)
    return even


def compute_loads(world: World, draws: WorldDraws) -> Loads:
    """Compute every rank's work, faults of load and routing included."""
    steps = np.arange(world.run_steps)
    growth = (world.context_tokens + steps) / world.context_tokens
    draw = np.repeat(draws.load, world.attention_tp)[None, :] * growth[:, None]
    context = _spread(draw, _factors(world, ("load_context", "load_requests"), True))
    context = context * _factors(world, ("load_context", "load_requests"), False)
    even = np.ones_like(context)
    rows = _spread(even, _factors(world, ("load_requests",), True)) * _factors(world, ("load_requests",), False)
    rows = np.rint(rows * world.requests) / world.requests
    mean_rows = rows.mean(axis=1)
    all_rows = rows.max(axis=1) if world.max_padding else mean_rows
    return Loads(context, rows, all_rows, _route(world, draws, all_rows))


def _route(world: World, draws: WorldDraws, all_rows: Array) -> Array:
    """Share the rows among the ranks' experts; the total of a layer and step stays the same whoever is hot."""
    weights = draws.routing.copy()
    for position, fault in enumerate(world.faults):
        if fault.kind == "hot_expert" and not fault.spread:
            active = fault_activity(world, position).any(axis=1)
            for layer, rank in fault.layers:
                weights[active, layer, rank] *= fault.size
    shares: Array = weights / weights.mean(axis=2, keepdims=True)
    return shares * all_rows[:, None, None]


def build_lanes(world: World) -> tuple[list[Lane], WorldDraws, Loads]:
    """Compute the durations of all operations of all steps."""
    draws = draw_world(world)
    loads = compute_loads(world, draws)
    index = np.arange(world.run_steps)
    is_prefill = (
        (index % world.prefill_every == world.prefill_every - 1)
        if world.prefill_every
        else np.zeros(world.run_steps, bool)
    )
    lanes = []
    kinds: tuple[tuple[StepKind, Array], ...] = (("decode", index[~is_prefill]), ("prefill", index[is_prefill]))
    for kind, steps in kinds:
        if len(steps):
            lanes.append(_build_lane(world, kind, steps, draws, loads))
    return lanes, draws, loads


def _build_lane(world: World, kind: StepKind, steps: Array, draws: WorldDraws, loads: Loads) -> Lane:
    operations = list_operations(world, kind)
    noise = draw_kernels(world, kind, len(steps), len(operations))
    work = np.empty(noise.work.shape, np.int64)
    slow_compute, slow_memory = _slowness(world, steps)
    for position, op in enumerate(operations):
        if op.act == "meet":
            work[:, position] = noise.exit_ns[:, position] + _exit_lateness(world, op, steps, loads)
            continue
        speed = draws.chip * (slow_memory if op.memory_bound else slow_compute)
        factor = speed if op.act == "work" else np.ones(1)
        work[:, position] = np.rint(op.base_ns * _scale(op, steps, loads) * factor * noise.work[:, position])
    base = np.asarray([op.base_ns for op in operations])
    transfer = np.rint(base * noise.transfer * _fabric(world, steps)[:, None]).astype(np.int64)
    return Lane(kind, operations, steps, noise, work, transfer)


def _scale(op: Operation, steps: Array, loads: Loads) -> Array:
    floor = _FLOORS[op.scale]
    if op.scale == "fixed":
        return np.ones((len(steps), 1))
    load: Array = loads.tokens[steps, op.layer] if op.scale == "tokens" else _row_loads(loads)[op.scale][steps]
    scaled: Array = floor + (1 - floor) * load * op.share
    return scaled


def _row_loads(loads: Loads) -> dict[str, Array]:
    return {"rows": loads.rows, "context": loads.context, "all_rows": loads.all_rows[:, None]}


def _slowness(world: World, steps: Array) -> tuple[Array, Array]:
    """Give the factor on compute-bound and on memory-bound kernels: `(steps, ranks)` each."""
    compute = _factors(world, ("uniform",), False)
    memory = compute.copy()
    for position, fault in enumerate(world.faults):
        if fault.kind == "slow_gpu":
            factor = np.where(fault_activity(world, position), fault.size, 1.0)
            memory *= factor
            if not fault.memory_only:
                compute *= factor
    return compute[steps], memory[steps]


def _exit_lateness(world: World, op: Operation, steps: Array, loads: Loads) -> Array:
    late = np.zeros((len(steps), world.ranks))
    for position, fault in enumerate(world.faults):
        if fault.kind == "slow_link":
            late += np.where(fault_activity(world, position)[steps], fault.size, 0.0)
        elif fault.kind == "receiver_queue" and op.moves_tokens:
            late += np.where(fault_activity(world, position)[steps], fault.size, 0.0) * loads.tokens[steps, op.layer]
    return np.rint(late).astype(np.int64)


def _fabric(world: World, steps: Array) -> Array:
    factor: Array = _factors(world, ("fabric",), False)[steps, 0]
    return factor


def host_delays(world: World) -> tuple[Array, Array, Array]:
    """Compute by how much the host is held up, `(steps, ranks)` each: before the gather, after it, and in a burst."""
    before = np.zeros((world.run_steps, world.ranks), np.int64)
    after, burst = before.copy(), before.copy()
    for position, fault in enumerate(world.faults):
        if fault.kind in ("host_late", "host_burst"):
            target = _target(fault, before, after, burst)
            target += np.where(fault_activity(world, position), round(fault.size), 0)
    return before, after, burst


def _target(fault: Fault, before: Array, after: Array, burst: Array) -> Array:
    if fault.kind == "host_burst":
        return burst
    return before if fault.before_gather else after
