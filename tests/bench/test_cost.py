"""What a diagnosis costs, against what the same data cost others on the same machine at the same time."""

from __future__ import annotations

import json

import pytest

from tests.bench import commands
from tests.bench.exports import CULPRIT, LARGE, Exports, count_bytes, count_kernels
from tests.bench.measure import Weight, middle, weigh, weigh_in_turn
from tests.bench.table import Figure

pytestmark = pytest.mark.bench


def _wall(weight: Weight) -> float:
    return weight.wall_s


def _peak(weight: Weight) -> float:
    return weight.peak_bytes


def _note(figures: list[Figure], figure: Figure) -> None:
    figures.append(figure)
    assert figure.holds, figure.row()


@pytest.mark.parametrize(
    "bar, cold, how", [(2.5, True, "file dropped from memory before each run"), (2.5, False, "file in memory")]
)
def test_a_verdict_takes_little_longer_than_one_scan_of_the_columns(
    exports: Exports, figures: list[Figure], bar: float, cold: bool, how: str
) -> None:
    path = exports.large
    pair = (commands.analyze(path), commands.scan(path))
    verdict, scan = weigh_in_turn(pair, 3, forget=[path] if cold else [])
    ratio = middle(verdict, _wall) / middle(scan, _wall)
    how = f"`analyze --format json` ÷ `sqlite3` with `total()` of 15 + 5 columns; {how}; median of 3"
    _note(figures, Figure("wall, trace to verdict, against one scan", ratio, bar, how))


def test_a_verdict_comes_long_before_pandas_has_read_the_columns(exports: Exports, figures: list[Figure]) -> None:
    path = exports.large
    verdict, frames = weigh_in_turn((commands.analyze(path), commands.read_frames(path)), 1)
    ratio = middle(frames, _wall) / middle(verdict, _wall)
    how = "`pandas.read_sql` of the same columns ÷ `analyze`; once"
    _note(figures, Figure("faster than reading the columns with pandas", ratio, 3.0, how, at_least=True))


def test_memory_is_bounded_by_the_kernels(exports: Exports, figures: list[Figure]) -> None:
    path = exports.large
    listed = weigh(commands.list_imports(path, path.with_suffix(".json")))
    imports = weigh(commands.only_import(listed.output.splitlines()[-1].split()))
    verdict = weigh(commands.analyze(path))
    per_kernel = (verdict.peak_bytes - imports.peak_bytes) / count_kernels(path)
    how = "peak of `analyze` less peak of Python with the same imports; once"
    assert verdict.peak_bytes < 10**9
    _note(figures, Figure("memory a kernel", per_kernel, 64.0, how, unit="bytes"))


def test_a_parquetdir_costs_about_what_the_same_export_in_sqlite_does(exports: Exports, figures: list[Figure]) -> None:
    folder, file = weigh_in_turn((commands.analyze(exports.million_folder), commands.analyze(exports.million)), 5)
    how = "`analyze` of a million kernels; median of 5"
    wall = middle(folder, _wall) / middle(file, _wall)
    memory = middle(folder, _peak) / middle(file, _peak)  # the library for Parquet is loaded for one of them only
    assert json.loads(folder[0].output)["findings"] == json.loads(file[0].output)["findings"]
    _note(figures, Figure("wall, parquetdir against SQLite", wall, 1.2, how))
    _note(figures, Figure("memory, parquetdir against SQLite", memory, 2.0, how))


def test_eight_torch_traces_are_judged_soon_and_in_little_memory(exports: Exports, figures: list[Figure]) -> None:
    folder = exports.traces
    sizes = [count_bytes(path) for path in folder.iterdir()]
    (weights,) = weigh_in_turn([commands.analyze(folder)], 3)
    told = json.loads(weights[0].output)
    assert {(item["cause"], tuple(item["ranks"])) for item in told["findings"]} == {("load.context", (CULPRIT,))}
    how = f"`analyze` of {len(sizes)} torch traces of {min(sizes) / 1e6:.0f} MB unpacked; median of 3"
    figures.append(Figure("wall, torch traces to verdict", middle(weights, _wall), 20.0, how, unit="s"))
    _note(figures, Figure("memory, torch traces", middle(weights, _peak) / 1e6, 1000.0, how, unit="MB"))
    assert figures[-2].holds, figures[-2].row()


def test_ten_times_the_kernels_take_about_ten_times_as_long(exports: Exports, figures: list[Figure]) -> None:
    pair = commands.analyze(exports.large), commands.analyze(exports.tenth)
    large, tenth = weigh_in_turn(pair, 3)
    ratio = middle(large, _wall) / middle(tenth, _wall)
    _note(figures, Figure("wall, 4 million against 0.4 million kernels", ratio, 11.0, "`analyze`; median of 3"))


def test_eight_times_the_ranks_cost_little_at_equal_kernels(exports: Exports, figures: list[Figure]) -> None:
    pair = commands.analyze(exports.many_ranks), commands.analyze(exports.large)
    many, few = weigh_in_turn(pair, 3)
    ratio = middle(many, _wall) / middle(few, _wall)
    _note(figures, Figure("wall, 64 against 8 ranks at equal kernels", ratio, 1.3, "`analyze`; median of 3"))


def test_a_small_trace_is_answered_at_once(exports: Exports, figures: list[Figure]) -> None:
    path = exports.small
    assert path.stat().st_size <= 5_000_000
    (weights,) = weigh_in_turn([commands.analyze(path)], 3)
    cpu = middle(weights, lambda weight: weight.cpu_s)
    size = f"{path.stat().st_size / 1e6:.1f} MB"
    _note(figures, Figure("CPU, small trace", cpu, 1.5, f"`analyze` of {size}; median of 3", unit="s"))


def test_help_is_there_at_once(figures: list[Figure]) -> None:
    (weights,) = weigh_in_turn([commands.show_help()], 3)
    cpu = middle(weights, lambda weight: weight.cpu_s)
    _note(figures, Figure("CPU, help", cpu, 0.3, "`--help`; median of 3", unit="s"))


def test_nothing_is_skipped_and_the_planted_fault_is_found(exports: Exports, figures: list[Figure]) -> None:
    told = json.loads(weigh(commands.analyze(exports.large)).output)
    (source,) = told["inputs"]
    assert source["kernels"] == count_kernels(exports.large)
    named = {(finding["cause"], tuple(finding["ranks"])) for finding in told["findings"]}
    assert named == {("load.context", (CULPRIT,))}
    share = LARGE.steps / 100 / told["time"]["steps"]
    _note(figures, Figure("steps that hold the fault found", share * 100, 1.1, "`analyze`", unit="%"))
