"""A recording against another one: long transfers and slow ranks stand out of the scatter of both, or not at all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dprankdiag.analysis.lanes import FAMILY_CODE
from dprankdiag.analysis.observations import Observations
from dprankdiag.analysis.reference import compare_speed, compare_transfers
from dprankdiag.analysis.segments import KeyTimes
from dprankdiag.analysis.work import digest_order, list_kernel_uses, sum_transfers
from dprankdiag.model.reference import Reference, TransferSamples
from dprankdiag.model.sources import KernelName, Names
from tests.analysis.builders import TRANSFER_NS, Array, observe_steps


def transfers_of(seen: Observations) -> tuple[TransferSamples, ...]:
    found = sum_transfers(seen.grids[0])
    return tuple(TransferSamples(0, name, members, samples) for (name, members), (_, samples) in found.items())


def refer(seen: Observations, slowness: Array | None = None) -> Reference:
    """Make a reference of the same shape as some steps."""
    return Reference("day.dprank", None, transfers=transfers_of(seen), slowness=slowness, work_ns=seen.sums["probe"])


THEN = observe_steps(seed=1)


def test_transfers_that_are_as_long_as_then_are_not_long() -> None:
    assert compare_transfers(observe_steps(seed=2), refer(THEN)) is None


def test_transfers_three_times_as_long_are_long_and_the_factor_undoes_them() -> None:
    seen = observe_steps(seed=2, transfer=3 * TRANSFER_NS)
    long = compare_transfers(seen, refer(THEN))
    assert long is not None
    assert long.ratio == pytest.approx(3, rel=0.02)
    assert long.operations == ("all_gather", "reduce_scatter")
    undone = seen.grids[0].transfer * long.factors[0][None, :, None]
    assert undone.mean() == pytest.approx(THEN.grids[0].transfer.mean(), rel=0.01)


def test_only_the_operation_that_is_longer_is_undone() -> None:
    transfer = np.where(np.arange(6)[None, :, None] % 2 == 0, 4 * TRANSFER_NS, TRANSFER_NS)
    long = compare_transfers(observe_steps(seed=2, transfer=transfer), refer(THEN))
    assert long is not None
    assert long.operations == ("all_gather",)
    assert (long.factors[0][1::2] == 1).all()
    assert long.factors[0][0] == pytest.approx(0.25, rel=0.02)


def test_faster_transfers_are_no_fault() -> None:
    assert compare_transfers(observe_steps(seed=2, transfer=TRANSFER_NS // 3), refer(THEN)) is None


def test_the_more_transfers_scatter_the_more_they_must_differ() -> None:
    random = np.random.default_rng(5)
    wild = (TRANSFER_NS * np.exp(1.5 * random.standard_normal((40, 1, 1)))).round()
    calm = observe_steps(seed=2, transfer=round(float(np.mean(wild)) * 1.3))
    noisy = observe_steps(seed=3, transfer=wild)
    steady = observe_steps(seed=3, transfer=round(float(np.mean(wild))))
    assert compare_transfers(calm, refer(steady)) is not None
    assert compare_transfers(calm, refer(noisy)) is None


def test_sizes_that_may_differ_by_a_tenth_need_a_larger_difference() -> None:
    seen = observe_steps(seed=2, transfer=round(1.12 * TRANSFER_NS), noise=0.0, factor={"attention": np.array(0.2)})
    reference = refer(observe_steps(seed=1, transfer=TRANSFER_NS))
    assert compare_transfers(seen, reference) is not None
    assert compare_transfers(seen, replace(reference, size_margin=0.1)) is None


def test_what_groups_differ_among_themselves_is_no_slow_fabric() -> None:
    seen, reference = observe_steps(seed=2, transfer=round(1.4 * TRANSFER_NS)), refer(THEN)
    apart = tuple(replace(item, spread=0.2, groups=16) for item in reference.transfers)
    alike = tuple(replace(item, spread=0.02, groups=16) for item in reference.transfers)
    assert compare_transfers(seen, replace(reference, transfers=apart)) is None
    assert compare_transfers(seen, replace(reference, transfers=alike)) is not None


ALIKE = 1 + 0.004 * np.random.default_rng(0).standard_normal(8)


@pytest.mark.parametrize(
    "slowness,found",
    [
        (1.3 * ALIKE, True),
        (1.05 * ALIKE, True),
        (ALIKE, False),
        (1.01 * ALIKE, False),
        (0.8 * ALIKE, False),
        (np.where(np.arange(8) == 2, 1.4, ALIKE), False),
        (np.where(np.arange(8) < 4, 1.4, ALIKE), False),
        (1.05 * np.exp(0.08 * np.random.default_rng(1).standard_normal(8)), False),
    ],
    ids=["a third", "a twentieth", "equal", "a hundredth", "faster", "one rank", "half of the ranks", "any which way"],
)
def test_all_ranks_must_be_slower_beyond_what_they_scatter(slowness: Array, found: bool) -> None:
    assert (compare_speed(observe_steps(seed=2), refer(THEN, slowness)) is not None) == found


def test_without_common_kernels_no_speed_is_compared() -> None:
    assert compare_speed(observe_steps(), refer(THEN)) is None


def test_the_order_of_meetings_tells_operations_and_group_sizes_apart() -> None:
    same = [digest_order(observe_steps(seed=seed, layers=3).grids[0]) for seed in (1, 2)]
    other = digest_order(observe_steps(operation=("dispatch", "combine") * 3).grids[0])
    halves = observe_steps().grids[0]
    halves = replace(halves, group=np.tile(np.arange(8) // 4, (6, 1)))
    assert same[0] == same[1]
    assert len({same[0], other, digest_order(halves), digest_order(observe_steps(layers=4).grids[0])}) == 4


def test_kernel_uses_are_listed_by_time_with_their_calls_on_each_rank() -> None:
    names = Names((KernelName("gemm", "gemm"), KernelName("norm", "norm")), ((1, 1, 1, 64, 1, 1), (2, 1, 1, 64, 1, 1)))
    family = np.array([FAMILY_CODE["gemm"], FAMILY_CODE["norm"]], np.int8)
    ranks = [
        KeyTimes(np.array([1, 2]), np.array([10, 10]), np.array([900, 100]), family),
        KeyTimes(np.array([1]), np.array([12]), np.array([1000]), family[:1]),
    ]
    uses = list_kernel_uses(ranks, np.array([1]), names)
    assert [(use.name, use.shape[0], use.family, use.is_equal_work) for use in uses] == [
        ("gemm", 2, "gemm", True),
        ("norm", 1, "norm", False),
    ]
    assert [use.calls.tolist() for use in uses] == [[10, 12], [10, 0]]
