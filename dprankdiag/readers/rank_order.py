"""Decide which process is which rank, from graded evidence; where that does not carry, say that order was assumed."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dprankdiag.errors import InputError, UsageError
from dprankdiag.model.ranks import LARGEST_RANK, Rank, RankClaim
from dprankdiag.model.sources import Actor, Reading
from dprankdiag.readers.engines import DEFAULT, find_role
from dprankdiag.readers.rank_map import Seat


@dataclass(frozen=True, slots=True)
class RankOrder:
    """Who is which rank.

    Attributes:
        seats: reading and actor of each rank, in the order of `ranks`.
        ranks: sorted by rank.
        missing: ranks that should be there and are not.
        notes: what was decided and why.
    """

    seats: tuple[Seat, ...]
    ranks: tuple[Rank, ...]
    missing: tuple[int, ...]
    notes: tuple[str, ...]


def order_ranks(
    readings: Sequence[Reading],
    mapped: Mapping[Seat, int] | None = None,
    expect_ranks: int | None = None,
    engine: str = DEFAULT,
) -> RankOrder:
    """Give every actor of one deployment its rank.

    Args:
        readings: the files of the deployment.
        mapped: ranks that the user gave; they win.
        expect_ranks: how many ranks the user expects.
        engine: name of the deployment.

    Raises:
        InputError: two files claim the same rank.
        UsageError: the rank map leaves out processes whose rank nothing else tells.
    """
    notes: list[str] = []
    seats = [(number, actor) for number, reading in enumerate(readings) for actor in range(len(reading.actors))]
    claims = {seat: _choose_claim(_actor(readings, seat), len(seats), notes) for seat in seats}
    for seat, rank in (mapped or {}).items():
        claims[seat] = RankClaim("rank-map", "sure", rank, "named by the rank map")
    unnamed = [seat for seat in seats if claims[seat] is None]
    if mapped and unnamed:
        raise UsageError(f"the rank map leaves out {_describe(readings, unnamed[0])}", mend="name every process in it")
    numbers = None if unnamed else _number({seat: claim for seat, claim in claims.items() if claim}, readings)
    if numbers is None and mapped:
        raise UsageError("two processes have the same rank under the rank map", mend="name every process in it")
    if numbers is None:
        numbers = _assume_order(seats, readings)
        claims = {
            seat: RankClaim("order", "assumed", numbers[seat], "order of file, process and device") for seat in seats
        }
        if len(seats) > 1:
            notes += _note_same_claims(readings, seats)
            notes.append(
                "nothing sure tells the ranks apart: they are assumed in the order of file, process id and device; "
                "--rank-map FILE names them"
            )
    ordered = sorted(seats, key=lambda seat: numbers[seat])
    ranks = tuple(_make_rank(readings, seat, numbers[seat], claims[seat], engine) for seat in ordered)
    missing = _find_missing(readings, ranks, [claim for claim in claims.values() if claim], expect_ranks, notes)
    return RankOrder(tuple(ordered), ranks, missing, tuple(notes))


def _note_same_claims(readings: Sequence[Reading], seats: Sequence[Seat]) -> list[str]:
    """Say it where every recording claims to be the same rank, as replicas that do not know of each other do."""
    texts = {claim.text: claim for seat in seats for claim in _actor(readings, seat).claims if claim.rank is not None}
    same = [
        text
        for text, claim in texts.items()
        if all(any(other.rank == claim.rank for other in _actor(readings, seat).claims) for seat in seats)
    ]
    return [f"all {len(seats)} recordings claim to be one rank ({same[0]})"] if same else []


def _choose_claim(actor: Actor, n_actors: int, notes: list[str]) -> RankClaim | None:
    """Take the strongest claim; None if there is none, or one as strong says otherwise.

    A rank in a communicator smaller than the deployment is no rank of the deployment.
    """
    usable = [claim for claim in actor.claims if _is_usable(claim, n_actors)]
    if not usable:
        return None
    best = min(usable, key=lambda claim: claim.grade != "sure")
    for other in usable:
        if other.rank is not None and best.rank is not None and other.rank != best.rank:
            notes.append(f"pid {actor.pid}: {best.text}, but {other.text}")
            if other.grade == best.grade:
                return None
    return best


def _is_usable(claim: RankClaim, n_actors: int) -> bool:
    if claim.grade == "assumed" or (claim.world or n_actors) < n_actors:
        return False
    known = [number for number in (claim.rank, *_axes(claim)) if number is not None]
    return bool(known) and max(known) <= LARGEST_RANK


def _axes(claim: RankClaim) -> tuple[int | None, int | None, int | None]:
    return claim.dp_rank, claim.pp_rank, claim.tp_rank


def _number(claims: Mapping[Seat, RankClaim], readings: Sequence[Reading]) -> dict[Seat, int] | None:
    """Turn claims into ranks; None if they do not tell the processes of one file apart."""
    ranks = {seat: claim.rank for seat, claim in claims.items() if claim.rank is not None}
    if len(ranks) == len(claims) == len(set(ranks.values())):
        return ranks
    by_axes = _number_axes(claims)
    if by_axes is not None:
        return by_axes
    if len(ranks) < len(claims):
        return None
    owners: dict[int, list[Seat]] = defaultdict(list)
    for seat, rank in ranks.items():
        owners[rank].append(seat)
    for rank, seats in sorted(owners.items()):
        first, *others = seats
        for other in others:
            if other[0] != first[0] and "likely" not in (claims[first].grade, claims[other].grade):
                raise _refuse(readings, rank, first, other)
    return None


def _refuse(readings: Sequence[Reading], rank: int, first: Seat, other: Seat) -> InputError:
    files = [readings[seat[0]].source.path for seat in (first, other)]
    return InputError(
        f"rank {rank} is claimed by two files, {files[0]} and {files[1]}",
        mend="give each rank's file once, or name the ranks with --rank-map FILE",
    )


def _number_axes(claims: Mapping[Seat, RankClaim]) -> dict[Seat, int] | None:
    """Number by the axes of parallelism, TP innermost.

    With attention data parallelism TP counts through all GPUs of a stage and DP follows from it; else replicas of
    pipelines stand one after the other. Source: vllm@v0.33.0 vllm/distributed/parallel_state.py (rank of a worker);
    sglang@v0.5.23 python/sglang/srt/layers/dp_attention.py.
    """
    axes = {seat: _axes(claim) for seat, claim in claims.items()}
    if any(all(number is None for number in numbers) for numbers in axes.values()):
        return None
    filled = {seat: tuple(number or 0 for number in numbers) for seat, numbers in axes.items()}
    if len(set(filled.values())) < len(filled):
        return None
    _, pp_size, tp_size = (1 + max(numbers[axis] for numbers in filled.values()) for axis in range(3))
    inner = {(pp, tp) for _, pp, tp in filled.values()}
    dp_weight = 0 if len(inner) == len(filled) else pp_size * tp_size
    ranks = {seat: dp * dp_weight + pp * tp_size + tp for seat, (dp, pp, tp) in filled.items()}
    return ranks if max(ranks.values()) <= LARGEST_RANK else None


def _assume_order(seats: Sequence[Seat], readings: Sequence[Reading]) -> dict[Seat, int]:
    files = sorted(range(len(readings)), key=lambda number: order_file(readings[number].source.path))
    place = {number: position for position, number in enumerate(files)}
    ordered = sorted(seats, key=lambda seat: (place[seat[0]], seat[1]))
    return {seat: rank for rank, seat in enumerate(ordered)}


def order_file(path: str) -> tuple[tuple[str, int], ...]:
    """Return a sort key by which rank_10 comes after rank_2."""
    parts = [*re.split(r"(\d+)", Path(path).name), path]
    return tuple((part, 0) if not part.isdecimal() else ("", int(part)) for part in parts)


def _find_missing(
    readings: Sequence[Reading],
    ranks: Sequence[Rank],
    claims: Sequence[RankClaim],
    expect_ranks: int | None,
    notes: list[str],
) -> tuple[int, ...]:
    present = {rank.rank for rank in ranks}
    announced = [claim.world for claim in claims if claim.world]
    announced += [reading.capture.expected_ranks for reading in readings if reading.capture.expected_ranks]
    expected = expect_ranks if expect_ranks is not None else max((n for n in announced if n <= LARGEST_RANK), default=0)
    if expect_ranks is not None and len(ranks) > expect_ranks:
        notes.append(f"{expect_ranks} ranks expected, {len(ranks)} found")
    missing = tuple(sorted(set(range(max([expected - 1, *present]) + 1)) - present)) if ranks else ()
    if missing:
        shown = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
        which = "which of them is a guess, since ranks are assumed" if ranks[0].grade == "assumed" else f"rank {shown}"
        notes.append(f"{len(missing)} of {len(missing) + len(present)} ranks are not in the input: {which}")
    return missing


def _make_rank(readings: Sequence[Reading], seat: Seat, number: int, claim: RankClaim | None, engine: str) -> Rank:
    actor, session = _actor(readings, seat), readings[seat[0]].session
    source = claim or RankClaim("order", "assumed", number, "")
    made = Rank(
        engine=engine,
        rank=number,
        level="gpu",
        role=find_role(engine),
        identified_by=source.source,
        grade=source.grade,
        host=session.host,
        device=actor.device,
        gpu=actor.gpu,
        pid=actor.pid,
        process=f"{actor.process} (pid {actor.pid})" if actor.process else f"pid {actor.pid}",
    )
    if source.grade == "assumed":
        return made
    for other in (source, *actor.claims):
        made = replace(
            made,
            dp_rank=other.dp_rank if made.dp_rank is None else made.dp_rank,
            tp_rank=other.tp_rank if made.tp_rank is None else made.tp_rank,
            pp_rank=other.pp_rank if made.pp_rank is None else made.pp_rank,
            ep_rank=other.ep_rank if made.ep_rank is None else made.ep_rank,
        )
    return made


def _actor(readings: Sequence[Reading], seat: Seat) -> Actor:
    return readings[seat[0]].actors[seat[1]]


def _describe(readings: Sequence[Reading], seat: Seat) -> str:
    return f"pid {_actor(readings, seat).pid} of {readings[seat[0]].source.path}"
