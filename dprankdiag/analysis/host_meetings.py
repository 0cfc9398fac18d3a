"""Time when the hosts come to the meeting between steps, where ranges of their threads show it.

No row of a GPU shows how long a host works on a step before it meets the others (DESIGN 2.1, rule 14); an annotated
collective of the CPUs does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dprankdiag.analysis.alignment import Alignment
from dprankdiag.analysis.grid import StepGrid
from dprankdiag.analysis.observations import Observations, order_steps
from dprankdiag.analysis.statistics import OUTLIER_SCORE, BoolArray, FloatArray, robust_sd
from dprankdiag.catalog.ranges import RangeCatalog
from dprankdiag.model.sources import Trace

IntArray = np.ndarray[Any, np.dtype[np.int64]]

FEWEST_TIMES = 5
"""Ranges of a name that occurs less often are no meeting of every step."""

ONCE_A_STEP = 0.9
"""Share of the steps in which every member must be in the meeting just once."""

HELD = 0.9
"""Share of the meetings that nobody may leave before the last has come, to take them for such."""


def time_host_meetings(
    trace: Trace, catalog: RangeCatalog, ranks: tuple[int, ...], alignment: Alignment, start_ns: IntArray
) -> FloatArray | None:
    """Find when each member's host came to the meeting of a step, `(n_steps, n_ranks)`, ns since the step's start.

    Args:
        start_ns: `(n_steps,)` when the steps begin, on the common axis.

    Returns:
        NaN where a member was not seen to come, or came twice; None if no range is such a meeting.
    """
    ranges, names = trace.tables["ranges"], trace.names.range_names
    counts = np.bincount(ranges["name_id"], minlength=len(names))
    for name_id in np.flatnonzero(counts >= FEWEST_TIMES * len(ranks)).tolist():
        if catalog.classify(names[name_id]).role != "meeting":
            continue
        come, gone = (np.full((len(start_ns), len(ranks)), np.nan) for _ in range(2))
        for position, rank in enumerate(ranks):
            rows = (ranges["rank"] == rank) & (ranges["name_id"] == name_id) & ~ranges["is_open"]
            fit = alignment.fits[rank]
            begin, end = (ranges[edge][rows] for edge in ("start_ns", "end_ns"))
            if fit is not None:
                begin, end = fit.apply(begin), fit.apply(end)
            step = np.searchsorted(start_ns, begin, side="right") - 1
            once = (step >= 0) & (np.bincount(step + 1, minlength=len(start_ns) + 1)[step + 1] == 1)
            come[step[once], position] = begin[once] - start_ns[step[once]]
            gone[step[once], position] = end[once] - start_ns[step[once]]
        whole = ~np.isnan(come).any(axis=1)
        held = (gone.min(axis=1) >= come.max(axis=1))[whole]
        if whole.mean() >= ONCE_A_STEP and held.mean() >= HELD:
            return np.where(whole[:, None], come, np.nan)
    return None


@dataclass(frozen=True, slots=True)
class LateToMeeting:
    """Hosts that come late to the meeting of hosts in some steps.

    Attributes:
        lateness_ns: by how much longer they take from the end of their GPU's work, the median.
        saved_ns: `(n_steps,)` by how much earlier the last host would come if what they take longer were spread over
            all hosts.
    """

    lateness_ns: float
    saved_ns: FloatArray


def measure_lateness(seen: Observations, marks: BoolArray) -> LateToMeeting | None:
    """Hold how long the hosts meant take from the end of their GPU's work to the meeting against the others.

    Args:
        marks: `(n_steps, n_ranks)` who is meant, and when.

    Returns:
        None where that is not known, or they take no longer than the others scatter.
    """
    if seen.host_come is None:
        return None
    done = order_steps(seen, [_find_done(grid) for grid in seen.grids])
    told = ~np.isnan(seen.host_come + done).any(axis=1) & marks.any(axis=1) & ~marks.all(axis=1)
    if told.sum() < FEWEST_TIMES:
        return None
    took, own = (seen.host_come - done)[told], marks[told]
    rest = np.nanmedian(np.where(own, np.nan, took), axis=1, keepdims=True)
    over = np.where(own, took - rest, 0.0)
    late = over.sum(axis=1) / own.sum(axis=1)
    scatter = float(robust_sd((took - rest)[~own]))
    if float(np.median(late)) <= max(OUTLIER_SCORE * scatter / np.sqrt(len(late)), scatter):
        return None
    over = np.maximum(over, 0.0)
    even = took - over + over.mean(axis=1, keepdims=True)
    saved = np.zeros(seen.n_steps)
    saved[told] = np.maximum((done[told] + took).max(axis=1) - (done[told] + even).max(axis=1), 0.0)
    return LateToMeeting(float(np.median(late)), saved)


def _find_done(grid: StepGrid) -> FloatArray:
    """Find when each rank's GPU had done the step before, since the start of the step; NaN where hosts do not meet."""
    if grid.border is None:
        return np.full(grid.entry.shape, np.nan)
    return np.asarray(grid.entry + grid.border.tail, np.float64)
