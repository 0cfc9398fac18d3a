"""Find ranks that hold no requests in most steps and only keep step with the busy ones."""

from __future__ import annotations

from math import comb

import numpy as np

from dprankdiag.analysis.batches import tabulate_requests
from dprankdiag.analysis.observations import Observations
from dprankdiag.analysis.standouts import FEWEST_STEPS, Standout
from dprankdiag.analysis.statistics import BoolArray, FloatArray
from dprankdiag.analysis.thresholds import IDLE_CHANCE

IDLE_SHARE = 0.5
"""A rank counts as idle without work in so many of the steps in which another has some (DESIGN 3)."""

NO_WORK = 0.05
EMPTY_KERNEL_NS = 4_000
"""Attention and KV writes of a layer without rows take about the two kernels' own start and end."""

DUMMY = 0.25
"""Attention over a dummy batch takes less than this share of the busy ranks', however short the kernels are."""

BUSY = 0.5
"""A rank is busy with at least this share of the busiest one's attention."""

SHORT_REQUEST = 3.0
"""Over a few short requests attention takes up to so many times as long as without any."""


def find_idle(seen: Observations) -> Standout | None:
    """Find the busy ranks of a group in which others have no requests in at least half of the steps.

    Fewer requests than ranks, or so few that chance alone leaves ranks empty, are nobody's fault.

    Returns:
        The busy ranks, in the steps in which the others have nothing while they have; levels are attention over the
        busy ranks' mean. None if every rank has work, or none has.
    """
    told = tabulate_requests(seen)
    empty = mark_empty(seen, told)
    counted: BoolArray = np.asarray(~empty.all(axis=1))
    if counted.sum() < FEWEST_STEPS:
        return None
    idle = _choose_idle(empty[counted])
    if not idle.any() or idle.all() or _is_chance(seen, told, idle, counted):
        return None
    steps: BoolArray = np.asarray(counted & empty[:, idle].any(axis=1))
    attention = seen.sums["attention"][steps].mean(axis=0)
    levels = attention / max(float(attention[~idle].mean()), 1.0)
    covered = np.flatnonzero(steps)
    marks = steps[:, None] & ~idle[None, :]
    return Standout(int(covered[0]), int(covered[-1]) + 1, ~idle, levels, float(np.median(levels[idle])), marks)


def suspect_idle(seen: Observations) -> BoolArray:
    """Mark the ranks, `(n_ranks,)`, that may hold no requests in most steps, where nothing announces them.

    Inside a replayed graph a dummy batch launches attention as any other does, and takes as long as a short request.
    """
    attention = seen.sums["attention"]
    busy = _level_busy(attention)
    counted = busy[:, 0] > 0
    if not np.isnan(tabulate_requests(seen)).all() or counted.sum() < FEWEST_STEPS:
        return np.zeros(seen.n_ranks, bool)
    return _choose_idle(attention[counted] <= np.minimum(DUMMY * busy[counted], _short_request(seen)))


def _choose_idle(empty: BoolArray) -> BoolArray:
    return np.asarray(empty.mean(axis=0) >= IDLE_SHARE)


def mark_empty(seen: Observations, told: FloatArray) -> BoolArray:
    """Mark the steps in which a rank has no requests, `(n_steps, n_ranks)`.

    Annotations tell. An engine may say nothing of a dummy batch: no annotation where others have theirs is an empty
    batch if attention is short as well, against the busy ranks' or, where heads are shared among many ranks so that
    all of it is short, by itself. Without annotations only attention that took next to no time tells.

    Source: vLLM 0.33.0 annotates no dummy batch.

    Args:
        told: requests as annotated, `(n_steps, n_ranks)`; NaN where nothing says.
    """
    attention = seen.sums["attention"]
    busy = _level_busy(attention)
    spoken = ~np.isnan(told)
    if spoken.any():
        # Ranks whose every step is announced, and steps that no rank announces, leave no doubt either way.
        others = spoken.any(axis=1, keepdims=True)
        brief = (attention < DUMMY * busy) | (attention <= np.minimum(BUSY * busy, _short_request(seen)))
        return np.asarray(np.where(spoken, told == 0, others & brief))
    nothing = EMPTY_KERNEL_NS * max(_attention_calls(seen), 1)
    return np.asarray(attention <= np.minimum(NO_WORK * busy, nothing))


def _short_request(seen: Observations) -> float:
    """Return what attention over a dummy batch or a few short requests takes in a step at most, ns."""
    return SHORT_REQUEST * EMPTY_KERNEL_NS * max(_attention_calls(seen), 1)


def add_first_rows(seen: Observations, attention: FloatArray) -> tuple[FloatArray, float]:
    """Let every rank have at least the attention that its first few requests would take, whatever they hold.

    The kernels' own start and end come with the first request and cannot be spread; a rank without rows shows nothing
    of them. That lies between what a layer without rows takes and what a few short requests take.

    Args:
        attention: `(n_steps, n_ranks)` ns.

    Returns:
        The attention, and by how much the first requests' may be off (a standard deviation), ns a step.
    """
    least, most = EMPTY_KERNEL_NS * max(_attention_calls(seen), 1), _short_request(seen)
    return np.maximum(attention, (least + most) / 2), float((most - least) / np.sqrt(12))


def _level_busy(attention: FloatArray) -> FloatArray:
    """Return the middle of the busy ranks' attention, `(n_steps, 1)`."""
    top = attention.max(axis=1, keepdims=True)
    return np.asarray(np.nanmedian(np.where(attention >= BUSY * top, attention, np.nan), axis=1, keepdims=True))


def _attention_calls(seen: Observations) -> int:
    """Count the positions of a step that hold attention."""
    attention = seen.grids[0].components["attention"]
    return int((np.median(attention.max(axis=2), axis=0) > 0).sum())


def _is_chance(seen: Observations, told: FloatArray, idle: BoolArray, counted: BoolArray) -> bool:
    """Tell whether requests dealt at random leave so many ranks empty, or there is none for each."""
    requests = told[counted]
    if np.isnan(requests).all():
        return False
    teams = [list(team) for team in seen.teams] or [[rank] for rank in range(seen.n_ranks)]
    total = float(np.mean(sum(np.nan_to_num(requests[:, team[0]]) for team in teams)))
    n, empty = len(teams), sum(bool(idle[team].all()) for team in teams)
    return total < n or comb(n, empty) * (1 - empty / n) ** total > IDLE_CHANCE
