"""Read from a window of a ledger what needs no comparison: waits, step times, expert counts, ages, and small sums."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dprankdiag.analysis.ledger_window import LedgerWindow
from dprankdiag.analysis.uneven import Uneven, find_low
from dprankdiag.model.ledgers import FloatArray


@dataclass(frozen=True, slots=True)
class Waits:
    """Waiting for late hosts at the borders of steps.

    Attributes:
        per_step_s: `(n_ranks,)` mean wait of a rank in a step.
        has_control: the wait for the control broadcast is in it.
        low: the ranks that wait least, beyond chance.
        gap_s: how much less they wait in a step than the others.
        cost_ratio: that gap over the time of a step; None if that is not known.
    """

    per_step_s: FloatArray
    has_control: bool
    low: Uneven | None
    gap_s: float
    cost_ratio: float | None


def is_positive(grown: FloatArray | None) -> bool:
    """Tell whether anything grew on any rank."""
    return grown is not None and bool(np.nansum(grown) > 0)


def divide(parts: FloatArray, by: FloatArray) -> FloatArray:
    """Divide where there is something to divide by; NaN elsewhere."""
    quotient: FloatArray = np.where(by > 0, parts / np.where(by > 0, by, 1.0), np.nan)
    return quotient


def measure_waits(window: LedgerWindow) -> Waits | None:
    """Return what each rank waits at the border of a step: in the gather and for the control broadcast before it."""
    gather, count = window.growth("sync_wait_s"), window.growth("sync_waits")
    control = window.growth("control_wait_s")
    if not is_positive(control):
        control = None
    if gather is None or count is None or not is_positive(count):
        gather, count = window.growth("batch_stage_s"), _steps_by_rank(window)
        if gather is None or count is None or control is None:
            return None
    total = gather if control is None else gather + control
    per_step = divide(total, count)
    low = find_low(per_step)
    gap = 0.0
    if low is not None:
        rest = ~low.mask & ~np.isnan(per_step)
        gap = float(np.median(per_step[rest]) - per_step[low.mask].mean())
    elapsed, steps = window.elapsed_s, float(np.nanmax(count))
    cost = None if elapsed is None or elapsed <= 0 else min(gap * steps / elapsed, 1.0)
    return Waits(per_step, control is not None, low, gap, cost)


def _steps_by_rank(window: LedgerWindow) -> FloatArray | None:
    """Return the steps of each rank where passes are counted."""
    return window.growth("graph_passes", "eager_passes")


_STEP_TIMES = (
    ("load_decode_step_s", "load_decode_steps"),
    ("token_gap_s", "token_gaps"),
    ("pass_wall_s", "pass_count"),
)
"""Time and the steps it was spent in, the surest first; all of them hold waiting for others as well."""


def measure_steps(window: LedgerWindow) -> FloatArray | None:
    """Return the mean step time that each rank tells; ranks without steps are NaN."""
    for time, count in _STEP_TIMES:
        spent, steps = window.growth(time), window.growth(count)
        if spent is not None and steps is not None and is_positive(steps):
            return divide(spent, steps)
    return None


def count_experts(window: LedgerWindow) -> FloatArray | None:
    """Return the tokens that the experts of each GPU got: over the window, of one moment since the start."""
    table = window.ledger.expert_tokens
    if table is None:
        return None
    part = table[window.first : window.last + 1]
    known: list[FloatArray] = [counts for counts in part if not np.isnan(counts).all()]
    if not known:
        return None
    grown = known[-1] - known[0]
    return known[-1] if len(known) == 1 or (grown < 0).any() else grown


def measure_ages(window: LedgerWindow) -> FloatArray | None:
    """Return how much older each snapshot is than the freshest of them: hosts' clocks differ from ours."""
    stamps = window.ledger.values.get("load_stamp_s")
    if stamps is None:
        return None
    latest = stamps[window.last]
    return None if np.isnan(latest).all() else np.nanmax(latest) - latest
