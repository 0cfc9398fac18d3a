"""Which kernels do equal work on every rank, and what launch shapes say of the rows."""

from __future__ import annotations

import numpy as np
import pytest

from dprankdiag.analysis.lanes import FAMILY_CODE
from dprankdiag.analysis.probes import choose_probes, list_row_blocks, measure_row_ratio
from dprankdiag.analysis.segments import KeyTimes
from dprankdiag.model.sources import Names, Shape
from tests.analysis.builders import naming

SHAPES: tuple[Shape, ...] = tuple((rows, 1, 1, 128, 1, 1) for rows in range(1, 33))
NAMES = Names(shapes=SHAPES)
NAMING = naming(["gemm"])


def keys(*entries: tuple[str, int, int, int]) -> KeyTimes:
    """Make a rank's keys from (family, key, count, time of one)."""
    ordered = sorted(entries, key=lambda entry: entry[1])
    return KeyTimes(
        np.array([key for _, key, _, _ in ordered], np.int64),
        np.array([count for _, _, count, _ in ordered], np.int64),
        np.array([count * each for _, _, count, each in ordered], np.int64),
        np.array([FAMILY_CODE[family] for family, _, _, _ in ordered], np.int8),
    )


def test_kernels_of_equal_shape_and_count_are_probes() -> None:
    found = choose_probes([keys(("gemm", 3, 100, 50)), keys(("gemm", 3, 100, 60))], NAMING, NAMES)
    assert found.keys.tolist() == [3]
    assert found.times.mean_ns.tolist() == [[50, 60]]
    assert found.times.family == ("gemm",)


@pytest.mark.parametrize("family", ["attention", "kv_write", "moe_expert", "sampling", "memory"])
def test_what_follows_requests_or_routing_is_no_probe(family: str) -> None:
    both = [keys((family, 3, 100, 50), ("gemm", 4, 100, 50)) for _ in range(2)]
    assert choose_probes(both, NAMING, NAMES).keys.tolist() == [4]


def test_kernels_that_one_rank_runs_more_often_are_no_probe() -> None:
    assert not len(choose_probes([keys(("gemm", 3, 100, 50)), keys(("gemm", 3, 150, 50))], NAMING, NAMES).keys)


def test_a_row_lost_here_and_there_leaves_a_probe_one() -> None:
    assert len(choose_probes([keys(("gemm", 3, 100, 50)), keys(("gemm", 3, 98, 50))], NAMING, NAMES).keys)


def test_a_shape_that_one_rank_never_runs_is_no_probe() -> None:
    assert not len(choose_probes([keys(("gemm", 3, 100, 50)), keys(("gemm", 5, 100, 50))], NAMING, NAMES).keys)


def unknown(speed: float, *, own: float = 1.0, count: int = 6) -> KeyTimes:
    """Name-less kernels that take `speed` as long; one of them is the rank's own work."""
    own_work = [("other", 90, 100, round(1_000 * speed * own))]
    return keys(*own_work, *[("other", k, 100, round(1_000 * speed)) for k in range(count)])


def test_unknown_kernels_are_believed_where_they_agree_on_every_ranks_speed() -> None:
    found = choose_probes([unknown(1.0), unknown(1.2, own=1.8), unknown(1.0)], NAMING, NAMES)
    assert found.keys.tolist() == list(range(6))


def test_four_unknown_kernels_are_too_few_to_believe() -> None:
    assert not len(choose_probes([unknown(1.0, count=3), unknown(1.2, count=3)], NAMING, NAMES).keys)


def test_unknown_kernels_that_disagree_are_not_believed() -> None:
    random = np.random.default_rng(0)
    members = [keys(*[("other", k, 100, int(random.integers(500, 2_000))) for k in range(12)]) for _ in range(4)]
    assert not len(choose_probes(members, NAMING, NAMES).keys)


def test_a_recording_without_kernels_has_no_probes() -> None:
    assert not len(choose_probes([], naming([]), Names()).keys)


def rows_of(*counts: int, family: str = "kv_write") -> list[KeyTimes]:
    """Launch a kernel whose grid is the number of rows."""
    return [keys((family, rows - 1, 50, 100)) for rows in counts]


@pytest.mark.parametrize("eager", [True, False])
def test_launch_grids_that_differ_tell_the_rows(eager: bool) -> None:
    ratio = measure_row_ratio(rows_of(16, 16, 24, 16), NAMES, eager=eager)
    assert ratio is not None
    assert ratio.tolist() == [1, 1, 1.5, 1]


def test_grids_that_never_differ_may_be_padded_in_a_graph_and_tell_nothing() -> None:
    assert measure_row_ratio(rows_of(16, 16, 16), NAMES, eager=False) is None


def test_grids_that_never_differ_outside_a_graph_say_that_rows_are_equal() -> None:
    ratio = measure_row_ratio(rows_of(16, 16, 16), NAMES, eager=True)
    assert ratio is not None
    assert ratio.tolist() == [1, 1, 1]


def test_grids_too_small_to_show_a_tenth_tell_nothing() -> None:
    assert measure_row_ratio(rows_of(4, 4, 4), NAMES, eager=True) is None


def test_grids_of_kernels_that_do_not_follow_rows_tell_nothing() -> None:
    assert measure_row_ratio(rows_of(16, 24, 16, family="gemm"), NAMES, eager=True) is None


def test_graphs_whose_grids_change_from_step_to_step_alike_on_all_ranks_may_be_padded_to_the_busiest() -> None:
    both = [keys(("kv_write", 15, 25, 100), ("kv_write", 23, 25, 100)) for _ in range(3)]
    assert measure_row_ratio(both, NAMES, eager=False) is None
    ratio = measure_row_ratio(both, NAMES, eager=True)
    assert ratio is not None
    assert np.allclose(ratio, 1.0)


def test_launch_sizes_of_row_kernels_are_those_that_every_rank_used() -> None:
    both = [
        keys(("norm", 3, 9, 50), ("router", 7, 9, 50), ("gemm", 9, 9, 50), ("norm", rank, 9, 50)) for rank in (20, 21)
    ]
    assert list_row_blocks(both, NAMES).tolist() == [4, 8]
    assert list_row_blocks(both, Names()).tolist() == []
