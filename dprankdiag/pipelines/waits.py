"""From a receive-wait matrix to a diagnosis."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dprankdiag.analysis.awaited import WaitView, judge_waits
from dprankdiag.classifiers import BY_WAITS
from dprankdiag.classifiers.base import times
from dprankdiag.model.diagnosis import Abstention, Diagnosis
from dprankdiag.model.ranks import Rank
from dprankdiag.model.wait_matrix import WaitMatrix
from dprankdiag.pipelines.untimed import ENGINE, abstain_by_input, conclude_untimed, make_finding
from dprankdiag.units import format_ratio

MOST_CONFIDENT = 0.8
"""Counters alone carry no more (DESIGN 3)."""

NOT_SHOWN = (
    "single_point.gpu",
    "single_point.host",
    "load.unknown",
    "structural.unknown",
    "communication.unknown",
    "uniform.slow",
)
"""One cause for each question that a matrix leaves open."""

BASIS = "ratios of waits, which have no time"


def diagnose_waits(matrix: WaitMatrix) -> Diagnosis:
    """Judge one matrix."""
    seen = judge_waits(matrix)
    claims = [claim for classifier in BY_WAITS for claim in classifier.judge_waits(seen)]
    claims.sort(key=lambda claim: (-(claim.evidence[0].value or 0.0), claim.ranks))
    findings = [make_finding(claim, BASIS, MOST_CONFIDENT) for claim in claims]
    return conclude_untimed(
        findings,
        _headline(seen),
        (matrix.source,),
        tuple(_make_rank(rank, matrix) for rank in seen.ranks),
        tuple(abstain_by_input("matrix", NOT_SHOWN, findings)) + _abstain_wholly(seen),
        tuple(_notes(matrix, seen)),
    )


def _make_rank(rank: int, matrix: WaitMatrix) -> Rank:
    by = "matrix-label" if matrix.grade == "sure" else "order"
    return Rank(ENGINE, rank, "gpu", by, matrix.grade)


def _headline(seen: WaitView) -> str:
    if seen.reason:
        return f"Cannot tell which rank is slow: {seen.reason}"
    return (
        f"No rank stands out among the waits of {len(seen.ranks)} ranks for each other; how much time a difference too "
        "small to show would cost, a wait matrix cannot tell"
    )


def _abstain_wholly(seen: WaitView) -> tuple[Abstention, ...]:
    """Say of what a matrix shows at its best that this one does not."""
    if not seen.reason:
        return ()
    return tuple(
        Abstention(cause, seen.reason, ("waits of more ranks",), None)
        for cause in ("single_point.unknown", "single_point.link")
    )


def _notes(matrix: WaitMatrix, seen: WaitView) -> Iterator[str]:
    name = Path(matrix.source.path).name
    if seen.blocks is not None and seen.blocks.node_size is not None and seen.blocks.ratio is not None:
        yield (
            f"{name}: waits between groups of {seen.blocks.node_size} neighbouring ranks are up to "
            f"{times(seen.blocks.ratio)} those inside one: taken as nodes and left out of the comparison; a whole node "
            "that is late may look the same"
        )
    if seen.noise_ratio is not None:
        yield f"{name}: a single wait scatters by {format_ratio(seen.noise_ratio)} around its row and column"
    if matrix.source.lacked:
        yield f"{name} lacks {' and '.join(matrix.source.lacked)}: those ranks are judged by what the others tell"
    if matrix.grade == "assumed":
        yield f"{name} names no ranks: rows and columns are taken to count from 0"
