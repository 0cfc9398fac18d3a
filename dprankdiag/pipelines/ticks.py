"""Do something again and again at fixed times."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

Wait = Callable[[float], bool]
"""Wait for so many seconds, or until told to stop: True then."""

_TOLERANCE_S = 1e-9


def run_ticks(
    interval_s: float, wait: Wait, *, duration_s: float | None = None, now: Callable[[], float] = time.monotonic
) -> Iterator[int]:
    """Yield the number of each tick when its time has come, tick 0 at once.

    Times are multiples of the interval after the start, so that they do not drift. A tick whose time passes while the
    one before is at work is skipped, never made up for: its number is missing.

    Args:
        duration_s: no tick comes later than this.
    """
    start_s, tick = now(), 0
    while True:
        yield tick
        tick = max(tick + 1, math.ceil((now() - start_s) / interval_s - _TOLERANCE_S))
        if duration_s is not None and tick * interval_s > duration_s + _TOLERANCE_S:
            return
        if wait(max(start_s + tick * interval_s - now(), 0.0)):
            return
