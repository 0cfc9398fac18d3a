"""What kind of load makes attention longer, as far as the recording says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dprankdiag.analysis.loads import LoadSkew, classify_loads
from dprankdiag.analysis.observations import BatchSeries, Observations
from dprankdiag.analysis.skews import measure_skews
from tests.analysis.builders import Array, annotate, observe_steps, on, on_steps

N = 40


def heavy(factor: float = 2.0, **changes: Any) -> Observations:
    return observe_steps(N, factor={"attention": on(3, factor)}, **changes)


def only(seen: Observations) -> LoadSkew:
    (found,) = classify_loads(seen, measure_skews(seen))
    return found


def rows(of_three: float) -> Array:
    return np.array([1.0, 1, 1, of_three, 1, 1, 1, 1])


@pytest.mark.parametrize(
    "of_three,kind",
    [(1.0, "context"), (1.09, "context"), (1.3, "unknown"), (1.6, "requests"), (2.0, "requests"), (0.7, "unknown")],
)
def test_rows_of_launch_shapes_tell_context_from_requests(of_three: float, kind: str) -> None:
    found = only(heavy(row_ratio=rows(of_three)))
    assert (found.kind, found.row_ratio) == (kind, of_three)


def test_rows_that_outgrow_attention_may_be_those_of_prompts() -> None:
    assert only(heavy(row_ratio=rows(9.0))).kind == "unknown"


def test_rows_of_a_whole_recording_are_those_of_the_few_steps_in_which_attention_is_heavy() -> None:
    seen = observe_steps(N, factor={"attention": on_steps(3, 2.0, slice(0, N, 5), N, 8)}, row_ratio=rows(1.2))
    found = only(seen)
    assert (found.kind, found.row_ratio) == ("requests", pytest.approx(2.0))


def test_without_rows_the_kind_is_unknown() -> None:
    assert only(heavy()).kind == "unknown"


@pytest.mark.parametrize(
    ("of_six", "kinds"),
    [
        (1.0, {"requests": [3], "context": [6]}),
        (2.0, {"requests": [3, 6]}),
        (1.3, {"requests": [3, 6]}),
    ],
)
def test_ranks_that_are_heavy_together_are_told_apart_by_kind(of_six: float, kinds: dict[str, list[int]]) -> None:
    seen = observe_steps(N, factor={"attention": on(3, 2.0) * on(6, 1.8)}, row_ratio=rows(2.0) * on(6, of_six)[0, 0])
    found = classify_loads(seen, measure_skews(seen))
    assert {load.kind: np.flatnonzero(load.standout.mask).tolist() for load in found} == kinds


def test_annotations_overrule_launch_shapes_that_may_be_padded() -> None:
    seen = annotate(heavy(row_ratio=rows(1.0)), requests=16 * rows(2.0), held_tokens=30_000 * rows(2.1))
    found = only(seen)
    assert found.kind == "requests"
    assert found.row_ratio == pytest.approx(2.0)
    assert found.held_ratio == pytest.approx(2.1)


def test_annotations_that_do_not_tell_requests_leave_the_shapes_to_speak() -> None:
    assert only(annotate(heavy(row_ratio=rows(1.0)), held_tokens=[1.0] * 8)).kind == "context"


def test_prefill_on_one_rank_more_often_than_elsewhere_is_prefill() -> None:
    share = np.where(np.arange(8) == 3, 0.3, 0.0)
    assert only(heavy(prefill_share=share)).kind == "prefill"


def test_prefill_on_all_ranks_alike_is_not() -> None:
    assert only(heavy(prefill_share=np.full(8, 0.3))).kind == "unknown"


def test_ranks_without_work_in_most_steps_make_the_busy_ones_idle_load() -> None:
    seen = observe_steps(N, factor={"attention": 0.02 * on([0, 1, 2], 50.0)})
    found = only(seen)
    assert found.kind == "idle"
    assert np.flatnonzero(found.standout.mask).tolist() == [0, 1, 2]


def test_ranks_without_work_in_a_third_of_the_steps_are_not_idle() -> None:
    gaps = on_steps(0, 0.02, slice(0, N, 3), N, 8)
    seen = observe_steps(N, factor={"attention": gaps * on(3, 2.0)})
    assert only(seen).kind == "unknown"


def test_what_a_slow_chip_does_to_attention_is_no_load() -> None:
    slow = {name: on(3, 1.3) for name in ("attention", "expert", "probe", "other")}
    seen = observe_steps(N, factor=slow)
    assert classify_loads(seen, measure_skews(seen)) == []


def test_memory_that_is_slower_than_the_probes_on_average_is_no_load() -> None:
    slow = {name: on(3, 1.2) for name in ("expert", "probe", "other")} | {"attention": on(3, 1.3)}
    seen = observe_steps(N, factor=slow)
    assert classify_loads(seen, measure_skews(seen)) == []


def test_much_more_attention_than_the_chip_explains_is_load() -> None:
    slow = {name: on(3, 1.2) for name in ("expert", "probe", "other")} | {"attention": on(3, 2.4)}
    assert only(observe_steps(N, factor=slow)).kind == "unknown"


def test_slow_on_both_sides_without_probes_is_not_called_load() -> None:
    seen = observe_steps(N, factor={"probe": np.zeros(1), "attention": on(3, 1.4), "expert": on(3, 1.4)})
    assert classify_loads(seen, measure_skews(seen)) == []


def test_work_after_the_gather_is_told_beside_it() -> None:
    found = only(heavy())
    assert found.post_ratio == pytest.approx(1.0, abs=0.02)


def in_turn(**changes: Any) -> tuple[Observations, Array]:
    """Let every rank in turn do three times the attention of a step; give the turns, `(N, 8)`."""
    turns = np.arange(N)[:, None] % 8 == np.arange(8)
    seen = observe_steps(N, factor={"attention": np.where(turns, 3.0, 1.0)[:, None, :]}, **changes)
    return seen, turns


def test_prefill_attention_in_its_turn_is_prefill_although_all_ranks_run_as_much() -> None:
    seen, turns = in_turn(prefill_share=np.full(8, 0.125))
    assert only(seen).standout.in_turn
    assert only(replace(seen, prefill=turns)).kind == "prefill"
    assert only(replace(seen, prefill=np.roll(turns, 1, axis=1))).kind == "unknown"
    assert only(replace(seen, prefill=np.ones_like(turns))).kind == "unknown"


def test_prompt_tokens_on_the_heavy_rank_are_prefill_where_the_work_follows_them() -> None:
    def told(tokens: Array) -> LoadSkew:
        return only(annotate(heavy(3.0), requests=[4.0] * 8, prefill_tokens=tokens))

    assert (told(600 * rows(3.2)).kind, told(600 * rows(3.2)).prompt_ratio) == ("prefill", pytest.approx(3.2))
    assert told(np.where(np.arange(8) == 3, 600.0, 0.0)).kind == "prefill"
    assert told(600 * rows(1.2)).kind == "context"
    assert told(np.zeros(8)).kind == "context"


def test_ranks_in_turn_are_held_against_those_whose_turn_it_is_not() -> None:
    seen, turns = in_turn()
    start = seen.start_ns + 1_000
    unknown = np.full(N, np.nan)
    held = np.where(turns, 9_000.0, 3_000.0)
    batches = tuple(BatchSeries(start, np.full(N, 4.0), held[:, rank], unknown) for rank in range(8))
    found = only(replace(seen, batches=batches))
    assert (found.kind, found.row_ratio, found.held_ratio) == ("context", 1.0, 3.0)
