"""Costs of steps that are fitted to what was observed: a straight line over each step's work, no term below nothing.

A step takes `fixed + eager (without a graph) + max over ranks (own work) + shared_row × rows behind the gather`. A
rank's own work is linear in its decoding rows, the KV tokens they read, and the tokens and pairs of prompts. That is
what lockstep means: before the gather the busiest rank counts, behind it all rows do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dprankdiag.simulate.base import FloatArray, IntArray, StepTime, StepWork
from dprankdiag.simulate.world_tables import Outcome

BoolArray = np.ndarray[Any, np.dtype[np.bool_]]

OWN = ("row_ns", "context_token_ns", "prompt_token_ns", "prompt_pair_ns")
TERMS = ("step_ns", "eager_step_ns", *OWN, "shared_row_ns")
"""What a unit of each costs: a step, a step without a graph, and so on."""

_FIRST_OWN = TERMS.index(OWN[0])


@dataclass(frozen=True, slots=True)
class FittedCosts:
    """Times steps by fitted terms; a `Costs`.

    Attributes:
        terms: `(len(TERMS),)` ns a unit.
    """

    terms: tuple[float, ...]

    def time_step(self, work: StepWork) -> StepTime:
        """Give the time of each part, for `(ranks,)` arrays of work."""
        columns = (work.decode_rows, work.kv_tokens, work.prompt_tokens, work.prompt_pairs)
        own = sum(cost * column for cost, column in zip(self.own, columns, strict=True))
        shared = np.full(len(work.rows), round(self.terms[-1] * int(work.rows.sum())), np.int64)
        common = self.terms[0] + (0.0 if work.graph else self.terms[1])
        return StepTime(np.rint(own).astype(np.int64), shared, max(round(common), 1))

    @property
    def own(self) -> tuple[float, ...]:
        """Give the terms of a rank's own work."""
        return self.terms[_FIRST_OWN : _FIRST_OWN + len(OWN)]


@dataclass(frozen=True, slots=True, eq=False)
class StepTable:
    """The work of the steps of one group of ranks, in order of time.

    Attributes:
        start_ns, total_ns: `(steps,)` as served.
        common: `(steps, 2)` 1, and 1 without a graph.
        own: `(steps, ranks, len(OWN))` work of each rank.
        shared: `(steps,)` rows behind the gather.
    """

    start_ns: IntArray
    total_ns: IntArray
    common: FloatArray
    own: FloatArray
    shared: FloatArray

    def weigh_own(self, terms: FloatArray) -> FloatArray:
        """Give the own time of each rank in each step, `(steps, ranks)` ns."""
        weighed: FloatArray = self.own @ terms[_FIRST_OWN : _FIRST_OWN + len(OWN)]
        return weighed

    def time(self, terms: FloatArray) -> FloatArray:
        """Give the time of each step, `(steps,)` ns."""
        own = self.weigh_own(terms)
        timed: FloatArray = self.common @ terms[:_FIRST_OWN] + own.max(axis=1) + self.shared * terms[-1]
        return timed

    def most_work(self) -> FloatArray:
        """Give what each term is multiplied by at most in each step, `(steps, len(TERMS))`."""
        return np.concatenate([self.common, self.own.max(axis=1), self.shared[:, None]], axis=1)

    def design(self, terms: FloatArray) -> FloatArray:
        """Give what each term is multiplied by in each step, `(steps, len(TERMS))`; `terms` say who is the busiest."""
        busiest = self.weigh_own(terms).argmax(axis=1)
        own = self.own[np.arange(len(busiest)), busiest]
        return np.concatenate([self.common, own, self.shared[:, None]], axis=1)


def table_steps(outcome: Outcome) -> dict[tuple[int, int], StepTable]:
    """Take the steps of each group apart, by worker and first rank."""
    steps, rows = outcome.steps, outcome.rank_steps
    work = np.stack([rows[name] for name in ("decode_rows", "kv_tokens", "prompt_tokens", "prompt_pairs")], axis=1)
    begins = np.searchsorted(rows["step"], steps["step"], "left")
    ends = np.searchsorted(rows["step"], steps["step"], "right")
    tables: dict[tuple[int, int], StepTable] = {}
    for worker, first in sorted(set(zip(steps["worker"].tolist(), steps["first_rank"].tolist(), strict=True))):
        mine = np.flatnonzero((steps["worker"] == worker) & (steps["first_rank"] == first))
        size = int(ends[mine[0]] - begins[mine[0]])
        place = begins[mine][:, None] + np.arange(size)[None, :]
        eager = (steps["graph"][mine] == 0).astype(float)
        tables[worker, first] = StepTable(
            steps["start_ns"][mine],
            steps["total_ns"][mine],
            np.stack([np.ones(len(mine)), eager], axis=1),
            work[place].astype(float),
            rows["rows"][place].sum(axis=1).astype(float),
        )
    return tables


def solve_positive(design: FloatArray, target: FloatArray) -> FloatArray:
    """Solve least squares with no term below 0.

    Args:
        design: `(n, terms)`.
        target: `(n,)`.

    Source: Lawson and Hanson, Solving Least Squares Problems (1974), chapter 23.
    """
    scale = np.sqrt((design**2).sum(axis=0))
    scale[scale == 0] = 1.0
    scaled = design / scale
    gram, pull = scaled.T @ scaled, scaled.T @ target
    chosen = np.zeros(len(pull), bool)
    terms = np.zeros(len(pull))
    for _ in range(3 * len(pull)):
        slope = pull - gram @ terms
        slope[chosen] = -np.inf
        if slope.max() <= 1e-10 * max(float(np.abs(pull).max()), 1e-300):
            break
        chosen[int(slope.argmax())] = True
        terms = _step_inside(gram, pull, terms, chosen)
    solved: FloatArray = terms / scale
    return solved


def _step_inside(gram: FloatArray, pull: FloatArray, terms: FloatArray, chosen: BoolArray) -> FloatArray:
    """Solve for the chosen terms, dropping those that would fall below 0 (changes `chosen`)."""
    while chosen.any():
        solved = np.zeros(len(terms))
        solved[chosen] = np.linalg.lstsq(gram[np.ix_(chosen, chosen)], pull[chosen], rcond=1e-12)[0]
        below = chosen & (solved <= 0)
        if not below.any():
            return solved
        share = (terms[below] / np.maximum(terms[below] - solved[below], 1e-300)).min()
        terms = terms + share * (solved - terms)
        terms[chosen & (terms <= 1e-14)] = 0.0
        dropped = chosen & (terms <= 1e-14)
        if not dropped.any():
            dropped = below
        chosen &= ~dropped
    return np.zeros(len(terms))
