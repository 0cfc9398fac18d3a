"""Draw costs from all that explain what was observed: Bayes' rule, from what engines and chips make likely beforehand.

What times do not tell apart (all requests alike, say) scatters in the draws, as far as it is likely.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dprankdiag.simulate.base import FloatArray
from dprankdiag.simulate.cost_prior import (
    CONTEXT,
    EAGER,
    LAUNCHES_NS,
    LIKELY_TOKENS,
    SPARSE_SHARE,
    SPARSE_SPREAD,
    SPARSE_TOKENS,
)
from dprankdiag.simulate.cost_times import Times, unlikely
from dprankdiag.simulate.costs import TERMS, BoolArray, StepTable

SHARE_SPREAD = 3.0
"""Standard deviation of the logarithm of the shares of the time that fixed parts and contexts take, about all of it."""

PRIOR_SPREAD = 0.7
"""Standard deviation of the logarithm of how much larger errors are than expected: steps of healthy chips and hosts
scatter by 1 to 10 %."""

WALKERS = 40
TURNS = 500
"""Moves of each walker; the first half is forgotten."""

KEEP_EVERY = 80
RENEW_EVERY = 25
STRETCH = 2.0

FAR_BELOW = 15.0
"""A walker that is so much less likely than the best one, as a logarithm, found no explanation: it begins anew between
two that did."""

SHARES, SPREADS = (1e-9, 3.0), (1e-3, 1e3)
"""Of the time, what a term takes at least and at most, and how much larger errors are than expected: nothing is looked
for outside."""

LEAST_SHARE = 1e-4
"""Of the time, that walkers begin with at least."""


class Front:
    """The work of steps as far as it can matter: a rank that has less of everything than another is left out."""

    def __init__(self, table: StepTable) -> None:
        step, rank = np.nonzero(_find_front(table.own))
        self._own = table.own[step, rank]
        self._first = np.searchsorted(step, np.arange(len(table.total_ns)))
        self._rest = np.concatenate([table.common, table.shared[:, None]], axis=1)

    def time(self, terms: FloatArray) -> FloatArray:
        """Time the steps under several costs: `(terms, many)` to `(steps, many)` ns."""
        own = np.maximum.reduceat(self._own @ terms[2:-1], self._first, axis=0)
        timed: FloatArray = own + self._rest @ terms[[0, 1, -1]]
        return timed


def _find_front(own: FloatArray) -> BoolArray:
    """Find the ranks of each step that may be the busiest, `(steps, ranks)`; of equal ones, the first."""
    kept = np.ones(own.shape[:2], bool)
    for one in range(own.shape[1]):
        mine = own[:, one : one + 1]
        beaten = (own >= mine).all(axis=2) & kept
        later = np.arange(own.shape[1]) >= one
        beaten &= ~((own == mine).all(axis=2) & later)
        kept[:, one] = ~beaten.any(axis=1)
    return kept


class _Posterior:
    """How likely places are: logarithms of shares of the time, then of spreads, `(many, size)`."""

    def __init__(self, times: Times) -> None:
        self._times = times
        self._fronts = {id(table): Front(table) for table, _ in times.pieces}
        self.most = times.bound()
        self.free = np.flatnonzero(self.most > 0)
        self.size = len(self.free) + len(times.kinds)

    def place(self, terms: FloatArray) -> FloatArray:
        """Find the places of terms, `(many, terms)`."""
        shares = np.maximum(terms[:, self.free] / self.most[self.free], LEAST_SHARE)
        spreads = [self._times.spreads(self._times.errors(one)) for one in terms]
        placed: FloatArray = np.log(np.concatenate([shares, spreads], axis=1))
        return placed

    def terms(self, places: FloatArray) -> FloatArray:
        """Give the terms at places, `(terms, many)`."""
        found = np.zeros((len(self.most), len(places)))
        found[self.free] = np.exp(places[:, : len(self.free)].T) * self.most[self.free, None]
        return found

    def weigh(self, places: FloatArray) -> FloatArray:
        """Give the logarithm of the probability of places, `(many,)`; up to a constant."""
        inside = self.keep_inside(places)
        is_outside = (inside != places).any(axis=1)
        places = inside
        shares, spreads = places[:, : len(self.free)], places[:, len(self.free) :]
        weight = self._expect(shares) - (spreads**2).sum(axis=1) / (2 * PRIOR_SPREAD**2)
        terms = self.terms(places)
        missed = []
        for table, piece in self._times.pieces:
            missed.append(piece.whiten(piece.target[:, None] - piece.sum(self._fronts[id(table)].time(terms))))
        errors = np.concatenate(missed)
        for rows, spread in zip(self._times.kinds, spreads.T, strict=True):
            weight -= unlikely(errors[rows], np.exp(spread))
        found: FloatArray = np.where(is_outside, -np.inf, weight)
        return found

    def keep_inside(self, places: FloatArray) -> FloatArray:
        """Move places that lie outside of all that is looked for to its border."""
        kinds = self.size - len(self.free)
        shares, spreads = np.log(SHARES), np.log(SPREADS)
        least, most = (np.repeat([shares[end], spreads[end]], [len(self.free), kinds]) for end in (0, 1))
        moved: FloatArray = np.clip(places, least, most)
        return moved

    def _expect(self, shares: FloatArray) -> FloatArray:
        """Give the logarithm of the prior probability of logarithms of shares, `(many, free)`."""
        free = self.free.tolist()
        fixed = [place for place, term in enumerate(free) if TERMS[term] not in LIKELY_TOKENS]
        fixed = [place for place in fixed if free[place] != EAGER]
        weight: FloatArray = -(shares[:, fixed] ** 2).sum(axis=1) / (2 * SHARE_SPREAD**2)
        if EAGER in free:
            middle, factor = np.log(LAUNCHES_NS)
            weight -= ((shares[:, free.index(EAGER)] + np.log(self.most[EAGER]) - middle) / factor) ** 2 / 2
        if CONTEXT not in free:
            return weight
        unit = shares[:, free.index(CONTEXT)] + np.log(self.most[CONTEXT])
        for place, term in enumerate(free):
            if TERMS[term] in LIKELY_TOKENS:
                tokens = shares[:, place] + np.log(self.most[term]) - unit
                middle, factor = LIKELY_TOKENS[TERMS[term]]
                told = _expect(tokens, middle, factor)
                if TERMS[term] == "row_ns":
                    sparse = np.log(SPARSE_SHARE) + _expect(tokens, SPARSE_TOKENS, SPARSE_SPREAD)
                    told = np.logaddexp(np.log(1 - SPARSE_SHARE) + told, sparse)
                weight += told
        return weight


def _expect(logarithm: FloatArray, middle: float, factor: float) -> FloatArray:
    """Give the logarithm of a prior that has no far end: a model that is unlike all known ones is no wonder.

    Source: Cauchy's distribution, of the logarithm.
    """
    scale = np.log(factor)
    told: FloatArray = -np.log1p(((logarithm - np.log(middle)) / scale) ** 2) - np.log(scale)
    return told


def draw_costs(times: Times, starts: FloatArray, seed: int = 0) -> tuple[FloatArray, float]:
    """Draw costs by how likely they are, given the times.

    Args:
        starts: `(n, terms)` costs to begin from.

    Returns:
        `(draws, terms)`, and how probable they are: the mean logarithm, up to a constant.

    Source: Goodman and Weare, Communications in Applied Mathematics and Computational Science 5 (2010), the stretch
    move of an ensemble.
    """
    posterior = _Posterior(times)
    generator = np.random.default_rng(seed)
    walkers = posterior.place(starts[np.arange(WALKERS) % len(starts)])
    walkers = posterior.keep_inside(walkers + 0.02 * generator.standard_normal(walkers.shape))
    weights = posterior.weigh(walkers)
    kept, probable = [], []
    for turn in range(1, TURNS + 1):
        _move(walkers, weights, posterior.weigh, generator)
        if turn <= TURNS // 2:
            if turn % RENEW_EVERY == 0:
                _renew(walkers, weights, posterior.weigh, generator)
        elif turn % KEEP_EVERY == 0:
            kept.append(walkers.copy())
            probable.append(float(weights.mean()))
    return posterior.terms(np.concatenate(kept)).T, float(np.mean(probable))


Weigh = Callable[[FloatArray], FloatArray]


def _move(walkers: FloatArray, weights: FloatArray, weigh: Weigh, generator: np.random.Generator) -> None:
    """Let each half of the walkers move along lines through the other half (changes both arrays)."""
    half, size = len(walkers) // 2, walkers.shape[1]
    for mine, others in ((slice(0, half), slice(half, None)), (slice(half, None), slice(0, half))):
        stretch = ((STRETCH - 1) * generator.random(half) + 1) ** 2 / STRETCH
        partners = walkers[others][generator.integers(0, half, half)]
        tried = partners + stretch[:, None] * (walkers[mine] - partners)
        found = weigh(tried)
        taken = np.log(generator.random(half)) < (size - 1) * np.log(stretch) + found - weights[mine]
        walkers[mine][taken], weights[mine][taken] = tried[taken], found[taken]


def _renew(walkers: FloatArray, weights: FloatArray, weigh: Weigh, generator: np.random.Generator) -> None:
    """Let walkers that found nothing begin anew between two that did (changes both arrays)."""
    is_lost = weights < weights.max() - FAR_BELOW
    lost, good = np.flatnonzero(is_lost), np.flatnonzero(~is_lost)
    if not len(lost) or len(good) < 2:
        return
    one, other = walkers[generator.choice(good, len(lost))], walkers[generator.choice(good, len(lost))]
    walkers[lost] = one + generator.random((len(lost), 1)) * (other - one)
    walkers[lost] += 1e-3 * generator.standard_normal((len(lost), walkers.shape[1]))
    weights[lost] = weigh(walkers[lost])
