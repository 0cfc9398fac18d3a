import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from dprankdiag.errors import InputError, TableError
from dprankdiag.store.bundle import load_bundle
from dprankdiag.views import markdown, text
from dprankdiag.views.base import FORMATS
from tests import builders
from tests.cli.conftest import FakeProduct

Run = Callable[..., Result]


def _is_one_line(stderr: str) -> bool:
    return stderr.startswith("dprankdiag: ") and stderr.count("\n") == 1


def test_the_verdict_is_all_that_stdout_carries(run: Run, trace: Path) -> None:
    result = run("analyze", trace)
    assert result.exit_code == 0
    assert result.stdout == text.render(builders.diagnosis(), {})
    assert result.stderr == ""


def test_json_on_stdout_is_one_object(run: Run, trace: Path) -> None:
    assert json.loads(run("analyze", trace, "--format", "json").stdout)["status"] == "findings"


def test_a_format_that_does_not_exist_names_those_that_do(run: Run, trace: Path) -> None:
    result = run("analyze", trace, "--format", "pdf")
    assert result.exit_code == 2
    assert "'text', 'json'" in result.stderr
    assert _is_one_line(result.stderr)


def test_no_path_is_a_usage_error(run: Run) -> None:
    result = run("analyze")
    assert result.exit_code == 2
    assert _is_one_line(result.stderr)


def test_a_path_that_does_not_exist_is_a_usage_error(run: Run, product: FakeProduct, tmp_path: Path) -> None:
    result = run("analyze", tmp_path / "absent.sqlite")
    assert result.exit_code == 2
    assert "absent.sqlite: no such file" in result.stderr
    assert product.asked == []


def test_a_path_that_cannot_be_one_is_a_usage_error(run: Run) -> None:
    assert run("analyze", "x" * 5000).exit_code == 2


def test_options_reach_the_diagnosis(run: Run, product: FakeProduct, trace: Path, tmp_path: Path) -> None:
    rank_map = tmp_path / "ranks.csv"
    rank_map.touch()
    run("analyze", trace, "--rank-map", rank_map, "--expect-ranks", 8, "--window", "0.5:2", "--jobs", 3)
    assert product.asked == [
        (
            [trace],
            {
                "rank_map": rank_map,
                "expect_ranks": 8,
                "window": (0.5, 2.0),
                "patterns": None,
                "jobs": 3,
                "baseline": None,
                "interval_s": None,
                "keep_digests": False,
            },
        )
    ]


def test_a_baseline_reaches_the_diagnosis_and_a_misfit_is_warned_of(
    run: Run, product: FakeProduct, trace: Path, tmp_path: Path
) -> None:
    baseline = tmp_path / "day.dprank"
    baseline.touch()
    product.warnings = ("the baseline day.dprank does not fit: 4 ranks before, 8 after",)
    result = run("analyze", trace, "--baseline", baseline)
    assert product.asked[0][1]["baseline"] == baseline
    assert result.exit_code == 0
    assert result.stderr == "dprankdiag: warning: the baseline day.dprank does not fit: 4 ranks before, 8 after\n"
    assert run("analyze", trace, "--baseline", baseline, "--quiet").stderr == ""


def test_a_baseline_must_exist_and_is_never_overwritten(run: Run, trace: Path, tmp_path: Path) -> None:
    assert run("analyze", trace, "--baseline", tmp_path / "absent.dprank").exit_code == 2
    baseline = tmp_path / "day.dprank"
    baseline.touch()
    result = run("analyze", trace, "--baseline", baseline, "-o", baseline)
    assert result.exit_code == 2
    assert "would be overwritten" in result.stderr


@pytest.mark.parametrize("window", ["", "1", "1:", ":2", "2:1", "1:1", "-1:2", "a:b", "1:2:3", "0:inf", "nan:1"])
def test_a_window_that_is_none_is_a_usage_error(run: Run, trace: Path, window: str) -> None:
    result = run("analyze", trace, f"--window={window}")
    assert result.exit_code == 2
    assert _is_one_line(result.stderr)


@pytest.mark.parametrize(
    "fail_on, severity, status, code",
    [
        ("never", "critical", "findings", 0),
        ("warning", "critical", "findings", 1),
        ("warning", "warning", "findings", 1),
        ("warning", "info", "healthy", 0),
        ("critical", "warning", "findings", 0),
        ("critical", "critical", "findings", 1),
        ("inconclusive", "info", "inconclusive", 1),
        ("inconclusive", "critical", "findings", 0),
        ("critical", "info", "inconclusive", 0),
    ],
)
def test_fail_on_decides_the_exit_code(
    run: Run, product: FakeProduct, trace: Path, fail_on: str, severity: str, status: str, code: int
) -> None:
    product.answer = builders.diagnosis(status=status, findings=(builders.finding(severity=severity),))
    assert run("analyze", trace, "--fail-on", fail_on).exit_code == code


def test_fail_on_may_be_repeated(run: Run, product: FakeProduct, trace: Path) -> None:
    product.answer = builders.undecided_diagnosis()
    assert run("analyze", trace, "--fail-on", "warning", "--fail-on", "inconclusive").exit_code == 1


def test_an_input_error_is_one_line_and_exit_code_3(run: Run, product: FakeProduct, trace: Path) -> None:
    product.failure = InputError("a video, expected a trace", where="x\x1b[31m.mp4", mend="give a trace")
    result = run("analyze", trace)
    assert result.exit_code == 3
    assert result.stderr == "dprankdiag: x\\x1b[31m.mp4: a video, expected a trace; give a trace\n"
    assert result.stdout == ""


@pytest.mark.parametrize("failure", [ValueError("two\nlines"), TableError("broken"), MemoryError()])
def test_a_defect_is_one_line_and_exit_code_4(run: Run, product: FakeProduct, trace: Path, failure: Exception) -> None:
    product.failure = failure
    result = run("analyze", trace)
    assert result.exit_code == 4
    assert _is_one_line(result.stderr)


def test_debug_shows_the_traceback(run: Run, product: FakeProduct, trace: Path) -> None:
    product.failure = ValueError("broken")
    result = run("analyze", trace, "--debug")
    assert result.exit_code == 4
    assert "Traceback (most recent call last):\n" in result.stderr
    assert result.stderr.endswith("dprankdiag: internal error: ValueError: broken\n")


def test_an_interrupt_is_exit_code_130(run: Run, product: FakeProduct, trace: Path) -> None:
    product.failure = KeyboardInterrupt()
    result = run("analyze", trace)
    assert result.exit_code == 130
    assert "Traceback" not in result.stderr


def test_outputs_are_written_by_suffix_beside_stdout(run: Run, trace: Path, tmp_path: Path) -> None:
    outputs = [tmp_path / name for name in ("a.json", "b.TXT", "c.dprank", "d.md", "e.html", "f.perfetto.json")]
    result = run("analyze", trace, *(part for output in outputs for part in ("-o", output)))
    assert result.exit_code == 0
    assert result.stdout == text.render(builders.diagnosis(), {})
    assert json.loads(outputs[0].read_text())["status"] == "findings"
    assert outputs[1].read_text() == text.render(builders.diagnosis(), {})
    assert load_bundle(outputs[2])[0].status == "findings"
    assert outputs[3].read_text() == markdown.render(builders.diagnosis(), {})
    assert outputs[4].read_text().startswith("<!doctype html>")
    assert "traceEvents" in json.loads(outputs[5].read_text())


@pytest.mark.parametrize("name", ["x.pdf", "x", "absent/x.json", "folder.json", "-", "x" * 300 + ".json"])
def test_an_output_that_cannot_be_is_refused_before_the_work(
    run: Run, product: FakeProduct, trace: Path, tmp_path: Path, name: str
) -> None:
    (tmp_path / "folder.json").mkdir()
    result = run("analyze", trace, "-o", tmp_path / name)
    assert result.exit_code == 2
    assert _is_one_line(result.stderr)
    assert product.asked == []


def test_an_input_is_never_overwritten(run: Run, product: FakeProduct, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text("{}")
    link = tmp_path / "link.json"
    os.link(trace, link)
    symlink = tmp_path / "symlink.json"
    symlink.symlink_to(trace)
    for output in (trace, link, symlink, tmp_path / "." / "trace.json"):
        assert run("analyze", trace, "-o", output).exit_code == 2
    assert run("analyze", tmp_path, "-o", trace).exit_code == 2
    assert trace.read_text() == "{}"
    assert product.asked == []


def test_a_new_file_in_an_input_folder_is_allowed(run: Run, trace: Path, tmp_path: Path) -> None:
    assert run("analyze", tmp_path, "-o", tmp_path / "new.json").exit_code == 0


def test_a_rank_map_is_an_input_too(run: Run, trace: Path, tmp_path: Path) -> None:
    rank_map = tmp_path / "ranks.json"
    rank_map.write_text("{}")
    assert run("analyze", trace, "--rank-map", rank_map, "-o", rank_map).exit_code == 2


def test_one_file_named_twice_as_output_is_refused(run: Run, trace: Path, tmp_path: Path) -> None:
    assert run("analyze", trace, "-o", tmp_path / "a.json", "-o", tmp_path / "." / "a.json").exit_code == 2


def test_a_bundle_prints_the_saved_diagnosis_in_any_format(
    run: Run, product: FakeProduct, trace: Path, tmp_path: Path
) -> None:
    bundle = tmp_path / "run.dprank"
    direct = run("analyze", trace, "-o", bundle)
    as_json = run("analyze", trace, "--format", "json")
    product.failure = AssertionError("a bundle needs no trace")
    assert run("analyze", bundle).stdout == direct.stdout
    assert run("analyze", bundle, "--format", "json").stdout == as_json.stdout
    for name in FORMATS:
        assert run("analyze", bundle, "--format", name).exit_code == 0
    assert run("analyze", bundle, "--fail-on", "critical").exit_code == 1


def test_several_bundles_are_diagnosed_together_like_traces(
    run: Run, product: FakeProduct, trace: Path, tmp_path: Path
) -> None:
    bundles = [tmp_path / f"node-{number}.dprank" for number in range(2)]
    for bundle in bundles:
        run("analyze", trace, "-o", bundle)
    product.asked.clear()
    assert run("analyze", *bundles).exit_code == 0
    assert [paths for paths, _ in product.asked] == [bundles]


def test_options_that_need_the_trace_are_refused_for_a_bundle(run: Run, trace: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "run.dprank"
    run("analyze", trace, "-o", bundle)
    result = run("analyze", bundle, "--window", "0:1")
    assert result.exit_code == 2
    assert "--window cannot change a saved diagnosis" in result.stderr


def test_a_damaged_bundle_is_exit_code_3(run: Run, tmp_path: Path) -> None:
    bundle = tmp_path / "run.dprank"
    bundle.write_bytes(b"nothing")
    assert run("analyze", bundle).exit_code == 3


def test_an_unused_input_is_warned_of_unless_quiet(run: Run, product: FakeProduct, trace: Path) -> None:
    skipped = builders.source(path="notes.txt", status="skipped", warnings=("not a trace",))
    product.answer = builders.diagnosis(inputs=(builders.source(), skipped))
    assert run("analyze", trace).stderr == "dprankdiag: warning: notes.txt: skipped: not a trace\n"
    assert run("analyze", trace, "--quiet").stderr == ""


def test_the_warning_of_a_damaged_input_names_it_once(run: Run, product: FakeProduct, trace: Path) -> None:
    broken = builders.source(path="a.json", status="unused", warnings=("a.json: broken JSON; record again",))
    product.answer = builders.diagnosis(inputs=(builders.source(), broken))
    assert run("analyze", trace).stderr == "dprankdiag: warning: a.json: unused: broken JSON; record again\n"


def test_verbose_names_each_stage_on_stderr(run: Run, trace: Path) -> None:
    lines = run("analyze", trace, "--verbose").stderr.splitlines()
    assert [line.split(":")[1].strip() for line in lines] == ["reading", "judging"]


def test_quiet_and_verbose_exclude_each_other(run: Run, trace: Path) -> None:
    assert run("analyze", trace, "--quiet", "--verbose").exit_code == 2
