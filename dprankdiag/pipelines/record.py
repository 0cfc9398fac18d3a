"""Ask engines again and again and keep what they tell."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from dprankdiag.model.ledgers import LedgerAnswer, NoData
from dprankdiag.pipelines.failures import Failures, Told
from dprankdiag.pipelines.ticks import Wait, run_ticks
from dprankdiag.store.first_time import FirstTime

Poll = Callable[[], Sequence[Told]]
"""Ask all targets once; what did not answer is `NoData`."""


class Asker(Protocol):
    """Asks targets, and holds connections to them."""

    def poll(self) -> Sequence[Told]:
        """Ask all targets once."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


Keep = Callable[[Sequence[Told], int], None]
"""Keep what was told at a moment (UTC epoch ns)."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a recording run came to.

    Attributes:
        missed: ticks that were skipped because the one before took too long.
        targets: interfaces that answered at least once.
        ranks: the most ranks that one answer told of.
    """

    ticks: int = 0
    missed: int = 0
    answers: int = 0
    failures: int = 0
    targets: int = 0
    ranks: int = 0


def record(
    poll: Poll,
    keep: Keep,
    wait: Wait,
    *,
    interval_s: float,
    duration_s: float | None = None,
    say: Callable[[str], None] = lambda line: None,
    show: Callable[[Recorded], None] = lambda recorded: None,
    now: Callable[[], float] = time.monotonic,
    moment: Callable[[], int] = time.time_ns,
) -> Recorded:
    """Record until the time is over or `wait` says to stop.

    Args:
        say: told each failure once, and once that it is over.
        show: told after every tick how far it is.
        now, moment: clocks: seconds that only grow, and UTC epoch ns.
    """
    failures = Failures()
    answered: set[tuple[str, str]] = set()
    first_time = FirstTime()
    done = Recorded()
    for tick in run_ticks(interval_s, wait, duration_s=duration_s, now=now):
        taken_ns = moment()
        told = first_time.pick(poll())
        keep(told, taken_ns)
        answers = [item for item in told if isinstance(item, LedgerAnswer)]
        answered.update((item.where, item.interface) for item in answers)
        done = Recorded(
            ticks=done.ticks + 1,
            missed=tick - done.ticks,
            answers=done.answers + len(answers),
            failures=done.failures + sum(isinstance(item, NoData) and not item.absent for item in told),
            targets=len(answered),
            ranks=max([done.ranks, *(len(item.ranks) for item in answers)]),
        )
        for line in failures.note(told):
            say(line)
        show(done)
    return done
