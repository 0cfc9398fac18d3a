"""Phrases that several views share: rank sets, intervals, windows, measured values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dprankdiag.model.diagnosis import Diagnosis, Evidence, Finding, Interval, TimeWindow
from dprankdiag.model.ranks import Rank
from dprankdiag.units import NS_PER_S, format_bytes, format_ns, format_ratio

ABSENT = "-"

_WHO = {
    "one": "one rank",
    "group": "a group of ranks",
    "rotating": "the rank changes from step to step",
    "all": "all ranks alike",
}
_WHEN = {"steady": "steadily", "burst": "in bursts", "periodic": "periodically", "onset": "from one moment on"}


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
        parts.append(f"began at {format_seconds(finding.onset_ns, origin_ns)}")
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
    if diagnosis.time.steps:
        parts.append(f"{format_ns(finding.lost_ns / diagnosis.time.steps)} a step")
    if finding.window_lost_ratio is not None and finding.window_lost_ratio != finding.lost_ratio:
        parts.append(f"{format_ratio(finding.window_lost_ratio)} inside its window")
    parts.append(finding.basis)
    return "; ".join(part for part in parts if part)


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
    return f"{value:.6g} {unit}".rstrip() if unit else f"{value:.6g}"


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
