"""Tell the moment of a world that is shown while a clock runs."""

from __future__ import annotations

from collections.abc import Callable

from dprankdiag.harness.served_ranks import NS_PER_S


class WorldClock:
    """The time of a world that begins to be shown now.

    Args:
        clock: UTC seconds.
        speed: seconds of the world in one second of the clock.
        start_at_s: second of the world at which it begins to be shown.

    Raises:
        ValueError: the world would stand still, or be shown from before its beginning.
    """

    def __init__(self, clock: Callable[[], float], speed: float = 1.0, start_at_s: float = 0.0) -> None:
        if speed <= 0 or start_at_s < 0:
            raise ValueError(f"expected a speed above 0 and a start from 0 s, got {speed:g} and {start_at_s:g} s")
        self._clock, self._speed, self._start_at_s = clock, speed, start_at_s
        self._began_s = clock()

    @property
    def epoch_s(self) -> float:
        """Tell the UTC at which the world would have begun."""
        return self._began_s - self._start_at_s / self._speed

    def utc_s(self) -> float:
        """Tell the time of day of the engine's host."""
        return self._clock()

    def now_ns(self) -> int:
        """Tell the moment of the world."""
        return round((self._start_at_s + (self._clock() - self._began_s) * self._speed) * NS_PER_S)
