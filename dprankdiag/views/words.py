"""Phrases that several views share: rank sets, intervals, windows, measured values, the rows of their tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from dprankdiag.model.diagnosis import (
    Abstention,
    Diagnosis,
    Evidence,
    Experiment,
    Finding,
    Interval,
    Remedy,
    TimeWindow,
)
from dprankdiag.model.ranks import Rank
from dprankdiag.model.sources import Source
from dprankdiag.units import NS_PER_S, format_bytes, format_ns, format_ratio

ABSENT = "-"

_WHO = {
    "one": "one rank",
    "group": "a group of ranks",
    "rotating": "the rank changes from step to step",
    "all": "all ranks alike",
}
_WHEN = {"steady": "steadily", "burst": "in bursts", "periodic": "periodically", "onset": "from one moment on"}

STATUS_MEANING = {
    "findings": "",
    "healthy": "The ranks are even: none holds the others back. This speaks of the ranks against each other only.",
    "uniform": "The ranks are alike and all slow: no rank is at fault, look elsewhere.",
    "inconclusive": "No verdict: the input cannot carry one. This is not the same as healthy; see below for what is "
    "missing.",
}

LOST_COLUMNS = ("cause", "lost", "share", "note")
RANK_COLUMNS = ("rank", "work", "wait", "transfer", "idle", "known by", "process")
NAMED_RANKS = "* named above. The rank that the others wait for is the one that waits least."

_COMMAND = re.compile(
    r"\bnsys\s(?:profile|export)(?:(?!\s\(|\.\s|\.$).)+"
    r"|\bdprankdiag\s[a-z]+(?:\s[A-Z]+\b(?:\.[a-z]+\b)?)*(?:\s-o\s[\w.-]*\w)?(?:\s--[a-z-]+)*"
    r"|\b[A-Z][A-Z0-9_]{5,}=\w+(?:\s[A-Z][A-Z0-9_]{5,}=\w+)*(?:\s<[^>]*>)?"  # settings of the environment
    r"|(?<![\w-])--[a-z][\w.-]*\w(?:=[^\s,;)]*[^\s,;.)])?(?:\s'[^']*'|\s[A-Z]+\.[a-z]+)?"  # a flag, its file
)


def count_of(number: int, noun: str) -> str:
    """Write a count with its noun, in the plural where it is not one."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def format_ranks(ranks: Iterable[int]) -> str:
    """Write rank numbers with runs joined: ``0-3, 5``; ``-`` if there are none."""
    runs: list[list[int]] = []
    for number in sorted(set(ranks)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(_format_run(first, last) for first, last in runs) or ABSENT


def _format_run(first: int, last: int) -> str:
    if first == last:
        return str(first)
    return f"{first}, {last}" if last == first + 1 else f"{first}-{last}"


def name_ranks(finding: Finding) -> str:
    """Name the ranks of a finding, with their engine where it is not the only one."""
    if not finding.ranks:
        return "all ranks" if finding.who == "all" else "no single rank"
    noun = "rank" if len(finding.ranks) == 1 else "ranks"
    engine = "" if finding.engine in ("", "default") else f" of {finding.engine}"
    return f"{noun} {format_ranks(finding.ranks)}{engine}"


def format_interval(interval: Interval | None, level: float) -> str:
    """Write the interval around a ratio with its level, in brackets; empty if there is none."""
    if interval is None:
        return ""
    low, high = interval
    return f"({format_ratio(level)} interval: {format_ratio(low)} to {format_ratio(high)})"


def format_seconds(time_ns: int, origin_ns: int | None) -> str:
    """Write a moment as seconds after the first analysed event."""
    return f"{(time_ns - (origin_ns or 0)) / NS_PER_S:.3f} s"


def format_window(window: TimeWindow, origin_ns: int | None) -> str:
    """Write a window as seconds after the first analysed event."""
    start = (window.start_ns - (origin_ns or 0)) / NS_PER_S
    return f"{start:.3f} to {format_seconds(window.end_ns, origin_ns)}"


def describe_pattern(finding: Finding, origin_ns: int | None) -> str:
    """Say who it is and when it happens."""
    parts = [f"{_WHO[finding.who]}, {_WHEN[finding.when]}"]
    if finding.window.end_ns > finding.window.start_ns:
        parts.append(format_window(finding.window, origin_ns))
    if finding.onset_ns is not None:
        before_ns = (origin_ns or 0) - finding.onset_ns
        at = f"at {format_seconds(finding.onset_ns, origin_ns)}" if before_ns <= 0 else f"{format_ns(before_ns)} before"
        parts.append(f"began {at}")
    if finding.period_ns is not None:
        parts.append(f"every {format_ns(finding.period_ns)}")
    if finding.layers is not None:
        parts.append(f"layers {format_ranks(finding.layers)}")
    return "; ".join(parts)


def describe_loss(finding: Finding, diagnosis: Diagnosis) -> str:
    """Say what a finding costs: in all, as a share, and per step."""
    if finding.lost_ns is None:
        return f"not computable from this input ({finding.basis})" if finding.basis else "not computable"
    interval = format_interval(finding.interval, diagnosis.interval_level)
    parts = [f"{format_ns(finding.lost_ns)}, {format_ratio(finding.lost_ratio)} of the time {interval}".rstrip()]
    if diagnosis.time.steps and _is_one_group(diagnosis):
        parts.append(f"{format_ns(finding.lost_ns / diagnosis.time.steps)} a step")
    if finding.window_lost_ratio is not None and finding.window_lost_ratio != finding.lost_ratio:
        parts.append(f"{format_ratio(finding.window_lost_ratio)} inside its window")
    parts.append(finding.basis)
    return "; ".join(part for part in parts if part)


def _is_one_group(diagnosis: Diagnosis) -> bool:
    """Tell whether all ranks are one lockstep group: then the steps of the diagnosis are those of each finding."""
    lost = diagnosis.lost
    if len({rank.engine for rank in diagnosis.ranks}) > 1:
        return False
    return lost.gpu_ns is None or lost.total_ns is None or lost.gpu_ns == lost.total_ns * len(diagnosis.ranks)


def describe_rank(rank: Rank) -> str:
    """Say which process a rank is, and how surely."""
    parts = [f"rank {rank.rank}"]
    if rank.host:
        parts.append(f"on {rank.host}")
    if rank.device is not None:
        parts.append(f"GPU {rank.device}")
    if rank.process:
        parts.append(rank.process)
    sureness = "" if rank.grade == "sure" else f", {rank.grade}"
    return f"{', '.join(parts)} (by {rank.identified_by}{sureness})"


def format_value(value: float | None, unit: str) -> str:
    """Write a measured value in its unit; ``-`` if absent."""
    if value is None:
        return ABSENT
    if unit == "ns":
        return format_ns(value)
    if unit == "bytes":
        return format_bytes(value)
    if unit == "ratio":
        return f"{value:.3g}"
    return f"{format_count(value)} {unit}".rstrip()


def format_count(value: float) -> str:
    """Write a number of things: small ones to four digits, large ones whole, very large ones in millions."""
    size = abs(value)
    return f"{value / 1e6:.4g} M" if size >= 1e7 else f"{value:.0f}" if size >= 1000 else f"{value:.4g}"


def describe_measurement(evidence: Evidence) -> str:
    """Write the number behind a piece of evidence, what was expected, and from how many samples."""
    parts = [f"{evidence.name} {format_value(evidence.value, evidence.unit)}"]
    if evidence.expected is not None:
        parts.append(f"expected {format_value(evidence.expected, evidence.unit)}")
    if evidence.samples is not None:
        parts.append(f"n = {evidence.samples}")
    return ", ".join(parts)


def count_severities(findings: Sequence[Finding]) -> str:
    """Count findings by severity: ``1 critical, 2 info``."""
    counts = {name: sum(f.severity == name for f in findings) for name in ("critical", "warning", "info")}
    return ", ".join(f"{number} {name}" for name, number in counts.items() if number)


def list_facts(diagnosis: Diagnosis) -> list[str]:
    """List what stands beside the status: findings by severity, ranks, steps, and the share of time lost."""
    facts = [count_severities(diagnosis.findings)] if diagnosis.findings else []
    facts.append(count_of(len(diagnosis.ranks), "rank"))
    if diagnosis.time.steps or not is_ledger(diagnosis):
        facts.append(count_of(diagnosis.time.steps, "step"))
    # Where nothing was found and nothing can be told, a small loss would look like health.
    if diagnosis.lost.ratio is not None and (diagnosis.findings or diagnosis.status != "inconclusive"):
        facts.append(f"{format_ratio(diagnosis.lost.ratio)} of the time lost")
    return facts


def describe_gain(remedy: Remedy, level: float) -> str:
    """Say what a remedy would win back; empty if nobody computed it."""
    if remedy.gain_ratio is None:
        return ""
    gain = f"Gain: {format_ratio(remedy.gain_ratio)} {format_interval(remedy.interval, level)}".rstrip()
    return f"{gain}, {remedy.basis}"


def describe_experiment(experiment: Experiment) -> str:
    """Say what to change, with what, and what each outcome would mean."""
    command = f" Try: {experiment.command}." if experiment.command else ""
    seen = " ".join(f"If {outcome.seen}: {outcome.means}" for outcome in experiment.outcomes)
    return f"{experiment.text}{command} {seen}"


def explain_no_loss(diagnosis: Diagnosis) -> str:
    """Say why there is no account of lost time."""
    several = len({rank.engine for rank in diagnosis.ranks}) > 1
    if several and any(finding.lost_ns is not None for finding in diagnosis.findings):
        return "What several engines lose does not add up; each finding says what it costs its own engine."
    error = diagnosis.time.replay_error_ratio
    reason = f" (predicting steps from their neighbours errs by {format_ratio(error)})" if error is not None else ""
    return f"Could not be computed from this input{reason}."


def list_lost_rows(diagnosis: Diagnosis) -> list[tuple[str, str, str, str]]:
    """List the account of lost time by LOST_COLUMNS; nothing if there is none."""
    lost = diagnosis.lost
    if lost.total_ns is None:
        return []
    interval = format_interval(lost.interval, diagnosis.interval_level)
    jitter = "random, beside the total" if lost.jitter_ns is not None else ""
    rows = [(item.cause, format_ns(item.lost_ns), format_ratio(item.ratio), "") for item in lost.by_cause]
    rows.append(("unexplained", format_ns(lost.unexplained_ns), _share(lost.unexplained_ns, diagnosis), ""))
    rows.append(("total", format_ns(lost.total_ns), format_ratio(lost.ratio), interval))
    rows.append(("jitter", format_ns(lost.jitter_ns), _share(lost.jitter_ns, diagnosis), jitter))
    if lost.gpu_ns is not None:
        rows.append(("GPU time", format_ns(lost.gpu_ns), "", "the total, summed over the GPUs that wait"))
    return rows


def _share(lost_ns: int | None, diagnosis: Diagnosis) -> str:
    """Write a time as a share of the analysed steps, whose length follows from the total and its ratio."""
    total, ratio = diagnosis.lost.total_ns, diagnosis.lost.ratio
    if lost_ns is None or not total or not ratio:
        return ABSENT
    return format_ratio(lost_ns * ratio / total)


def find_named(diagnosis: Diagnosis) -> set[tuple[str, int]]:
    """Return the (engine, rank) that findings name."""
    return {(finding.engine, number) for finding in diagnosis.findings for number in finding.ranks}


def choose_ranks(diagnosis: Diagnosis, most: int) -> list[Rank]:
    """Choose the ranks that a view has room for, the named ones first, and return them in order."""
    named = find_named(diagnosis)
    ordered = sorted(diagnosis.ranks, key=lambda rank: ((rank.engine, rank.rank) not in named, rank.engine, rank.rank))
    return sorted(ordered[:most], key=lambda rank: (rank.engine, rank.rank))


def list_rank_cells(rank: Rank, is_named: bool) -> list[str]:
    """List what is known of a rank by RANK_COLUMNS."""
    label = str(rank.rank) if rank.engine in ("", "default") else f"{rank.engine} {rank.rank}"
    sureness = "" if rank.grade == "sure" else f", {rank.grade}"
    times = (rank.work_ns, rank.wait_ns, rank.transfer_ns, rank.idle_ns)
    return [
        f"* {label}" if is_named else label,
        *(format_ns(time_ns) for time_ns in times),
        f"{rank.identified_by}{sureness}",
        rank.process or ABSENT,
    ]


def list_measured(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """List what was measured, label and value."""
    time, step = diagnosis.time, diagnosis.step
    kinds = ", ".join(f"{number} {kind}" for kind, number in sorted(time.step_kinds.items()))
    residual = f", residual {format_ns(time.clock_residual_ns)}" if time.clock_residual_ns is not None else ""
    span = ABSENT
    if time.start_ns is not None and time.end_ns is not None:
        span = format_ns(time.end_ns - time.start_ns)
    if is_ledger(diagnosis):
        return [("time", span), ("steps", str(time.steps) if time.steps else "not told")]
    return [
        ("time", f"{span} on the clock '{time.clock}'{residual}"),
        ("steps", f"{time.steps} ({kinds})" if kinds else str(time.steps)),
        ("step", f"{format_ns(step.median_ns)} median, {format_ns(step.balanced_median_ns)} if ranks were even"),
        ("collectives", f"{time.collectives}, {_describe_match(time.matched_ratio)}"),
        ("replay error", f"{format_ratio(time.replay_error_ratio)} on steps predicted from their neighbours"),
    ]


def is_ledger(diagnosis: Diagnosis) -> bool:
    """Tell a diagnosis that rests on what engines tell of their load alone: nothing in it was timed on a GPU."""
    return bool(diagnosis.ranks) and all(rank.level == "dp_rank" for rank in diagnosis.ranks)


def _describe_match(matched_ratio: float | None) -> str:
    if matched_ratio is None:
        return "not matched across ranks"
    return f"{format_ratio(1 - matched_ratio)} of them not matched across ranks"


def describe_source(source: Source) -> Iterator[str]:
    """Say what an input is, what it lacked, and what to beware of."""
    producer = f" {source.producer}" if source.producer else ""
    told = [count_of(source.kernels, "kernel")] if source.kernels or not is_told(source.kind) else []
    told += [f"ranks {format_ranks(source.ranks)}"] if source.ranks else []
    yield f"{source.kind}{producer}, {source.status}" + (f": {', '.join(told)}" if told else "")
    if source.lacked:
        yield f"lacks {', '.join(source.lacked)}"
    for warning in source.warnings:
        yield f"warning: {warning}"


def is_told(kind: str) -> bool:
    """Tell inputs that engines make of themselves, which hold no kernels."""
    return kind.startswith(("sglang-", "vllm-")) or kind in ("ledger", "recording")


def join_abstentions(abstentions: Iterable[Abstention]) -> list[tuple[str, str, str | None]]:
    """List causes, reason and what would show them; causes that share a reason and a command are told once."""
    shared: dict[tuple[str, tuple[str, ...], str | None], list[str]] = {}
    for item in abstentions:
        shared.setdefault((item.reason, item.lacked, item.get_it_with), []).append(item.cause)
    return [
        (", ".join(causes), f"{reason} (lacks {', '.join(missing)})" if missing else reason, command)
        for (reason, missing, command), causes in shared.items()
    ]


def split_commands(text: str) -> list[tuple[str, bool]]:
    """Part advice into prose and what can be typed as it stands (commands, flags); True marks the latter."""
    pieces: list[tuple[str, bool]] = []
    done = 0
    for found in _COMMAND.finditer(text):
        pieces += [(text[done : found.start()], False), (found[0].rstrip(), True)]
        done = found.start() + len(found[0].rstrip())
    pieces.append((text[done:], False))
    return [piece for piece in pieces if piece[0]]
