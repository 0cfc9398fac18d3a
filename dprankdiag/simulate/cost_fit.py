"""Fit the costs of steps to the times that requests took: serve them where they were served, compare, solve, repeat.

A log tells when each request's first and last token came. Between such moments lie the steps of its group; what is in
each of them follows from who else was served there then. Served again with costs that are not yet right, steps hold
nearly the right work, so that times are nearly linear in the terms; solved for these, it is served once more (Gauss and
Newton's way). As a wrong explanation shapes the steps so that they fit it, this is begun from several ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from dprankdiag.simulate.base import FloatArray, IntArray
from dprankdiag.simulate.cost_draws import draw_costs
from dprankdiag.simulate.cost_prior import guess_terms, lean_rows
from dprankdiag.simulate.cost_times import Observed, Times, list_lasting, list_times
from dprankdiag.simulate.costs import TERMS, FittedCosts
from dprankdiag.simulate.replay import AS_RECORDED, Site, Traffic, serve_again
from dprankdiag.simulate.world_tables import Outcome

ROUNDS = 6
"""Times that requests are served again at most from one beginning."""

ENOUGH = 0.01
"""A round that makes the times less unlikely by no more than this, for each time, is the last."""

FREE_ROUNDS = 3
"""Rounds that may do worse than the one before: the first ones come from far away. Later ones go half the way."""

FIXED_SHARE = 0.5
"""Of the time, what is fixed in a beginning; the rest is one term's."""

REFINEMENTS = 2

AS_LIKELY = 0.1
"""What the probability of an explanation changes by for each time, as a logarithm, just because requests fall into
other steps: less tells no two apart."""

ALIKE = 0.02
"""Explanations in which no term takes so much more of the time than in another are one."""

FAR_OFF = 0.5
"""An explanation that is so much less likely for each time is left."""

AS_WELL = 3.0
"""Solutions whose likelihood is less than the best one's by no more, as a logarithm, explain times as well (5 %)."""

DRAWS = 48
GUESSES = 39
LEAST_ROWS = 2 * len(TERMS)
"""Fewer times of requests, or windows, than that cannot tell terms from noise."""


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """Costs and how sure they are.

    Attributes:
        terms: `(len(TERMS),)`.
        draws: `(DRAWS, len(TERMS))` others that explain the times as well, by how likely they are.
        rows: times that were fitted.
        held_out_error_ratio: median error on parts of the time that the fit did not see; None if too few.
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


@dataclass(frozen=True, slots=True, eq=False)
class _Served:
    """The run as recorded, served with some terms: what it says of the times, and how unlikely these are."""

    terms: FloatArray
    outcome: Outcome
    times: Times
    lasting: Times
    unlikely: float


class _Server:
    """Serves one load again and again."""

    def __init__(self, site: Site, traffic: Traffic, observed: Observed) -> None:
        self._site, self._traffic, self._observed = site, traffic, observed

    def serve(self, terms: FloatArray) -> _Served:
        """Serve it as recorded."""
        return self._look(terms, serve_again(self._site, self._traffic, AS_RECORDED, _price(terms)))

    def _look(self, terms: FloatArray, outcome: Outcome) -> _Served:
        times, lasting = (look(self._site, outcome, self._observed) for look in (list_times, list_lasting))
        return _Served(terms, outcome, times, lasting, times.measure(terms) if times.rows else np.inf)


def _price(terms: FloatArray) -> FittedCosts:
    return FittedCosts(tuple(terms.tolist()))


def fit_requests(site: Site, traffic: Traffic, observed: Observed) -> Fit | None:
    """Fit costs to the times of requests; None where fewer are told than a fit needs."""
    server = _Server(site, traffic, observed)
    plain = server.serve(_begin(traffic, observed))
    if plain.lasting.rows < LEAST_ROWS:
        return None
    ends = list(_tell_apart(_approach(server, *beginning) for beginning in _list_beginnings(server, plain)))
    least = min(one.unlikely for one, _ in ends)
    refined = [each for one in ends if one[0].unlikely <= least + FAR_OFF for each in _refine(server, *one)]
    return _finish(server, observed, refined)


def _begin(traffic: Traffic, observed: Observed) -> FloatArray:
    """Take steps to be as long as the median gap between tokens, whatever they hold."""
    outputs = np.array([request.output_tokens for request in traffic.requests])
    told = (observed.end_ns > 0) & (observed.first_ns > 0) & (outputs > 1)
    if told.any():
        gaps = (observed.end_ns - observed.first_ns)[told] / (outputs[told] - 1)
    elif observed.windows:
        gaps = np.array([window.total_ns / window.count for window in observed.windows])
    else:
        told = observed.end_ns > 0
        gaps = observed.end_ns[told] / outputs[told] if told.any() else np.array([1e7])
    return np.array([float(np.median(gaps)), *[0.0] * (len(TERMS) - 1)])


def _list_beginnings(server: _Server, plain: _Served) -> Iterator[tuple[_Served, bool]]:
    """List where a fit begins, and whether attention is taken to be sparse.

    A step takes a fixed time, or half of it and the rest goes with rows or contexts.
    """
    most = plain.lasting.bound()
    yield plain, False
    for name, sparse in (("row_ns", True), ("context_token_ns", False)):
        terms = FIXED_SHARE * plain.terms
        terms[TERMS.index(name)] = (1 - FIXED_SHARE) * most[TERMS.index(name)]
        yield server.serve(terms), sparse


def _tell_apart(ends: Iterable[tuple[_Served, bool]]) -> Iterator[tuple[_Served, bool]]:
    """Leave out what ends where another did."""
    found: list[tuple[_Served, bool]] = []
    for served, sparse in ends:
        most = served.times.bound()
        shares = [np.divide(one.terms - served.terms, most, where=most > 0, out=0 * most) for one, _ in found]
        if all(np.abs(share).max() > ALIKE or other != sparse for share, (_, other) in zip(shares, found, strict=True)):
            found.append((served, sparse))
            yield served, sparse


def _approach(server: _Server, now: _Served, sparse: bool) -> tuple[_Served, bool]:
    """Serve and solve in turn, by whole requests, until it gets no better."""
    best = now
    for turn in range(1, ROUNDS):
        solved = now.lasting.search(now.terms, sparse)
        now = server.serve(solved if turn <= FREE_ROUNDS else (solved + now.terms) / 2)
        improves = now.unlikely < best.unlikely - ENOUGH
        best = min((best, now), key=lambda one: one.unlikely)
        if turn >= FREE_ROUNDS and not improves:
            break
    return best, sparse


@dataclass(frozen=True, slots=True, eq=False)
class _Refined:
    """An explanation, draws of all that are near it, and how probable these are, as a logarithm."""

    served: _Served
    draws: FloatArray
    probable: float


def _refine(server: _Server, now: _Served, sparse: bool) -> Iterator[_Refined]:
    """Draw costs by the stretches between tokens, and serve with their mean, in turn."""
    draws, _ = _draw(now, sparse)
    for _ in range(REFINEMENTS):
        served = server.serve(draws.mean(axis=0))
        draws, probable = _draw(served, sparse)
        yield _Refined(served, draws, probable)


def _finish(server: _Server, observed: Observed, refined: list[_Refined]) -> Fit:
    """Draw from all explanations, by how likely they are, and serve with the mean of the likeliest one's draws.

    The mean is safer than the likeliest corner.
    """
    best = max(refined, key=lambda one: one.probable)
    doubt = max(1.0, AS_LIKELY * best.served.times.rows)
    weights = np.exp([(one.probable - best.probable) / doubt for one in refined])
    shares = np.rint(DRAWS * weights / weights.sum()).astype(int)
    draws = [one.draws[_spread_out(len(one.draws), count)] for one, count in zip(refined, shares, strict=True)]
    mean = server.serve(best.draws.mean(axis=0))
    chosen = mean if mean.unlikely <= best.served.unlikely + AS_LIKELY else best.served
    miss_ratio = max(_miss(chosen.outcome, observed), chosen.times.miss_windows(chosen.terms))
    held_out = _hold_out(chosen)
    return Fit(chosen.terms, np.concatenate(draws), chosen.lasting.rows, held_out, miss_ratio, chosen.outcome)


def _spread_out(length: int, count: int) -> IntArray:
    return np.linspace(0, length - 1, count).astype(np.int64)


def _draw(served: _Served, sparse: bool) -> tuple[FloatArray, float]:
    """Draw terms, beginning from solutions that lean to guesses, as far apart as guesses may be."""
    most, generator = served.times.bound(), np.random.default_rng(0)
    starts = [served.terms]
    for _ in range(GUESSES):
        guess = guess_terms(most, sparse, generator)
        lean = np.diag(np.divide(1.0, guess, out=np.zeros(len(guess)), where=guess > 0))
        starts.append(served.times.solve(served.terms, (lean, (guess > 0).astype(float))))
    solved = np.stack(starts)
    drawn, probable = draw_costs(served.times, solved)
    # Walkers that came to lie in one corner do not speak for all that explains the times as well.
    unlikely = np.array([served.times.measure(one) for one in solved]) * served.times.rows
    as_well = solved[unlikely <= unlikely.min() + AS_WELL]
    return np.concatenate([drawn, as_well[np.arange(len(drawn)) % len(as_well)]]), probable


def _hold_out(served: _Served) -> float | None:
    """Fit every second request and predict the others; returns the median error over the time."""
    times = served.lasting
    odd = np.arange(times.rows) // 2 % 2 == 1
    target = np.concatenate([piece.target for _, piece in times.pieces])
    step_ns = float(np.median(served.outcome.steps["total_ns"]))
    errors = []
    for seen in (odd, ~odd):
        if seen.sum() < LEAST_ROWS:
            return None
        found = times.solve(served.terms, lean_rows(times.bound(), sparse=False), np.flatnonzero(seen))
        told = np.concatenate([piece.sum(table.time(found)) for table, piece in times.pieces])
        errors.append((np.abs(told - target) / (target + step_ns))[~seen])
    return float(np.median(np.concatenate(errors)))


def _miss(outcome: Outcome, observed: Observed) -> float:
    """Compare the whole time of all requests, served again, with the observed one."""
    served = outcome.requests
    told = (observed.end_ns[served["request"]] >= 0) & (served["refused"] == 0)
    whole = float((served["end_ns"] - served["arrival_ns"])[told].sum())
    seen = float(observed.end_ns[served["request"]][told].sum())
    return abs(whole / seen - 1) if seen > 0 else 0.0
