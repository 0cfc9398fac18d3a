"""When two recordings did the same work."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dprankdiag.analysis.observations import Observations
from dprankdiag.pipelines.likeness import (
    compare_sizes,
    list_obstacles,
    list_work_differences,
    measure_slowness,
    overlap_shapes,
)
from tests.analysis.builders import annotate, observe_steps
from tests.pipelines.sides import group, use

KERNELS = (use("gemm_a", [1000] * 8), use("attention", [9000] * 8, family="attention", equal=False))


def steps(*uses: Any, **changes: Any) -> Observations:
    return replace(observe_steps(**changes), kernels=uses or KERNELS)


def obstacles(before: Observations, after: Observations) -> list[str]:
    return list(list_obstacles(group(before), group(after)))


def test_two_recordings_of_one_deployment_have_no_obstacle() -> None:
    assert obstacles(steps(seed=1), steps(seed=2)) == []


def test_another_number_of_ranks_is_an_obstacle_both_ways() -> None:
    attention = use("attention", [9000] * 4, family="attention", equal=False)
    four = steps(use("gemm_a", [1000] * 4), attention, n_ranks=4)
    assert obstacles(steps(), four) == ["8 ranks before, 4 after"]
    assert obstacles(four, steps()) == ["4 ranks before, 8 after"]


def test_a_rank_that_was_not_recorded_is_an_obstacle() -> None:
    seen = steps()
    missing = replace(seen, abilities=replace(seen.abilities, missing_ranks=(8,)))
    assert obstacles(seen, missing) == ["ranks are missing from one of them"]


def test_other_kernels_are_an_obstacle_and_a_few_new_ones_are_not() -> None:
    other = steps(use("gemm_b", [1000] * 8), use("flash", [9000] * 8, family="attention"))
    assert "0.0 % of the kernel time" in obstacles(steps(), other)[0]
    assert obstacles(steps(), steps(*KERNELS, use("gemm_b", [1000] * 8))) == []


def test_decode_is_never_compared_with_prefill_nor_with_other_collectives() -> None:
    seen = steps()
    prefill = replace(seen, grids=(replace(seen.grids[0], kind="prefill"),))
    assert "decode with 6 collectives before, prefill with 6 collectives after" in obstacles(seen, prefill)[0]
    assert "no kind of step" in obstacles(seen, steps(operation=("dispatch", "combine") * 3))[0]


def test_annotated_ranges_are_not_compared_with_kernels() -> None:
    seen = steps()
    ranges = replace(seen, kernels=(), abilities=replace(seen.abilities, has_kernels=False))
    assert obstacles(seen, ranges) == ["only one of them recorded GPU kernels"]


@pytest.mark.parametrize("field,word", [("requests", "requests"), ("prefill_tokens", "prompt tokens")])
def test_a_batch_half_as_large_again_is_other_work_and_a_tenth_is_not(field: str, word: str) -> None:
    batch = {"requests": np.full(8, 16.0), field: np.full(8, 16.0)}
    before = group(annotate(steps(), **batch))
    larger, alike = (group(annotate(steps(), **(batch | {field: batch[field] * by}))) for by in (1.5, 1.05))
    assert list_work_differences(before, alike) == []
    assert list_work_differences(before, larger) == [f"decode steps hold 128 {word} before, 192 after"]


def test_without_annotations_launch_shapes_tell_the_batch() -> None:
    before, larger = group(steps()), group(steps(use("gemm_a", [1000] * 8, shape=24)))
    assert overlap_shapes(before, group(steps(seed=3))) == 1.0
    assert overlap_shapes(before, larger) == 0.0
    assert "other batch sizes" in list_work_differences(before, larger)[0]


def test_sizes_are_known_from_annotations_or_shapes_or_not_at_all() -> None:
    def rows(each: float) -> Any:
        return group(annotate(steps(), requests=np.full(8, each), prefill_tokens=np.zeros(8)))

    assert compare_sizes(rows(16), rows(16)) == (0.0, None)
    margin, unlike = compare_sizes(rows(20), rows(19))
    assert (margin, unlike) == (pytest.approx(0.05), None)
    assert compare_sizes(rows(16), rows(32))[1] == "decode steps hold 128 rows before, 256 after"
    assert compare_sizes(group(steps()), group(steps())) == (0.0, None)
    bare = group(observe_steps())
    assert "neither annotations nor launch shapes" in str(compare_sizes(bare, bare)[1])


def test_slowness_is_that_of_the_kernels_both_ran() -> None:
    before = group(steps(use("a", [1000] * 8), use("b", [500] * 8), use("old", [100] * 8)))
    after = group(steps(use("a", [1200] * 8), use("b", [600] * 8), use("new", [9] * 8)))
    slowness, kernels = measure_slowness(before, after)
    assert kernels == 2
    assert slowness == pytest.approx(np.full(8, 1.2))
    back, _ = measure_slowness(after, before)
    assert back == pytest.approx(np.full(8, 1 / 1.2))


def test_too_little_common_work_shows_no_slowness() -> None:
    before = group(steps(use("a", [1000] * 8), use("old", [5000] * 8)))
    after = group(steps(use("a", [1200] * 8), use("new", [5000] * 8)))
    assert measure_slowness(before, after) == (None, 0)
