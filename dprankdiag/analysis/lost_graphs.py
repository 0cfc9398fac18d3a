"""Find decode steps that ran eagerly among steps replayed as graphs, and who kept all from replaying."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dprankdiag.analysis.batches import tabulate_requests
from dprankdiag.analysis.grid import StepGrid
from dprankdiag.analysis.idleness import mark_empty
from dprankdiag.analysis.layouts import find_decode
from dprankdiag.analysis.loads import ROWS_ALIKE
from dprankdiag.analysis.observations import IntArray, Observations
from dprankdiag.analysis.skews import LEAST_HOST_SHARE
from dprankdiag.analysis.standouts import choose_by_loss
from dprankdiag.analysis.statistics import LOSS_SHARE, BoolArray, FloatArray

IDLE = ("host", "rest")
"""Components of idle time."""

REPLAYED = "decode graph"
EAGER = ("decode", "step")
"""Kinds of steps that launch kernel by kernel; of "step" the kernels' names do not tell whether they hold prompts."""

BESIDE = 0.2
"""Share of the graph steps in which ranks may be idle that are to blame for being idle in others."""

SMALL_BATCH = 8
"""Up to here graphs are captured for powers of two, beyond in steps of as many."""


@dataclass(frozen=True, slots=True)
class LostGraphs:
    """Decode steps that ran without graphs although others of their kind were replayed.

    Attributes:
        steps: `(n_steps,)` the eager steps.
        known: `(n_steps,)` those of them whose batch was replayed as a graph in other steps.
        blame: `(n_steps, n_ranks)` who kept all from replaying; nothing where that does not show.
        mask: `(n_ranks,)` the ranks to blame.
        why: "idle" (no work of their own), "rows" (more than any graph step held) or "" (it does not show).
        eager_ns, graph_ns: idle time of the median rank in an eager step, and in a graph step.
        usual: by component, one a grid: `(n_positions, n_ranks)` idle time at each position in graph steps; None where
            a grid has no counterpart.
    """

    steps: BoolArray
    known: BoolArray
    blame: BoolArray
    mask: BoolArray
    why: str
    eager_ns: float
    graph_ns: float
    usual: Mapping[str, tuple[FloatArray | None, ...]]


def find_lost_graphs(seen: Observations) -> LostGraphs | None:
    """Find the eager decode steps of a recording that holds graph steps too, if they idle more.

    Steps with prompts are left to `load.prefill`.
    """
    graph = np.array([grid.kind == REPLAYED for grid in seen.grids])[seen.grid_of]
    eager = np.array([grid.kind in EAGER for grid in seen.grids])[seen.grid_of] & find_decode(seen)
    rows = tabulate_requests(seen)
    known, beyond, is_told = _compare_batches(seen, graph, eager, rows)
    eager &= known | is_told
    if not graph.any() or not eager.any():
        return None
    idle = np.asarray(sum(np.maximum(seen.sums[name], 0.0) for name in IDLE))
    more = np.median(idle[eager], axis=0) - np.median(idle[graph], axis=0)
    if float(np.median(more)) < LEAST_HOST_SHARE * float(np.median(seen.duration_ns[eager])):
        return None
    blame, why = _find_blame(seen, graph, eager, rows, beyond)
    usual = {
        name: tuple(_usual_idle(seen, graph, grid_id, name) for grid_id in range(len(seen.grids))) for name in IDLE
    }
    has_twin = np.array([part is not None for part in usual["host"]])[seen.grid_of]
    return LostGraphs(
        eager,
        eager & known & has_twin,
        blame,
        choose_blamed(blame.sum(axis=0)),
        why,
        float(np.median(idle[eager])),
        float(np.median(idle[graph])),
        usual,
    )


def find_bucket(rows: FloatArray) -> FloatArray:
    """Return the size of the graph that is captured for so many rows."""
    small = 2.0 ** np.ceil(np.log2(np.maximum(rows, 1.0)))
    return np.where(rows <= SMALL_BATCH, small, np.ceil(rows / SMALL_BATCH) * SMALL_BATCH)


def choose_blamed(counts: IntArray) -> BoolArray:
    """Choose the fewest ranks that hold most of the blame, and those blamed about as often as the last of them."""
    return choose_by_loss(counts.astype(np.float64)) if counts.any() else np.zeros(len(counts), bool)


def _compare_batches(
    seen: Observations, graph: BoolArray, eager: BoolArray, rows: FloatArray
) -> tuple[BoolArray, BoolArray, bool]:
    """Tell which steps hold a batch that was replayed as a graph, and which ranks hold more than any graph step.

    Where annotations do not tell rows, the busiest rank's attention stands for them; what is longer then may as well be
    a prompt.

    Returns:
        `(n_steps,)`, `(n_steps, n_ranks)`, and whether annotations tell rows.
    """
    nobody = np.zeros((seen.n_steps, seen.n_ranks), bool)
    if not graph.any() or not eager.any():
        return np.zeros(seen.n_steps, bool), nobody, False
    if np.isfinite(rows[graph]).any() and np.isfinite(rows[eager]).any(axis=1).all():
        size = find_bucket(np.nan_to_num(rows))
        top = size.max(axis=1)
        most, least = top[graph].max(), top[graph].min()
        return (top >= least) & (top <= most), (size > most) & eager[:, None], True
    work = seen.sums["attention"].max(axis=1)
    low, high = work[graph].min() / (1 + ROWS_ALIKE), work[graph].max() * (1 + ROWS_ALIKE)
    return (work >= low) & (work <= high), nobody, False


def _find_blame(
    seen: Observations, graph: BoolArray, eager: BoolArray, rows: FloatArray, beyond: BoolArray
) -> tuple[BoolArray, str]:
    """Find the ranks that kept the others from replaying, step by step, if that shows."""
    if beyond[eager].any(axis=1).mean() >= LOSS_SHARE:
        return beyond, "rows"
    idle = mark_empty(seen, rows)
    if idle[eager].any(axis=1).mean() >= LOSS_SHARE and idle[graph].any(axis=1).mean() <= BESIDE:
        return idle & eager[:, None], "idle"
    return np.zeros_like(idle), ""


def _usual_idle(seen: Observations, graph: BoolArray, grid_id: int, component: str) -> FloatArray | None:
    """Return the idle time in the graph steps that meet as an eager grid's do, `(n_positions, n_ranks)`."""
    mine = seen.grids[grid_id]
    if mine.kind not in EAGER:
        return None
    parts = [
        np.maximum(grid.components[component], 0)[seen.select(other, graph)]
        for other, grid in enumerate(seen.grids)
        if grid.kind == REPLAYED and _meets_alike(mine, grid)
    ]
    return np.median(np.concatenate(parts), axis=0).astype(np.float64) if parts else None


def _meets_alike(one: StepGrid, other: StepGrid) -> bool:
    return (
        one.side == other.side
        and one.family == other.family
        and np.array_equal(one.waits.any(axis=(0, 2)), other.waits.any(axis=(0, 2)))
    )
