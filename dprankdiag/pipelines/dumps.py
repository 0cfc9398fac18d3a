"""From Flight Recorder dumps to a diagnosis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from dprankdiag.analysis.absences import FlightView, find_absences
from dprankdiag.classifiers import BY_DUMPS
from dprankdiag.classifiers.base import name_numbers
from dprankdiag.errors import InputError
from dprankdiag.model.claims import UntimedClaim
from dprankdiag.model.diagnosis import Abstention, Diagnosis, TimeAccount
from dprankdiag.model.flight_dumps import FlightDump
from dprankdiag.model.ranks import Grade, Rank
from dprankdiag.pipelines.untimed import ENGINE, NO_TIME, abstain_by_input, conclude_untimed, make_finding

NOT_SHOWN = ("single_point.unknown", "load.unknown", "structural.unknown", "communication.unknown")
BASIS = "a hang has no end to count to"
MOST_CONFIDENT: Mapping[Grade, float] = {"sure": 0.99, "likely": 0.99, "assumed": 0.9}


def diagnose_dumps(
    dumps: Sequence[FlightDump], expect_ranks: int | None = None, rank_map: Mapping[str, int] | None = None
) -> Diagnosis:
    """Judge the dumps of a deployment together.

    Args:
        rank_map: ranks by ``FILE``; they win over the file's name.

    Raises:
        InputError: two dumps claim one rank.
    """
    seated = _seat(dumps, rank_map or {})
    by_rank = {dump.rank: dump for dump in seated if dump.rank is not None}
    seen = find_absences(by_rank, expect_ranks)
    said = [item for classifier in BY_DUMPS for item in classifier.judge_dumps(seen)]
    grades: dict[int, Grade] = {rank: dump.grade for rank, dump in by_rank.items()}
    findings = [
        make_finding(claim, BASIS, min(MOST_CONFIDENT[grades.get(rank, "likely")] for rank in claim.ranks))
        for claim in said
        if isinstance(claim, UntimedClaim)
    ]
    reasons = tuple(item for item in said if isinstance(item, Abstention))
    return conclude_untimed(
        findings,
        f"Cannot tell which rank is absent: {reasons[0].reason}" if reasons else _even(seen),
        tuple(dump.source for dump in seated),
        tuple(_make_rank(dump) for dump in sorted(seated, key=lambda dump: dump.rank or 0)),
        (*reasons, *abstain_by_input("flight-recorder", NOT_SHOWN, findings)),
        tuple(_notes(seated, seen)),
        _time(seen),
    )


def _time(seen: FlightView) -> TimeAccount:
    clock = "none" if seen.first_ns is None else "utc"
    return replace(NO_TIME, clock=clock, start_ns=seen.first_ns, end_ns=seen.last_ns, collectives=seen.collectives)


def _seat(dumps: Sequence[FlightDump], rank_map: Mapping[str, int]) -> list[FlightDump]:
    """Give every dump its rank: mapped, told by the dump or its name, else the lowest that is free."""
    told = [_map(dump, rank_map) for dump in dumps]
    taken: dict[int, str] = {}
    for dump in told:
        if dump.rank is None:
            continue
        if dump.rank in taken:
            text = f"rank {dump.rank} has a dump already ({taken[dump.rank]})"
            raise InputError(text, where=dump.source.path, mend="give one dump a rank, or a --rank-map")
        taken[dump.rank] = dump.source.path
    free = (number for number in range(len(dumps) + len(taken) + 1) if number not in taken)
    return [_place(dump, next(free), "assumed") if dump.rank is None else dump for dump in told]


def _map(dump: FlightDump, rank_map: Mapping[str, int]) -> FlightDump:
    for key in (dump.source.path, Path(dump.source.path).name):
        if key in rank_map:
            return _place(dump, rank_map[key], "sure")
    return dump


def _place(dump: FlightDump, rank: int, grade: Grade) -> FlightDump:
    return replace(dump, rank=rank, grade=grade, source=replace(dump.source, ranks=(rank,)))


def _make_rank(dump: FlightDump) -> Rank:
    by = {"sure": "dump", "likely": "file-name", "assumed": "order"}[dump.grade]
    return Rank(ENGINE, dump.rank or 0, "gpu", by, dump.grade)


def _even(seen: FlightView) -> str:
    return (
        f"No rank is behind: nobody waits in a collective in the dumps of {len(seen.ranks)} ranks; how fast each is, "
        "such dumps cannot tell"
    )


def _notes(dumps: Sequence[FlightDump], seen: FlightView) -> Iterator[str]:
    if seen.missing:
        yield f"{name_numbers(seen.missing)} left no dump: a missing file is a suspect"
    yield from seen.mismatches
    pending = sum(dump.pending_sends for dump in dumps)
    if pending:
        yield f"{pending} sends and receives have not completed; only collectives are compared"
    for stall in seen.stalls[1:]:
        yield f"{len(stall.waiting)} ranks wait in call {stall.sequence} of group {stall.group} as well"
