"""Late hosts and slow links where collectives run beside the ranks' own work, or are sent and received apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dprankdiag.harness.answers import ALARMS
from dprankdiag.harness.faults import Fault, fabric, host_late, receiver_queue, slow_link, window
from dprankdiag.harness.suites import write_world
from dprankdiag.harness.worlds import World, truth
from dprankdiag.model.diagnosis import Diagnosis
from dprankdiag.pipelines.diagnose import diagnose

OVERLAP = World(seed=247, steps=30, layers=4, two_batch_overlap=True)
SHARED = replace(OVERLAP, attention_tp=2)
HOOK = replace(OVERLAP, communication="deepep", receive_hook=True)
HOOK_ALONE = World(
    seed=203, physics="roofline", requests=32, context_tokens=6_000, communication="deepep", receive_hook=True,
    attention_tp=2, layers=5, steps=30,
)  # fmt: skip
"""Receipts follow their own sends, and the data of early ranks may have come before the last looks for any."""

LATE, LINK = host_late(3, 400_000), slow_link(3, 25_000)


def judge(world: World, folder: Path) -> Diagnosis:
    return diagnose(write_world(world, folder)).diagnosis


def expect(world: World, found: Diagnosis, cause: str, error: float = 0.15) -> None:
    true = truth(world)
    alarms = [item for item in found.findings if item.severity in ALARMS]
    assert [(item.cause, item.ranks) for item in alarms] == [(cause, true.ranks)]
    assert alarms[0].lost_ratio is not None
    assert abs(alarms[0].lost_ratio - true.lost_ratio) <= max(0.01, error * true.lost_ratio)


@pytest.mark.parametrize(
    ("world", "fault", "cause"),
    [
        (OVERLAP, LATE, "single_point.host"),
        (SHARED, LATE, "single_point.host"),
        (OVERLAP, slow_link(3, 80_000), "single_point.link"),
        (SHARED, LINK, "single_point.link"),
        (HOOK_ALONE, receiver_queue(3, 30_000), "structural.dispatch"),
        (replace(HOOK_ALONE, graph=False), slow_link(3, 70_000), "single_point.link"),
        (HOOK, LINK, "unclassified.late"),
        (replace(HOOK, attention_tp=2), LINK, "single_point.link"),
    ],
)
def test_what_is_late_beside_work_is_named_and_priced(world: World, fault: Fault, cause: str, tmp_path: Path) -> None:
    world = replace(world, faults=(fault,))
    found = judge(world, tmp_path)
    expect(world, found, cause)
    assert found.time.replay_error_ratio is not None
    assert found.time.replay_error_ratio < 0.01


def test_late_receipts_say_why_their_kind_stays_open(tmp_path: Path) -> None:
    found = judge(replace(HOOK, faults=(LINK,)), tmp_path)
    reasons = {item.cause: item.reason for item in found.abstentions}
    assert "the ranks meet in nothing else" in reasons["single_point.link"]
    assert "the ranks meet in nothing else" in reasons["structural.dispatch"]


def test_dispatch_of_normal_mode_is_a_transfer_while_the_fabric_is_slow(tmp_path: Path) -> None:
    slow = fabric(20.0, when=window(16, 32))
    world = World(
        seed=211, physics="roofline", requests=32, context_tokens=6_000, communication="deepep_normal", graph=False,
        layers=4, steps=48, faults=(slow,),
    )  # fmt: skip
    expect(world, judge(world, tmp_path), "communication.fabric", 0.1)


def test_a_fabric_slow_in_a_few_steps_of_a_short_recording_is_named(tmp_path: Path) -> None:
    world = World(seed=232, ranks=16, steps=12, layers=4, faults=(fabric(5.0, when=window(4, 8)),))
    expect(world, judge(world, tmp_path), "communication.fabric", 0.1)


def test_a_host_late_out_of_the_meetings_of_its_own_ranks_too_has_a_slow_link(tmp_path: Path) -> None:
    world = World(
        seed=232, attention_tp=2, layers=4, steps=30, files="node", ranks_per_node=4, host_clock_ns=1_000_000,
        drift_ppm=10.0, faults=(slow_link((4, 5, 6, 7), 28_000),),
    )  # fmt: skip
    named = [(item.cause, item.ranks) for item in judge(world, tmp_path).findings if item.severity in ALARMS]
    assert named == [("single_point.link", (4, 5, 6, 7))]


@pytest.mark.parametrize("shared", [1, 2])
def test_hosts_whose_clocks_do_not_come_together_are_not_healthy(shared: int, tmp_path: Path) -> None:
    """Calls beside work that a whole host leaves late, by more than two layers lie apart, seem to be of two groups."""
    world = replace(
        OVERLAP, seed=703 + shared, attention_tp=shared, files="node", ranks_per_node=4, host_clock_ns=1_000_000,
        drift_ppm=10.0, faults=(slow_link((4, 5, 6, 7), 90_000),),
    )  # fmt: skip
    assert judge(world, tmp_path).status != "healthy"
