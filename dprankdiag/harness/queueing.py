"""The queueing physics: durations by tables, powers and queues, with noise that lasts and has heavy tails.

It shares no law, constant or draw with the other two, and no threshold is chosen on it: confidence that was fitted on
those is tested here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dprankdiag.harness.activity import fault_activity, measure_slowness, multiply_factors
from dprankdiag.harness.draws import open_stream
from dprankdiag.harness.durations import Durations, HostCosts, Lane
from dprankdiag.harness.events import Array
from dprankdiag.harness.faults import Side
from dprankdiag.harness.program import Operation, StepKind
from dprankdiag.harness.queueing_noise import (
    Weather,
    draw_calls,
    draw_exits,
    draw_gaps,
    draw_hosts,
    draw_scatter,
    draw_transfers,
    draw_weather,
    find_shots,
)
from dprankdiag.harness.queueing_program import list_operations
from dprankdiag.harness.queueing_routing import Routed, route_rows
from dprankdiag.harness.queueing_service import (
    Machine,
    Service,
    attend,
    attend_prompt,
    draw_machine,
    multiply,
    pad,
    pass_over,
    serve_experts,
    transfer,
)
from dprankdiag.harness.queueing_traffic import Traffic, deal_traffic
from dprankdiag.harness.world import World

_COPY_NS = {"input_copy": 1_350.0, "output_copy": 1_550.0, "clear": 1_050.0}
_QUEUE_POWER = 1.6
"""How steeply a receiver's queue grows with the tokens it gets."""
_LAID_OUT: dict[Side, tuple[str, ...]] = {
    "before": ("qkv_gemm", "attention", "attention_prefill", "o_proj_gemm", "shared_gemm"),
    "after": ("expert_up", "activation", "expert_down"),
}
_SHOTS_OPERATIONS = 100


@dataclass(frozen=True, slots=True)
class Place:
    """Everything the durations of some steps follow from.

    Attributes:
        rows: `(n, ranks)` rows before the gather, those that pad a graph included.
        all_rows: `(n, 1)` rows after it.
        sampled: `(n, ranks)` rows after the last layer.
    """

    world: World
    machine: Machine
    steps: Array
    traffic: Traffic
    routed: Routed
    weather: Weather
    rows: Array
    all_rows: Array
    sampled: Array

    def rows_of(self, op: Operation) -> Array:
        """Pick the rows that an operation works on."""
        if op.scale == "all_rows":
            return self.all_rows
        return self.sampled if op.layer == self.world.layers else self.rows

    def at(self, values: Array) -> Array:
        """Pick these steps' values."""
        picked: Array = values[self.steps]
        return picked

    def received(self, op: Operation) -> Array:
        """Give the tokens of every rank in an operation's layer against the mean: `(n, ranks)`."""
        tokens = self.routed.tokens[self.steps, op.layer]
        share: Array = tokens / np.maximum(tokens.mean(axis=1, keepdims=True), 1e-9)
        return share


def compute_durations(world: World) -> Durations:
    """Compute the batches of all ranks and the durations of all operations of all steps."""
    machine, traffic = draw_machine(world), deal_traffic(world)
    batches = traffic.batches
    own = batches.decode_requests * world.verify_tokens + batches.prompt_tokens
    sampled = batches.decode_requests * world.verify_tokens + batches.prompt_requests
    routed = route_rows(world, own[:, :: world.attention_tp].sum(axis=1))
    weather = draw_weather(world, _SHOTS_OPERATIONS)
    index = np.arange(world.run_steps)
    lanes = []
    kinds: tuple[tuple[StepKind, bool], ...] = (("decode", False), ("decode", True), ("mixed", True))
    for kind, eager in kinds:
        steps = index[(traffic.mixed == (kind == "mixed")) & (traffic.eager == eager)]
        if len(steps):
            rows = own[steps] if eager else _pad_rows(own[steps], world.verify_tokens)
            all_rows = _gather_rows(world, rows, padded=not eager or world.max_padding)
            at_end = sampled[steps] if eager else rows
            place = Place(world, machine, steps, traffic, routed, weather, rows, all_rows, at_end)
            lanes.append(_build_lane(place, kind, eager))
    return Durations(tuple(lanes), _spend_on_hosts(world, machine, traffic), batches, machine.hidden)


def _pad_rows(rows: Array, drafts: int) -> Array:
    most = -(-rows.max(axis=1, keepdims=True) // drafts)
    padded: Array = np.broadcast_to(pad(most) * drafts, rows.shape)
    return padded


def _gather_rows(world: World, rows: Array, *, padded: bool) -> Array:
    of_groups = rows[:, :: world.attention_tp]
    if padded:
        most: Array = of_groups.max(axis=1, keepdims=True) * world.dp_size
        return most
    total: Array = of_groups.sum(axis=1, keepdims=True)
    return total


def _build_lane(place: Place, kind: StepKind, eager: bool) -> Lane:
    world, steps = place.world, place.steps
    operations = list_operations(world, kind, eager=eager)
    shape = (len(steps), len(operations), world.ranks)
    work, transfers, gap, call, blocks = (np.zeros(shape) for _ in range(5))
    slow_compute, slow_memory = measure_slowness(world, steps)
    for position, op in enumerate(operations):
        gap[:, position] = draw_gaps(world, op)[steps]
        call[:, position] = _call_ns(place.machine, op, len(operations)) * draw_calls(world, op)[steps]
        blocks[:, position] = _count_blocks(place, op)
        if op.act == "meet":
            members = world.attention_tp if op.among == "group" else world.ranks
            scatter = draw_transfers(world, op, members)[steps] * multiply_factors(world, ("fabric",), False)[steps]
            transfers[:, position] = _transfer(place, op, members) * scatter
            work[:, position] = draw_exits(world, op)[steps] + _leave_late(place, op)
        elif op.act == "work":
            family, find = _SERVICES[op.key]
            service = find(place, op).last(slow_compute, slow_memory) * _layout_share(world, op)
            shots = find_shots(place.weather, steps, position, len(operations))
            work[:, position] = service * place.weather.speed[family][steps] * draw_scatter(world, op)[steps] * shots
        else:
            work[:, position] = _COPY_NS[op.key] * draw_scatter(world, op)[steps]
    work_ns, transfer_ns, gap_ns, call_ns, grid = (
        np.rint(it).astype(np.int64) for it in (work, transfers, gap, call, blocks)
    )
    present = _find_present(place, operations) if eager else None
    return Lane(kind, operations, steps, work_ns, transfer_ns, gap_ns, call_ns, grid, present)


def _find_present(place: Place, operations: tuple[Operation, ...]) -> Array:
    """Mark who launches what without graphs: attention only where there is something to attend to."""
    batches = place.traffic.batches
    decodes, prompts = place.at(batches.decode_requests) > 0, place.at(batches.prompt_tokens) > 0
    who = {
        "attention": decodes,
        "attention_merge": decodes,
        "attention_prefill": prompts,
        "kv_write": decodes | prompts,
    }
    everybody = np.ones((len(place.steps), place.world.ranks), bool)
    return np.stack([who.get(op.key, everybody) for op in operations], axis=1)


def _call_ns(machine: Machine, op: Operation, operations: int) -> float:
    if op.in_graph:
        return 9_000.0 + 28.0 * operations
    return machine.call_ns * {"copy": 1.6, "clear": 1.3}.get(op.act, 1.0)


def _count_blocks(place: Place, op: Operation) -> Array:
    """Count a kernel's blocks: one a request in attention, one for two rows elsewhere, as many as fit in products."""
    if op.act == "meet":
        return np.full((1, 1), 32)
    if op.scale == "tokens" or "gemm" in op.key:
        return np.full((1, 1), 128)
    rows = place.rows_of(op)
    blocks: Array = np.maximum(rows if op.scale == "context" else -(-rows // 2), 1)
    return blocks


def _transfer(place: Place, op: Operation, members: int) -> Array:
    """Give the time of a collective from the last arrival: `(n, ranks)` or `(n, 1)` ns."""
    world, machine = place.world, place.machine
    far = op.among == "world" and world.ranks > world.node_size
    busy = place.weather.link_busy[place.steps][:, None]
    row_bytes = 2.0 * machine.hidden
    if op.key == "notify_dispatch":
        return transfer(machine, np.full((1, 1), 512.0 * members), members, far, busy)
    if op.moves_tokens:
        size = 0.55 if op.key == "dispatch" else 1.0
        tokens = place.routed.tokens[place.steps, op.layer].mean(axis=1, keepdims=True)
        return transfer(machine, tokens * row_bytes * size, members, far, busy)
    rows = place.all_rows if op.among == "world" else place.rows
    return transfer(machine, rows * row_bytes * (members - 1) / members, members, far, busy)


def _leave_late(place: Place, op: Operation) -> Array:
    """Let members of slow links and full queues leave late: `(n, ranks)` ns."""
    late = np.zeros((len(place.steps), place.world.ranks))
    for position, fault in enumerate(place.world.faults):
        acts = fault.kind == "slow_link" or (fault.kind == "receiver_queue" and op.moves_tokens)
        if acts:
            own = np.where(place.at(fault_activity(place.world, position)), fault.size, 0.0)
            late += own * place.received(op) ** _QUEUE_POWER if fault.kind == "receiver_queue" else own
    return late


def _layout_share(world: World, op: Operation) -> Array:
    """Give each rank's share of an operation against an even layout: `(ranks,)`."""
    share = np.ones(world.ranks)
    for fault in world.faults:
        if fault.kind == "structural_layout" and op.key in _LAID_OUT[fault.side]:
            own = np.where(np.isin(np.arange(world.ranks), fault.ranks), fault.size, 1.0)
            share *= np.full(world.ranks, own.mean()) if fault.spread else own
    return share


def _spend_on_hosts(world: World, machine: Machine, traffic: Traffic) -> HostCosts:
    """Let hosts pick batches, tell each other their sizes and launch."""
    factor, pauses = draw_hosts(world)
    requests = traffic.batches.decode_requests + traffic.batches.prompt_requests
    told = open_stream(world.seed, "queueing", "told").weibull(1.5, requests.shape)
    return HostCosts(
        gap_ns=np.rint((64_000 + 1_300 * requests) * factor + pauses).astype(np.int64),
        metadata_ns=np.rint(26_000 + 7_500 * np.sqrt(world.ranks) + 5_000 * told).astype(np.int64),
        prepare_ns=round(7 * machine.call_ns),
        between_calls_ns=round(machine.think_ns),
        launch_ns=1_450,
        react_ns=3_100,
        dependent_lead_ns=1_600,
    )


Find = Callable[[Place, Operation], Service]


def _dense(base_us: float, *, of_heads: bool = False) -> tuple[str, Find]:
    """Multiply rows by weights, of which GPUs that share attention hold a part each."""

    def find(place: Place, op: Operation) -> Service:
        part = 0.25 + 0.75 / place.world.attention_tp if of_heads else 1.0
        return multiply(place.machine, place.rows_of(op), base_us * part)

    return "dense", find


def _light(base_us: float) -> tuple[str, Find]:
    return "light", lambda place, op: pass_over(place.machine, place.rows_of(op), base_us)


def _experts(share: float) -> tuple[str, Find]:
    def find(place: Place, op: Operation) -> Service:
        routed = place.routed
        asked, worked, largest = (it[place.steps, op.layer] for it in (routed.asked, routed.worked, routed.largest))
        return serve_experts(place.machine, asked, worked, largest, share)

    return "experts", find


def _attend(place: Place, op: Operation) -> Service:
    tokens = place.at(place.traffic.batches.decode_tokens)
    return attend(place.machine, tokens, place.world.attention_tp, place.world.verify_tokens)


def _attend_prompt(place: Place, op: Operation) -> Service:
    batches = place.traffic.batches
    tokens, context = place.at(batches.prompt_tokens), place.at(batches.prompt_context)
    return attend_prompt(place.machine, tokens, context, place.world.attention_tp)


def _activate(place: Place, op: Operation) -> Service:
    return pass_over(place.machine, place.routed.tokens[place.steps, op.layer], 2.3)


_SERVICES: dict[str, tuple[str, Find]] = {
    "embedding": _light(1.9),
    "input_norm": _light(2.4),
    "qkv_gemm": _dense(15.5, of_heads=True),
    "kv_write": _light(2.0),
    "attention": ("attention", _attend),
    "attention_prefill": ("attention", _attend_prompt),
    "attention_merge": _light(2.3),
    "o_proj_gemm": _dense(13.2, of_heads=True),
    "post_norm": _light(2.6),
    "shared_gemm": _dense(8.6),
    "router": _light(4.1),
    "align": _light(3.3),
    "dispatch_layout": _light(2.2),
    "dispatch_send": _light(3.2),
    "combine_send": _light(3.4),
    "expert_up": _experts(0.6),
    "activation": ("light", _activate),
    "expert_down": _experts(0.4),
    "expert_sum": _light(2.8),
    "final_norm": _light(2.5),
    "lm_head_gemm": _dense(48.0),
    "sample_softmax": _light(7.0),
    "sample_pick": _light(12.5),
}
"""By key the family, whose chips differ in the same way, and the law."""
