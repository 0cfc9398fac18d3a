"""A clock that stands still until something takes time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class FakeClock:
    """Seconds that pass only by waiting or working, and a moment at which to stop."""

    seconds: float = 100.0
    stop_at_s: float = float("inf")

    def now(self) -> float:
        return self.seconds

    def work(self, seconds: float) -> None:
        self.seconds += seconds

    def wait(self, seconds: float) -> bool:
        self.seconds = min(self.seconds + seconds, max(self.stop_at_s, self.seconds))
        return self.seconds >= self.stop_at_s

    def moment(self) -> int:
        return round(self.seconds * 1e9)
