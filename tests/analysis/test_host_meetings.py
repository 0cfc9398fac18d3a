"""When hosts come to their meeting, and who takes longer to come."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dprankdiag.analysis.alignment import Alignment
from dprankdiag.analysis.borders import Border
from dprankdiag.analysis.host_meetings import measure_lateness, time_host_meetings
from dprankdiag.analysis.observations import Observations
from dprankdiag.catalog.ranges import load_ranges
from dprankdiag.model.schema import Columns
from dprankdiag.model.sources import Trace
from tests.analysis.builders import Array, observe_steps, trace

STEPS, RANKS = 12, 4
START = 10_000_000 + 1_000_000 * np.arange(STEPS)
MARKS = np.broadcast_to(np.arange(RANKS) == 2, (STEPS, RANKS))


def record(come: Array, name: str = "gloo:all_gather", *, leave: Array | None = None) -> Trace:
    """Record one range a rank and step, `(STEPS, RANKS)` ns after the step's start; all leave with the last."""
    start = START[:, None] + come
    end = (start.max(axis=1, keepdims=True) + 5_000 + 0 * start) if leave is None else START[:, None] + leave
    bare = trace(RANKS)
    rows: Columns = {
        "rank": np.tile(np.arange(RANKS), STEPS).astype(np.int16),
        "start_ns": start.ravel().astype(np.int64),
        "end_ns": end.ravel().astype(np.int64),
        "name_id": np.zeros(STEPS * RANKS, np.int32),
        "thread": np.ones(STEPS * RANKS, np.int32),
        "is_open": np.zeros(STEPS * RANKS, bool),
    }
    columns = {
        key: rows.get(key, np.zeros(STEPS * RANKS, values.dtype)) for key, values in bare.tables["ranges"].items()
    }
    return replace(bare, names=replace(bare.names, range_names=(name,)), tables=bare.tables | {"ranges": columns})


def time_of(recorded: Trace) -> Array | None:
    together = Alignment((None,) * RANKS, "session", None, ())
    return time_host_meetings(recorded, load_ranges(), tuple(range(RANKS)), together, START)


def come_late(late_ns: int = 0, *, noise: int = 2_000) -> Array:
    random = np.random.default_rng(3)
    come = 200_000 + random.integers(0, noise, (STEPS, RANKS))
    return np.asarray(come + np.where(MARKS, late_ns, 0))


def test_a_collective_of_the_cpus_tells_when_each_host_comes() -> None:
    come = come_late(80_000)
    found = time_of(record(come))
    assert found is not None
    assert found.tolist() == come.tolist()


def test_ranges_of_work_or_that_a_host_leaves_before_the_last_has_come_are_no_meetings() -> None:
    assert time_of(record(come_late(80_000), "prepare_batch")) is None
    come = come_late(80_000)
    assert time_of(record(come, leave=come + 1_000)) is None


def test_a_step_in_which_somebody_was_not_seen_to_come_is_not_known() -> None:
    recorded = record(come_late())
    ranges = {key: np.delete(values, 5) for key, values in recorded.tables["ranges"].items()}
    found = time_of(replace(recorded, tables=recorded.tables | {"ranges": ranges}))
    assert found is not None
    assert np.flatnonzero(np.isnan(found).any(axis=1)).tolist() == [1]
    many = {key: np.delete(values, np.arange(0, STEPS * RANKS, 8)) for key, values in recorded.tables["ranges"].items()}
    assert time_of(replace(recorded, tables=recorded.tables | {"ranges": many})) is None


def observe(come: Array | None, tail: Array | int = 0) -> Observations:
    """Let hosts meet after their GPUs' tails, and come as long after the step's start as told."""
    seen = observe_steps(STEPS, RANKS)
    done = np.broadcast_to(np.asarray(tail, np.int64), (STEPS, RANKS))
    border = Border(done, done.max(axis=1, keepdims=True) - done, np.zeros_like(done))
    grid = replace(seen.grids[0], border=border, entry=np.zeros((STEPS, RANKS), np.int64))
    return replace(seen, grids=(grid,), host_come=None if come is None else come.astype(np.float64))


def test_what_a_host_takes_longer_for_is_spread_over_all() -> None:
    found = measure_lateness(observe(come_late(80_000)), MARKS)
    assert found is not None
    assert found.lateness_ns == pytest.approx(80_000, abs=2_000)
    assert found.saved_ns == pytest.approx(80_000 * 3 / 4, abs=3_000)


def test_a_host_that_waits_for_its_gpu_takes_no_longer_itself() -> None:
    late = np.where(MARKS, 80_000, 0)
    assert measure_lateness(observe(come_late(80_000), late), MARKS) is None


def test_hosts_that_come_alike_or_unseen_are_not_late() -> None:
    assert measure_lateness(observe(come_late(0)), MARKS) is None
    assert measure_lateness(observe(None), MARKS) is None
    seen = observe(come_late(80_000))
    unmet = replace(seen, grids=(replace(seen.grids[0], border=None),))
    assert measure_lateness(unmet, MARKS) is None
