"""How long experts take for the tokens they get, fitted to a recording, and what another placement would save.

A rank's experts of one layer take `fixed + by share × its tokens / the ranks' mean + by touched × its slots that have
any`. The step waits for the slowest rank in every layer, so a placement gains what it takes off the expected maximum,
over passes as they were counted and noise as it was recorded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from dprankdiag.analysis.statistics import draw_blocks
from dprankdiag.simulate.base import FloatArray, IntArray
from dprankdiag.simulate.experts import Placement

FEWEST_LAYERS = 3
"""With fewer layers the speed of a rank and the tokens of its experts look alike."""

SURELY = 4.0
"""Standard errors by which time must follow tokens: by chance in one of 15,000 recordings."""

NOISES = np.linspace(0.0, 0.2, 41)
"""What is tried as the noise of a segment; recorded kernels scatter by some per cent."""

LEAST_PASSES = 64
"""Fewer counted passes are drawn again, each with other noise."""

DRAWS = 200
NORMAL_90 = 1.645
SAME_TOUCHED = 0.01
"""Share by which ranks' experts with tokens must differ for their price to be told from the fixed one."""


@dataclass(frozen=True, slots=True, eq=False)
class ExpertWork:
    """What ranks' experts get under a placement.

    Attributes:
        share: `(n_passes, n_layers, n_ranks)` tokens over the mean of the ranks.
        touched: `(n_passes, n_layers, n_ranks)` slots with any token.
        slots: of each rank.
    """

    share: FloatArray
    touched: FloatArray
    slots: int


@dataclass(frozen=True, slots=True, eq=False)
class RecordedExperts:
    """What was recorded of the segments in which experts ran, `(n_layers, n_ranks)`, means over steps, ns.

    Attributes:
        expert_ns: in expert kernels.
        rest_ns: the rest of the segment.
        until_last_ns: from the start of the segment until the last rank had come.
    """

    expert_ns: FloatArray
    rest_ns: FloatArray
    until_last_ns: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class ExpertFit:
    """How expert time follows the work.

    Attributes:
        terms: fixed, by share, by touched, ns; none below 0.
        slowness: `(n_ranks,)` of each rank at equal work.
        noise: standard deviation of a segment over its length.
        error_ratio: by how much the fitted layers miss the recorded ones, summed, over the recorded ones.
        certainty: standard errors that the slope over tokens lies from 0.
        tells_touched: whether ranks differ enough in touched experts to price them apart.
    """

    terms: FloatArray
    slowness: FloatArray
    noise: float
    error_ratio: float
    certainty: float
    tells_touched: bool


def spread_work(placement: Placement, tokens: IntArray) -> ExpertWork:
    """Share the tokens of each pass among the slots of a placement.

    A copy is chosen at random for each token: of few tokens some copies get none.

    Args:
        tokens: `(n_passes, n_layers, n_logical)`.
    """
    n_passes, n_layers, _ = tokens.shape
    copies = np.take_along_axis(placement.count_copies(), placement.logical, axis=1)
    slot_tokens = np.stack([tokens[:, layer, placement.logical[layer]] for layer in range(n_layers)], axis=1)
    share = slot_tokens / copies
    touched = 1.0 - (1.0 - 1.0 / copies) ** slot_tokens
    by_gpu = (n_passes, n_layers, placement.n_gpus, -1)
    tokens_of = share.reshape(by_gpu).sum(axis=3)
    mean = np.maximum(tokens_of.mean(axis=2, keepdims=True), 1.0)
    return ExpertWork(tokens_of / mean, touched.reshape(by_gpu).sum(axis=3), placement.slots_per_gpu)


def fit_expert_times(recorded: RecordedExperts, work: ExpertWork) -> ExpertFit:
    """Fit expert time to the work, then the noise to how long the others waited.

    Args:
        work: under the placement that served.
    """
    share, touched = work.share.mean(axis=0), work.touched.mean(axis=0)
    tells = float(touched.std()) > SAME_TOUCHED * float(touched.mean())
    slowness = np.ones(share.shape[1])
    for _ in range(2):
        terms = _fit_terms(recorded.expert_ns / slowness, share, touched, tells_touched=tells)
        predicted = terms[0] + terms[1] * share + terms[2] * touched
        if len(share) >= FEWEST_LAYERS:
            slowness = slowness * np.exp(np.log(recorded.expert_ns / slowness / predicted).mean(axis=0))
            slowness /= np.median(slowness)
    fit = ExpertFit(terms, slowness, 0.0, 0.0, _find_certainty(recorded, share, terms, touched, slowness), tells)
    noise = _fit_noise(fit, recorded, work)
    fit = replace(fit, noise=noise)
    measured = float(recorded.until_last_ns.mean(axis=1).sum())
    return replace(fit, error_ratio=abs(float(wait_for_last(fit, recorded, work).sum()) - measured) / measured)


def _fit_terms(times: FloatArray, share: FloatArray, touched: FloatArray, *, tells_touched: bool) -> FloatArray:
    """Fit by least squares the terms that all lie at or above 0 and leave the least error."""
    columns = np.stack([np.ones(share.size), share.ravel(), touched.ravel()], axis=1)
    best, least = np.array([float(times.mean()), 0.0, 0.0]), float(((times - times.mean()) ** 2).sum())
    places = (0, 1, 2) if tells_touched else (0, 1)
    for count in range(1, len(places) + 1):
        for chosen in combinations(places, count):
            found = np.linalg.lstsq(columns[:, chosen], times.ravel(), rcond=None)[0]
            error = float(((columns[:, chosen] @ found - times.ravel()) ** 2).sum())
            if (found >= 0).all() and error < least * (1 - 1e-9):
                least, best = error, np.zeros(3)
                best[list(chosen)] = found
    return best


def _find_certainty(
    recorded: RecordedExperts, share: FloatArray, terms: FloatArray, touched: FloatArray, slowness: FloatArray
) -> float:
    """Tell by how many standard errors time follows work, of whatever kind; speeds of ranks have been taken out."""
    predicted = terms[0] + terms[1] * share + terms[2] * touched
    follows = (predicted - predicted.mean()).ravel()
    rest = (recorded.expert_ns / slowness - predicted).ravel()
    freedom = max(len(rest) - 3 - share.shape[1], 1)
    error = float(np.sqrt((rest**2).sum() / freedom / max(float((follows**2).sum()), 1e-12)))
    return 1.0 / max(error, 1e-9) if follows.any() else 0.0


def wait_for_last(fit: ExpertFit, recorded: RecordedExperts, work: ExpertWork) -> FloatArray:
    """Give the expected time until the last rank has come, `(n_layers,)`, ns.

    Every pass counts as often, with noise up as often as down.
    """
    times = fit.terms[0] + fit.terms[1] * work.share + fit.terms[2] * work.touched
    times = np.tile(recorded.rest_ns + times * fit.slowness, (-(-LEAST_PASSES // len(work.share)), 1, 1))
    drawn = np.random.default_rng(0).standard_normal(times.shape)
    both = [(times * (1.0 + sign * fit.noise * drawn)).max(axis=2).mean(axis=0) for sign in (1, -1)]
    return np.asarray((both[0] + both[1]) / 2)


def _fit_noise(fit: ExpertFit, recorded: RecordedExperts, work: ExpertWork) -> float:
    """Find the noise with which each fitted layer waits as long for the last as the recorded one did.

    Layers in which one rank is far behind the others hardly tell, and hardly count.
    """
    measured = recorded.until_last_ns.mean(axis=1)
    misses = [
        float(((wait_for_last(replace(fit, noise=float(noise)), recorded, work) - measured) ** 2).sum())
        for noise in NOISES
    ]
    return float(NOISES[int(np.argmin(misses))])


def save_time(
    fit: ExpertFit, recorded: RecordedExperts, current: ExpertWork, other: ExpertWork
) -> tuple[float, float, float]:
    """Give what another placement saves a step, and the bounds of it at 90 %, ns.

    What tokens do not explain is taken for the reading of weights, which more slots need more of: in a decode step
    that is most of it. Where the recording cannot tell it from a fixed time, the upper bound takes it for that.
    """
    reading = fit if fit.tells_touched else _read_weights(fit, current)
    saved = _save(reading, recorded, current, other)
    by_pass = _save_by_pass(reading, recorded, current, other)
    drawn = by_pass[draw_blocks(len(by_pass), DRAWS)].mean(axis=1)
    spread = float(drawn.std()) if len(by_pass) > 1 else 0.0
    by_slope = saved / fit.certainty if fit.certainty else 0.0
    reach = NORMAL_90 * float(np.hypot(spread, by_slope)) + fit.error_ratio * abs(saved)
    most = max(saved, saved if fit.tells_touched else _save(fit, recorded, current, other))
    return saved, saved - reach, most + reach


def _read_weights(fit: ExpertFit, current: ExpertWork) -> ExpertFit:
    """Take what is fixed for the reading of the weights of the slots with tokens."""
    a_slot = float(fit.terms[0]) / max(float(current.touched.mean()), 1e-9)
    return replace(fit, terms=np.array([0.0, fit.terms[1], a_slot]))


def _save(fit: ExpertFit, recorded: RecordedExperts, current: ExpertWork, other: ExpertWork) -> float:
    return float((wait_for_last(fit, recorded, current) - wait_for_last(fit, recorded, other)).sum())


def _save_by_pass(fit: ExpertFit, recorded: RecordedExperts, current: ExpertWork, other: ExpertWork) -> FloatArray:
    """Give what is saved in each pass without noise, `(n_passes,)`."""
    lasts = []
    for work in (current, other):
        times = fit.terms[0] + fit.terms[1] * work.share + fit.terms[2] * work.touched
        lasts.append((recorded.rest_ns + times * fit.slowness).max(axis=2).sum(axis=1))
    return np.asarray(lasts[0] - lasts[1])
