"""The fixed physics: every operation has a base duration, which grows in a straight line with the rank's load."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dprankdiag.harness.activity import fault_activity, measure_slowness, multiply_factors
from dprankdiag.harness.draws import WorldDraws, draw_kernels, draw_world
from dprankdiag.harness.durations import Batches, Durations, HostCosts, Lane
from dprankdiag.harness.events import Array
from dprankdiag.harness.program import Operation, StepKind, list_operations
from dprankdiag.harness.world import World

_FLOORS = {"fixed": 1.0, "rows": 0.85, "context": 0.05, "all_rows": 0.85, "tokens": 0.3}
"""Share of a duration that does not grow with the load: launch latency and reading the weights."""

_CALL_NS = {"work": 4_200, "meet": 4_200, "copy": 5_500, "clear": 5_500}
_GRAPH_CALL_NS = 38_000
_METADATA_NS = 45_000
_PERSISTENT_GRID = 132
_HIDDEN = 7_168
_PROMPT_ROWS = 64


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
    context = _spread(draw, multiply_factors(world, ("load_context", "load_requests"), True))
    context = context * multiply_factors(world, ("load_context", "load_requests"), False)
    even = np.ones_like(context)
    rows = _spread(even, multiply_factors(world, ("load_requests",), True)) * multiply_factors(
        world, ("load_requests",), False
    )
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


def compute_durations(world: World) -> Durations:
    """Compute the batches of all ranks and the durations of all operations of all steps."""
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
    hosts = HostCosts(
        gap_ns=np.rint(world.host_gap_ns * draws.host_gap).astype(np.int64),
        metadata_ns=_METADATA_NS + draws.metadata_ns,
        prepare_ns=30_000,
        between_calls_ns=1_700,
        launch_ns=1_300,
        react_ns=3_500,
        dependent_lead_ns=2_400,
    )
    return Durations(tuple(lanes), hosts, _count_batches(world, loads, is_prefill), _HIDDEN)


def _count_batches(world: World, loads: Loads, is_prefill: Array) -> Batches:
    requests = np.rint(loads.rows * world.requests).astype(np.int64)
    tokens = np.rint(loads.context * world.requests * world.context_tokens).astype(np.int64)
    prompt = is_prefill[:, None]
    return Batches(
        decode_requests=np.where(prompt, 0, requests),
        decode_tokens=np.where(prompt, 0, tokens),
        prompt_requests=np.where(prompt, requests, 0),
        prompt_tokens=np.where(prompt, requests * _PROMPT_ROWS, 0),
        prompt_context=np.where(prompt, tokens, 0),
    )


def _build_lane(world: World, kind: StepKind, steps: Array, draws: WorldDraws, loads: Loads) -> Lane:
    operations = list_operations(world, kind)
    noise = draw_kernels(world, kind, len(steps), len(operations))
    work = np.empty(noise.work.shape, np.int64)
    blocks = np.empty(noise.work.shape, np.int64)
    slow_compute, slow_memory = measure_slowness(world, steps)
    for position, op in enumerate(operations):
        blocks[:, position] = _blocks(world, kind, op, steps, loads)
        if op.act == "meet":
            work[:, position] = noise.exit_ns[:, position] + _exit_lateness(world, op, steps, loads)
            continue
        speed = draws.chip * (slow_memory if op.memory_bound else slow_compute)
        factor = speed if op.act == "work" else np.ones(1)
        work[:, position] = np.rint(op.base_ns * _scale(op, steps, loads) * factor * noise.work[:, position])
    base = np.asarray([op.base_ns for op in operations])
    transfer = np.rint(base * noise.transfer * _fabric(world, steps)[:, None]).astype(np.int64)
    call = np.asarray([_GRAPH_CALL_NS if op.in_graph else _CALL_NS[op.act] for op in operations])
    call_ns = np.rint(call[:, None] * noise.launch).astype(np.int64)
    return Lane(kind, operations, steps, work, transfer[:, :, None], noise.gap_ns, call_ns, blocks)


def _blocks(world: World, kind: StepKind, op: Operation, steps: Array, loads: Loads) -> Array:
    """Compute the number of blocks, one a row where a kernel is written so; graphs are captured at fixed rows."""
    prompt = _PROMPT_ROWS if kind == "prefill" else 1
    if op.act == "meet":
        return np.asarray([[36 if op.kernel_key.startswith("custom_reduce") else 24]])
    if op.scale == "all_rows":
        rows: Array = loads.all_rows[steps, None] * world.dp_size
    elif op.scale in ("rows", "context") and "gemm" not in op.key:
        own = loads.rows[steps]
        rows = np.ceil(own.max())[None, None] if op.in_graph else own
    else:
        return np.asarray([[_PERSISTENT_GRID]])
    grid: Array = np.ceil(np.rint(rows * world.requests * prompt) * op.share).astype(np.int64)
    return grid


def _scale(op: Operation, steps: Array, loads: Loads) -> Array:
    floor = _FLOORS[op.scale]
    if op.scale == "fixed":
        return np.ones((len(steps), 1))
    load: Array = loads.tokens[steps, op.layer] if op.scale == "tokens" else _row_loads(loads)[op.scale][steps]
    scaled: Array = floor + (1 - floor) * load * op.share
    return scaled


def _row_loads(loads: Loads) -> dict[str, Array]:
    return {"rows": loads.rows, "context": loads.context, "all_rows": loads.all_rows[:, None]}


def _exit_lateness(world: World, op: Operation, steps: Array, loads: Loads) -> Array:
    late = np.zeros((len(steps), world.ranks))
    for position, fault in enumerate(world.faults):
        if fault.kind == "slow_link":
            late += np.where(fault_activity(world, position)[steps], fault.size, 0.0)
        elif fault.kind == "receiver_queue" and op.moves_tokens:
            late += np.where(fault_activity(world, position)[steps], fault.size, 0.0) * loads.tokens[steps, op.layer]
    return np.rint(late).astype(np.int64)


def _fabric(world: World, steps: Array) -> Array:
    factor: Array = multiply_factors(world, ("fabric",), False)[steps, 0]
    return factor
