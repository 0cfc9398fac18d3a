"""`dprankdiag digest` writes a bundle for each trace, and goes on where one cannot be read."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dprankdiag.cli import main
from dprankdiag.errors import InputError
from dprankdiag.harness.suites import WORLDS, write_world
from dprankdiag.harness.world import World

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    world = World(seed=4, ranks=4, steps=12, layers=2, files="node", ranks_per_node=2)
    return write_world(world, tmp_path_factory.mktemp("traces"), name="node")


def digest(*asked: object) -> Result:
    return CliRunner().invoke(main, ["digest", *map(str, asked)], standalone_mode=False, catch_exceptions=False)


def test_each_trace_becomes_a_bundle_in_the_folder_asked_for(traces: list[Path], tmp_path: Path) -> None:
    done = digest(*traces, "--into", tmp_path)
    assert done.return_value == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["node-0.dprank", "node-1.dprank"]
    assert f"node-0.sqlite -> {tmp_path}/node-0.dprank: 2 ranks" in done.stdout
    assert done.stdout.splitlines()[-1] == f"join them: dprankdiag analyze {tmp_path}/*.dprank"


def analyze(*asked: object) -> Result:
    return CliRunner().invoke(main, ["analyze", *map(str, asked)], standalone_mode=False, catch_exceptions=False)


def read_findings(*asked: object) -> list[tuple[str, list[int], str]]:
    findings = json.loads(analyze(*asked, "--format", "json").stdout)["findings"]
    return [(item["cause"], item["ranks"], item["summary"]) for item in findings]


def test_saved_verdicts_are_joined_to_the_verdict_of_all_traces(tmp_path: Path) -> None:
    world = replace(WORLDS["load_context"], files="node", ranks_per_node=2)
    traces = write_world(world, tmp_path / "traces")
    first, second, both = (tmp_path / f"{name}.dprank" for name in ("first", "second", "both"))
    analyze(*traces[:2], "-o", first)
    analyze(*traces[2:], "-o", second)
    assert read_findings(first, second) == read_findings(*traces) != []
    # A joined verdict can be saved, joined and printed again as well.
    analyze(first, second, "-o", both)
    assert read_findings(both, traces[3]) == read_findings(both) == read_findings(*traces)
    again = tmp_path / "again.dprank"
    analyze(both, "-o", again)
    assert again.read_bytes() == both.read_bytes()


def test_a_saved_verdict_of_a_part_of_the_time_cannot_be_joined(traces: list[Path], tmp_path: Path) -> None:
    part = tmp_path / "part.dprank"
    assert analyze(traces[0], "--window", "0:100", "-o", part).return_value == 0
    with pytest.raises(InputError, match="no digest"):
        analyze(part, traces[1])


def test_a_saved_verdict_has_no_room_for_kernels_one_by_one_and_says_so(tmp_path: Path) -> None:
    world = replace(WORLDS["overlap_load"], files="node", ranks_per_node=4, layers=60)
    (first, _) = write_world(world, tmp_path / "traces")
    done = analyze(first, "-o", tmp_path / "run.dprank")
    assert done.stderr.count("the bundle cannot be joined") == 1
    assert analyze(first, "-o", tmp_path / "run.dprank", "--quiet").stderr == ""


def test_a_folder_stands_for_its_traces_and_bundles_in_it_are_passed_over(traces: list[Path], tmp_path: Path) -> None:
    for trace in traces:
        (tmp_path / trace.name).write_bytes(trace.read_bytes())
    assert digest(tmp_path, "--into", tmp_path).return_value == 0
    assert digest(tmp_path, "--into", tmp_path, "--quiet").return_value == 0
    assert len(list(tmp_path.glob("*.dprank"))) == 2


def test_what_cannot_be_read_is_said_in_a_line_and_the_rest_goes_on(traces: list[Path], tmp_path: Path) -> None:
    broken = tmp_path / "broken.sqlite"
    broken.write_bytes(traces[0].read_bytes()[:20_000])
    done = digest(broken, traces[1], "--into", tmp_path)
    assert done.return_value == 0
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"dprankdiag: warning: {broken}: ")
    assert (tmp_path / "node-1.dprank").exists()


def test_nothing_that_can_be_read_is_exit_code_3(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "empty.sqlite"
    path.write_bytes(b"")
    done = run("digest", path, "--into", tmp_path)
    assert done.exit_code == 3
    assert "empty" in done.stderr


def test_a_path_or_folder_that_is_not_there_is_exit_code_2(run: Run, traces: list[Path], tmp_path: Path) -> None:
    assert run("digest", tmp_path / "none.sqlite").exit_code == 2
    assert run("digest", traces[0], "--into", tmp_path / "none").exit_code == 2
