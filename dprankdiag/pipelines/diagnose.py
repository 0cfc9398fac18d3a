"""From files to a diagnosis: the whole program on a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dprankdiag.analysis.observe import observe
from dprankdiag.catalog.causes import load_causes
from dprankdiag.catalog.kernels import FAMILIES, load_kernels, mark_patterns
from dprankdiag.catalog.ranges import load_ranges
from dprankdiag.errors import InputError, UsageError
from dprankdiag.model.bundle import publish_numbers
from dprankdiag.model.diagnosis import Diagnosis, Finding
from dprankdiag.model.digests import is_digested
from dprankdiag.model.ledgers import LedgerFile
from dprankdiag.model.schema import Columns, take_rows
from dprankdiag.model.sources import Trace
from dprankdiag.pipelines.baseline import Baseline, attach_references, describe_against, list_misfits, load_baseline
from dprankdiag.pipelines.compared_tables import GroupPart, tabulate_compared
from dprankdiag.pipelines.digesting import Digests, digest_readings
from dprankdiag.pipelines.dumps import diagnose_dumps
from dprankdiag.pipelines.inputs import Inputs, read_inputs
from dprankdiag.pipelines.join import count_from_own_start, join_diagnoses, join_kinds
from dprankdiag.pipelines.judging import judge, weigh
from dprankdiag.pipelines.memory import return_large_arrays
from dprankdiag.pipelines.pricing import price
from dprankdiag.pipelines.remedies import advise
from dprankdiag.pipelines.result_tables import tabulate
from dprankdiag.pipelines.snapshots import diagnose_ledger_files
from dprankdiag.pipelines.step_record import StepRecord, find_worst, keep_kernels
from dprankdiag.pipelines.verdict import Part, conclude
from dprankdiag.pipelines.waits import diagnose_waits
from dprankdiag.readers.gather import gather
from dprankdiag.readers.rank_map import parse_rank_map
from dprankdiag.units import NS_PER_S

Progress = Callable[[str, "float | None"], None]


@dataclass(frozen=True, slots=True)
class Options:
    """What the user may ask of a diagnosis.

    Attributes:
        window: seconds after the first analysed event, half open.
        patterns: TOML file of kernel name patterns, tried before the catalogue's.
        jobs: files to read at a time; None for as many as pay.
        baseline: bundle of an earlier recording to hold this one against.
        interval_s: seconds between snapshots of metrics where they do not tell.
        stored: what Prometheus servers hold of engines, as read before.
        keep_steps: keep what every step holds, so that any can be looked at.
        keep_digests: keep digests of the recordings, so that they can be joined with others.
    """

    rank_map: Path | None = None
    expect_ranks: int | None = None
    window: tuple[float, float] | None = None
    patterns: Path | None = None
    jobs: int | None = None
    baseline: Path | None = None
    interval_s: float | None = None
    stored: tuple[LedgerFile, ...] = ()
    keep_steps: bool = False
    keep_digests: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """A diagnosis and the small tables that belong to it; `warnings` are for the one who asked.

    Attributes:
        steps: of every lockstep group, if they were to be kept.
        digests: of the recordings, if they were to be kept; none of a part of them (`window`).
    """

    diagnosis: Diagnosis
    tables: dict[str, Columns]
    warnings: tuple[str, ...] = ()
    steps: tuple[StepRecord, ...] = ()
    digests: Digests | None = None


@dataclass(frozen=True, slots=True)
class KernelRow:
    """What a trace holds of one kernel name."""

    family: str
    operation: str
    name: str
    calls: int
    total_ns: int
    share_ratio: float
    ranks: tuple[int, ...]


def diagnose(paths: Sequence[Path], options: Options | None = None, progress: Progress | None = None) -> Outcome:
    """Read files, join them to deployments, and diagnose each.

    Raises:
        UsageError: a path does not exist, or the window is empty.
        InputError: no input could be used.
    """
    options = options or Options()
    return_large_arrays()
    load_kernels(options.patterns)  # what is wrong with the options shows before long files are read
    rank_map = parse_rank_map(options.rank_map) if options.rank_map else None
    baseline = load_baseline(options.baseline) if options.baseline else None
    inputs = Inputs((), ())
    if paths or not options.stored:
        inputs = read_inputs(paths, progress, options.jobs, mark_patterns(options.patterns))
    return diagnose_inputs(inputs, options, rank_map, baseline, progress)


def diagnose_inputs(
    inputs: Inputs,
    options: Options,
    rank_map: Mapping[str, int] | None = None,
    baseline: Baseline | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Join what was read to deployments, and diagnose each.

    Takes the tables of the readings over.

    Args:
        rank_map, baseline: what the options name, as read.

    Raises:
        UsageError: the window is empty, or the rank map does not fit the files.
        InputError: the inputs do not belong together.
    """
    tell = progress or (lambda text, share: None)
    catalog = load_kernels(options.patterns)
    if not inputs.readings and options.window is not None:
        raise UsageError("no input has a time axis to cut", where="--window", mend="leave it out")
    digests = None
    if options.keep_digests and inputs.readings and options.window is None:
        tell("digest", None)
        digests = digest_readings(inputs.readings, options.patterns)
    traces = gather(inputs.readings, rank_map=rank_map, expect_ranks=options.expect_ranks)
    unusable = inputs.unusable
    others = [diagnose_waits(matrix) for matrix in inputs.matrices]
    if inputs.dumps:
        others.append(diagnose_dumps(inputs.dumps, options.expect_ranks, rank_map))
    ledger_tables: dict[str, Columns] = {}
    if files := (*inputs.ledgers, *options.stored):
        by_ledger, ledger_tables = diagnose_ledger_files(files, options.interval_s, options.expect_ranks)
        others.append(by_ledger)
    del inputs, files  # what was read from several files lives on in the traces only
    diagnoses: list[Diagnosis] = []
    parts: list[GroupPart] = []
    records: list[StepRecord] = []
    kernels: list[Columns] = []
    causes = load_causes()
    for number, trace in enumerate(traces):
        if options.window is not None:
            trace = cut_window(trace, options.window)
        tell("matching collectives", number / len(traces))
        observed = observe(trace, catalog, load_ranges())
        mine = [StepRecord(len(records) + k, group, observed.kernels) for k, group in enumerate(observed.groups)]
        kernels += [record.list_kernels(find_worst(record.seen)) for record in mine]
        records += mine if options.keep_steps else [StepRecord(record.number, record.seen) for record in mine]
        observed = replace(observed, kernels=None)
        del mine  # with the kernels, unless they are to be kept
        if baseline is not None:
            observed = replace(observed, groups=attach_references(observed.groups, baseline))
        tell("judging", (number + 0.7) / len(traces))
        judged = [judge(group) for group in observed.groups]
        pairs = zip(observed.groups, judged, strict=True)
        accounts = tuple(price(group, weigh(group, claims), causes) for group, (claims, _) in pairs)
        abstentions = tuple(item for _, abstained in judged for item in abstained)
        diagnoses.append(conclude(Part(trace, observed, accounts, abstentions)))
        parts += map(GroupPart, observed.groups, accounts)
    by_trace = join_diagnoses(diagnoses, unusable) if diagnoses else None
    exact = join_kinds(by_trace, others, unusable)
    groups = [part.seen for part in parts]
    kept = [_keep_named(*each, exact.findings) for each in zip(records, kernels, strict=True)]
    tables = tabulate(groups, kept) | tabulate_compared(parts, exact.findings) | ledger_tables
    joined = publish_numbers(advise(count_from_own_start(exact, diagnoses)))
    steps = tuple(records) if options.keep_steps else ()
    if baseline is None:
        return Outcome(joined, tables, steps=steps, digests=digests)
    told = describe_against(baseline, joined, tables)
    return Outcome(replace(joined, notes=(*joined.notes, *told)), tables, tuple(list_misfits(groups)), steps, digests)


def _keep_named(record: StepRecord, kernels: Columns, findings: Sequence[Finding]) -> Columns:
    """Keep of a group's worst step as many kernels as a bundle has room for, those of the findings first."""
    named = {rank for finding in findings if finding.engine == record.seen.engine for rank in finding.ranks}
    return keep_kernels(kernels, record.list_meetings(find_worst(record.seen)), named)


def cut_window(trace: Trace, window: tuple[float, float]) -> Trace:
    """Keep what lies wholly inside a window of seconds after the first event.

    Raises:
        UsageError: nothing lies in it.
    """
    if trace.digests:
        mend = "analyse the traces themselves with --window"
        raise UsageError("digests cannot be cut in time", where="--window", mend=mend)
    first, last = _event_span(trace)
    low, high = first + round(window[0] * NS_PER_S), first + round(window[1] * NS_PER_S)
    tables = {}
    kept = 0
    for name, columns in trace.tables.items():
        inside = (columns["start_ns"] >= low) & (columns["end_ns"] <= high)
        tables[name] = take_rows(columns, inside)
        kept += int(inside.sum()) if name in ("kernels", "ranges", "graph_replays") else 0
    if not kept:
        raise UsageError(
            f"the window {window[0]:g}:{window[1]:g} s holds no events",
            where="--window",
            mend=f"events lie between 0 and {(last - first) / NS_PER_S:.6g} s",
        )
    return replace(trace, tables=tables, start_ns=low, end_ns=high)


def _event_span(trace: Trace) -> tuple[int, int]:
    named = [trace.tables[name] for name in ("kernels", "graph_replays")]
    if not any(len(columns["start_ns"]) for columns in named):
        named = [trace.tables["ranges"]]
    starts = [int(columns["start_ns"].min()) for columns in named if len(columns["start_ns"])]
    ends = [int(columns["end_ns"].max()) for columns in named if len(columns["end_ns"])]
    return (min(starts), max(ends)) if starts else (trace.start_ns, trace.end_ns)


def list_kernels(path: Path, patterns: Path | None = None) -> list[KernelRow]:
    """List the kernels of a trace by name, the longest first, with the family each was given.

    Raises:
        UsageError, InputError: as `diagnose`.
    """
    catalog = load_kernels(patterns)
    listed: list[KernelRow] = []
    readings = read_inputs([path], patterns=mark_patterns(patterns)).readings
    if not readings or any(is_digested(reading.tables) for reading in readings):
        raise InputError(
            "holds no kernels, expected a trace", where=str(path), mend="dprankdiag analyze PATH judges it"
        )
    for trace in gather(readings):
        kernels = trace.tables["kernels"]
        duration = kernels["end_ns"] - kernels["start_ns"]
        n_names = len(trace.names.kernel_names)
        total = np.zeros(n_names, np.int64)
        np.add.at(total, kernels["name_id"], duration)
        calls = np.bincount(kernels["name_id"], minlength=n_names)
        wall = max(int(total.sum()), 1)
        for name_id, name in enumerate(trace.names.kernel_names):
            where = np.unique(kernels["rank"][kernels["name_id"] == name_id])
            family, operation = catalog.classify(name.demangled, name.short)
            listed.append(
                KernelRow(
                    FAMILIES[family],
                    operation,
                    name.demangled,
                    int(calls[name_id]),
                    int(total[name_id]),
                    float(total[name_id]) / wall,
                    tuple(trace.ranks[rank].rank for rank in where),
                )
            )
    return sorted(listed, key=lambda row: (-row.total_ns, row.name))
