"""Order answers about one target by what they hold: counters only grow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cmp_to_key
from typing import Any

import numpy as np

from dprankdiag.catalog.ledger import load_fields
from dprankdiag.errors import UsageError
from dprankdiag.model.ledgers import LedgerAnswer
from dprankdiag.units import NS_PER_S

_WHY = "two targets with equal labels, or a page cut short?"
_MEND = "name them: dprankdiag analyze A=PATH B=PATH; after a restart say when: A@0=PATH A@15=PATH"


def order_answers(
    answers: Sequence[LedgerAnswer], at_s: Sequence[float | None]
) -> tuple[tuple[LedgerAnswer, ...], tuple[int, ...], tuple[str, ...]]:
    """Order answers of one interface and one target.

    The user's seconds decide, then stamps, then counters: the answer whose counters are at least as large in all series
    is the later one. Where the counters of some ranks fall, these have restarted and the others decide.

    Returns:
        The answers in order, their places before, and notes.

    Raises:
        UsageError: two answers contradict each other, so that they are of two targets with equal labels.
    """
    places = range(len(answers))
    if any(second is not None for second in at_s):
        kept, notes = _keep_said(answers, at_s)
        return tuple(answers[place] for place in kept), tuple(kept), notes
    stamps = [stamp_of(answer) for answer in answers]
    if None not in stamps and len(moments := _part_by_stamps(answers)) > 1:
        ordered = [max(moment, key=lambda place: _count_told(answers[place])) for moment in moments]
        return tuple(answers[place] for place in ordered), tuple(ordered), ()
    by_name = sorted(places, key=lambda place: answers[place].where)
    ordered = sorted(by_name, key=cmp_to_key(_compare_of(answers)))
    kept, notes = _drop_repeats([answers[place] for place in ordered], ordered)
    return tuple(answers[place] for place in kept), tuple(kept), notes


def stamp_of(answer: LedgerAnswer) -> float | None:
    """Return the second an answer was made at: by the freshest snapshot in it, else when it was taken; None if unknown.

    Two formats of one load answer carry the same snapshots and are of one moment.
    """
    snapshots = answer.values.get("load_stamp_s")
    if snapshots is not None and not np.isnan(snapshots).all():
        return float(np.nanmax(snapshots))
    return None if answer.taken_ns is None else answer.taken_ns / NS_PER_S


def _keep_said(answers: Sequence[LedgerAnswer], at_s: Sequence[float | None]) -> tuple[list[int], tuple[str, ...]]:
    """Order answers by the user's seconds; of several at one second the one that tells most is kept.

    Raises:
        UsageError: not all have one.
    """
    by_second: dict[float, int] = {}
    notes: list[str] = []
    for place, second in enumerate(at_s):
        if second is None:
            mend = "say it of all: dprankdiag analyze A@0=PATH A@15=PATH"
            raise UsageError("its seconds are not said, those of others are", where=answers[place].where, mend=mend)
        other = by_second.setdefault(second, place)
        if other != place:
            fuller = max(other, place, key=lambda one: _count_told(answers[one]))
            left = answers[other if fuller == place else place].where
            notes.append(f"{left} left out: {answers[fuller].where} is said to be of the same second")
            by_second[second] = fuller
    return [by_second[second] for second in sorted(by_second)], tuple(notes)


def _part_by_stamps(answers: Sequence[LedgerAnswer]) -> list[list[int]]:
    """Part answers into moments, in order.

    Answers with the same snapshots are of one moment, unless they say that they were given at different seconds: then
    no rank has published in between.
    """
    moments: dict[tuple[float, int], list[int]] = {}
    spare: dict[float, list[int]] = {}
    for place, answer in enumerate(answers):
        stamp = stamp_of(answer) or 0.0
        if answer.taken_ns is None:
            spare.setdefault(stamp, []).append(place)
        else:
            moments.setdefault((stamp, answer.taken_ns // NS_PER_S), []).append(place)
    for stamp, extra in spare.items():
        home = min((key for key in moments if key[0] == stamp), default=(stamp, 0))
        moments.setdefault(home, []).extend(extra)
    return [moments[key] for key in sorted(moments)]


def _count_told(answer: LedgerAnswer) -> int:
    return len(answer.ranks) * max(len(answer.values), 1)


def _compare_of(answers: Sequence[LedgerAnswer]) -> Callable[[int, int], int]:
    return lambda one, other: _compare(answers[one], answers[other])


def _compare(one: LedgerAnswer, other: LedgerAnswer) -> int:
    """Return -1 if `one` is earlier, 1 if later, 0 if neither can be told."""
    votes = _vote_by_rank(one, other)
    if votes is None or not votes.any():
        return 0
    later, earlier = int((votes > 0).sum()), int((votes < 0).sum())
    if later == earlier:
        raise UsageError(
            f"counters of as many ranks grow as fall against {one.where}: {_WHY}",
            where=other.where,
            mend=_MEND,
        )
    return -1 if later > earlier else 1


def _vote_by_rank(one: LedgerAnswer, other: LedgerAnswer) -> np.ndarray[Any, np.dtype[np.int8]] | None:
    """Say of each common rank whether its counters grow (1), stand or tell nothing (0) or fall (-1) from one to other.

    A rank that has restarted may have passed some of its old counters already: it tells nothing.

    Raises:
        UsageError: of half of the ranks or more some counters grow and others fall.
    """
    common = _list_common(one, other)
    fields = load_fields()
    names = [name for name in one.values if name in other.values and name in fields and fields[name].kind == "counter"]
    if not names or not common:
        return None
    mine = [one.ranks.index(rank) for rank in common]
    theirs = [other.ranks.index(rank) for rank in common]
    change = np.array([other.values[name][theirs] - one.values[name][mine] for name in names])
    grows, falls = (change > 0).any(axis=0), (change < 0).any(axis=0)
    mixed = grows & falls
    if 2 * int(mixed.sum()) >= len(common):
        rank = common[int(np.flatnonzero(mixed)[0])]
        raise UsageError(
            f"counters of rank {rank} grow and fall against {one.where}: {_WHY}",
            where=other.where,
            mend=_MEND,
        )
    votes = np.zeros(len(common), np.int8)
    votes[grows & ~mixed] = 1
    votes[falls & ~mixed] = -1
    return votes


def _list_common(one: LedgerAnswer, other: LedgerAnswer) -> list[int]:
    return [rank for rank in one.ranks if rank in other.ranks]


def _drop_repeats(answers: Sequence[LedgerAnswer], places: Sequence[int]) -> tuple[list[int], tuple[str, ...]]:
    """Leave out answers that repeat the one before; where nothing tells the order, say so."""
    kept = [places[0]]
    notes: list[str] = []
    last = answers[0]
    for answer, place in zip(answers[1:], places[1:], strict=True):
        votes = _vote_by_rank(last, answer)
        common = _list_common(last, answer)
        if votes is None:
            if common:
                notes.append(f"{last.where} and {answer.where} hold no counters: taken in the order of their names")
        elif not votes.any() and _tell_alike(last, answer):
            notes.append(f"{answer.where} is of the same moment as {last.where}: nothing has grown")
            continue
        elif (votes < 0).any():
            fallen = ", ".join(str(common[int(one)]) for one in np.flatnonzero(votes < 0))
            notes.append(f"counters of rank {fallen} fell: restarted between {last.where} and {answer.where}")
        kept.append(place)
        last = answer
    return kept, tuple(notes)


def _tell_alike(one: LedgerAnswer, other: LedgerAnswer) -> bool:
    return set(one.values) == set(other.values) and all(
        np.array_equal(told, other.values[name], equal_nan=True) for name, told in one.values.items()
    )
