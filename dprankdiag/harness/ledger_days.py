"""Follow a judge through hours of a simulated deployment: false verdicts, time from onset to verdict, flapping."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from dprankdiag.harness.ledger_score import Named
from dprankdiag.harness.ledger_worlds import LedgerTruth, Tick, fault_shows

Judge = Callable[[Tick], Iterable[Named]]
"""Takes each poll in turn; gives the causes and ranks that hold now."""

LONGEST_CHANGE_S = 1.5
"""One verdict follows another at the next poll."""

SETTLING_S = 180.0
"""So long after a fault its consequences may be named: queues drain, windows slide."""


@dataclass(slots=True)
class Episode:
    """A verdict from its first moment to its last."""

    named: Named
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class DayScore:
    """What a judge made of some hours.

    Attributes:
        seconds: length of what was judged.
        polls: how many.
        false: verdicts that no fault explains, by when they came and went.
        waits_s: seconds from when a fault shows to its right verdict, None where it never came; by fault.
        flaps: how often a right verdict went away while its fault was still there.
    """

    seconds: float
    polls: int
    false: tuple[Episode, ...]
    waits_s: tuple[tuple[LedgerTruth, float | None], ...]
    flaps: int

    @property
    def false_a_day(self) -> float:
        """Count false verdicts in a day of this kind."""
        return len(self.false) * 86_400 / self.seconds if self.seconds else 0.0

    def share_within(self, limit_s: float) -> float:
        """Give the share of faults that were named within so many seconds."""
        due = [wait for _, wait in self.waits_s]
        return sum(wait is not None and wait <= limit_s for wait in due) / len(due) if due else 1.0

    def text(self) -> str:
        """Write what happened."""
        lines = [
            f"{self.polls} polls in {self.seconds / 3600:.1f} h; {len(self.false)} false verdicts, {self.flaps} flaps"
        ]
        lines += [
            f"  false: {it.named[0]} {list(it.named[1])} from {it.start_s:.0f} s for {it.end_s - it.start_s:.0f} s"
            for it in self.false
        ]
        for true, wait in self.waits_s:
            told = "never named" if wait is None else f"named after {wait:.0f} s"
            lines.append(f"  {true.cause} {list(true.ranks)} at {true.start_s:.0f} s: {told}")
        known = [wait for _, wait in self.waits_s if wait is not None]
        if known:
            lines.append(f"  onset to verdict: median {median(known):.0f} s, longest {max(known):.0f} s")
        return "\n".join(lines) + "\n"


@dataclass(slots=True)
class _Log:
    """Verdicts as they come and go."""

    open: dict[Named, Episode] = field(default_factory=dict)
    closed: list[Episode] = field(default_factory=list)

    def take(self, at_s: float, named: frozenset[Named]) -> None:
        for item in named:
            self.open.setdefault(item, Episode(item, at_s, at_s)).end_s = at_s
        for item in [item for item in self.open if item not in named]:
            self.closed.append(self.open.pop(item))

    def all(self) -> list[Episode]:
        return sorted([*self.closed, *self.open.values()], key=lambda it: (it.start_s, it.named))


def follow_day(ticks: Iterable[Tick], truths: Sequence[LedgerTruth], judge: Judge) -> DayScore:
    """Show every poll to a judge and compare what it holds with the truth.

    Args:
        ticks: of a world, in order.
        truths: of the same world; a fault that its pages do not show explains no verdict.
        judge: called once a poll.
    """
    log = _Log()
    shown: dict[LedgerTruth, float | None] = {true: None for true in truths if true.accepted}
    polls, first_s, last_s = 0, None, 0.0
    for tick in ticks:
        polls, last_s = polls + 1, tick.seconds
        first_s = tick.seconds if first_s is None else first_s
        log.take(tick.seconds, frozenset(judge(tick)))
        for true, since_s in shown.items():
            if since_s is None and true.start_s <= tick.seconds <= true.end_s and fault_shows(true, tick.state):
                shown[true] = tick.seconds
    episodes = log.all()
    false = tuple(it for it in episodes if not any(_explains(true, it) for true in shown))
    right = {true: [it for it in episodes if _is_right(true, it)] for true in shown}
    waits = tuple((true, _wait(true, shown[true], found)) for true, found in right.items())
    flaps = sum(_count_gaps(true, found, episodes) for true, found in right.items())
    return DayScore(last_s - (first_s or 0.0), polls, false, waits, flaps)


def _explains(true: LedgerTruth, episode: Episode) -> bool:
    """Tell whether a verdict blames culprits of a fault of its class while it acts or its consequences last."""
    cause, ranks = episode.named
    same_class = cause.split(".")[0] in {name.split(".")[0] for name in true.accepted}
    in_time = true.start_s <= episode.start_s <= true.end_s + SETTLING_S
    culprits = set(true.ranks)
    # Ranks that are left without requests run dry one after another: until then more than the culprits are busy.
    draining = true.cause == cause == "load.idle" and culprits <= set(ranks)
    return same_class and in_time and (set(ranks) <= culprits or draining)


def _count_gaps(true: LedgerTruth, found: Sequence[Episode], episodes: Sequence[Episode]) -> int:
    """Count how often, once the right verdict was there, no verdict explained by the fault was left while it acted."""
    if not found:
        return 0
    covered_s, gaps = found[0].end_s, 0
    for episode in episodes:
        if episode.start_s < found[0].start_s or episode.start_s > true.end_s or not _explains(true, episode):
            continue
        gaps += episode.start_s > covered_s + LONGEST_CHANGE_S
        covered_s = max(covered_s, episode.end_s)
    return gaps


def _is_right(true: LedgerTruth, episode: Episode) -> bool:
    cause, ranks = episode.named
    return cause in true.accepted and ranks == true.ranks and _explains(true, episode)


def _wait(true: LedgerTruth, shown_s: float | None, found: Sequence[Episode]) -> float | None:
    starts = [it.start_s for it in found if it.start_s <= true.end_s]
    return max(0.0, min(starts) - (true.start_s if shown_s is None else shown_s)) if starts else None
