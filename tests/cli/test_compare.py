"""The verb compare: its inputs, options and exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from dprankdiag.errors import InputError
from dprankdiag.store.bundle import save_bundle
from dprankdiag.views.comparison import render
from tests import builders
from tests.cli.conftest import FakeProduct

Run = Callable[..., Result]


@pytest.fixture
def other(tmp_path: Path) -> Path:
    path = tmp_path / "later.sqlite"
    path.write_bytes(b"SQLite format 3\0")
    return path


def test_the_comparison_is_all_that_stdout_carries(run: Run, product: FakeProduct, trace: Path, other: Path) -> None:
    result = run("compare", trace, other)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == render(builders.comparison(), "text")
    assert [paths for paths, _ in product.asked] == [[trace], [other]]


def test_options_reach_the_diagnosis_of_both(run: Run, product: FakeProduct, trace: Path, other: Path) -> None:
    run("compare", trace, other, "--expect-ranks", 8, "--jobs", 2)
    options = {"rank_map": None, "expect_ranks": 8, "patterns": None, "jobs": 2}
    assert [given for _, given in product.asked] == [options, options]


def test_a_bundle_is_opened_and_not_diagnosed_again(
    run: Run, product: FakeProduct, trace: Path, tmp_path: Path
) -> None:
    bundle = tmp_path / "before.dprank"
    save_bundle(bundle, builders.even_diagnosis(), {})
    assert run("compare", bundle, trace).exit_code == 0
    assert [paths for paths, _ in product.asked] == [[trace]]
    assert [side.diagnosis.status for side in product.compared[0]] == ["healthy", "findings"]
    assert [side.name for side in product.compared[0]] == [str(bundle), str(trace)]


def test_options_that_read_a_trace_do_not_change_two_bundles(run: Run, tmp_path: Path) -> None:
    bundle = tmp_path / "before.dprank"
    save_bundle(bundle, builders.even_diagnosis(), {})
    result = run("compare", bundle, bundle, "--expect-ranks", 8)
    assert result.exit_code == 2
    assert "--expect-ranks cannot change a saved diagnosis" in result.stderr


@pytest.mark.parametrize("suffix,start", [(".txt", "Better: "), (".json", "{"), (".md", "# Better: ")])
def test_files_are_written_by_their_suffix(run: Run, trace: Path, other: Path, suffix: str, start: str) -> None:
    output = trace.with_name(f"out{suffix}")
    assert run("compare", trace, other, "-o", output).exit_code == 0
    assert output.read_text("utf-8").startswith(start)


@pytest.mark.parametrize("name", ["x.dprank", "x.html", "later.sqlite", "no-folder/x.json"])
def test_outputs_that_cannot_be_are_refused_before_the_work(
    run: Run, product: FakeProduct, trace: Path, other: Path, name: str
) -> None:
    result = run("compare", trace, other, "-o", trace.parent / name)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert product.asked == []


def test_formats_are_those_of_the_document(run: Run, trace: Path, other: Path) -> None:
    assert json.loads(run("compare", trace, other, "--format", "json").stdout)["verdict"] == "better"
    assert run("compare", trace, other, "--format", "markdown").stdout.startswith("# ")
    assert run("compare", trace, other, "--format", "html").exit_code == 2


NEW = {"presence": "new", "before_ranks": (), "after_ranks": (3,), "before_severity": None}
STAYED = {"presence": "stayed", "after_ranks": (3,)}


@pytest.mark.parametrize(
    "fail_on,changes,code",
    [
        ("never", NEW | {"after_severity": "critical"}, 0),
        ("warning", NEW | {"after_severity": "critical"}, 1),
        ("warning", NEW | {"after_severity": "warning"}, 1),
        ("warning", NEW | {"after_severity": "info"}, 0),
        ("critical", NEW | {"after_severity": "warning"}, 0),
        ("critical", NEW | {"after_severity": "critical"}, 1),
        ("critical", STAYED | {"after_severity": "critical"}, 0),
        ("critical", STAYED | {"after_severity": "critical", "lost_ns": builders.change(1e6, 2e6)}, 1),
        ("critical", STAYED | {"after_severity": "critical", "lost_ns": builders.change(1e6, 1e6)}, 0),
        ("warning", {}, 0),
        ("inconclusive", NEW | {"after_severity": "critical"}, 0),
    ],
)
def test_the_exit_code_tells_what_is_new_or_worse(
    run: Run, product: FakeProduct, trace: Path, other: Path, fail_on: str, changes: dict[str, Any], code: int
) -> None:
    product.comparison = builders.comparison(causes=(builders.cause_change(**changes),))
    assert run("compare", trace, other, "--fail-on", fail_on).exit_code == code


def test_what_cannot_be_compared_is_inconclusive(run: Run, product: FakeProduct, trace: Path, other: Path) -> None:
    product.comparison = builders.incomparable()
    assert run("compare", trace, other, "--fail-on", "inconclusive").exit_code == 1
    assert run("compare", trace, other, "--fail-on", "critical").exit_code == 0


def test_paths_must_exist_and_be_two(run: Run, trace: Path, tmp_path: Path) -> None:
    assert run("compare", trace).exit_code == 2
    assert run("compare", trace, tmp_path / "absent").exit_code == 2
    assert run("compare", trace, trace, trace).exit_code == 2


def test_an_input_that_cannot_be_used_is_exit_code_three(
    run: Run, product: FakeProduct, trace: Path, other: Path
) -> None:
    product.failure = InputError("not a trace", where=str(trace))
    result = run("compare", trace, other)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (3, "", 1)


def test_an_input_read_in_part_is_warned_of_unless_quiet(
    run: Run, product: FakeProduct, trace: Path, other: Path
) -> None:
    source = builders.source(path="part.sqlite", status="partial", warnings=("cut short",))
    product.answer = builders.diagnosis(inputs=(source,))
    assert "warning: part.sqlite: partial: cut short" in run("compare", trace, other).stderr
    assert run("compare", trace, other, "--quiet").stderr == ""
