"""One diagnosis of several: deployments that do not overlap in time are judged apart and told together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from dprankdiag.model.diagnosis import Diagnosis, Lost, Status
from dprankdiag.model.sources import Source

_ORDER: tuple[Status, ...] = ("findings", "uniform", "inconclusive", "healthy")


def join_diagnoses(diagnoses: Sequence[Diagnosis], unusable: Sequence[Source]) -> Diagnosis:
    """Join diagnoses; the engines of the second and later ones get their number, so that ranks stay unique."""
    first = diagnoses[0]
    if len(diagnoses) == 1:
        return replace(first, inputs=(*first.inputs, *unusable))
    parts = [first, *(_rename(item, number) for number, item in enumerate(diagnoses[1:], 2))]
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


def name_engine(engine: str, number: int) -> str:
    """Name an engine of the `number`-th deployment, counted from 1."""
    return engine if number == 1 else f"{engine}-{number}"


def _rename(diagnosis: Diagnosis, number: int) -> Diagnosis:
    return replace(
        diagnosis,
        ranks=tuple(replace(rank, engine=name_engine(rank.engine, number)) for rank in diagnosis.ranks),
        findings=tuple(replace(item, engine=name_engine(item.engine, number)) for item in diagnosis.findings),
    )


def _join_lost(parts: Sequence[Diagnosis]) -> Lost:
    """Keep the account of the part that leads: walls of deployments at different times do not add up."""
    known = [part.lost for part in parts if part.lost.total_ns is not None]
    if len(known) == 1:
        return known[0]
    return Lost(None, None, None, (), None, None, None)
