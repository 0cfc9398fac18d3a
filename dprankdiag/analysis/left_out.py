"""Bound what skew may cost in steps that are too few of their kind to be compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dprankdiag.analysis.participations import FULL, Participation
from dprankdiag.analysis.segments import Segments
from dprankdiag.analysis.statistics import FloatArray

IntArray = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Steps that are not compared: how many, and at most how much more skew costs in them than in others, ns."""

    count: int
    hidden_ns: float


def bound_skew(
    participations: Sequence[Participation],
    segments: Sequence[Segments],
    begin: IntArray,
    stop: IntArray,
    left: IntArray,
) -> LeftOut:
    """Bound what the ranks' differences may cost in some steps beyond what they cost in the median of the others.

    No rank could be done earlier than by all the time in which it stands still, so that a step cannot cost more by
    skew than its most idle rank stands still in it: waiting in meetings, or with nothing of its own to run.

    Args:
        begin, stop: `(n_steps, n_members)` where each step's events begin and end in each member's list.
        left: the steps to bound; where it is not known how long ranks stand still, a step counts as a whole.
    """
    if not len(left):
        return LeftOut(0, 0.0)
    shared_ns = participations[0].shared_end_ns
    longest = (shared_ns[stop[:, 0] - 1] - shared_ns[begin[:, 0] - 1]).astype(np.float64)
    length = stop - begin
    told = np.flatnonzero((length == length[:, :1]).all(axis=1))
    if all((part.event == FULL).all() for part in participations):
        each = zip(participations, segments, begin[told].T, stop[told].T, strict=True)
        longest[told] = np.max([_stand_still(*member) for member in each], axis=0)
    others = np.setdiff1d(np.arange(len(begin)), left)
    usual = float(np.median(longest[others])) if len(others) else 0.0
    return LeftOut(len(left), float(np.maximum(longest[left] - usual, 0.0).sum()))


def _stand_still(part: Participation, own: Segments, begin: IntArray, stop: IntArray) -> FloatArray:
    """Sum how long a rank waits in its meetings and runs nothing between them, `(n_steps,)`, ns."""
    wait = np.where(part.waits, np.maximum(part.last_ns - part.arrival_ns, 0), 0)
    idle = np.zeros_like(wait)
    idle[1:] = np.maximum(part.arrival_ns[1:] - part.end_ns[:-1] - own.work_ns[1:], 0)
    total = np.concatenate([[0], np.cumsum(wait + idle)])
    return np.asarray(total[stop] - total[begin], np.float64)
