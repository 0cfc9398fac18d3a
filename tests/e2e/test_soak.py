"""A short day of a small deployment: nothing but the fault is named, and the recording keeps no more than it should."""

from __future__ import annotations

from pathlib import Path

from tests.bench.soak import INTERVAL_S, plan_day, soak

KEEP_S = 1200.0


def test_a_day_with_restarts_and_lost_polls_names_the_late_host_and_nothing_else(tmp_path: Path) -> None:
    plan = plan_day(nodes=2, hours=5.0, keep_s=KEEP_S)
    day = soak(plan, tmp_path)
    assert day.polls == 5 * 180
    assert day.false == ()
    assert day.flaps == 0
    assert day.wait_s is not None
    assert day.wait_s <= 6 * INTERVAL_S
    (fault,) = plan.world.faults
    assert day.held_s >= 0.8 * (fault.end_s - fault.start_s)
    assert day.rank_counts == (16, 12)
    assert day.kept_s <= KEEP_S + 2 * INTERVAL_S
    assert day.file_growth_ratio <= 0.5
