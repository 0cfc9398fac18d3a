"""Find, for the calls of a group, which of them belong to one meeting."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from dprankdiag.analysis.calls import Calls
from dprankdiag.analysis.clocks import nearest
from dprankdiag.analysis.statistics import median

IntArray = np.ndarray[Any, np.dtype[np.int64]]
FloatArray = np.ndarray[Any, np.dtype[np.float64]]

CLOCK_SLACK_NS = 50_000
"""GPUs of one host show end offsets of up to 30 µs on the profiler's clock."""

WINDOW = 32
"""Events over which a shift between two ranks' sequences is judged."""

REACH = 4
"""Shifts tried on each side of the one before."""

LOST_ROWS = 2
"""So many rows may have been lost before the first even window or after the last."""

NARROW = 0.1
"""Quantile of the distances in a sequence that counts as its narrowest place."""

CLEARLY = 0.5
"""Another shift is believed if distances scatter at most so much of what they do under the one before."""

BLOCK_CALLS = 1 << 16
"""Calls looked at together: so many numbers stay in the processor's caches."""

RUN = 9
"""Calls over which the order must agree before it overrules the nearest end."""


def match_complete(members: Sequence[Calls]) -> IntArray:
    """Match the calls of a group as `match_rows` does, and keep the meetings in which nobody is missing."""
    index = match_rows(members)
    whole = (index >= 0).all(axis=1)
    return index if whole.all() else index[whole]


def match_rows(members: Sequence[Calls]) -> IntArray:
    """Match the calls of a group: `(n, n_members)` indices into each member's calls, -1 where one has no partner.

    Two calls are partners if they bear one number in one process group; where calls are not numbered, if they overlap
    in time and each one's end is the nearest to the other's.
    """
    lead = max(range(len(members)), key=lambda position: (len(members[position]), -position))
    reference = members[lead]
    order = np.arange(len(reference))
    if reference.sequence is not None and all(member.sequence is not None for member in members):
        return np.stack([_find_number(member.sequence, reference.sequence) for member in members], axis=1)
    if _meet_in_order(reference, members):
        return np.broadcast_to(order[:, None], (len(order), len(members)))
    index = np.full((len(reference), len(members)), -1, np.int64)
    index[:, lead] = order
    reference_ends = _ascending(reference.end_ns)
    for position, member in enumerate(members):
        if position == lead:
            continue
        partner, _ = nearest(_ascending(member.end_ns), reference.end_ns)
        back, _ = nearest(reference_ends, member.end_ns)
        mutual = back[partner] == order
        partner = np.where(mutual & _overlap(reference, member, partner), partner, -1)
        index[:, position] = _mend_runs(reference, member, partner)
    return index


def _meet_in_order(reference: Calls, members: Sequence[Calls]) -> bool:
    """Tell at a glance that the k-th calls of all are one meeting: ends lie closer than any two of one, all overlap."""
    if len(reference) < 2 or any(len(member) != len(reference) for member in members):
        return False
    slack = _clock_slack(reference)
    farthest, closest = 0, np.iinfo(np.int64).max
    block = max(1, BLOCK_CALLS // len(reference))
    for low in range(0, len(members), block):
        some = members[low : low + block]
        ends, starts = np.stack([member.end_ns for member in some]), np.stack([member.start_ns for member in some])
        farthest = max(farthest, int(np.abs(ends - reference.end_ns).max()))
        closest = min(closest, int(np.diff(ends, axis=1).min()))
        overlap = (starts <= reference.end_ns + slack).all() and (reference.start_ns <= ends + slack).all()
        if farthest * 2 >= closest or not overlap:
            return False
    return True


def _find_number(numbers: IntArray | None, wanted: IntArray) -> IntArray:
    """Return the index of each wanted number, -1 where it is not there."""
    if numbers is None or not len(numbers):
        return np.full(len(wanted), -1, np.int64)
    order = np.argsort(numbers, kind="stable")
    place = np.minimum(np.searchsorted(numbers[order], wanted), len(numbers) - 1)
    return np.where(numbers[order][place] == wanted, order[place], -1)


def _overlap(reference: Calls, member: Calls, partner: IntArray) -> np.ndarray[Any, np.dtype[np.bool_]]:
    slack = _clock_slack(reference)
    return np.asarray(
        (member.start_ns[partner] <= reference.end_ns + slack) & (reference.start_ns <= member.end_ns[partner] + slack)
    )


def _clock_slack(calls: Calls) -> int:
    """Return by how much the stamps of two GPUs may miss each other without hiding that their calls overlapped."""
    if len(calls) < 2:
        return CLOCK_SLACK_NS
    return min(CLOCK_SLACK_NS, int(median(np.diff(calls.end_ns))) // 4)


def _mend_runs(reference: Calls, member: Calls, partner: IntArray) -> IntArray:
    """Let the order of the calls decide where the nearest end does not.

    Between two losses the k-th call of one meets the k-th of the other, moved by a constant. A call whose end is far
    from its partners' (a late exit, a long transfer) is matched by that constant, if the two overlap in time.

    Args:
        partner: `(n,)` index into the member's calls, -1 where none was found.
    """
    found = np.flatnonzero(partner >= 0)
    if len(found) < RUN:
        return partner
    shift = partner[found] - found
    if len(found) == len(partner) and (shift == shift[0]).all():
        return partner
    padded = np.concatenate([np.repeat(shift[:1], RUN // 2), shift, np.repeat(shift[-1:], RUN // 2)])
    local = np.median(np.lib.stride_tricks.sliding_window_view(padded, RUN), axis=1).astype(np.int64)
    kept = found[shift == local]
    if not len(kept):
        return partner
    order = np.arange(len(partner))
    after = np.minimum(np.searchsorted(kept, order), len(kept) - 1)
    before = np.maximum(np.searchsorted(kept, order, side="right") - 1, 0)
    left, right = partner[kept[before]] - kept[before], partner[kept[after]] - kept[after]
    guess = order + left
    good = (left == right) & (guess >= 0) & (guess < len(member))
    good[good] = _overlap(reference.take(order[good]), member, guess[good])
    return np.where(good, guess, np.where(np.isin(order, kept), partner, -1))


def match_sequences(times_ns: Sequence[IntArray]) -> IntArray:
    """Match events that follow each other in one rhythm everywhere, but early on one rank and late on another.

    The order decides: the shift between two sequences changes only where another one fits clearly better.

    Args:
        times_ns: for each member, sorted.

    Returns:
        `(n, n_members)` indices into each member's events, -1 where one has no partner.
    """
    lead = max(range(len(times_ns)), key=lambda position: (len(times_ns[position]), -position))
    reference = times_ns[lead]
    index = np.full((len(reference), len(times_ns)), -1, np.int64)
    index[:, lead] = np.arange(len(reference))
    for position, times in enumerate(times_ns):
        if position != lead and len(times):
            index[:, position] = _follow(reference, times)
    return index


def _follow(reference: IntArray, times: IntArray) -> IntArray:
    """Return for each reference event the index of its partner, -1 where it has none.

    Windows in which the distances are even tell the shift; between two of them it changes where both fit best.
    """
    n = len(reference)
    apart = float(np.quantile(np.diff(reference), NARROW)) / 2 if n > 1 else 0.0
    shift = _choose_shift(reference, times, np.arange(n), 0, n - len(times))
    even: list[tuple[int, int, int, float]] = []
    for low in range(0, n, WINDOW):
        rows = np.arange(low, min(low + WINDOW, n))
        shift = _choose_shift(reference, times, rows, shift, REACH)
        distance = _measure_distance(reference, times, rows, shift)
        middle = float(np.nanmedian(distance)) if np.isfinite(distance).any() else 0.0
        if np.isfinite(distance).any() and np.nanmean(np.abs(distance - middle)) <= apart:
            even.append((low, int(rows[-1]) + 1, shift, middle))
    partner = np.full(n, -1, np.int64)
    for low, stop, own, middle in even:
        _settle(partner, reference, times, np.arange(low, stop), own, middle, apart)
    for (_, low, left, before), (stop, _, right, after) in pairwise(even):
        _bridge(partner, reference, times, np.arange(low, stop), ((left, before), (right, after)), apart)
    if even:
        # Beyond the outermost the shift may have been another, as after one row lost; the lateness is the same.
        (begin, _, first, middle), (_, stop, last, late) = even[0], even[-1]
        for rows, outer, usual, is_tail in (
            (np.arange(begin), first, middle, False),
            (np.arange(stop, n), last, late, True),
        ):
            trials = [
                ((outer, usual), (trial, usual)) if is_tail else ((trial, usual), (outer, usual))
                for trial in range(outer - LOST_ROWS, outer + LOST_ROWS + 1)
            ]
            best = min(trials, key=lambda pair: _cost(reference, times, rows, pair, apart).min())
            _bridge(partner, reference, times, rows, best, apart)
    return partner


Pair = tuple[tuple[int, float], tuple[int, float]]
"""Shift and usual distance before a row was lost, and after."""


def _cost(reference: IntArray, times: IntArray, rows: IntArray, pair: Pair, apart: float) -> FloatArray:
    """Return, for a change at each of the rows and after the last, how far the partners lie from where they should."""
    before, after = (
        np.nan_to_num(np.abs(_measure_distance(reference, times, rows, shift) - middle), nan=apart).clip(0, 4 * apart)
        for shift, middle in pair
    )
    behind, ahead = np.cumsum(before), np.cumsum(after[::-1])[::-1]
    return np.asarray(np.concatenate([[0.0], behind]) + np.concatenate([ahead, [0.0]]))


def _bridge(partner: IntArray, reference: IntArray, times: IntArray, rows: IntArray, pair: Pair, apart: float) -> None:
    """Enter the partners of rows between two shifts, changed where they fit best."""
    split = int(np.argmin(_cost(reference, times, rows, pair, apart)))
    for part, (shift, middle) in zip((rows[:split], rows[split:]), pair, strict=True):
        _settle(partner, reference, times, part, shift, middle, apart)


def _measure_distance(reference: IntArray, times: IntArray, rows: IntArray, shift: int) -> FloatArray:
    """Return how far each event's partner under a shift lies from it, ns; NaN where there is none."""
    own = rows + shift
    known = (own >= 0) & (own < len(times))
    distance = times[np.clip(own, 0, len(times) - 1)] - reference[rows]
    return np.where(known, distance.astype(np.float64), np.nan)


def _settle(
    partner: IntArray, reference: IntArray, times: IntArray, rows: IntArray, shift: int, middle: float, apart: float
) -> None:
    """Enter the partners under a shift of those rows that lie where it puts them."""
    near = np.abs(_measure_distance(reference, times, rows, shift) - middle) <= apart
    partner[rows[near]] = rows[near] + shift


def _choose_shift(reference: IntArray, times: IntArray, rows: IntArray, shift: int, reach: int) -> int:
    """Return the shift under which the distances scatter least; the given one if no other scatters clearly less.

    A rhythm that repeats itself fits as well a turn later: of such the nearest is taken.
    """
    scores: dict[int, tuple[float, float]] = {}
    for trial in range(shift - abs(reach), shift + abs(reach) + 1):
        distance = _measure_distance(reference, times, rows, trial)
        if 2 * np.isfinite(distance).sum() >= len(rows):
            middle = float(np.nanmedian(distance))
            scores[trial] = float(np.nanmean(np.abs(distance - middle))), abs(middle)
    if not scores:
        return shift
    least = min(score for score, _ in scores.values())
    good = {trial: far for trial, (score, far) in scores.items() if CLEARLY * score <= least}
    return shift if shift in good else min(good, key=lambda trial: good[trial])


def _ascending(end_ns: IntArray) -> IntArray:
    return np.maximum.accumulate(end_ns)
