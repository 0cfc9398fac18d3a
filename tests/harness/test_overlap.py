"""Two halves of a batch overlap as streams and events allow, and recordings show the waits that profilers see."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dprankdiag.harness.events import SYNC_STREAM_WAIT, Array, RankRows
from dprankdiag.harness.faults import load_context, slow_gpu
from dprankdiag.harness.nsys_schema import Schema
from dprankdiag.harness.suites import write_world
from dprankdiag.harness.timeline import play
from dprankdiag.harness.torch_writer import TorchStyle, render_trace
from dprankdiag.harness.world import Communication
from dprankdiag.harness.worlds import World, simulate_world, twin

SMALL = World(seed=5, ranks=4, steps=6, layers=3, two_batch_overlap=True)
EAGER = replace(SMALL, graph=False)
HOOK = replace(SMALL, communication="deepep", receive_hook=True)
COMPUTE, COMM = 7, 21


def hidden_share(rows: RankRows) -> float:
    """Measure which share of the time of collectives on their own stream runs beside other work."""
    kernels = rows.kernels
    comm = kernels.stream == COMM
    start, end = kernels.start_ns[~comm], kernels.end_ns[~comm]
    beside = [
        np.clip(np.minimum(end, until) - np.maximum(start, begin), 0, None).sum()
        for begin, until in zip(kernels.start_ns[comm].tolist(), kernels.end_ns[comm].tolist(), strict=True)
    ]
    return float(sum(beside) / (kernels.end_ns - kernels.start_ns)[comm].sum())


@pytest.mark.parametrize("world", [SMALL, EAGER, replace(SMALL, communication="deepep")], ids=["graph", "eager", "ep"])
def test_most_of_the_collectives_hides_behind_the_other_half(world: World) -> None:
    for rows in simulate_world(world).rows:
        assert 0.6 < hidden_share(rows) <= 1.0


def test_a_collective_stream_alone_hides_nothing() -> None:
    world = replace(EAGER, two_batch_overlap=False, comm_stream=True)
    assert all(hidden_share(rows) == 0.0 for rows in simulate_world(world).rows)


@pytest.mark.parametrize("communication", ["nccl", "deepep"])
@pytest.mark.parametrize("hook", [True, False])
def test_each_half_runs_its_operations_one_after_the_other(communication: Communication, hook: bool) -> None:
    world = replace(SMALL, communication=communication, receive_hook=hook, faults=(load_context(2, 2.5),))
    (lane,), (times,) = play(world).lanes, play(world).times
    for half in (0, 1):
        mine = [at for at, op in enumerate(lane.operations) if op.half == half]
        assert len(mine) > 10 * world.layers
        assert (times.start_ns[:, mine[1:]] >= times.end_ns[:, mine[:-1]]).all()


def test_both_halves_do_the_work_of_one_batch() -> None:
    def attention(world: World) -> Array:
        (lane,), (times,) = play(world).lanes, play(world).times
        at = [position for position, op in enumerate(lane.operations) if op.key == "attention"]
        busy: Array = (times.end_ns - times.start_ns)[:, at].sum(axis=1).mean(axis=0)
        return busy

    quiet = replace(SMALL, noise=0.0, contention=0.0, chip_spread=0.0)
    whole = attention(replace(quiet, two_batch_overlap=False))
    assert attention(quiet) == pytest.approx(whole * 1.05, rel=0.01)


@pytest.mark.parametrize("world", [SMALL, EAGER], ids=["graph", "eager"])
def test_collectives_end_together_and_after_the_last_arrival(world: World) -> None:
    (lane,), (times,) = play(world).lanes, play(world).times
    at = [position for position, op in enumerate(lane.operations) if op.stream == "comm"]
    start, end = times.start_ns[:, at], times.end_ns[:, at]
    assert len(at) == 4 * world.layers
    assert (end.min(axis=2) > start.max(axis=2)).all()
    assert (end.max(axis=2) - end.min(axis=2) <= 3_000).all()


def test_work_is_slower_while_a_collective_shares_the_gpu_and_only_then() -> None:
    quiet = replace(SMALL, noise=0.0, tail_share=0.0)
    (lane,), (shared,) = play(replace(quiet, contention=0.5)).lanes, play(replace(quiet, contention=0.5)).times
    (alone,) = play(replace(quiet, contention=0.0)).times
    work = [at for at, op in enumerate(lane.operations) if op.act == "work"]
    ratio = ((shared.end_ns - shared.start_ns) / (alone.end_ns - alone.start_ns))[:, work]
    assert ratio.max() == pytest.approx(1.5, abs=0.01)
    assert ratio.min() == pytest.approx(1.0, abs=0.01)
    assert (ratio > 1.05).mean() > 0.1


@pytest.mark.parametrize("fault", [slow_gpu(1, 1.4), load_context(2, 3.0)])
@pytest.mark.parametrize("world", [SMALL, EAGER, HOOK], ids=["graph", "eager", "hook"])
def test_the_twin_is_faster_than_the_faulty_world(world: World, fault: Any) -> None:
    faulty = replace(world, faults=(fault,))
    assert play(twin(faulty)).wall_ns() < 0.97 * play(faulty).wall_ns()


def test_with_a_receive_hook_the_other_half_computes_between_sending_and_receiving() -> None:
    (lane,), (times,) = play(HOOK).lanes, play(HOOK).times
    receives = [at for at, op in enumerate(lane.operations) if op.sent_by]
    assert {op.stream for op in lane.operations} == {"compute"}
    assert len(receives) == 4 * HOOK.layers
    for at in receives:
        op, sender = lane.operations[at], lane.operations[at - lane.operations[at].sent_by]
        between = {other.half for other in lane.operations[at - op.sent_by + 1 : at]}
        assert (sender.key, sender.half) == (f"{op.key}_send", op.half)
        assert 1 - op.half in between
        sent = times.start_ns[:, at - op.sent_by].max(axis=1)
        assert (times.end_ns[:, at].min(axis=1) > sent).all()


@pytest.mark.parametrize("communication", ["custom_all_reduce", "deepep_normal"])
def test_what_cannot_overlap_is_refused(communication: Communication) -> None:
    with pytest.raises(ValueError, match="two halves"):
        replace(EAGER, communication=communication)


@pytest.mark.parametrize("schema,joined_by", [("3.0", "eventId"), ("3.25", "eventSyncId")])
def test_an_export_of_eager_steps_says_which_stream_waits_for_which(
    tmp_path: Path, schema: Schema, joined_by: str
) -> None:
    (path,) = write_world(EAGER, tmp_path, schema=schema)
    same = f"e.globalPid = s.globalPid AND e.{joined_by} = s.{joined_by}"
    with closing(sqlite3.connect(path)) as database:
        pairs = database.execute(
            f"""SELECT DISTINCT s.streamId, e.streamId FROM CUPTI_ACTIVITY_KIND_SYNCHRONIZATION s
            JOIN CUPTI_ACTIVITY_KIND_CUDA_EVENT e ON {same} WHERE s.syncType = 2"""
        ).fetchall()
        (waits,) = database.execute(
            "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_SYNCHRONIZATION WHERE syncType = 2"
        ).fetchone()
        (calls,) = database.execute(
            """SELECT count(*) FROM CUPTI_ACTIVITY_KIND_SYNCHRONIZATION s JOIN CUPTI_ACTIVITY_KIND_RUNTIME r
            ON r.correlationId = s.correlationId AND r.globalTid >> 24 = s.globalPid >> 24
            JOIN StringIds n ON n.id = r.nameId
            WHERE s.syncType = 2 AND n.value = 'cudaStreamWaitEvent_v3020' AND s.start >= r.start AND s.end <= r.end"""
        ).fetchone()
    assert set(pairs) == {(COMPUTE, COMM), (COMM, COMPUTE)}
    assert waits == calls == EAGER.ranks * EAGER.steps * (8 * EAGER.layers - 1)


def test_calls_are_numbered_and_placed_in_order_and_never_overlap() -> None:
    for rows in simulate_world(EAGER).rows:
        assert (np.diff(rows.calls.call) > 0).all()
        assert (rows.calls.start_ns[1:] >= rows.calls.end_ns[:-1]).all()


def test_a_wait_recorded_as_a_call_holds_back_what_its_stream_runs_next() -> None:
    rows = simulate_world(EAGER).rows[1]
    kernels, events = rows.kernels, rows.events
    recorded = dict(zip(events.record.tolist(), zip(events.stream, events.start_ns, strict=True), strict=True))
    launched = dict(zip(rows.calls.call.tolist(), rows.calls.start_ns.tolist(), strict=True))
    launch = np.asarray([launched[call] for call in kernels.call.tolist()])
    waits = np.flatnonzero(rows.syncs.kind == SYNC_STREAM_WAIT)
    for at in waits.tolist():
        stream, time = recorded[int(rows.syncs.record[at])]
        before = kernels.end_ns[(kernels.stream == stream) & (launch < time)].max()
        after = kernels.start_ns[(kernels.stream == rows.syncs.stream[at]) & (launch > rows.syncs.start_ns[at])].min()
        assert after >= before
    assert len(waits) > 100


def test_graphs_hide_the_waits_inside_them(tmp_path: Path) -> None:
    (path,) = write_world(SMALL, tmp_path)
    with closing(sqlite3.connect(path)) as database:
        tables = {row[0] for row in database.execute("SELECT name FROM sqlite_master")}
        kinds = database.execute("SELECT DISTINCT syncType FROM CUPTI_ACTIVITY_KIND_SYNCHRONIZATION").fetchall()
    assert "CUPTI_ACTIVITY_KIND_CUDA_EVENT" not in tables
    assert kinds == [(3,)]


def test_a_torch_trace_says_which_stream_waits_for_which_where_it_was_asked_to() -> None:
    recording = simulate_world(EAGER)

    def waits(style: TorchStyle) -> list[dict[str, Any]]:
        events = json.loads(render_trace(recording, 1, style=style))["traceEvents"]
        calls = {event["args"]["correlation"]: event for event in events if event.get("cat") == "cuda_runtime"}
        found = [event for event in events if event["name"] == "Stream Wait Event"]
        for event in found:
            args = event["args"]
            assert calls[args["wait_on_cuda_event_record_corr_id"]]["name"] == "cudaEventRecord"
            assert calls[args["correlation"]]["name"] == "cudaStreamWaitEvent"
            assert {args["wait_on_stream"], args["stream"]} == {COMPUTE, COMM}
            assert event["tid"] == args["stream"]
        return found

    assert len(waits(TorchStyle(sync_events=True))) == EAGER.steps * (8 * EAGER.layers - 1)
    assert waits(TorchStyle()) == []
