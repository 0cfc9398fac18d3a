"""Take a table apart into row effects, column effects and what is left, by medians."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dprankdiag.analysis.statistics import MAD_TO_SD, FloatArray, robust_sd

SWEEPS = 12
EXACT_SIDE = 24
"""Up to this many rows and columns all two-by-two contrasts are taken; beyond it residuals are no longer shrunk."""

NORMAL_TENTH = 1.645
"""|z| that one in ten normal samples exceeds."""


@dataclass(frozen=True, slots=True)
class Polish:
    """A table as row + column + residual; NaN where the table is.

    Attributes:
        rows: `(n_rows,)` effects; the common level is in them.
        columns: `(n_columns,)` effects, their median 0.
        residuals: `(n_rows, n_columns)`.
    """

    rows: FloatArray
    columns: FloatArray
    residuals: FloatArray


def polish(table: FloatArray) -> Polish:
    """Fit row and column effects by medians, which fewer than half of the cells of a line cannot move.

    Args:
        table: `(n_rows, n_columns)`, NaN where absent; a line without any cell gets effect NaN.

    Source: Tukey, Exploratory Data Analysis (1977), chapter 11.
    """
    rows = np.zeros(table.shape[0])
    columns = np.zeros(table.shape[1])
    for _ in range(SWEEPS):
        rows = line_medians(table - columns, axis=1)
        moved = line_medians(table - rows[:, None], axis=0)
        centre = middle(moved)
        moved, rows = moved - centre, rows + centre
        done = np.allclose(moved, columns, rtol=0, atol=1e-12, equal_nan=True)
        columns = np.where(np.isnan(moved), 0.0, moved)
        if done:
            break
    empty = np.all(np.isnan(table), axis=0)
    return Polish(rows, np.where(empty, np.nan, columns), table - rows[:, None] - columns[None, :])


def line_medians(table: FloatArray, axis: int) -> FloatArray:
    """Take the median along an axis over what is there; NaN for a line without any cell."""
    ordered = np.sort(table, axis=axis)  # NaN sort to the end
    count = np.sum(~np.isnan(table), axis=axis)
    low, high = np.maximum(count - 1, 0) // 2, count // 2
    high = np.minimum(high, np.maximum(count - 1, 0))
    ordered = ordered if axis == 1 else ordered.T
    lines = np.arange(len(ordered))
    if ordered.shape[1] == 0:
        return np.full(len(ordered), np.nan)
    return np.asarray((ordered[lines, low] + ordered[lines, high]) / 2.0)


def middle(values: FloatArray) -> float:
    """Take the median of what is there; NaN if nothing is."""
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else float("nan")


def cell_noise(table: FloatArray) -> float:
    """Estimate the standard deviation of a single cell, whatever the row and column effects are.

    Small tables by all contrasts a - b - c + d of two rows and two columns, in which every effect cancels (residuals of
    a small fit are shrunk, many to 0); large ones by their residuals.

    Returns:
        0 or more; NaN where fewer than four contrasts exist.
    """
    if max(table.shape) > EXACT_SIDE:
        residuals = polish(table).residuals
        known = residuals[~np.isnan(residuals)]
        return float(robust_sd(known)) if len(known) else float("nan")
    first, second = np.triu_indices(table.shape[0], 1)
    between = table[first] - table[second]  # (n_row_pairs, n_columns)
    left, right = np.triu_indices(table.shape[1], 1)
    contrasts = (between[:, left] - between[:, right]).ravel()
    contrasts = np.abs(contrasts[~np.isnan(contrasts)])
    return float(MAD_TO_SD * np.median(contrasts) / 2.0) if len(contrasts) >= 4 else float("nan")


def tail_scale(residuals: FloatArray) -> float:
    """Estimate the scale of residuals by their outer tenth, which heavy tails widen; at least that of their middle."""
    known = residuals[~np.isnan(residuals)]
    if not len(known):
        return float("nan")
    outer = float(np.quantile(np.abs(known - np.median(known)), 0.9)) / NORMAL_TENTH
    return max(outer, float(robust_sd(known)))
