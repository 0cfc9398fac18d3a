"""Ranks of one host that are late together: one finding, which names the host; part of a host names none."""

from __future__ import annotations

from pathlib import Path

import pytest

from dprankdiag.harness.faults import Fault, host_late, load_context, periodic, slow_gpu
from dprankdiag.harness.suites import Format, write_world
from dprankdiag.harness.worlds import World
from dprankdiag.model.diagnosis import Finding
from dprankdiag.pipelines.diagnose import diagnose

PART = (4, 5, 6)
WHOLE = (4, 5, 6, 7)


def only_finding(folder: Path, fault: Fault, *, ranks_per_node: int = 4, format: Format = "nsys") -> Finding:
    """Diagnose eight ranks with a fault."""
    files = "node" if ranks_per_node else "one"
    world = World(
        seed=91, ranks=8, steps=30, layers=2, files=files, ranks_per_node=ranks_per_node, host_clock_ns=1_000_000,
        faults=(fault,),
    )  # fmt: skip
    (finding,) = diagnose(write_world(world, folder, format=format)).diagnosis.findings
    return finding


def said_of_hosts(finding: Finding) -> list[str]:
    return [item.text for item in finding.evidence if item.name == "host_ranks"]


def make_fault(kind: str, ranks: tuple[int, ...]) -> Fault:
    return {
        "late": lambda: host_late(ranks, 450_000),
        "stalls": lambda: host_late(ranks, 4_000_000, when=periodic(7, 3)),
        "chips": lambda: slow_gpu(ranks, 1.25),
        "load": lambda: load_context(ranks, 2.5),
    }[kind]()


@pytest.mark.parametrize("kind", ["late", "stalls", "chips", "load"])
def test_all_ranks_of_a_host_are_one_group_with_the_hosts_name(tmp_path: Path, kind: str) -> None:
    finding = only_finding(tmp_path, make_fault(kind, WHOLE))
    assert (finding.ranks, finding.who) == (WHOLE, "group")
    assert said_of_hosts(finding) == ["all 4 ranks of host node-01, and no other rank"]


@pytest.mark.parametrize("kind", ["late", "stalls", "chips", "load"])
def test_part_of_a_host_names_no_host(tmp_path: Path, kind: str) -> None:
    finding = only_finding(tmp_path, make_fault(kind, PART))
    assert (finding.ranks, said_of_hosts(finding)) == (PART, [])


def test_one_host_in_all_is_no_evidence(tmp_path: Path) -> None:
    finding = only_finding(tmp_path, make_fault("late", PART), ranks_per_node=0)
    assert (finding.ranks, said_of_hosts(finding)) == (PART, [])


def test_traces_that_name_no_host_leave_it_out(tmp_path: Path) -> None:
    finding = only_finding(tmp_path, make_fault("late", PART), format="torch")
    assert (finding.ranks, said_of_hosts(finding)) == (PART, [])
