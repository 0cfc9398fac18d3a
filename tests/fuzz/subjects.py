"""Whole inputs of every kind, each with one thing to find, whose truth is known because it was planted."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from dprankdiag.harness.faults import Fault, host_late, hot_expert, load_context, slow_gpu
from dprankdiag.harness.suites import Format, write_world
from dprankdiag.pipelines.diagnose import diagnose
from dprankdiag.pipelines.poll import Poller
from dprankdiag.store.bundle import save_bundle
from dprankdiag.store.recorder import Recorder
from dprankdiag.units import NS_PER_S
from tests.conftest import ROOT
from tests.flights import standing_at, write_dumps
from tests.matrices import slow_at_once, write_matrix
from tests.parquetdir import write_parquetdir
from tests.pipelines.whatifs import serve_uneven, write_log
from tests.properties.worlds import EVEN
from tests.small_engine import SmallEngine, sglang_pages

PAYLOADS = ROOT / "tests" / "payloads"
PIDS = (41_200, 41_207, 41_214, 41_221)
"""Of the ranks of a simulated world."""

START_NS = 1_764_000_000 * NS_PER_S
LOG_LINE = (
    "[2026-03-01 10:{minute:02d}:{second:02d} DP{rank} TP{rank} EP{rank}] Decode batch, #running-req: {running}, "
    "#token: {tokens}, token usage: 0.14, cuda graph: True, gen throughput (token/s): {speed:.1f}, #queue-req: 0"
)


ANALYZE = ("analyze", "{given}", "--format", "json")


@dataclass(frozen=True, slots=True)
class Subject:
    """An input of the command.

    Attributes:
        kind: of input, as people call it.
        name: of this one.
        files: content by name; the command gets the folder, or the one file.
        guilty: the ranks that may be named; empty where nothing is judged but calm.
        words: of the command; `{given}` is what it is given, `{beside}` the folder of sound files.
        beside: sound files that the command needs, too.
        is_faint: what is planted shows at "info" only, so that findings of any severity count.
    """

    kind: str
    name: str
    files: Mapping[str, bytes]
    guilty: frozenset[int] = frozenset()
    words: tuple[str, ...] = ANALYZE
    beside: Mapping[str, bytes] = field(default_factory=dict)
    is_faint: bool = False

    def write(self, folder: Path, files: Mapping[str, bytes] | None = None) -> list[str]:
        """Write the files, or others in their place, and return the words of the command."""
        given, beside = folder / "given", folder / "beside"
        for root, contents in ((given, self.files if files is None else files), (beside, self.beside)):
            for name, content in contents.items():
                path = root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        path = given / next(iter(self.files)) if len(self.files) == 1 else given
        given.mkdir(exist_ok=True)
        return [word.format(given=path, beside=beside) for word in self.words]


Fill = Callable[[Path], object]


def _collect(
    kind: str,
    name: str,
    guilty: int | None,
    fill: Fill,
    *words: str,
    beside: Mapping[str, bytes] | None = None,
    is_faint: bool = False,
) -> Subject:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        fill(folder)
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        files = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
    ranks = frozenset() if guilty is None else frozenset({guilty})
    return Subject(kind, name, files, ranks, words or ANALYZE, beside or {}, is_faint)


def _of_world(kind: str, fault: Fault, format: Format) -> Subject:
    world = replace(EVEN, seed=3, faults=(fault,))
    return _collect(
        kind,
        str(fault.kind),
        fault.ranks[0],
        lambda folder: write_world(world, folder, format=format, compact=True),
    )


def _fill_parquet(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as made:
        (export,) = write_world(replace(EVEN, seed=3, faults=(slow_gpu(1, 1.3),)), Path(made), compact=True)
        write_parquetdir(export, folder / "run")


def _fill_log(folder: Path) -> None:
    lines = []
    for moment in range(40):
        for rank in range(4):
            running = 60 if rank == 2 else 20
            told = {"running": running, "tokens": 3000 * running, "speed": 30.0 * running}
            lines.append(LOG_LINE.format(minute=moment * 3 // 60, second=moment * 3 % 60, rank=rank, **told))
    (folder / "server.log").write_text("\n".join(lines) + "\n")


def _fill_recording(folder: Path) -> None:
    engine = SmallEngine(sglang_pages(PAYLOADS / "sglang-0.5.23" / "count-skew"))
    now_ns = [START_NS]
    url = "http://127.0.0.1:30000"
    with (
        Poller([url], transport=engine.transport(), clock=lambda: now_ns[0]) as poller,
        Recorder(folder / "day.dprec") as recorder,
    ):
        for tick in range(30):
            engine.grow_to(tick / 60)
            recorder.write(poller.poll(), now_ns[0])
            now_ns[0] += NS_PER_S


def _fill_bundle(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as made:
        outcome = diagnose(write_world(replace(EVEN, seed=3, faults=(load_context(3, 2.5),)), Path(made), compact=True))
    save_bundle(folder / "run.dprank", outcome.diagnosis, outcome.tables)


def _copy(source: Path, pattern: str) -> Fill:
    def fill(folder: Path) -> None:
        for path in sorted(source.glob(pattern)):
            (folder / path.name).write_bytes(path.read_bytes())

    return fill


def _fill_dumps(folder: Path) -> None:
    write_dumps(standing_at([(8, "started"), (8, "started"), (7, "completed"), (8, "started")]), folder)


@cache
def list_subjects() -> tuple[Subject, ...]:
    """Make all subjects that tell a culprit; each names its guilty rank while it is whole."""
    new = PAYLOADS / "sglang-0.5.23"
    faults = (load_context(3, 2.5), slow_gpu(1, 1.3), host_late(2, 450_000), hot_expert({0: 3, 1: 3, 2: 3}, 2.5))
    return (
        *(_of_world("nsys SQLite", fault, "nsys") for fault in faults),
        *(_of_world("torch traces", fault, "torch") for fault in faults[:3]),
        _collect("nsys parquetdir", "slow_gpu", 1, _fill_parquet),
        _collect("metrics pages", "one busy", 2, _copy(PAYLOADS / "sglang-0.5.9" / "one-busy-seven-idle", "*")),
        _collect("metrics pages", "slow rank", 6, _copy(new / "measured-gloo-slow-rank", "*"), is_faint=True),
        _collect("metrics pages", "vllm", 3, _copy(PAYLOADS / "vllm-0.33.0" / "hot-rank-external-lb", "*")),
        _collect("metrics and loads", "example", 5, _copy(ROOT / "examples" / "long-contexts", "*")),
        _collect("load answers", "count-skew", 3, _copy(new / "count-skew", "v1_loads_t?.json")),
        _collect("load answers", "stale", 4, _copy(new / "one-rank-stale-snapshot", "*.json")),
        _collect("engine log", "sglang", 2, _fill_log),
        _collect("wait matrix", "one late", 2, _fill_matrix, is_faint=True),
        _collect("Flight Recorder dumps", "one absent", 2, _fill_dumps),
        _collect("recording", "count-skew", 3, _fill_recording),
        _collect("bundle", "load_context", 3, _fill_bundle),
    )


@cache
def list_others() -> tuple[Subject, ...]:
    """Make subjects of which only calm is asked: other interfaces, verbs, options and formats."""
    new = PAYLOADS / "sglang-0.5.23"
    whole = {f"{one.kind} {one.name}": one for one in list_subjects()}
    bundle, export = whole["bundle load_context"], whole["nsys SQLite slow_gpu"]
    beside = {**bundle.files, **export.files}
    experts = PAYLOADS / "torch" / "expert-counts"
    whatif, told = ("whatif", "{beside}/run.dprank", "--quiet", "--experts", "{given}"), "{beside}/world.sqlite"
    return (
        _collect("frames", "load statistics", None, _copy(new / "count-skew", "loadstat*")),
        _collect("frames", "forward passes", None, _copy(new / "forward-pass-metrics", "*")),
        _collect("expert metrics", "eplb", None, _copy(new / "expert-skew", "*.prom")),
        replace(bundle, name="as page", words=("analyze", "{given}", "--format", "html")),
        replace(bundle, name="as tracks", words=("analyze", "{given}", "--format", "perfetto")),
        replace(bundle, name="compared", words=("compare", "{beside}/run.dprank", "{given}"), beside=beside),
        replace(bundle, name="as baseline", words=("analyze", told, "--baseline", "{given}"), beside=beside),
        replace(bundle, name="what-if", words=("whatif", "{given}", "--quiet")),
        replace(export, name="kernels", words=("kernels", "{given}")),
        replace(whole["torch traces slow_gpu"], name="as page", words=("analyze", "{given}", "--format", "html")),
        _collect("request log", "what-if", None, _fill_requests, "whatif", "{given}", "--quiet"),
        *(
            _collect("expert counts", name, None, _copy(experts, name), *whatif, beside=beside)
            for name in ("stat.pt", "per_pass.pt", "strided.pt")
        ),
        _collect("expert counts", "CSV", None, _fill_counts, *whatif, beside=beside),
        _collect("rank map", "text", None, _fill_map, "analyze", told, "--rank-map", "{given}", beside=beside),
        _collect("patterns", "TOML", None, _fill_patterns, "analyze", told, "--patterns", "{given}", beside=beside),
    )


def _fill_matrix(folder: Path) -> None:
    write_matrix(slow_at_once((2,), ()), folder / "waits.csv")


def _fill_requests(folder: Path) -> None:
    write_log(folder / "run.jsonl", serve_uneven(40))


def _fill_counts(folder: Path) -> None:
    rows = [f"{layer},{expert},{100 + expert}" for layer in range(3) for expert in range(16)]
    (folder / "counts.csv").write_text("layer,expert,tokens\n" + "\n".join(rows) + "\n")


def _fill_map(folder: Path) -> None:
    (folder / "ranks.txt").write_text("".join(f"pid:{pid} = {rank}\n" for rank, pid in enumerate(PIDS)))


def _fill_patterns(folder: Path) -> None:
    (folder / "names.toml").write_text('[[rule]]\nfamily = "attention"\npattern = "my_kernel"\n')
