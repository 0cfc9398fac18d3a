"""Moments at which tokens came, as a walk from step to step.

Every first and every last token comes at the end of a step of its group. So between two such moments, whichever
requests they are of, lie whole steps, and no step lies in two such stretches. What a stretch is off by is what its
steps scatter, and at either end that a request may have been taken in a step earlier or later than it is in the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from dprankdiag.simulate.base import FloatArray, IntArray
from dprankdiag.simulate.costs import StepTable
from dprankdiag.simulate.replay import Site
from dprankdiag.simulate.step_spans import GROUPS, list_groups
from dprankdiag.simulate.world_tables import Outcome

STEP_SCATTER = 0.03
"""How much the time of one and the same step scatters, as a share; healthy chips and hosts give 1 to 10 %. How much it
is here is estimated with the costs: only its size beside `EDGE_STEPS` counts."""

EDGE_STEPS = 0.3
"""What a moment is off by, in steps: one that a request just missed in the model, it may have caught."""

ONE_MOMENT = 0.05
"""Moments closer than this, in steps, are of one step."""

BLOCK = 64
"""Stretches whose errors are made independent together."""


@dataclass(frozen=True, slots=True, eq=False)
class Stretches:
    """Stretches of the steps of one group, in order.

    Attributes:
        begin, end: `(n,)` the first step of each and the first behind it.
        target: `(n,)` ns that it took, as observed.
        blocks: rows, and `(rows, rows)` what makes their errors alike and independent: of size 1 where steps scatter
            by `STEP_SCATTER`.
    """

    begin: IntArray
    end: IntArray
    target: FloatArray
    blocks: tuple[tuple[slice, FloatArray], ...]

    def sum(self, amounts: FloatArray) -> FloatArray:
        """Sum amounts of steps, `(steps, ...)`, over each stretch."""
        sums = np.concatenate([np.zeros((1, *amounts.shape[1:])), np.cumsum(amounts, axis=0)])
        summed: FloatArray = sums[self.end] - sums[self.begin]
        return summed

    def whiten(self, errors: FloatArray) -> FloatArray:
        """Turn errors, `(n, ...)` ns, into ones that are alike and independent."""
        return np.concatenate([matrix @ errors[rows] for rows, matrix in self.blocks])


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """Steps without a pause, and moments among them: how many steps were over, and when."""

    over: IntArray
    seen_ns: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """Moments at which tokens of a group's requests came, and its arrivals.

    Attributes:
        over: `(n,)` how many steps of the group were over then, as served.
        seen_ns: `(n,)` when it was, as observed.
        came: `(requests, 2)` arrivals as served, in order, and as observed.
    """

    table: StepTable
    over: IntArray
    seen_ns: IntArray
    came: IntArray


def list_moments(
    site: Site,
    outcome: Outcome,
    tables: Mapping[tuple[int, int], StepTable],
    arrival_ns: IntArray,
    first_ns: IntArray,
    end_ns: IntArray,
) -> Iterator[Moments]:
    """List the moments that were observed, group by group.

    Args:
        tables: of the outcome, by group.
        arrival_ns: observed, by the number of the request.
        first_ns, end_ns: from the arrival to the first and the last token, the same; -1 if unknown.
    """
    served = outcome.requests
    number, kept = served["request"], served["refused"] == 0
    groups = {role: list_groups(site, served[f"{role}worker"], served[f"{role}rank"]) for role in ("", "prefill_")}
    for key, table in tables.items():
        mine = {role: kept & (group == key[0] * GROUPS + key[1]) for role, group in groups.items()}
        ends = table.start_ns + table.total_ns
        over, seen = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for column, told in (("first_ns", first_ns), ("end_ns", end_ns)):
            rows = np.flatnonzero(mine[""] & (told[number] >= 0))
            at = np.searchsorted(ends, served[column][rows])
            # A first token that came with its KV from another engine need not come at the end of a step.
            exact = (at < len(ends)) & (ends[np.minimum(at, len(ends) - 1)] == served[column][rows])
            over.append(at[exact] + 1)
            seen.append((arrival_ns + told)[number[rows[exact]]])
        rows = np.flatnonzero(mine["prefill_"])
        came = np.stack([served["arrival_ns"][rows], arrival_ns[number[rows]]], axis=1)
        order = np.argsort(came[:, 0], kind="stable")
        yield Moments(table, np.concatenate(over), np.concatenate(seen), came[order])


def find_stretches(moments: Moments) -> Stretches | None:
    """Find the stretches between moments; None where there are not two."""
    runs = list(_list_runs(moments.table, moments.over, moments.seen_ns, moments.came))
    return _lay(moments.table, runs) if runs else None


def _list_runs(table: StepTable, over: IntArray, seen_ns: IntArray, came: IntArray) -> Iterator[_Run]:
    """Cut the steps of a group where it paused, and find the moments of each run, in the order they were seen."""
    ends = table.start_ns + table.total_ns
    starts = np.flatnonzero(np.concatenate([[True], table.start_ns[1:] != ends[:-1]]))
    near_ns = ONE_MOMENT * float(np.median(table.total_ns))
    run = np.searchsorted(starts, over - 1, "right") - 1
    order = np.lexsort((seen_ns, run))
    over, seen_ns, run = over[order], seen_ns[order], run[order]
    is_new = np.ones(len(over), bool)
    is_new[1:] = (np.diff(seen_ns) > near_ns) | (np.diff(run) > 0)
    moment = np.cumsum(is_new) - 1
    count = np.bincount(moment)
    at = np.rint(np.bincount(moment, over) / count).astype(np.int64)
    when = np.bincount(moment, seen_ns) / count
    borders = np.searchsorted(run[is_new], np.arange(len(starts) + 1))
    for begin, low, high in zip(starts.tolist(), borders[:-1].tolist(), borders[1:].tolist(), strict=True):
        told, seen = at[low:high], when[low:high]
        woke = _find_start(table, begin, came)
        if woke is not None:
            told, seen = np.concatenate([[begin], told]), np.concatenate([[woke], seen])
        if len(told) > 1:
            yield _Run(told, seen)


def _find_start(table: StepTable, begin: int, came: IntArray) -> float | None:
    """Find when a run really began: with the arrival that woke the group; None where none is seen to."""
    start_ns = int(table.start_ns[begin])
    before_ns = int(table.start_ns[begin - 1] + table.total_ns[begin - 1]) if begin else -1
    first = int(np.searchsorted(came[:, 0], before_ns, "right"))
    if first == len(came) or came[first, 0] > start_ns:
        return None
    return float(came[first, 1] + start_ns - came[first, 0])


def _lay(table: StepTable, runs: list[_Run]) -> Stretches:
    """Lay the stretches of all runs behind each other, and see which of their errors hang together."""
    begin, end = (np.concatenate([run.over[cut] for run in runs]) for cut in (slice(-1), slice(1, None)))
    target = np.concatenate([np.diff(run.seen_ns) for run in runs])
    squares = np.concatenate([[0.0], np.cumsum(table.total_ns.astype(float) ** 2)])
    edge = [(EDGE_STEPS * table.total_ns[np.maximum(run.over - 1, 0)].astype(float)) ** 2 for run in runs]
    middle = STEP_SCATTER**2 * np.abs(squares[end] - squares[begin])
    middle += np.concatenate([one[:-1] + one[1:] for one in edge])
    beside = np.concatenate([np.append(-one[1:-1], 0.0) for one in edge])
    blocks = []
    for first in range(0, len(target), BLOCK):
        rows = slice(first, min(first + BLOCK, len(target)))
        side = beside[rows][:-1]
        spread = np.diag(middle[rows]) + np.diag(side, 1) + np.diag(side, -1)
        blocks.append((rows, np.linalg.inv(np.linalg.cholesky(spread))))
    return Stretches(begin, end, target, tuple(blocks))
