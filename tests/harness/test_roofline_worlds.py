"""Named worlds of the roofline physics have the truth they are named for."""

from __future__ import annotations

from pathlib import Path

import pytest

from dprankdiag.harness.roofline_worlds import ROOFLINE_WORLDS
from dprankdiag.harness.suites import WORLDS, write_world
from dprankdiag.harness.worlds import simulate_world, truth

EXPECTED = {
    "slow_gpu": ("single_point.gpu", (2,)),
    "memory_gpu": ("single_point.gpu", (5,)),
    "load_context": ("load.context", (3,)),
    "load_requests": ("load.requests", (6,)),
    "load_requests_graph": ("load.requests", (1,)),
    "load_onset": ("load.context", (1,)),
    "load_prefill": ("load.prefill", (4,)),
    "load_prefill_vllm": ("load.prefill", (0,)),
    "load_prefill_turns": ("load.prefill", ()),
    "load_idle": ("load.idle", (1, 5)),
    "load_idle_eager": ("load.idle", (2,)),
    "load_idle_half": ("load.idle", (0, 3, 6)),
    "load_idle_few": ("load.idle", (0, 1, 2, 3, 4, 5)),
    "layout_before": ("structural.layout", (5,)),
    "layout_after": ("structural.layout", (2,)),
    "lost_graphs": ("structural.graph", (4,)),
    "host_late": ("single_point.host", (4,)),
    "host_burst": ("single_point.host", (5,)),
    "host_node": ("single_point.host", tuple(range(8, 16))),
    "hot_expert": ("structural.expert", (0, 1, 3, 5, 6, 7)),
    "receiver_queue": ("structural.dispatch", (6,)),
    "receiver_queue_attention_tp": ("structural.dispatch", (6,)),
    "slow_link": ("single_point.link", (2,)),
    "fabric": ("communication.fabric", ()),
    "uniform": ("uniform.slow", ()),
    "attention_tp_load": ("load.context", (4, 5)),
    "normal_load": ("load.context", (2,)),
    "verify_slow": ("single_point.gpu", (7,)),
    "gpu_eager": ("single_point.gpu", (4,)),
    "load_padded": ("load.requests", (2,)),
}

RUNGS = {"roofline_receiver_queue": "unclassified.late"}
"""Of worlds whose recording does not carry the whole truth."""


@pytest.mark.parametrize("name", ROOFLINE_WORLDS)
def test_each_named_world_has_its_cause_its_ranks_and_a_loss_worth_finding(name: str) -> None:
    true = truth(ROOFLINE_WORLDS[name])
    healthy = name.startswith("roofline_healthy")
    assert (true.cause, true.ranks) == ((None, ()) if healthy else EXPECTED[name.removeprefix("roofline_")])
    assert true.answerable == RUNGS.get(name, true.cause)
    assert healthy or true.lost_ratio > 0.05


@pytest.mark.parametrize("name", ROOFLINE_WORLDS)
def test_each_named_world_records_kernels_on_every_rank(name: str) -> None:
    recording = simulate_world(ROOFLINE_WORLDS[name])
    assert all(len(rows.kernels.name) > 500 for rows in recording.rows)
    assert all((rows.kernels.end_ns > rows.kernels.start_ns).all() for rows in recording.rows)


def test_names_are_those_of_no_other_world() -> None:
    assert not set(WORLDS).intersection(ROOFLINE_WORLDS)


def test_both_writers_take_a_world_and_give_the_same_bytes_again(tmp_path: Path) -> None:
    world = ROOFLINE_WORLDS["roofline_load_prefill"]
    for format in ("nsys", "torch"):
        first, again = (write_world(world, tmp_path / f"{format}-{turn}", format=format) for turn in range(2))
        assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]
