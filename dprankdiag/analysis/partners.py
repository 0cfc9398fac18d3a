"""Find, for the calls of a group, which of them belong to one meeting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dprankdiag.analysis.calls import Calls
from dprankdiag.analysis.clocks import nearest

IntArray = np.ndarray[Any, np.dtype[np.int64]]

CLOCK_SLACK_NS = 50_000
"""GPUs of one host show end offsets of up to 30 µs on the profiler's clock."""

WINDOW = 32
"""Events over which a shift between two ranks' sequences is judged."""

REACH = 4
"""Shifts tried on each side of the one before."""

RUN = 9
"""Calls over which the order must agree before it overrules the nearest end."""


def match_rows(members: Sequence[Calls]) -> IntArray:
    """Match the calls of a group: `(n, n_members)` indices into each member's calls, -1 where one has no partner.

    Two calls are partners if they overlap in time and each one's end is the nearest to the other's.
    """
    lead = max(range(len(members)), key=lambda position: (len(members[position]), -position))
    reference = members[lead]
    index = np.full((len(reference), len(members)), -1, np.int64)
    index[:, lead] = np.arange(len(reference))
    reference_ends = _ascending(reference.end_ns)
    for position, member in enumerate(members):
        if position == lead:
            continue
        partner, _ = nearest(_ascending(member.end_ns), reference.end_ns)
        back, _ = nearest(reference_ends, member.end_ns)
        mutual = back[partner] == np.arange(len(reference))
        partner = np.where(mutual & _overlap(reference, member, partner), partner, -1)
        index[:, position] = _mend_runs(reference, member, partner)
    return index


def _overlap(reference: Calls, member: Calls, partner: IntArray) -> np.ndarray[Any, np.dtype[np.bool_]]:
    slack = _clock_slack(reference)
    return np.asarray(
        (member.start_ns[partner] <= reference.end_ns + slack) & (reference.start_ns <= member.end_ns[partner] + slack)
    )


def _clock_slack(calls: Calls) -> int:
    """Return by how much the stamps of two GPUs may miss each other without hiding that their calls overlapped."""
    if len(calls) < 2:
        return CLOCK_SLACK_NS
    return min(CLOCK_SLACK_NS, int(np.median(np.diff(calls.end_ns))) // 4)


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

    Window by window the shift is taken under which the distances to the lead scatter least.

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
    partner = np.full(len(reference), -1, np.int64)
    rhythm = int(np.median(np.diff(reference))) if len(reference) > 1 else 0
    shift = int(np.searchsorted(times, reference[0])) - int(np.searchsorted(reference, times[0]))
    for low in range(0, len(reference), WINDOW):
        rows = np.arange(low, min(low + WINDOW, len(reference)))
        trials = []
        for trial in range(shift - REACH, shift + REACH + 1):
            own = rows + trial
            known = (own >= 0) & (own < len(times))
            if 2 * known.sum() >= len(rows):
                distance = times[own[known]] - reference[rows[known]]
                middle = int(np.median(distance))
                trials.append((float(np.mean(np.abs(distance - middle))), abs(trial - shift), trial, middle))
        if not trials:
            continue
        _, _, shift, middle = min(trials)
        own = rows + shift
        known = (own >= 0) & (own < len(times))
        near = np.abs(times[own[known]] - reference[rows[known]] - middle) <= rhythm
        partner[rows[known][near]] = own[known][near]
    return partner


def _ascending(end_ns: IntArray) -> IntArray:
    return np.maximum.accumulate(end_ns)
