"""Real processes: what they are ordered to do, what they record of it, and what happens if one fails."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dprankdiag.harness.cpu_cases import FAULTS, LAYERS, STEPS, give_orders, make_cpu_case
from dprankdiag.harness.cpu_rank import ATTENTION, GATHER, RANGES, SCATTER, STEP, Orders
from dprankdiag.harness.cpu_run import run_ranks
from dprankdiag.harness.events import Array, RangeRows

MS = 1_000_000


def order(rank: int, ranks: int = 2, steps: int = 3, layers: int = 2) -> Orders:
    work = np.full((steps, layers), MS)
    return Orders(rank, ranks, work, work // 4, np.zeros(steps, np.int64), requests=2)


def pick(rows: RangeRows, name: int) -> Array:
    return np.stack([rows.start_ns, rows.end_ns], axis=1)[rows.name == name]


def test_processes_record_every_step_layer_and_meeting_on_one_clock() -> None:
    run = run_ranks([order(0), order(1)], "sockets")
    ranges = [rows.ranges for rows in run.recording.rows]
    for rows in ranges:
        assert np.bincount(rows.name, minlength=len(RANGES)).tolist() == [3, 3, 6, 6, 6, 6]
        assert rows.value[rows.name == STEP].tolist() == [0, 1, 2]
        assert (np.diff(pick(rows, ATTENTION)) >= MS).all()
    for name in (GATHER, SCATTER):
        begin, end = np.stack([pick(rows, name) for rows in ranges]).transpose(2, 0, 1)
        assert (end.min(axis=0) > begin.max(axis=0)).all()
    assert len({it.pid for it in run.recording.processes}) == 2
    assert (run.step_ns() >= 2 * (MS + MS)).all()


def test_a_rank_that_fails_ends_the_run() -> None:
    broken = replace(order(1), attention_ns=np.full((3, 2), -MS))
    with pytest.raises(ConnectionError, match="failed"):
        run_ranks([order(0), broken], "sockets")


@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if fault])
def test_a_fault_changes_the_orders_of_its_rank_and_a_twin_does_the_same_work(name: str) -> None:
    fault = FAULTS[name]
    assert fault is not None
    even, faulty = give_orders(None, 4), give_orders(fault, 4)
    changed = {
        rank
        for rank, (own, other) in enumerate(zip(faulty, even, strict=True))
        if (own.attention_ns + own.late_ns[:, None]).sum() > (other.attention_ns + other.late_ns[:, None]).sum()
        or own.expert_ns.sum() > other.expert_ns.sum()
    }
    assert changed == set(fault.ranks)
    spread = give_orders(replace(fault, spread=True), 4)
    for column in ("attention_ns", "expert_ns"):
        whole = sum(int(getattr(own, column).sum()) for own in faulty)
        assert sum(int(getattr(own, column).sum()) for own in spread) == pytest.approx(whole, abs=4 * STEPS * LAYERS)


def test_what_cannot_be_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no fault 'nonsense'"):
        make_cpu_case("nonsense", tmp_path / "case", ranks=4, executor="sockets")
    with pytest.raises(ValueError, match="need 4"):
        make_cpu_case("load", tmp_path / "case", ranks=2, executor="sockets")
