"""Recordings with a fault against their twins without: what is gone, what that wins, and what cannot be compared."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dprankdiag.harness.faults import fabric, load_context, slow_gpu, uniform
from dprankdiag.harness.suites import WORLDS, write_world
from dprankdiag.harness.worlds import truth, twin
from dprankdiag.pipelines.compare import compare
from dprankdiag.store.bundle import load_bundle
from dprankdiag.views.comparison import render
from tests.bench.bets import POINTS, first_remedy
from tests.e2e.compared import PLAIN, compare_pair, draw_pairs, record, save

PAIRS = (
    *("slow_gpu", "load_context", "load_requests", "load_onset", "host_steady", "hot_expert", "receiver_queue"),
    *("slow_link", "fabric_window", "attention_tp_load", "one_file_per_rank_clock", "host_periodic", "cut_edges"),
)
HEALTHY_PAIRS, HEALTHY_SEED = 8, 11
COMMAND = (sys.executable, "-m", "dprankdiag")


@pytest.mark.parametrize("name", PAIRS)
def test_a_repaired_fault_is_gone_and_wins_what_it_cost(name: str, tmp_path: Path) -> None:
    world = WORLDS[name]
    true = truth(world)
    found = compare(record(world, tmp_path / "before"), record(twin(world), tmp_path / "after"))
    lost_ns = true.lost_ns / (world.steps - 1)
    assert found.verdict == "better"
    lead = found.causes[0]
    assert (lead.presence, lead.cause, lead.before_ranks) == ("gone", true.answerable, true.ranks)
    assert lead.direction == "better"
    # Requests cannot be halved: spread evenly, half a request a rank is rounded up to one.
    near = 0.1 if name == "load_requests" else 0.05
    assert lead.lost_ns.difference == pytest.approx(-lost_ns, rel=near)
    step = found.engines[0].step_ns
    assert step.interval is not None
    assert step.interval[0] <= -lost_ns <= step.interval[1]
    assert [item.cause for item in found.causes if item.presence == "new"] == []
    (bet,) = [item for item in found.bets if item.cause == true.cause]
    assert (bet.verdict, bet.remedy) == ("kept", first_remedy(true.cause, world))
    assert bet.predicted.ratio == pytest.approx(true.lost_ratio, abs=POINTS)
    assert bet.measured.ratio == pytest.approx(true.lost_ratio, abs=POINTS)


def test_a_remedy_that_was_not_done_is_not_kept(tmp_path: Path) -> None:
    world = WORLDS["load_context"]
    before, after = record(world, tmp_path / "before"), record(replace(world, seed=world.seed + 1), tmp_path / "after")
    (bet,) = compare(before, after, ("balance-tokens",)).bets
    assert (bet.verdict, bet.is_stated) == ("not_kept", True)


@pytest.mark.parametrize("pair", draw_pairs(HEALTHY_PAIRS, HEALTHY_SEED).items(), ids=lambda item: item[0])
def test_two_healthy_recordings_are_not_told_apart(pair: tuple, tmp_path: Path) -> None:  # type: ignore[type-arg]
    found, accused = compare_pair(pair[1], tmp_path)
    assert found.verdict in ("unchanged", "not_comparable"), found.headline
    assert accused == []


def test_where_overlapped_work_stands_still_makes_no_other_kind_of_step(tmp_path: Path) -> None:
    """A late rank lets the others' work stand still at places where even ranks never do."""
    even = replace(PLAIN, two_batch_overlap=True)
    worlds = {"even": even, "again": replace(even, seed=11), "slow": replace(even, faults=(slow_gpu(2, 1.3),))}
    even_side, again, slow = (record(world, tmp_path / name) for name, world in worlds.items())
    assert compare(even_side, again).verdict == "unchanged"
    found = compare(even_side, slow)
    assert (found.verdict, [(item.cause, item.presence) for item in found.causes]) == (
        "worse",
        [("single_point.gpu", "new")],
    )
    assert compare(slow, even_side).verdict == "better"


def test_a_fault_that_moved_is_said_to_have_moved(tmp_path: Path) -> None:
    worlds = [replace(PLAIN, seed=seed, faults=(load_context(rank, 2.5),)) for seed, rank in ((1, 3), (2, 5))]
    before, after = (record(world, tmp_path / str(world.seed)) for world in worlds)
    found = compare(before, after)
    assert found.causes[0].presence == "moved"
    assert "load.context moved from rank 3 to rank 5" in found.causes[0].summary


def test_bundles_are_compared_as_their_recordings_are(tmp_path: Path) -> None:
    world = WORLDS["two_slow_gpus"]
    sides = [record(item, tmp_path / str(place)) for place, item in enumerate((world, twin(world)))]
    bundles = [save(side, tmp_path / f"{place}.dprank") for place, side in enumerate(sides)]
    reopened = [
        replace(side, diagnosis=load_bundle(path)[0], tables=load_bundle(path)[1])
        for side, path in zip(sides, bundles, strict=True)
    ]
    again, first = (render(compare(before, after), "json") for before, after in (reopened, sides))
    assert again == first


@pytest.mark.parametrize(
    "changes,reason",
    [
        ({"ranks": 4}, "8 ranks before, 4 after"),
        ({"names": "vllm"}, "another engine"),
        ({"communication": "deepep"}, "no kind of step"),
    ],
    ids=["ranks", "engine", "collectives"],
)
def test_other_deployments_are_not_compared(changes: dict[str, object], reason: str, tmp_path: Path) -> None:
    other = replace(PLAIN, seed=1, **changes)  # type: ignore[arg-type]
    found = compare(record(PLAIN, tmp_path / "before"), record(other, tmp_path / "after"))
    assert found.verdict == "not_comparable"
    assert reason in found.headline


def test_a_baseline_shows_a_fabric_that_is_slow_throughout(tmp_path: Path) -> None:
    world = replace(PLAIN, seed=8, faults=(fabric(2.0),))
    good = save(record(PLAIN, tmp_path / "good"), tmp_path / "good.dprank")
    alone = record(world, tmp_path / "slow").diagnosis
    assert "communication.fabric" in {item.cause for item in alone.abstentions}
    found = record(world, tmp_path / "again", good).diagnosis
    assert [(item.cause, item.ranks) for item in found.findings] == [("communication.fabric", ())]
    assert found.findings[0].lost_ratio == pytest.approx(truth(world).lost_ratio, rel=0.05)
    assert "communication.fabric" not in {item.cause for item in found.abstentions}


def test_a_baseline_shows_that_all_ranks_alike_are_slow(tmp_path: Path) -> None:
    world = replace(PLAIN, seed=8, faults=(uniform(1.15),))
    good = save(record(PLAIN, tmp_path / "good"), tmp_path / "good.dprank")
    assert record(world, tmp_path / "slow").diagnosis.status == "healthy"
    found = record(world, tmp_path / "again", good).diagnosis
    assert (found.status, [item.cause for item in found.findings]) == ("uniform", ["uniform.slow"])
    assert found.findings[0].evidence[0].value == pytest.approx(1.15, rel=0.02)
    assert "than in good.dprank" in found.headline


def test_findings_of_the_baseline_are_known_and_others_are_new(tmp_path: Path) -> None:
    first = replace(PLAIN, seed=3, faults=(load_context(3, 2.5),))
    both = replace(first, seed=4, faults=(*first.faults, slow_gpu(6, 1.4)))
    base = save(record(first, tmp_path / "first"), tmp_path / "base.dprank")
    notes = [text for text in record(both, tmp_path / "both", base).diagnosis.notes if "base.dprank" in text]
    assert any("load.context on rank 3 stayed" in text for text in notes)
    assert any("single_point.gpu on rank 6 is new" in text for text in notes)


def test_the_command_answers_with_its_exit_code(tmp_path: Path) -> None:
    faulty = replace(PLAIN, seed=3, faults=(load_context(3, 2.5),))
    write_world(faulty, tmp_path / "slow")
    write_world(replace(PLAIN, seed=3), tmp_path / "good")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        line = [*COMMAND, "compare", *arguments]
        return subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)

    better = run("slow", "good", "--format", "json", "--fail-on", "warning")
    assert (better.returncode, json.loads(better.stdout)["verdict"]) == (0, "better")
    worse = run("good", "slow", "--fail-on", "critical", "-o", "found.md")
    assert worse.returncode == 1
    assert worse.stdout.startswith("Worse: ")
    assert (tmp_path / "found.md").read_text("utf-8").startswith("# Worse: ")
