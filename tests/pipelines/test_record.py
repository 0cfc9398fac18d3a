from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprankdiag.model.ledgers import NoData
from dprankdiag.pipelines.failures import Told
from dprankdiag.pipelines.record import Recorded, record
from dprankdiag.pipelines.ticks import run_ticks
from tests.pipelines.clocks import FakeClock
from tests.store.told import plain_answer

REFUSED = NoData("sglang-metrics", "http://a:30000/metrics", 1, "connection refused")


def test_ticks_come_at_multiples_of_the_interval_and_do_not_drift() -> None:
    clock = FakeClock()
    times = []
    for tick in run_ticks(0.1, clock.wait, duration_s=10, now=clock.now):
        times.append((tick, clock.now() - 100))
        clock.work(0.03)
    assert [tick for tick, _ in times] == list(range(101))
    assert all(at_s == pytest.approx(0.1 * tick, abs=1e-6) for tick, at_s in times)


@given(st.lists(st.floats(0, 7), min_size=1, max_size=20), st.floats(0.05, 3))
def test_a_tick_that_comes_too_late_is_skipped_and_never_made_up_for(work_s: list[float], interval_s: float) -> None:
    clock = FakeClock()
    ticks = []
    for tick, took_s in zip(run_ticks(interval_s, clock.wait, now=clock.now), work_s, strict=False):
        assert clock.now() - 100 == pytest.approx(tick * interval_s, abs=1e-6)
        ticks.append(tick)
        clock.work(took_s)
    assert ticks == sorted(set(ticks))


def test_to_stop_while_waiting_ends_the_ticks() -> None:
    clock = FakeClock(stop_at_s=102.5)
    assert list(run_ticks(1.0, clock.wait, now=clock.now)) == [0, 1, 2]


def _run(ticks: Sequence[Sequence[Told]], took_s: float = 0.0) -> tuple[Recorded, list[tuple[int, int]], list[str]]:
    clock, kept, said = FakeClock(), list[tuple[int, int]](), list[str]()
    waiting = iter(ticks)

    def poll() -> Sequence[Told]:
        clock.work(took_s)
        return next(waiting)

    done = record(
        poll,
        lambda told, moment_ns: kept.append((moment_ns, len(told))),
        clock.wait,
        interval_s=1.0,
        duration_s=(1 + int(took_s)) * (len(ticks) - 1),
        say=said.append,
        now=clock.now,
        moment=clock.moment,
    )
    return done, kept, said


def test_every_tick_is_kept_with_the_moment_it_was_asked_at() -> None:
    done, kept, said = _run([[plain_answer(0)], [plain_answer(1), REFUSED]])
    assert kept == [(100 * 10**9, 1), (101 * 10**9, 2)]
    assert done == Recorded(ticks=2, missed=0, answers=2, failures=1, targets=1, ranks=8)
    assert said == ["http://a:30000/metrics: no data: connection refused"]


def test_a_failure_is_said_once_and_once_that_it_is_over() -> None:
    other = replace(REFUSED, where="http://b/metrics", reason="timed out")
    _, _, said = _run([[REFUSED], [REFUSED, other], [REFUSED], [plain_answer()], [plain_answer()], [REFUSED]])
    assert said == [
        "http://a:30000/metrics: no data: connection refused",
        "http://b/metrics: no data: timed out",
        "http://a:30000/metrics: answers again",
        "http://a:30000/metrics: no data: connection refused",
    ]


def test_an_engine_that_comes_up_late_is_said_to_answer() -> None:
    unknown = replace(REFUSED, interface="metrics")
    _, _, said = _run([[unknown], [unknown], [plain_answer()]])
    assert said == ["http://a:30000/metrics: no data: connection refused", "http://a:30000/metrics: answers again"]


def test_what_an_engine_does_not_offer_is_no_failure() -> None:
    done, _, said = _run([[replace(REFUSED, absent=True)], [plain_answer()]])
    assert said == []
    assert done.failures == 0


def test_ticks_that_were_skipped_are_counted() -> None:
    done, kept, _ = _run([[plain_answer(tick)] for tick in range(3)], took_s=1.5)
    assert done.ticks == 3
    assert done.missed == 2
    assert [moment_ns // 10**9 for moment_ns, _ in kept] == [100, 102, 104]


def test_a_run_in_which_nothing_came_counts_no_answer() -> None:
    done, kept, _ = _run([[REFUSED], [REFUSED]])
    assert (done.answers, done.targets, done.ranks) == (0, 0, 0)
    assert len(kept) == 2
