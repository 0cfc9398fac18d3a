"""The roofline physics: durations that follow from a model's shapes, a chip's peaks and the requests of every rank."""

from __future__ import annotations

import numpy as np

from dprankdiag.harness.activity import fault_activity, measure_slowness, multiply_factors
from dprankdiag.harness.draws import open_stream
from dprankdiag.harness.durations import Durations, HostCosts, Lane
from dprankdiag.harness.events import Array
from dprankdiag.harness.faults import Side
from dprankdiag.harness.program import Operation, StepKind
from dprankdiag.harness.roofline_batches import Work, deal_work
from dprankdiag.harness.roofline_kernels import exchange
from dprankdiag.harness.roofline_noise import (
    ChipNoise,
    draw_call,
    draw_chips,
    draw_exit,
    draw_gap,
    draw_host,
    draw_kernel,
    draw_transfer,
)
from dprankdiag.harness.roofline_presets import Chip, choose_chip, choose_model
from dprankdiag.harness.roofline_program import list_operations
from dprankdiag.harness.roofline_roofs import Site, roof_of
from dprankdiag.harness.roofline_routing import route_tokens
from dprankdiag.harness.world import World

_BUCKET = 8
_COPY_NS = {"input_copy": 1_500.0, "output_copy": 1_700.0, "clear": 1_200.0}
_SHARED_OUT: dict[Side, tuple[str, ...]] = {
    "before": ("qkv_gemm", "q_up_gemm", "attention", "attention_prefill", "o_proj_gemm"),
    "after": ("expert_up", "activation", "expert_down", "shared_gemm"),
}


def compute_durations(world: World) -> Durations:
    """Compute the batches of all ranks and the durations of all operations of all steps."""
    chip, model = choose_chip(world), choose_model(world)
    work = deal_work(world)
    own = count_rows(world, work)
    routing = route_tokens(world, model, own[:, :: world.attention_tp].sum(axis=1))
    noise = draw_chips(world)
    lanes = []
    index = np.arange(world.run_steps)
    for kind, eager in (("decode", False), ("decode", True), ("mixed", True)):
        steps = index[(work.prefill == (kind == "mixed")) & (work.eager == eager)]
        if len(steps):
            rows = own[steps] if eager else _pad_rows(own[steps], world.verify_tokens)
            all_rows = _gather_rows(world, rows, padded=not eager or world.max_padding)
            sampled = _count_sampled(world, work)[steps] if eager else rows
            site = Site(world, chip, model, steps, work, routing, rows, all_rows, sampled)
            lanes.append(_build_lane(site, "mixed" if kind == "mixed" else "decode", eager, noise))
    return Durations(tuple(lanes), _spend_on_hosts(world, chip, work), work.batches, model.hidden)


def count_rows(world: World, work: Work) -> Array:
    """Count the rows of activations of every rank: `(steps, ranks)`."""
    rows: Array = work.batches.decode_requests * world.verify_tokens + work.batches.prompt_tokens
    return rows


def _count_sampled(world: World, work: Work) -> Array:
    sampled: Array = work.batches.decode_requests * world.verify_tokens + work.batches.prompt_requests
    return sampled


def _pad_rows(rows: Array, verify_tokens: int) -> Array:
    """Pad to the captured size that fits the busiest rank: small powers of two of requests, then every eighth."""
    most = -(-rows.max(axis=1, keepdims=True) // verify_tokens)
    small = 2 ** np.ceil(np.log2(np.maximum(most, 1))).astype(np.int64)
    size = np.where(most <= _BUCKET, small, -(-most // _BUCKET) * _BUCKET) * verify_tokens
    padded: Array = np.broadcast_to(size, rows.shape)
    return padded


def _gather_rows(world: World, rows: Array, *, padded: bool) -> Array:
    of_groups = rows[:, :: world.attention_tp]
    most, total = (np.asarray(pick(of_groups, axis=1, keepdims=True)) for pick in (np.max, np.sum))
    return most * world.dp_size if padded else total


def _build_lane(site: Site, kind: StepKind, eager: bool, noise: ChipNoise) -> Lane:
    world, steps = site.world, site.steps
    operations = list_operations(world, site.model, kind, eager=eager)
    shape = (len(steps), len(operations), world.ranks)
    work, transfer, gap, call, blocks = (np.zeros(shape) for _ in range(5))
    slow = measure_slowness(world, steps)
    for position, op in enumerate(operations):
        gap[:, position] = draw_gap(world, op)[steps]
        call[:, position] = _call_ns(site.chip, op, len(operations)) * draw_call(world, op)[steps]
        blocks[:, position] = _count_blocks(site, op)
        if op.act == "meet":
            size = world.attention_tp if op.among == "group" else world.ranks
            common, own = _meet(site, op)
            transfer[:, position] = common * draw_transfer(world, op, size)[steps] * _fabric(world, steps)
            work[:, position] = draw_exit(world, op)[steps] + own + _exit_lateness(site, op)
        elif op.act == "work":
            compute, memory = (
                factor * it[steps] for factor, it in zip(slow, (noise.compute, noise.memory), strict=True)
            )
            lasts = roof_of(site, op).last(compute, memory) * _layout_share(world, op)
            work[:, position] = lasts * draw_kernel(world, op)[steps]
        else:
            work[:, position] = _COPY_NS[op.key] * draw_kernel(world, op)[steps]
    return Lane(
        kind,
        operations,
        steps,
        work_ns=_round(work),
        transfer_ns=_round(transfer),
        gap_ns=_round(gap),
        call_ns=_round(call),
        blocks=_round(blocks),
        present=_find_present(site, operations) if eager else None,
    )


def _round(values: Array) -> Array:
    return np.rint(values).astype(np.int64)


def _find_present(site: Site, operations: tuple[Operation, ...]) -> Array:
    """Mark who launches what: without graphs no attention runs over nothing, and prompts have kernels of their own."""
    prompts = site.at(site.work.batches.prompt_tokens) > 0
    decodes = ~prompts & (site.at(site.work.batches.decode_requests) > 0)
    present = np.ones((len(site.steps), len(operations), site.world.ranks), bool)
    who = {
        "attention": decodes,
        "attention_merge": decodes,
        "attention_prefill": prompts,
        "kv_write": prompts | decodes,
    }
    for position, op in enumerate(operations):
        if op.key in who:
            present[:, position] = who[op.key]
    return present


def _meet(site: Site, op: Operation) -> tuple[Array, Array]:
    """Give the time of a collective that all members share, and what a member needs beyond it, in ns."""
    world, model, ranks = site.world, site.model, site.world.ranks
    away = ranks > world.node_size
    row_bytes = 2.0 * model.hidden
    nothing = np.zeros((len(site.steps), ranks))
    if op.among == "group":
        part = site.rows * row_bytes * (1 - 1 / world.attention_tp)
        one_shot = op.kernel_key.startswith("custom_reduce")
        return exchange(site.chip, part * (2 - one_shot), world.attention_tp, False, one_shot=one_shot), nothing
    if op.key == "notify_dispatch":
        return exchange(site.chip, nothing + 8.0 * model.experts, ranks, away, one_shot=True), nothing
    if op.moves_tokens:
        moved = site.routed(site.routing.tokens, op) * row_bytes * (0.5 if op.key == "dispatch" else 1.0)
        mean = moved.mean(axis=1, keepdims=True)
        most = exchange(site.chip, np.maximum(moved, mean), ranks, away, one_shot=True)
        least = exchange(site.chip, mean, ranks, away, one_shot=True)
        if op.key == "combine":
            return most.max(axis=1, keepdims=True), nothing
        return least, most - least
    part = site.all_rows * row_bytes * (1 - 1 / ranks)
    return exchange(site.chip, part, ranks, away, one_shot=op.kernel_key.startswith("custom_reduce")), nothing


def _exit_lateness(site: Site, op: Operation) -> Array:
    """Let members of slow links and full queues leave late: `(n, ranks)` ns."""
    late = np.zeros((len(site.steps), site.world.ranks))
    for position, fault in enumerate(site.world.faults):
        if fault.kind not in ("slow_link", "receiver_queue"):
            continue
        own = site.at(fault_activity(site.world, position)) * fault.size
        if fault.kind == "slow_link":
            late += own
        elif op.moves_tokens:
            tokens = site.routed(site.routing.tokens, op)
            late += own * tokens / np.maximum(tokens.mean(axis=1, keepdims=True), 1)
    return late


def _count_blocks(site: Site, op: Operation) -> Array:
    """Count a kernel's blocks: matrix products and experts fill the chip, others have one a row."""
    if op.act == "meet":
        return np.full((1, 1), 24)
    if op.scale == "tokens" or "gemm" in op.key:
        return np.full((1, 1), site.chip.processors)
    rows: Array = np.maximum(site.rows_of(op), 1)
    return rows


def _call_ns(chip: Chip, op: Operation, operations: int) -> float:
    if op.in_graph:
        return 6 * chip.call_ns + 40.0 * operations
    return chip.call_ns * (1.4 if op.act in ("copy", "clear") else 1.0)


def _fabric(world: World, steps: Array) -> Array:
    factor: Array = multiply_factors(world, ("fabric",), False)[steps]
    return factor


def _layout_share(world: World, op: Operation) -> Array:
    """Give each rank's share of an operation against an even layout: `(ranks,)`."""
    share = np.ones(world.ranks)
    for fault in world.faults:
        if fault.kind == "structural_layout" and op.key in _SHARED_OUT[fault.side]:
            own = np.where(np.isin(np.arange(world.ranks), fault.ranks), fault.size, 1.0)
            share *= np.full(world.ranks, own.mean()) if fault.spread else own
    return share


def _spend_on_hosts(world: World, chip: Chip, work: Work) -> HostCosts:
    """Let hosts choose batches, tell each other their sizes and launch."""
    factor, stalls = draw_host(world)
    requests = work.batches.decode_requests + work.batches.prompt_requests
    leave = open_stream(world.seed, "roofline", "metadata").gamma(2.0, 2_500.0, requests.shape)
    return HostCosts(
        gap_ns=np.rint((14 * chip.call_ns + 900 * requests) * factor + stalls).astype(np.int64),
        metadata_ns=np.rint(22_000 + 6_000 * np.log2(max(world.ranks, 2)) + leave).astype(np.int64),
        prepare_ns=8 * chip.call_ns,
        between_calls_ns=5 * chip.call_ns,
        launch_ns=1_600,
        react_ns=4_200,
        dependent_lead_ns=1_900,
    )
