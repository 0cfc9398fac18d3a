"""Matrices and dumps as diagnoses, alone and beside traces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dprankdiag.catalog.identifiability import load_identifiability
from dprankdiag.classifiers import BY_DUMPS, BY_WAITS
from dprankdiag.errors import DamagedInput, InputError, UsageError
from dprankdiag.harness.faults import host_late
from dprankdiag.harness.suites import write_world
from dprankdiag.harness.worlds import World
from dprankdiag.model.bundle import make_document
from dprankdiag.model.diagnosis import Diagnosis
from dprankdiag.pipelines.diagnose import Options, diagnose, list_kernels
from dprankdiag.readers.base import Array
from tests.flights import standing_at, write_dumps
from tests.matrices import TWO_NODES, slow_at_once, write_matrix
from tests.views.schema_check import list_errors

SCHEMA = json.loads((Path(__file__).parents[2] / "dprankdiag/views/schema/diagnosis.schema.json").read_text("utf-8"))


def judge(waits: Array, folder: Path) -> Diagnosis:
    return diagnose([write_matrix(waits, folder / "waits.csv")]).diagnosis


def even(n: int = 8) -> Array:
    return np.asarray(np.random.default_rng(1).normal(500, 20, (n, n)))


def absent_at(rank: int, n: int = 8) -> dict[int, dict[str, Any]]:
    return standing_at([(40, "completed") if number == rank else (41, "started") for number in range(n)])


def said(diagnosis: Diagnosis) -> set[tuple[str, tuple[int, ...]]]:
    return {(finding.cause, finding.ranks) for finding in diagnosis.findings}


def test_a_late_rank_is_named_and_its_cost_and_kind_are_left_open(tmp_path: Path) -> None:
    diagnosis = judge(TWO_NODES, tmp_path)
    assert said(diagnosis) == {("single_point.unknown", (2,))}
    (finding,) = diagnosis.findings
    assert (finding.lost_ns, finding.interval, finding.severity, finding.who) == (None, None, "info", "one")
    assert finding.confidence <= 0.8
    assert diagnosis.status == "inconclusive"
    assert diagnosis.headline == finding.summary
    assert {"load.unknown", "single_point.gpu", "single_point.host"} <= {item.cause for item in diagnosis.abstentions}
    assert any("groups of 8 neighbouring ranks" in note for note in diagnosis.notes)
    assert any("lacks rows of ranks 7-15" in note for note in diagnosis.notes)


def test_every_culprit_is_a_finding_of_its_own(tmp_path: Path) -> None:
    assert said(judge(slow_at_once(), tmp_path)) == {("single_point.unknown", (rank,)) for rank in (2, 4, 6)}


def test_a_pair_is_a_link_of_two_ranks(tmp_path: Path) -> None:
    waits = even()
    waits[3, 4] = 9000
    diagnosis = judge(waits, tmp_path)
    assert said(diagnosis) == {("single_point.link", (3, 4))}
    assert "rank 3 waits" in diagnosis.headline


def test_a_rank_slow_both_ways_and_one_slow_to_other_nodes_are_links(tmp_path: Path) -> None:
    waits = even()
    waits[:, 5] *= 30
    waits[5] *= 30
    assert said(judge(waits, tmp_path)) == {("single_point.link", (5,))}
    node = np.arange(16) // 8
    waits = even(16) * np.where(node[:, None] != node[None, :], 30, 1)
    waits[8:, 5] *= 8
    assert said(judge(waits, tmp_path)) == {("single_point.link", (5,))}


def test_an_even_matrix_has_no_finding_and_is_no_proof_of_health(tmp_path: Path) -> None:
    diagnosis = judge(even(), tmp_path)
    assert diagnosis.findings == ()
    assert diagnosis.status == "inconclusive"
    assert diagnosis.headline.startswith("No rank stands out")


def test_too_small_a_matrix_says_so(tmp_path: Path) -> None:
    diagnosis = judge(even(3), tmp_path)
    assert diagnosis.status == "inconclusive"
    assert "too few" in diagnosis.headline
    assert "single_point.unknown" in {item.cause for item in diagnosis.abstentions}


def test_what_cannot_be_told_is_what_the_catalogue_says(tmp_path: Path) -> None:
    abilities = load_identifiability()
    assert all(abilities[classifier.cause]["matrix"].answer == "can" for classifier in BY_WAITS)
    assert all(abilities[classifier.cause]["flight-recorder"].answer == "can" for classifier in BY_DUMPS)
    for item in judge(even(), tmp_path).abstentions:
        assert abilities[item.cause]["matrix"].answer != "can"
        assert item.get_it_with


def test_an_absent_rank_is_critical(tmp_path: Path) -> None:
    diagnosis = diagnose(write_dumps(absent_at(3), tmp_path)).diagnosis
    assert (diagnosis.status, said(diagnosis)) == ("findings", {("stall.absent", (3,))})
    (finding,) = diagnosis.findings
    assert (finding.severity, finding.lost_ns) == ("critical", None)
    assert (diagnosis.time.clock, diagnosis.time.collectives) == ("utc", 41)
    assert [rank.identified_by for rank in diagnosis.ranks] == ["file-name"] * 8


def test_nobody_waiting_is_no_hang_and_no_proof_of_health(tmp_path: Path) -> None:
    diagnosis = diagnose(write_dumps(standing_at([(41, "completed")] * 4), tmp_path)).diagnosis
    assert (diagnosis.status, diagnosis.findings) == ("inconclusive", ())
    assert diagnosis.headline.startswith("No rank is behind")


def test_confidence_grows_with_the_signs_of_a_hang(tmp_path: Path) -> None:
    def confidence(dumps: dict[int, dict[str, Any]], name: str) -> float:
        (finding,) = diagnose(write_dumps(dumps, tmp_path / name)).diagnosis.findings
        return finding.confidence

    running = standing_at([(41, "started") if rank in (1, 2) else (40, "completed") for rank in range(8)])
    given_up = absent_at(3)
    given_up[0]["entries"][-1]["retired"] = True
    old = absent_at(3)
    old[3]["entries"][-1]["time_discovered_completed_ns"] += 60_000_000_000
    far = standing_at([(30, "completed") if rank == 3 else (41, "started") for rank in range(8)])
    values = [
        confidence(dumps, str(number)) for number, dumps in enumerate((running, absent_at(3), far, given_up, old))
    ]
    assert values == sorted(values)
    assert values[0] == 0.5
    assert values[-2:] == [0.99, 0.99]


def test_dumps_without_a_rank_are_numbered_in_order_and_only_assumed(tmp_path: Path) -> None:
    content = absent_at(2, 3)
    paths = []
    for name, rank in zip("abc", content, strict=True):
        paths.append(tmp_path / f"{name}.json")
        paths[-1].write_text(json.dumps(content[rank]))
    diagnosis = diagnose(paths).diagnosis
    assert said(diagnosis) == {("stall.absent", (2,))}
    assert {rank.grade for rank in diagnosis.ranks} == {"assumed"}
    assert diagnosis.findings[0].confidence <= 0.9
    ranks = tmp_path / "ranks.txt"
    ranks.write_text("a.json = 2\nb.json = 1\nc.json = 0\n")
    assert said(diagnose(paths, Options(rank_map=ranks)).diagnosis) == {("stall.absent", (0,))}


def test_two_dumps_of_one_rank_are_refused(tmp_path: Path) -> None:
    paths = write_dumps(absent_at(3), tmp_path / "a") + write_dumps(absent_at(3), tmp_path / "b")
    with pytest.raises(InputError, match="rank 0 has a dump already"):
        diagnose(paths)


def test_a_matrix_beside_a_trace_is_told_with_it_and_each_rank_is_listed_once(tmp_path: Path) -> None:
    trace = write_world(World(ranks=8, steps=40, layers=3, faults=(host_late(5, 450_000),)), tmp_path)
    alone = diagnose(trace).diagnosis
    waits = even()
    waits[:, 5] *= 40
    waits[5] = even()[5]
    both = diagnose([*trace, write_matrix(waits, tmp_path / "waits.csv")]).diagnosis
    assert said(both) == said(alone) | {("single_point.unknown", (5,))}
    assert (both.status, both.headline, both.lost) == (alone.status, alone.headline, alone.lost)
    assert [rank.rank for rank in both.ranks] == list(range(8))
    assert both.ranks == alone.ranks
    assert {item.cause for item in both.abstentions} <= {item.cause for item in alone.abstentions}
    assert [source.kind for source in both.inputs][-1] == "wait-matrix"
    assert [finding.id for finding in both.findings] == [f"f{number}" for number in range(1, len(both.findings) + 1)]


def test_an_even_trace_stays_healthy_beside_an_even_matrix_and_not_beside_a_hang(tmp_path: Path) -> None:
    trace = write_world(World(ranks=8, steps=60, layers=3), tmp_path)
    waits = write_matrix(even(), tmp_path / "waits.csv")
    assert diagnose(trace).diagnosis.status == "healthy"
    assert diagnose([*trace, waits]).diagnosis.status == "healthy"
    hung = diagnose([*trace, waits, *write_dumps(absent_at(3), tmp_path)]).diagnosis
    assert (hung.status, said(hung)) == ("findings", {("stall.absent", (3,))})
    assert hung.headline == hung.findings[0].summary
    assert hung.time.steps > 0


def test_inputs_of_different_ranks_are_told_to_be_so(tmp_path: Path) -> None:
    waits = write_matrix(even(6), tmp_path / "waits.csv")
    notes = diagnose([waits, *write_dumps(absent_at(3), tmp_path)]).diagnosis.notes
    assert [note for note in notes if "do not speak of the same ranks" in note] == [
        "inputs of 6 and 8 ranks are told together although they do not speak of the same ranks"
    ]
    same = diagnose([write_matrix(even(8), tmp_path / "same.csv"), *write_dumps(absent_at(3), tmp_path)])
    assert not any("same ranks" in note for note in same.diagnosis.notes)


def test_a_matrix_and_dumps_are_told_together(tmp_path: Path) -> None:
    waits = even()
    waits[3, 4] = 9000
    paths = [write_matrix(waits, tmp_path / "waits.csv"), *write_dumps(absent_at(3), tmp_path)]
    assert said(diagnose(paths).diagnosis) == {("single_point.link", (3, 4)), ("stall.absent", (3,))}


def test_a_damaged_matrix_is_unused_beside_good_inputs_and_an_error_alone(tmp_path: Path) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text("waiting_rank,on_0,on_1\n0,1,2\n1,2\n")
    good = write_matrix(even(), tmp_path / "good.csv")
    diagnosis = diagnose([good, bad]).diagnosis
    assert [(source.kind, source.status) for source in diagnosis.inputs] == [
        ("wait-matrix", "used"),
        ("wait-matrix", "unused"),
    ]
    with pytest.raises(DamagedInput, match="line 3 has 1 waits"):
        diagnose([bad])


def test_a_window_and_a_list_of_kernels_need_a_trace(tmp_path: Path) -> None:
    path = write_matrix(even(), tmp_path / "waits.csv")
    with pytest.raises(UsageError, match="no input has a time axis"):
        diagnose([path], Options(window=(0, 1)))
    with pytest.raises(InputError, match="holds no kernels"):
        list_kernels(path)


@pytest.mark.parametrize("kind", ["matrix", "dumps", "small"])
def test_the_published_document_keeps_its_schema_and_its_bytes(tmp_path: Path, kind: str) -> None:
    if kind == "dumps":
        paths = write_dumps(absent_at(3), tmp_path)
    else:
        paths = [write_matrix(TWO_NODES if kind == "matrix" else even(2), tmp_path / "waits.csv")]
    document = make_document(diagnose(paths).diagnosis)
    assert list(list_errors(document, SCHEMA, SCHEMA)) == []
    assert document == make_document(diagnose(paths).diagnosis)
