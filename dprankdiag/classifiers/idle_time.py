"""Undo idle time at the meetings before which it arises."""

from __future__ import annotations

import numpy as np

from dprankdiag.analysis.grid import StepGrid
from dprankdiag.analysis.observations import Observations
from dprankdiag.analysis.standouts import Standout
from dprankdiag.analysis.statistics import BoolArray, FloatArray, peer_median
from dprankdiag.model.claims import Undo


def undo_stalls(seen: Observations, component: str, marks: BoolArray) -> Undo:
    """Make the undo that brings single steps of ranks down to what they and their peers usually idle.

    Args:
        marks: `(n_steps, n_ranks)` the steps and ranks.
    """
    factors = []
    for grid_id, grid in enumerate(seen.grids):
        idle = _take_own(grid, component)
        usual = np.median(peer_median(idle), axis=0)
        factors.append(_lower(idle, idle - usual, marks[seen.grid_of == grid_id]))
    return Undo(component, tuple(factors))


def undo_lateness(seen: Observations, component: str, standout: Standout, but: BoolArray) -> Undo:
    """Make the undo that brings ranks down to the others' level over a run of steps, their own samples kept.

    Args:
        but: `(n_steps, n_ranks)` what is left as it is.
    """
    factors = []
    for grid_id, grid in enumerate(seen.grids):
        idle = _take_own(grid, component)
        marks = (standout.marks & ~but)[seen.grid_of == grid_id]
        covered = idle[marks.any(axis=1)]
        if not len(covered):
            factors.append(np.ones((len(idle), 1, 1)))
            continue
        level = np.median(covered, axis=0)
        others = ~standout.mask if not standout.mask.all() else standout.mask
        excess = level - np.median(level[:, others], axis=1, keepdims=True)
        factors.append(_lower(level[None], excess[None], marks))
    return Undo(component, tuple(factors))


def _take_own(grid: StepGrid, component: str) -> FloatArray:
    """Return idle time but that in which other hosts were waited for, `(n_steps, n_positions, n_ranks)`."""
    idle = np.maximum(grid.components[component], 0).astype(np.float64)
    if component == "host":
        idle[:, 0] -= grid.inherited_ns
    return idle


def _lower(idle: FloatArray, excess: FloatArray, marks: BoolArray) -> FloatArray:
    """Return factors that take a rank's excess over all positions off those at which it idles longer.

    A rank that comes late idles at the first launch and may catch up after; to take the same share off everywhere would
    leave most of the lateness where it holds up the others.

    Args:
        idle, excess: `(n_steps, n_positions, n_ranks)`, or one row for all steps.
        marks: `(n_steps, n_ranks)` where to.
    """
    above = np.maximum(excess, 0.0)
    whole, parts = np.maximum(excess.sum(axis=1, keepdims=True), 0.0), above.sum(axis=1, keepdims=True)
    off = above * whole / np.maximum(parts, 1.0)
    return np.where(marks[:, None, :], 1.0 - off / np.maximum(idle, 1.0), 1.0)
