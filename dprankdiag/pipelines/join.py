"""One diagnosis of several: deployments that do not overlap in time are judged apart and told together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from dprankdiag.model.diagnosis import Abstention, Diagnosis, Lost, Status
from dprankdiag.model.sources import Source

_ORDER: tuple[Status, ...] = ("findings", "uniform", "inconclusive", "healthy")


def join_diagnoses(diagnoses: Sequence[Diagnosis], unusable: Sequence[Source]) -> Diagnosis:
    """Join diagnoses of deployments, whose engines have names of their own."""
    first = diagnoses[0]
    if len(diagnoses) == 1:
        return replace(first, inputs=(*first.inputs, *unusable))
    parts = list(diagnoses)
    lead = min(parts, key=lambda item: (_ORDER.index(item.status), -(item.lost.total_ns or 0)))
    findings = sorted((finding for part in parts for finding in part.findings), key=lambda item: -(item.lost_ns or 0))
    return replace(
        lead,
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
        abstentions=tuple({item.cause: item for part in parts for item in part.abstentions}.values()),
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
    )


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
    findings = sorted((finding for part in parts for finding in part.findings), key=lambda item: -(item.lost_ns or 0))
    base = traces or lead
    found = {finding.cause for finding in findings}
    told = {
        item.cause: item for part in reversed(parts) for item in _still_open(part, traces) if item.cause not in found
    }
    return replace(
        base,
        status=lead.status,
        headline=lead.headline,
        inputs=(*(source for part in parts for source in part.inputs), *(unusable if traces is None else ())),
        ranks=tuple({(rank.engine, rank.rank): rank for part in reversed(parts) for rank in part.ranks}.values()),
        findings=tuple(replace(finding, id=f"f{number}") for number, finding in enumerate(findings, 1)),
        abstentions=tuple(told.values()),
        notes=tuple(dict.fromkeys((*(note for part in parts for note in part.notes), *_note_strangers(parts)))),
    )


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
