"""Fit the costs of steps to the times that requests took: serve them where they were served, compare, solve, repeat.

A log tells when each request's first and last token came. Between the two lie the steps of its group; what is in each
of them follows from who else was served there then. Kept in the time of the log, steps hold nearly the right work
though costs are not yet right, so that a request's time is nearly linear in the terms; solved for these, it is served
once more (Gauss and Newton's way).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dprankdiag.simulate.base import FloatArray
from dprankdiag.simulate.cost_times import (
    GUESSED_SHARES,
    LIFT_RATIO,
    LOOSE,
    SHARP,
    Observed,
    Precision,
    Times,
    list_times,
)
from dprankdiag.simulate.costs import TERMS, FittedCosts
from dprankdiag.simulate.pace import RecordedPace
from dprankdiag.simulate.replay import AS_RECORDED, Site, Traffic, serve_again
from dprankdiag.simulate.world_tables import Outcome

REACH_STEPS = 4
"""How far a run that is kept in time looks ahead when its costs are near."""

ROUNDS: tuple[tuple[int | None, Precision], ...] = (
    *((None, LOOSE),) * 3,
    *((REACH_STEPS, LOOSE),) * 2,
    *((REACH_STEPS, SHARP),) * 5,
)
"""Times that requests are served again: how far it looks ahead, and how exactly it is looked at. Costs come from far
away, so that the first rounds take the pace of steps from the record alone. Those with the last precision count."""

SETTLED_RATIO = 1e-3
"""Where all terms change by less than this share, of themselves and of the most they could be, the next round of the
same kind would find the same."""

GOOD_RATIO = 0.05
"""With an error of at most this, which is what the scatter of steps alone makes, it is not tried another way."""

SURE_RATIO, SURE_ERROR = 1.5, 0.01
"""Drawn terms may miss the times by so much more than the best do, and by so much in any case."""

DRAWS = 24
LEAST_ROWS = 2 * len(TERMS)
"""Fewer times than that cannot tell terms from noise."""

_GUESS = (0.0, 1.0, 1 / 2_000, 1 / 4, 0.0, 0.0)
"""Where a fit begins: what decides which rank is the busiest, in units of a row."""


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """Costs and how sure they are.

    Attributes:
        terms: `(len(TERMS),)`.
        draws: `(DRAWS, len(TERMS))` others that explain the times about as well.
        rows: times that were fitted.
        held_out_error_ratio: median error on times that the fit did not see; None if too few.
        miss_ratio: by how much the whole time of all requests, or of all counted steps, is missed, served as recorded.
        outcome: the run as recorded, with these costs.
    """

    terms: FloatArray
    draws: FloatArray
    rows: int
    held_out_error_ratio: float | None
    miss_ratio: float
    outcome: Outcome

    @property
    def costs(self) -> FittedCosts:
        """Give the costs as the engine asks for them."""
        return FittedCosts(tuple(self.terms.tolist()))


def fit_requests(site: Site, traffic: Traffic, observed: Observed) -> Fit | None:
    """Fit costs to the times of requests; None where fewer are told than a fit needs.

    Where that ends far from what was observed, it is tried without leaning on likely costs, and the nearer one is
    kept: leaning keeps a fit from going astray where times tell little, and holds it back where they tell much.
    """
    best: tuple[float, FloatArray, Times] | None = None
    for leans in (True, False):
        found = _approach(site, traffic, observed, leans)
        if found is None:
            return None
        if best is None or found[0] < best[0]:
            best = found
        if best[0] < GOOD_RATIO:
            break
    return None if best is None else _finish(site, traffic, observed, *best)


def _approach(site: Site, traffic: Traffic, observed: Observed, leans: bool) -> tuple[float, FloatArray, Times] | None:
    """Serve and solve in turn; returns the least error, its terms, and the times as served with them."""
    terms = _begin(traffic, observed)
    best: tuple[float, FloatArray, Times] | None = None
    settled: tuple[int | None, Precision] | None = None
    for reach_steps, precision in ROUNDS:
        if settled == (reach_steps, precision):
            continue
        times = _serve_in_time(site, traffic, observed, terms, reach_steps, precision)
        if len(times.target) < LEAST_ROWS:
            return None
        error = times.measure(terms)
        if precision is SHARP and (best is None or error < best[0]):
            best = (error, terms, times)
        solved = times.search(terms, leans)
        if np.all(np.abs(solved - terms) <= SETTLED_RATIO * (terms + times.bound())):
            settled = reach_steps, precision
        terms = solved
    return best


def _serve_in_time(
    site: Site,
    traffic: Traffic,
    observed: Observed,
    terms: FloatArray,
    reach_steps: int | None = REACH_STEPS,
    precision: Precision = SHARP,
) -> Times:
    """Serve the requests where they were, in the time of the recorded run, and list the steps in their times.

    Where others decode, the first token waits for more than steps, and costs alone keep the time.
    """
    costs = FittedCosts(tuple(terms.tolist()))
    if site.decoders:
        return list_times(site, serve_again(site, traffic, AS_RECORDED, costs), observed)
    pace = RecordedPace(observed.first_ns, observed.end_ns, reach_steps)
    return list_times(site, serve_again(site, traffic, AS_RECORDED, costs, pace=pace), observed, precision)


def _finish(site: Site, traffic: Traffic, observed: Observed, error: float, terms: FloatArray, times: Times) -> Fit:
    draws = _draw_terms(times, terms, error)
    loosely = _serve_in_time(site, traffic, observed, terms, precision=LOOSE)
    # The mean of what the times allow is safer than the corner that fits best, if it fits as well.
    for chosen in (draws.mean(axis=0), terms):
        again = _serve_in_time(site, traffic, observed, chosen)
        if again.measure(chosen) <= SURE_RATIO * error + SURE_ERROR:
            break
    outcome = serve_again(site, traffic, AS_RECORDED, FittedCosts(tuple(chosen.tolist())))
    again = list_times(site, outcome, observed)
    # Where every request tells its own time, windows only add to that.
    typically = bool((observed.end_ns >= 0).all())
    miss_ratio = max(_miss(outcome, observed), again.miss_windows(chosen, typically=typically))
    return Fit(chosen, draws, len(times.target), _hold_out(loosely, terms), miss_ratio, outcome)


def _begin(traffic: Traffic, observed: Observed) -> FloatArray:
    """Take steps to be as long as the median gap between tokens, and hardly longer for more work."""
    outputs = np.array([request.output_tokens for request in traffic.requests])
    told = (observed.end_ns > 0) & (observed.first_ns > 0) & (outputs > 1)
    if told.any():
        gaps = (observed.end_ns - observed.first_ns)[told] / (outputs[told] - 1)
    elif observed.windows:
        gaps = np.array([window.total_ns / window.count for window in observed.windows])
    else:
        told = observed.end_ns > 0
        gaps = observed.end_ns[told] / outputs[told] if told.any() else np.array([1e7])
    return np.concatenate([[float(np.median(gaps))], _GUESS])


def _draw_terms(times: Times, terms: FloatArray, error: float) -> FloatArray:
    """Draw terms that explain the times as well as the best do, `(DRAWS, len(TERMS))`.

    Each draw is of times that scatter anew, as much as the fit leaves. Where times cannot tell terms apart (all
    requests alike, say), it leans on a guess of its own: a random split of the time among the terms, which weighs as
    much as noise of the size that the fit leaves. So what is told is what the times tell, and what they do not tell
    scatters.
    """
    generator = np.random.default_rng(0)
    most = times.bound()
    mean_guess, lean = times.lean(terms)
    good = SURE_RATIO * error + SURE_ERROR

    def solve(guess: FloatArray, noise: FloatArray | None, other: FloatArray) -> FloatArray:
        found = times.solve(terms + LIFT_RATIO * guess, None, guess, lean, noise)
        return found if times.measure(found) <= good else other

    likely = solve(mean_guess, None, terms)
    guesses = most * generator.dirichlet(GUESSED_SHARES, DRAWS)
    noises = times.spread(terms) * generator.standard_normal((DRAWS, len(times.target)))
    drawn = [solve(guess, noise, solve(guess, None, likely)) for guess, noise in zip(guesses, noises, strict=True)]
    return np.stack(drawn)


def _hold_out(times: Times, terms: FloatArray) -> float | None:
    """Fit every second time and predict the others; returns the median error over the time."""
    odd = np.arange(len(times.target)) // 2 % 2 == 1
    errors = []
    for seen in (odd, ~odd):
        if seen.sum() < LEAST_ROWS:
            return None
        found = times.solve(terms, np.flatnonzero(seen))
        told = times.design(found) @ found
        errors.append(np.abs(told - times.target)[~seen] * times.share[~seen])
    return float(np.median(np.concatenate(errors)))


def _miss(outcome: Outcome, observed: Observed) -> float:
    """Compare the whole time of all requests, served again, with the observed one."""
    served = outcome.requests
    told = (observed.end_ns[served["request"]] >= 0) & (served["refused"] == 0)
    whole = float((served["end_ns"] - served["arrival_ns"])[told].sum())
    seen = float(observed.end_ns[served["request"]][told].sum())
    return abs(whole / seen - 1) if seen > 0 else 0.0
