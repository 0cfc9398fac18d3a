"""Where steps begin, by the clearest sign there is."""

from __future__ import annotations

import numpy as np
import pytest

from dprankdiag.analysis.segments import Segments
from dprankdiag.analysis.steps import Cut, cut_steps
from tests.analysis.builders import EPOCH_NS, Array

LAYERS, STEPS = 4, 12
N = LAYERS * STEPS
FIRST = list(range(LAYERS, N + 1, LAYERS))
NO_MARKS = np.empty(0, np.int64)


def segments(counts: dict[str, Array], arrival_ns: Array) -> Segments:
    none, few = np.zeros(N, np.int64), np.zeros(N, np.int32)
    content = sum((count * (1_009 + k) for k, (_, count) in enumerate(sorted(counts.items()))), none)
    sampled = counts.get("sampling", few).astype(np.int32)
    times = (none,) * 6
    return Segments(arrival_ns, arrival_ns + 50, *times, content, sampled, few, few, none, few, False, few, few, few)


def cut(
    counts: dict[str, Array] | None = None, marks: list[Array] | None = None, gap_ns: int = 0, n_ranks: int = 2
) -> Cut:
    """Cut meetings 1 µs apart, with a longer gap before every step."""
    distance = np.full(N, 1_000, np.int64)
    distance[::LAYERS] += gap_ns
    arrival = EPOCH_NS + np.cumsum(distance)
    members = [segments(counts or {}, arrival) for _ in range(n_ranks)]
    places = [np.arange(N)] * n_ranks
    return cut_steps(members, places, arrival, arrival + 50, marks or [NO_MARKS] * n_ranks)


def at_steps(value: int = 1) -> Array:
    """Count rows in the first segment of every step."""
    return np.where(np.arange(N) % LAYERS == 0, value, 0)


def test_annotated_steps_come_first() -> None:
    marks = EPOCH_NS + 1_000 * np.arange(0, N, LAYERS) + 900
    found = cut({"sampling": np.roll(at_steps(), 1)}, [marks, marks])
    assert (found.basis, found.first.tolist()) == ("marker", FIRST)


def test_marks_of_a_minority_of_the_ranks_decide_where_the_others_have_none() -> None:
    marks = EPOCH_NS + 1_000 * np.arange(0, N, LAYERS) + 900
    assert cut(marks=[marks, NO_MARKS]).first.tolist() == FIRST


def test_the_sampling_tail_ends_a_step() -> None:
    found = cut({"sampling": at_steps()})
    assert (found.basis, found.first.tolist()) == ("sampling", FIRST)


def test_a_sampler_in_every_layer_is_no_step_border() -> None:
    assert cut({"sampling": np.ones(N, int)}).basis == "meeting"


def test_what_is_done_once_a_step_marks_it() -> None:
    found = cut({"gemm": 2 + at_steps()})
    assert (found.basis, found.first.tolist()) == ("structure", FIRST)


def test_the_longest_recurring_gap_is_a_step_border() -> None:
    found = cut(gap_ns=40_000)
    assert (found.basis, found.first.tolist()) == ("gap", FIRST)


def test_without_any_sign_every_meeting_stands_for_itself() -> None:
    found = cut()
    assert found.basis == "meeting"
    assert found.first.tolist() == list(range(1, N + 1))


@pytest.mark.parametrize("irregular,basis", [(2, "sampling"), (6, "meeting")])
def test_a_border_must_come_at_regular_distance(irregular: int, basis: str) -> None:
    count = at_steps()
    for step in range(1, 1 + irregular):
        count[LAYERS * step : LAYERS * step + 2] = count[LAYERS * step : LAYERS * step + 2][::-1]
    if irregular > 2:
        count = np.where(np.random.default_rng(1).random(N) < 0.25, 1, 0)
    assert cut({"sampling": count}).basis == basis


def test_a_last_step_cut_short_is_not_closed() -> None:
    count = at_steps()
    count[N - 2] = 1
    assert cut({"sampling": count}).first.tolist()[-1] == N - 2
