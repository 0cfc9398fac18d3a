"""The diagnosis as a page of text: the verdict first, then what it rests on, then what could not be told."""

from __future__ import annotations

from collections.abc import Iterator

from dprankdiag.model.diagnosis import Abstention, Diagnosis, Finding, Remedy
from dprankdiag.model.ranks import Rank
from dprankdiag.model.sources import Source
from dprankdiag.units import format_ns, format_ratio
from dprankdiag.views import words
from dprankdiag.views.base import DEFAULT_WIDTH
from dprankdiag.views.page import INDENT, Page

MAX_RANK_ROWS = 32
"""Rank rows on the page; named ranks come first, the JSON has all."""

MAX_WHO_ROWS = 8
"""Ranks of one finding described in full; the heading names all."""

_NO_FINDING = {
    "findings": "",
    "healthy": "The ranks are even: none holds the others back. This speaks of the ranks against each other only.",
    "uniform": "The ranks are alike and all slow: no rank is at fault, look elsewhere.",
    "inconclusive": "No verdict: the input cannot carry one. This is not the same as healthy; see below for what is "
    "missing.",
}


def render(diagnosis: Diagnosis, *, width: int = DEFAULT_WIDTH, color: bool = False) -> str:
    """Write the whole diagnosis for people."""
    page = Page(width, color)
    _write_verdict(page, diagnosis)
    for number, finding in enumerate(diagnosis.findings, 1):
        _write_finding(page, number, finding, diagnosis)
    _write_lost(page, diagnosis)
    _write_ranks(page, diagnosis)
    _write_time(page, diagnosis)
    _write_inputs(page, diagnosis)
    _write_abstentions(page, diagnosis.abstentions)
    _write_notes(page, diagnosis.notes)
    return page.finish()


def _write_verdict(page: Page, diagnosis: Diagnosis) -> None:
    page.add_line(diagnosis.headline or "No headline.", style="bold")
    facts = [words.count_severities(diagnosis.findings)]
    facts.append(words.count_of(len(diagnosis.ranks), "rank"))
    facts.append(words.count_of(diagnosis.time.steps, "step"))
    if diagnosis.lost.ratio is not None:
        facts.append(f"{format_ratio(diagnosis.lost.ratio)} of the time lost")
    page.add_line("status: ", diagnosis.status, "".join(f" | {fact}" for fact in facts if fact))
    explanation = _NO_FINDING[diagnosis.status]
    if explanation and not diagnosis.findings:
        page.add_line(explanation)


def _write_finding(page: Page, number: int, finding: Finding, diagnosis: Diagnosis) -> None:
    page.add_blank()
    page.add_line(f"{number}. ", finding.severity, f": {finding.cause}, {words.name_ranks(finding)}", style="bold")
    page.add_line(finding.summary, indent=INDENT)
    page.add_fields(list(_list_finding_fields(finding, diagnosis)))


def _list_finding_fields(finding: Finding, diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    members = [rank for rank in diagnosis.ranks if rank.engine == finding.engine and rank.rank in finding.ranks]
    yield from _label("who", [words.describe_rank(rank) for rank in members[:MAX_WHO_ROWS]])
    yield "when", words.describe_pattern(finding, diagnosis.time.start_ns)
    yield "lost", words.describe_loss(finding, diagnosis)
    if finding.recoverable_ns is not None:
        yield "recoverable", format_ns(finding.recoverable_ns)
    yield "confidence", f"{finding.confidence:.2f}"
    yield from _label("evidence", [f"{item.text} [{words.describe_measurement(item)}]" for item in finding.evidence])
    yield from _label("or else", [f"{other.cause} would need: {other.would_need}" for other in finding.alternatives])
    yield from _label("to do", [_describe_remedy(remedy, diagnosis.interval_level) for remedy in finding.remedies])


def _label(label: str, values: list[str]) -> Iterator[tuple[str, str]]:
    for position, value in enumerate(values):
        yield (label if position == 0 else ""), value


def _describe_remedy(remedy: Remedy, level: float) -> str:
    if remedy.gain_ratio is None:
        return remedy.text
    interval = words.format_interval(remedy.interval, level)
    return f"{remedy.text} Gain: {format_ratio(remedy.gain_ratio)} {interval}".rstrip() + f", {remedy.basis}"


def _write_lost(page: Page, diagnosis: Diagnosis) -> None:
    lost = diagnosis.lost
    page.add_heading("Lost time")
    if lost.total_ns is None:
        error = diagnosis.time.replay_error_ratio
        reason = f" (predicting steps from their neighbours errs by {format_ratio(error)})" if error is not None else ""
        page.add_line(f"Could not be computed from this input{reason}.", indent=INDENT)
        return
    rows = [[item.cause, format_ns(item.lost_ns), format_ratio(item.ratio), ""] for item in lost.by_cause]
    rows.append(["unexplained", format_ns(lost.unexplained_ns), _share(lost.unexplained_ns, diagnosis), ""])
    interval = words.format_interval(lost.interval, diagnosis.interval_level)
    rows.append(["total", format_ns(lost.total_ns), format_ratio(lost.ratio), interval])
    jitter = "random, beside the total" if lost.jitter_ns is not None else ""
    rows.append(["jitter", format_ns(lost.jitter_ns), _share(lost.jitter_ns, diagnosis), jitter])
    if lost.gpu_ns is not None:
        rows.append(["GPU time", format_ns(lost.gpu_ns), "", "the total, summed over the GPUs that wait"])
    page.add_table(("cause", "lost", "share", "note"), rows, numbers=("lost", "share"))


def _share(lost_ns: int | None, diagnosis: Diagnosis) -> str:
    """Write a time as a share of the analysed steps, whose length follows from the total and its ratio."""
    total, ratio = diagnosis.lost.total_ns, diagnosis.lost.ratio
    if lost_ns is None or not total or not ratio:
        return words.ABSENT
    return format_ratio(lost_ns * ratio / total)


def _write_ranks(page: Page, diagnosis: Diagnosis) -> None:
    page.add_heading("Ranks")
    if not diagnosis.ranks:
        page.add_line("None could be told apart.", indent=INDENT)
        return
    named = {(finding.engine, number) for finding in diagnosis.findings for number in finding.ranks}
    ordered = sorted(diagnosis.ranks, key=lambda rank: ((rank.engine, rank.rank) not in named, rank.engine, rank.rank))
    shown = sorted(ordered[:MAX_RANK_ROWS], key=lambda rank: (rank.engine, rank.rank))
    rows = [_list_rank_cells(rank, (rank.engine, rank.rank) in named) for rank in shown]
    columns = ("rank", "work", "wait", "transfer", "idle", "known by", "process")
    page.add_table(columns, rows, numbers=("rank", "work", "wait", "transfer", "idle"))
    if len(shown) < len(diagnosis.ranks):
        page.add_line(f"and {len(diagnosis.ranks) - len(shown)} more; the JSON has all of them", indent=INDENT)
    if named and any(rank.wait_ns is not None for rank in diagnosis.ranks):
        page.add_line("* named above. The rank that the others wait for is the one that waits least.", indent=INDENT)


def _list_rank_cells(rank: Rank, is_named: bool) -> list[str]:
    label = str(rank.rank) if rank.engine in ("", "default") else f"{rank.engine} {rank.rank}"
    sureness = "" if rank.grade == "sure" else f", {rank.grade}"
    times = (rank.work_ns, rank.wait_ns, rank.transfer_ns, rank.idle_ns)
    return [
        f"* {label}" if is_named else label,
        *(format_ns(time_ns) for time_ns in times),
        f"{rank.identified_by}{sureness}",
        rank.process or words.ABSENT,
    ]


def _write_time(page: Page, diagnosis: Diagnosis) -> None:
    time, step = diagnosis.time, diagnosis.step
    kinds = ", ".join(f"{number} {kind}" for kind, number in sorted(time.step_kinds.items()))
    residual = f", residual {format_ns(time.clock_residual_ns)}" if time.clock_residual_ns is not None else ""
    span = words.ABSENT
    if time.start_ns is not None and time.end_ns is not None:
        span = format_ns(time.end_ns - time.start_ns)
    page.add_heading("What was measured")
    page.add_fields(
        [
            ("time", f"{span} on the clock '{time.clock}'{residual}"),
            ("steps", f"{time.steps} ({kinds})" if kinds else str(time.steps)),
            ("step", f"{format_ns(step.median_ns)} median, {format_ns(step.balanced_median_ns)} if ranks were even"),
            ("collectives", f"{time.collectives}, {_describe_match(time.matched_ratio)}"),
            ("replay error", f"{format_ratio(time.replay_error_ratio)} on steps predicted from their neighbours"),
        ]
    )


def _describe_match(matched_ratio: float | None) -> str:
    if matched_ratio is None:
        return "not matched across ranks"
    return f"{format_ratio(1 - matched_ratio)} of them not matched across ranks"


def _write_inputs(page: Page, diagnosis: Diagnosis) -> None:
    page.add_heading("Inputs")
    if not diagnosis.inputs:
        page.add_line("None.", indent=INDENT)
    for source in diagnosis.inputs:
        page.add_line(source.path, indent=INDENT)
        page.add_fields([("", text) for text in _describe_source(source)], label_width=1)


def _describe_source(source: Source) -> Iterator[str]:
    producer = f" {source.producer}" if source.producer else ""
    ranks = f", ranks {words.format_ranks(source.ranks)}" if source.ranks else ""
    yield f"{source.kind}{producer}, {source.status}: {words.count_of(source.kernels, 'kernel')}{ranks}"
    if source.lacked:
        yield f"lacks {', '.join(source.lacked)}"
    for warning in source.warnings:
        yield f"warning: {warning}"


def _write_abstentions(page: Page, abstentions: tuple[Abstention, ...]) -> None:
    if not abstentions:
        return
    page.add_heading("What cannot be told")
    # What shares a reason and a command is told once.
    shared: dict[tuple[str, tuple[str, ...], str | None], list[str]] = {}
    for item in abstentions:
        shared.setdefault((item.reason, item.lacked, item.get_it_with), []).append(item.cause)
    for (reason, missing, command), causes in shared.items():
        lacked = f" (lacks {', '.join(missing)})" if missing else ""
        page.add_line(f"{', '.join(causes)}: {reason}{lacked}", indent=INDENT)
        if command:
            page.add_fields([("", f"get it with: {command}")], label_width=1)


def _write_notes(page: Page, notes: tuple[str, ...]) -> None:
    if not notes:
        return
    page.add_heading("Notes")
    page.add_fields([("-", note) for note in notes], label_width=1)
