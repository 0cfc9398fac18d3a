"""Turn a played world into the events that a profiler would have seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from dprankdiag.harness.annotations import annotate_steps
from dprankdiag.harness.draws import open_stream
from dprankdiag.harness.durations import Lane
from dprankdiag.harness.events import (
    COPY_TO_DEVICE,
    COPY_TO_HOST,
    NO_EVENT,
    NOT_IN_GRAPH,
    SYNC_EVENT,
    SYNC_STREAM,
    Array,
    CallRows,
    ClearRows,
    Collective,
    CopyRows,
    EventRows,
    KernelRows,
    KernelText,
    Place,
    Process,
    ProcessGroup,
    RangeRows,
    RankRows,
    Recording,
    ReplayRows,
    SyncRows,
    empty_rows,
    join_rows,
    keep_rows,
    pick_rows,
)
from dprankdiag.harness.kernel_names import NAME_SETS, NameSet
from dprankdiag.harness.stream_waits import (
    STREAMS,
    number_calls,
    record_events,
    record_stream_waits,
    record_wait_calls,
)
from dprankdiag.harness.timeline import LaneTimes, Timeline
from dprankdiag.harness.world import World

_FIRST_PID = 41_200
_FIRST_NODE = 3_000
_KERNELS = ("work", "meet")
_COPY_BYTES = {"input_copy": 12_288, "output_copy": 256}
_CALL_TEXTS = ("cudaLaunchKernel_v7000", "cuLaunchKernelEx", "cudaMemcpyAsync_v3020", "cudaGraphLaunch_v10000")
_EVENT_CALL_TEXTS = ("cudaEventRecord_v3020", "cudaStreamWaitEvent_v3020")
_CLEAR_CALL_TEXT = "cudaMemsetAsync_v3020"
_LAUNCH, _LAUNCH_DRIVER, _COPY, _GRAPH, _SYNC, _RECORD, _WAIT, _CLEAR = range(8)
_CLEARED_BYTES = 4_096
_DRIVER_LAUNCHED = ("qkv_gemm", "o_proj_gemm", "lm_head_gemm", "expert_up", "expert_down")


@dataclass(frozen=True, slots=True)
class _Texts:
    kernels: tuple[KernelText, ...]
    index: dict[str, int]
    collectives: tuple[Collective | None, ...]


def record(timeline: Timeline) -> Recording:
    """Record all ranks of a played world."""
    world = timeline.world
    names = NAME_SETS[world.names]
    texts = _collect_texts(timeline, names)
    range_texts, ranges = annotate_steps(timeline)
    rows = []
    for rank in range(world.ranks):
        cut = _choose_cut(timeline, rank)
        rows.append(_cut_rows(_record_rank(timeline, rank, texts, ranges[rank]), *cut))
    mode = None if not world.graph else world.graph_mode
    command = tuple(word.format(ranks=world.ranks, dp=world.dp_size, tp=world.attention_tp) for word in names.command)
    overlaps = any(number_calls(*pair).waits for pair in zip(timeline.lanes, timeline.times, strict=True))
    events = _EVENT_CALL_TEXTS if overlaps or world.clears else ()
    calls = (*_CALL_TEXTS, names.sync_call, *events, *((_CLEAR_CALL_TEXT,) if world.clears else ()))
    return Recording(
        processes=_make_processes(world, names),
        rows=tuple(rows),
        kernel_texts=texts.kernels,
        call_texts=calls,
        range_texts=range_texts,
        graph_mode=mode,
        command=command,
        collectives=texts.collectives,
        groups=_list_groups(world),
        places=tuple(Place(*divmod(rank, world.attention_tp), rank) for rank in range(world.ranks)),
    )


def _collect_texts(timeline: Timeline, names: NameSet) -> _Texts:
    keys = dict.fromkeys(op.kernel_key for lane in timeline.lanes for op in lane.operations if op.act in _KERNELS)
    texts = list(dict.fromkeys(names.kernel(key) for key in keys))
    index = {key: texts.index(names.kernel(key)) for key in keys}
    announced = {index[key]: _announce(timeline.world, timeline.hidden, key) for key in keys}
    return _Texts(tuple(texts), index, tuple(announced[position] for position in range(len(texts))))


def _announce(world: World, hidden: int, key: str) -> Collective | None:
    """Say what the communication library tells of a collective; the engines' own kernels tell nothing."""
    elements = world.requests * hidden
    if key == "all_gather":
        return Collective("_allgather_base", "world", elements, elements * world.ranks)
    if key == "reduce_scatter":
        return Collective("_reduce_scatter_base", "world", elements * world.ranks, elements)
    return Collective("allreduce", "group", elements, elements) if key == "attention_all_reduce" else None


def _list_groups(world: World) -> tuple[ProcessGroup, ...]:
    """List the communicators in the order in which an engine makes them: one for GPUs, then one for hosts."""
    everybody = tuple(range(world.ranks))
    groups = [ProcessGroup("0", "default_pg", "cuda:nccl", everybody)]
    sets: list[tuple[Literal["world", "group"], tuple[int, ...]]] = [("world", everybody)]
    if world.attention_tp > 1:
        sets += [("group", everybody[at : at + world.attention_tp]) for at in everybody[:: world.attention_tp]]
    for among, members in sets:
        groups.append(ProcessGroup(str(len(groups)), "undefined", "cuda:nccl", members, among))
        groups.append(ProcessGroup(str(len(groups)), "undefined", "cpu:gloo,cuda:gloo", members))
    return tuple(groups)


def _make_processes(world: World, names: NameSet) -> tuple[Process, ...]:
    skew = np.rint(open_stream(world.seed, "gpu-skew").standard_normal(world.ranks) * world.gpu_skew_ns)
    processes = []
    for rank in range(world.ranks):
        node, local = divmod(rank, world.node_size)
        dp, tp = divmod(rank, world.attention_tp)
        title = names.title.format(dp=dp, tp_part=f"_TP{tp}" if world.attention_tp > 1 else "", rank=rank)
        device = tp if names.own_devices else local
        pid = _FIRST_PID + local * 7
        processes.append(Process(pid, title, world.thread_titles, device, local, f"node-{node:02d}", int(skew[rank])))
    return tuple(processes)


def _record_rank(timeline: Timeline, rank: int, texts: _Texts, ranges: RangeRows) -> RankRows:
    world = timeline.world
    numbered = [number_calls(lane, times) for lane, times in zip(timeline.lanes, timeline.times, strict=True)]
    calls_a_step = max(it.count for it in numbered) + 1
    first_call = 1_000 + 37 * rank
    kernels, copies, clears, calls, replays = [], [], [], [], []
    syncs, events = [], []
    for lane, times, numbers in zip(timeline.lanes, timeline.times, numbered, strict=True):
        first = first_call + lane.steps[:, None] * calls_a_step
        call_ids = first + numbers.launch
        kernels.append(_record_kernels(timeline, lane, times, rank, texts, call_ids))
        copies.append(_record_copies(lane, times, rank, call_ids))
        clears.append(_record_clears(world, lane, times, rank, call_ids))
        calls.append(_record_calls(lane, times, rank, call_ids))
        replays.append(_record_replays(timeline, lane, times, rank, call_ids))
        if numbers.waits:
            event_rows = record_events(lane, times, rank, numbers, first)
            sync_rows = record_stream_waits(lane, times, rank, numbers, first)
            events.append(event_rows)
            syncs.append(sync_rows)
            calls += record_wait_calls(event_rows, sync_rows, _RECORD, _WAIT)
    sync_ids = first_call + np.arange(world.run_steps) * calls_a_step + calls_a_step - 1
    calls.append(_record_sync_calls(timeline, rank, sync_ids))
    syncs.append(_record_syncs(timeline, rank, sync_ids))
    return RankRows(
        kernels=join_rows(KernelRows, kernels),
        copies=join_rows(CopyRows, copies),
        clears=join_rows(ClearRows, clears),
        calls=join_rows(CallRows, calls) if world.runtime_rows else empty_rows(CallRows),
        syncs=join_rows(SyncRows, syncs) if world.runtime_rows else empty_rows(SyncRows),
        events=join_rows(EventRows, events) if world.runtime_rows and events else empty_rows(EventRows),
        ranges=ranges,
        replays=join_rows(ReplayRows, replays),
    )


def _record_kernels(
    timeline: Timeline, lane: Lane, times: LaneTimes, rank: int, texts: _Texts, call_ids: Array
) -> KernelRows:
    world = timeline.world
    whole = world.graph and world.graph_mode == "graph"
    kept = [p for p, op in enumerate(lane.operations) if op.act in _KERNELS and not (whole and op.in_graph)]
    ops = [lane.operations[position] for position in kept]
    count = len(lane.steps)

    def each(values: list[int]) -> Array:
        return np.tile(np.asarray(values, np.int64), count)

    rows = KernelRows(
        start_ns=times.start_ns[:, kept, rank].ravel(),
        end_ns=times.end_ns[:, kept, rank].ravel(),
        stream=each([STREAMS[op.stream] for op in ops]),
        name=each([texts.index[op.kernel_key] for op in ops]),
        grid_x=lane.blocks[:, kept, rank].ravel(),
        grid_y=each([16 if op.key == "attention" else 1 for op in ops]),
        block_x=each([op.block for op in ops]),
        call=call_ids[:, times.call_of[kept]].ravel(),
        node=each([_FIRST_NODE + p if op.in_graph else NOT_IN_GRAPH for p, op in zip(kept, ops, strict=True)]),
    )
    return rows if lane.present is None else pick_rows(rows, lane.present[:, kept, rank].ravel())


def _record_copies(lane: Lane, times: LaneTimes, rank: int, call_ids: Array) -> CopyRows:
    kept = [position for position, op in enumerate(lane.operations) if op.act == "copy"]
    keys = [lane.operations[position].key for position in kept]
    count = len(lane.steps)
    return CopyRows(
        start_ns=times.start_ns[:, kept, rank].ravel(),
        end_ns=times.end_ns[:, kept, rank].ravel(),
        stream=np.full(count * len(kept), STREAMS["compute"]),
        kind=np.tile([COPY_TO_DEVICE if key == "input_copy" else COPY_TO_HOST for key in keys], count),
        size_bytes=np.tile([_COPY_BYTES[key] for key in keys], count),
        call=call_ids[:, times.call_of[kept]].ravel(),
    )


def _record_clears(world: World, lane: Lane, times: LaneTimes, rank: int, call_ids: Array) -> ClearRows:
    whole = world.graph and world.graph_mode == "graph"
    kept = [p for p, op in enumerate(lane.operations) if op.act == "clear" and not (whole and op.in_graph)]
    nodes = [_FIRST_NODE + p if lane.operations[p].in_graph else NOT_IN_GRAPH for p in kept]
    count = len(lane.steps) * len(kept)
    return ClearRows(
        start_ns=times.start_ns[:, kept, rank].ravel(),
        end_ns=times.end_ns[:, kept, rank].ravel(),
        stream=np.full(count, STREAMS["compute"]),
        size_bytes=np.full(count, _CLEARED_BYTES),
        call=call_ids[:, times.call_of[kept]].ravel(),
        node=np.tile(np.asarray(nodes, np.int64), len(lane.steps)),
    )


def _record_calls(lane: Lane, times: LaneTimes, rank: int, call_ids: Array) -> CallRows:
    leads = [int(np.argmax(times.call_of == call)) for call in range(len(times.is_graph_call))]
    names = []
    for lead, is_graph in zip(leads, times.is_graph_call, strict=True):
        op = lane.operations[lead]
        plain = _LAUNCH_DRIVER if op.key in _DRIVER_LAUNCHED else _LAUNCH
        names.append(_GRAPH if is_graph else {"copy": _COPY, "clear": _CLEAR}.get(op.act, plain))
    rows = CallRows(
        times.call_start_ns[:, :, rank].ravel(),
        times.call_end_ns[:, :, rank].ravel(),
        np.tile(np.asarray(names, np.int64), len(lane.steps)),
        call_ids.ravel(),
    )
    return rows if lane.present is None else pick_rows(rows, lane.present[:, leads, rank].ravel())


def _record_replays(timeline: Timeline, lane: Lane, times: LaneTimes, rank: int, call_ids: Array) -> ReplayRows:
    inside = [position for position, op in enumerate(lane.operations) if op.in_graph]
    if timeline.world.graph_mode == "node" or not inside:
        return empty_rows(ReplayRows)
    count = len(lane.steps)
    return ReplayRows(
        times.start_ns[:, inside[0], rank],
        times.end_ns[:, inside[-1], rank],
        np.full(count, STREAMS["compute"]),
        np.full(count, 12),
        call_ids[:, times.call_of[inside[0]]],
    )


def _record_sync_calls(timeline: Timeline, rank: int, sync_ids: Array) -> CallRows:
    hosts = timeline.hosts
    return CallRows(hosts.sync_start_ns[:, rank], hosts.sync_end_ns[:, rank], np.full(len(sync_ids), _SYNC), sync_ids)


def _record_syncs(timeline: Timeline, rank: int, sync_ids: Array) -> SyncRows:
    hosts = timeline.hosts
    kind = SYNC_EVENT if "Event" in NAME_SETS[timeline.world.names].sync_call else SYNC_STREAM
    return SyncRows(
        hosts.sync_start_ns[:, rank] + 300,
        hosts.sync_end_ns[:, rank] - 300,
        np.full(len(sync_ids), STREAMS["compute"]),
        np.full(len(sync_ids), kind),
        sync_ids,
        np.full(len(sync_ids), NO_EVENT),
        np.zeros(len(sync_ids), np.int64),
    )


def _choose_cut(timeline: Timeline, rank: int) -> tuple[int, int]:
    """Choose where a rank's profile begins and ends: with the run, inside a step, or at a step of its own."""
    world = timeline.world
    if world.start_spread:
        first = int(open_stream(world.seed, "start", rank).integers(world.start_spread + 1))
        last = first + world.steps + world.start_spread - 1
        return int(timeline.hosts.gather_start_ns[first, rank]), _find_step_end(timeline, last, rank)
    if not world.cut_edges:
        return (0, int(np.iinfo(np.int64).max))
    first, last = open_stream(world.seed, "cut", rank).uniform(0.2, 0.8, 2)
    ends = timeline.step_end_ns
    begin = int(timeline.hosts.gather_start_ns[0].min())
    return (
        round(begin + first * (int(ends[0]) - begin)),
        round(int(ends[-2]) + last * (int(ends[-1]) - int(ends[-2]))),
    )


def _find_step_end(timeline: Timeline, step: int, rank: int) -> int:
    """Find when a rank's host and GPU are through with a step, before the next one begins."""
    done = int(timeline.hosts.sync_end_ns[step, rank]) + 2_000
    for lane, times in zip(timeline.lanes, timeline.times, strict=True):
        for row in np.flatnonzero(lane.steps == step).tolist():
            done = max(done, int(times.end_ns[row, :, rank].max()))
    return done


def _cut_rows(rows: RankRows, begin_ns: int, end_ns: int) -> RankRows:
    """Keep what lies inside a rank's profile, in the order of start."""
    return RankRows(
        kernels=keep_rows(rows.kernels, begin_ns, end_ns),
        copies=keep_rows(rows.copies, begin_ns, end_ns),
        clears=keep_rows(rows.clears, begin_ns, end_ns),
        calls=keep_rows(rows.calls, begin_ns, end_ns),
        syncs=keep_rows(rows.syncs, begin_ns, end_ns),
        events=keep_rows(rows.events, begin_ns, end_ns),
        ranges=keep_rows(rows.ranges, begin_ns, end_ns),
        replays=keep_rows(rows.replays, begin_ns, end_ns),
    )
