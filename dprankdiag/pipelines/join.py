"""One diagnosis of several: deployments that do not overlap in time are judged apart and told together."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from dprankdiag.model.diagnosis import Abstention, Diagnosis, Finding, Lost, Severity, Status, TimeWindow
from dprankdiag.model.sources import Source
from dprankdiag.pipelines.verdict import describe_even

_SEVERITIES: tuple[Severity, ...] = ("critical", "warning", "info")
_MORE = re.compile(r" \(and \d+ more\)$")
_ORDER: tuple[Status, ...] = ("findings", "uniform", "inconclusive", "healthy")


def join_diagnoses(diagnoses: Sequence[Diagnosis], unusable: Sequence[Source]) -> Diagnosis:
    """Join diagnoses of deployments, whose engines have names of their own."""
    first = diagnoses[0]
    if len(diagnoses) == 1:
        return replace(first, inputs=(*first.inputs, *unusable))
    parts = list(diagnoses)
    lead = min(parts, key=lambda item: (_ORDER.index(item.status), -(item.lost.total_ns or 0)))
    findings = sorted(
        (finding for part in parts for finding in part.findings),
        key=lambda item: (-(item.lost_ns or 0), _SEVERITIES.index(item.severity)),
    )
    return replace(
        lead,
        headline=_tell_engines(parts, lead),
        inputs=(*(source for part in parts for source in part.inputs), *unusable),
        ranks=tuple(rank for part in parts for rank in part.ranks),
        time=replace(
            lead.time,
            steps=sum(part.time.steps for part in parts),
            step_kinds=dict(sum((Counter(part.time.step_kinds) for part in parts), Counter())),
            collectives=sum(part.time.collectives for part in parts),
        ),
        lost=_join_lost(parts),
        findings=tuple(replace(finding, id=f"f{number}") for number, finding in enumerate(findings, 1)),
        abstentions=tuple(_join_abstentions(parts)),
        notes=tuple(_join_notes(parts)),
    )


def _name_engine(part: Diagnosis) -> str:
    return next((rank.engine for rank in part.ranks), "an engine without ranks")


def _tell_engines(parts: Sequence[Diagnosis], lead: Diagnosis) -> str:
    """Say whose headline it is, since engines number their ranks alike, and what else was found."""
    if lead.status == "healthy":
        steps, ranks = sum(part.time.steps for part in parts), sum(len(part.ranks) for part in parts)
        return f"{describe_even(steps, ranks)} of {len(parts)} engines"
    return f"{_name_engine(lead)}: {_count_more(lead, [item for part in parts for item in part.findings])}"


def _count_more(lead: Diagnosis, findings: Sequence[Finding]) -> str:
    """Let a headline about one finding count all others of warning or above."""
    if lead.status != "findings":
        return lead.headline
    more = sum(finding.severity != "info" for finding in findings) - 1
    return _MORE.sub("", lead.headline) + (f" (and {more} more)" if more > 0 else "")


def _join_notes(parts: Sequence[Diagnosis]) -> Iterator[str]:
    """List the notes, those that not all engines have with the engine's name."""
    for part in parts:
        for note in part.notes:
            if all(note in other.notes for other in parts):
                if part is parts[0]:
                    yield note
            else:
                yield f"{_name_engine(part)}: {note}"


def _join_abstentions(parts: Sequence[Diagnosis]) -> Iterator[Abstention]:
    """List each cause once, with the engines where not all have the same reason."""
    said: dict[str, dict[str, Abstention]] = {}
    for part in parts:
        for item in part.abstentions:
            said.setdefault(item.cause, {})[_name_engine(part)] = item
    for by_engine in said.values():
        first = next(iter(by_engine.values()))
        if len(by_engine) < len(parts) or any(item.reason != first.reason for item in by_engine.values()):
            engines: dict[str, list[str]] = {}
            for engine, item in by_engine.items():
                engines.setdefault(item.reason, []).append(engine)
            text = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in engines.items())
            lacked = tuple(sorted({name for item in by_engine.values() for name in item.lacked}))
            help_with = next((item.get_it_with for item in by_engine.values() if item.get_it_with), None)
            first = Abstention(first.cause, text, lacked, help_with)
        yield first


def count_from_own_start(joined: Diagnosis, parts: Sequence[Diagnosis]) -> Diagnosis:
    """Let the moments of every engine count from its own first analysed event: engines do not share a time axis.

    Args:
        joined: on the axis of one of the parts.
        parts: the diagnoses that were joined.
    """
    origin_ns = joined.time.start_ns
    begins = {_name_engine(part): part.time.start_ns for part in parts}
    if len(parts) < 2 or origin_ns is None:
        return joined
    shifts = {engine: origin_ns - begin for engine, begin in begins.items() if begin is not None}
    return replace(joined, findings=tuple(_shift(item, shifts.get(item.engine, 0)) for item in joined.findings))


def _shift(finding: Finding, by_ns: int) -> Finding:
    window = TimeWindow(finding.window.start_ns + by_ns, finding.window.end_ns + by_ns)
    onset_ns = None if finding.onset_ns is None else finding.onset_ns + by_ns
    return replace(finding, window=window, onset_ns=onset_ns)


def join_kinds(traces: Diagnosis | None, others: Sequence[Diagnosis], unusable: Sequence[Source]) -> Diagnosis:
    """Tell what traces show together with what matrices and dumps show.

    They are inputs of one deployment: a rank is listed once. A trace can prove ranks even where the others cannot, so
    its status stands unless one of them found something of warning or above.

    Args:
        traces: what all traces show; None if there are none.
        others: one a matrix, and one of all dumps; at least one if there are no traces.
    """
    if traces is not None and not others:
        return traces
    parts = [*([traces] if traces is not None else []), *others]
    lead = min(parts, key=lambda item: (item.status != "findings", item is not traces, not item.findings))
    timed = traces or next((part for part in parts if part.time.start_ns is not None), lead)
    findings = sorted(
        (finding for part in parts for finding in _list_placed(part, timed)),
        key=lambda item: (-(item.lost_ns or 0), _SEVERITIES.index(item.severity)),
    )
    found = {finding.cause for finding in findings}
    told = {
        item.cause: item for part in reversed(parts) for item in _still_open(part, traces) if item.cause not in found
    }
    return replace(
        timed,
        status=lead.status,
        headline=_count_more(lead, findings),
        inputs=(*(source for part in parts for source in part.inputs), *(unusable if traces is None else ())),
        ranks=tuple({(rank.engine, rank.rank): rank for part in reversed(parts) for rank in part.ranks}.values()),
        findings=tuple(replace(finding, id=f"f{number}") for number, finding in enumerate(findings, 1)),
        abstentions=tuple(told.values()),
        notes=tuple(dict.fromkeys((*(note for part in parts for note in part.notes), *_note_strangers(parts)))),
    )


def _list_placed(part: Diagnosis, timed: Diagnosis) -> Iterator[Finding]:
    """List a part's findings; a window on another clock than the diagnosis has says nothing."""
    for finding in part.findings:
        yield finding if part is timed else replace(finding, window=TimeWindow(0, 0), onset_ns=None)


def _note_strangers(parts: Sequence[Diagnosis]) -> Iterator[str]:
    """Say where inputs speak of different ranks: they may be of different deployments."""
    numbers = [{rank.rank for rank in part.ranks} for part in parts if part.ranks]
    if any(one != numbers[0] for one in numbers):
        sizes = " and ".join(str(size) for size in sorted({len(one) for one in numbers}))
        yield f"inputs of {sizes} ranks are told together although they do not speak of the same ranks"


def _still_open(part: Diagnosis, traces: Diagnosis | None) -> tuple[Abstention, ...]:
    """List what a part could not tell; what only asks for a trace is no news where there is one."""
    if traces is None or part is traces:
        return part.abstentions
    return tuple(item for item in part.abstentions if item.get_it_with is None)


def _join_lost(parts: Sequence[Diagnosis]) -> Lost:
    """Keep the account of the part that leads: walls of deployments at different times do not add up."""
    known = [part.lost for part in parts if part.lost.total_ns is not None]
    if len(known) == 1:
        return known[0]
    return Lost(None, None, None, (), None, None, None)
