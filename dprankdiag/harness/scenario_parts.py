"""What scenarios are made of: requests, workers, and numbers read from their runs."""

from __future__ import annotations

import numpy as np

from dprankdiag.harness.scenario import Window
from dprankdiag.harness.served_costs import ServedCosts
from dprankdiag.simulate.base import IntArray, Part, Request, Router
from dprankdiag.simulate.scheduler import SglangRules
from dprankdiag.simulate.workers import Worker
from dprankdiag.simulate.world_tables import Outcome

MS_NS = 1_000_000
POOL_TOKENS = 1_500_000


def ask(number: int, at_ns: int, prompt: int, output: int, rank: int | None = None) -> Request:
    """Make a request whose prompt nobody shares."""
    return Request(number, at_ns, (Part(number + 1, prompt),), output, pinned_rank=rank)


def make_worker(router: Router, costs: ServedCosts, ranks: int, rules: SglangRules | None = None) -> Worker:
    """Make an engine of equal ranks in lockstep."""
    return Worker((rules or SglangRules(POOL_TOKENS),) * ranks, router, costs)


def mean_of_ranks(outcome: Outcome, window: Window, column: str) -> list[float]:
    """Give the mean of a column of each rank over the steps of a window."""
    rows = outcome.rank_steps
    here = np.isin(rows["step"], window.find(outcome))
    ranks = int(rows["rank"][here].max()) + 1
    return [float(rows[column][here & (rows["rank"] == rank)].mean()) for rank in range(ranks)]


def mean_step_ns(outcome: Outcome, window: Window) -> int:
    """Give the mean time of the steps of a window."""
    return int(outcome.steps["total_ns"][np.isin(outcome.steps["step"], window.find(outcome))].mean())


def compare_steps(outcome: Outcome, cured: Outcome, window: Window) -> dict[str, int | float]:
    """Compare the time of a step as it is and with the cure."""
    now, then = mean_step_ns(outcome, window), mean_step_ns(cured, window)
    return {"step_ns": now, "cured_step_ns": then, "saved_step_ns": now - then, "gain_ratio": (now - then) / now}


def count_by_rank(outcome: Outcome, ranks: int, first: int = 0, last: int | None = None) -> IntArray:
    """Count the requests placed on each rank, of those with numbers from `first` until before `last`: `(ranks,)`."""
    numbers = outcome.requests["request"]
    chosen = (numbers >= first) & (numbers < (len(numbers) if last is None else last))
    counts: IntArray = np.bincount(outcome.requests["rank"][chosen], minlength=ranks)
    return counts


def mean_first_ns(outcome: Outcome, rank: int | None = None, first: int = 0) -> int:
    """Give the mean time to the first token of requests from a number on, or of those that one rank decodes."""
    requests = outcome.requests
    here = (requests["request"] >= first) & ((requests["rank"] == rank) | (rank is None))
    return int((requests["first_ns"] - requests["arrival_ns"])[here].mean())
