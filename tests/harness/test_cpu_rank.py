"""Real processes: what they record of their orders, and what happens if one fails."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dprankdiag.harness.cpu_device import HELD_TOKEN_NS
from dprankdiag.harness.cpu_rank import hurry, run_sockets
from dprankdiag.harness.events import Array
from dprankdiag.harness.run_plan import Orders, Plan, give_orders
from dprankdiag.harness.run_record import Ran, write_ranges
from dprankdiag.harness.run_steps import ATTENTION, EXPERTS, GATHER, LAYER, ROUTER, SCATTER, STEP, SYNC

PLAN = Plan("small", ranks=2, steps=3, requests=2, context_tokens=1000)


def small_orders() -> list[Orders]:
    return give_orders(PLAN)


def pick(ran: Ran, text: str) -> list[Array]:
    return [np.array([(start, end) for start, end, name, _ in own if name == text]) for own in ran.rows]


def test_processes_record_every_step_layer_and_meeting_on_one_clock() -> None:
    orders = small_orders()
    ran = run_sockets(orders)
    counts = {STEP: 3, SYNC: 3, f"{LAYER} 1": 3, **dict.fromkeys((ATTENTION, EXPERTS, GATHER, ROUTER, SCATTER), 6)}
    for text, count in counts.items():
        assert [len(found) for found in pick(ran, text)] == [count, count], text
    for own, found in zip(orders, pick(ran, ATTENTION), strict=True):
        assert (np.diff(found)[::2, 0] >= own.held_tokens * HELD_TOKEN_NS).all()
        assert own.say_step(0) in {text for _, _, text, _ in ran.rows[own.rank]}
    for text in (SYNC, GATHER, SCATTER):
        begin, end = np.stack(pick(ran, text)).transpose(2, 0, 1)
        assert (end.min(axis=0) > begin.max(axis=0)).all()
    assert len(set(ran.pids)) == 2
    assert (ran.step_ns() > 2 * 2 * 1000 * HELD_TOKEN_NS).all()


def test_a_recording_holds_all_ranges_of_all_ranks(tmp_path: Path) -> None:
    rows = [(10, 90, STEP, 0), (20, 30, ATTENTION, -1)]
    ran = Ran((rows, [(15, 95, STEP, 0)]), (11, 12))
    write_ranges(ran, tmp_path / "ran.sqlite")
    with closing(sqlite3.connect(tmp_path / "ran.sqlite")) as export:
        found = export.execute("SELECT start, end, globalTid & 0xFFFFFF FROM NVTX_EVENTS WHERE eventType = 59")
        assert sorted(found) == [(0, 80, 11), (5, 85, 12), (10, 20, 11)]


def test_a_rank_that_fails_ends_the_run() -> None:
    orders = small_orders()
    broken = replace(orders[1], routed_share=np.zeros((0, 0)))
    with pytest.raises(ConnectionError, match="failed"):
        run_sockets([orders[0], broken])


def test_a_rank_hurries_only_while_it_is_told_to() -> None:
    before = os.sched_getscheduler(0)
    with hurry():
        assert os.sched_getscheduler(0) in (before, os.SCHED_RR)  # as far as it is allowed to
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
