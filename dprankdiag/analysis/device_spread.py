"""Take one number of a device over a window, and tell whether it stands out from its peers'."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dprankdiag.analysis.statistics import robust_sd
from dprankdiag.catalog.device_series import DeviceRow
from dprankdiag.model.devices import DeviceSeries
from dprankdiag.units import NS_PER_S

FEWEST_PEERS = 3
"""Fewer have no spread of their own: then only what none of them has at all stands out."""

FEWEST_SAMPLES = 3
"""Fewer samples with a bit are a moment, no state."""

STANDS_OUT_SD = 3.0


def sum_up(row: DeviceRow, series: DeviceSeries, window_ns: tuple[int, int], processors: float | None) -> float | None:
    """Take the number of a reading within a window; None where it is not told.

    Args:
        window_ns: UTC epoch ns, both ends included.
        processors: of the host, for readings that are divided by them.
    """
    first, last = window_ns
    points = [(at_ns, value) for at_ns, value in series.points if first <= at_ns <= last]
    if len(points) < 2 or (row.per_cpu and not processors):
        return None
    values = np.array([value for _, value in points])
    share = 1.0 / processors if row.per_cpu and processors else 1.0
    if row.reads == "level":
        return float(values.mean()) * share
    if row.reads == "bits":
        held = int(sum(bool(int(value) & row.bits) for value in values))
        return held / len(values) if held >= FEWEST_SAMPLES else 0.0
    steps = np.diff(values)
    if row.reads == "event":
        return float(((steps != 0) & (values[1:] != 0)).sum())
    grown = float(np.where(steps < 0, values[1:], steps).sum())  # a counter that fell began anew
    seconds = (points[-1][0] - points[0][0]) / NS_PER_S
    return grown if row.reads == "growth" else grown / seconds * share


def stands_out(row: DeviceRow, own: float, peers: Sequence[float]) -> bool | None:
    """Tell whether a number stands out from its peers' in the direction in which a rank is slowed; None if too few.

    It must lie beyond all of them, three standard deviations beyond their median, and by the least difference that
    counts. Source: the rules of evidence on the spread of healthy silicon (DESIGN 2.1, 16).
    """
    if not peers:
        return None
    sign = -1.0 if row.worse == "low" else 1.0
    excess = sign * (own - float(np.median(peers)))
    is_extreme = all(sign * (own - peer) > 0 for peer in peers)
    if len(peers) < FEWEST_PEERS:
        counts = row.reads in ("growth", "bits", "event")
        return bool(own > 0 and not any(peers)) if counts else None
    spread = max(STANDS_OUT_SD * float(robust_sd(np.array(peers))), row.least * abs(float(np.median(peers))))
    return bool(is_extreme and excess > spread)
