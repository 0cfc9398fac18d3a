"""What changed between two diagnoses: step times, causes, and whether the two can be compared at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dprankdiag.model.diagnosis import Interval, Severity, Status

ComparisonVerdict = Literal["better", "worse", "unchanged", "not_comparable"]
Direction = Literal["better", "worse", "unchanged"]
Presence = Literal["new", "gone", "stayed", "moved"]
BetVerdict = Literal["kept", "partly", "not_kept", "cannot_tell"]
"""kept: the measured gain reaches the predicted one, within their intervals; partly: a smaller one; not_kept: none."""


@dataclass(frozen=True, slots=True)
class Change:
    """One number before and after, in ns or as a share; None where it cannot be given.

    Attributes:
        difference: after minus before; `interval` bounds it.
        chance: two-sided chance of such a difference between equals, adjusted for the number of tests; None if
            untested.
        direction: "better" and "worse" are significant; None if untested. More is worse.
    """

    before: float | None
    after: float | None
    difference: float | None = None
    interval: Interval | None = None
    chance: float | None = None
    direction: Direction | None = None


@dataclass(frozen=True, slots=True)
class ComparedSide:
    """One of the two recordings."""

    paths: tuple[str, ...]
    status: Status
    headline: str
    ranks: int
    steps: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Mean of all ranks together in a step, from batch annotations; None where they do not say."""

    requests: float | None
    held_tokens: float | None
    prefill_tokens: float | None


@dataclass(frozen=True, slots=True)
class KindChange:
    """The time of one kind of step that both sides ran."""

    kind: str
    before_steps: int
    after_steps: int
    step_ns: Change
    before_batch: Batch
    after_batch: Batch


@dataclass(frozen=True, slots=True)
class AccountRow:
    """A part of the mean step: a cause, "unexplained", or "even ranks" (the step without any lost time)."""

    name: str
    before_ns: int
    after_ns: int


@dataclass(frozen=True, slots=True)
class EngineChange:
    """One lockstep group on both sides.

    Attributes:
        engine, ranks: as they are called after.
        reasons: why the two cannot be compared; empty if they can.
        step_ns: mean step, the kinds in the same mix on both sides.
        account: parts of that mean; they add up to it on both sides. Empty where no lost time is known.
        speed: time of equal work on all ranks together, as a multiple of what it took before.
        transfer_ns: time a step between the last arrival and the end of its collectives.
    """

    engine: str
    ranks: tuple[int, ...]
    reasons: tuple[str, ...]
    step_ns: Change
    kinds: tuple[KindChange, ...]
    account: tuple[AccountRow, ...]
    speed: Change
    transfer_ns: Change


@dataclass(frozen=True, slots=True)
class CauseChange:
    """One cause on both sides.

    Attributes:
        cause: as it is called after, or before if it is gone.
        earlier_cause: as it was called before, where that differs (the same ranks, one recording tells more).
        lost_ns: per step, the kinds in the same mix on both sides.
        lost_ratio: of the time of these steps.
        unjudged: why the side that lacks the cause could not have shown it; None if it could.
    """

    cause: str
    engine: str
    presence: Presence
    before_ranks: tuple[int, ...]
    after_ranks: tuple[int, ...]
    before_severity: Severity | None
    after_severity: Severity | None
    lost_ns: Change
    lost_ratio: Change
    summary: str
    earlier_cause: str | None = None
    unjudged: str | None = None

    @property
    def direction(self) -> Direction | None:
        """Tell whether it costs significantly more or less; by time where the work is alike, else by share."""
        return self.lost_ns.direction or self.lost_ratio.direction


@dataclass(frozen=True, slots=True)
class StepGain:
    """How much less a step takes, as a share of what it took before; `interval` bounds it. None where unknown."""

    ratio: float | None = None
    interval: Interval | None = None


UNKNOWN_GAIN = StepGain()


@dataclass(frozen=True, slots=True)
class Bet:
    """A remedy's predicted gain against what the later recording gains.

    Attributes:
        findings: of the earlier diagnosis, of one cause on the same ranks.
        remedy: key of what was tried, or of the best one where nobody says what was.
        is_stated: the user says that it was tried.
        predicted: as the earlier diagnosis has it, in the kinds of step that both recordings ran.
        basis: of the prediction.
        measured: the kinds in the same mix, what other causes cost less or more taken out.
        reason: why it cannot be told, or what to think of; None where nothing need be said.
    """

    findings: tuple[str, ...]
    cause: str
    engine: str
    ranks: tuple[int, ...]
    remedy: str
    command: str | None
    is_stated: bool
    predicted: StepGain
    basis: str
    measured: StepGain
    verdict: BetVerdict
    reason: str | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """All that is said about a recording against an earlier one.

    Attributes:
        reasons: why the two, or parts of them, cannot be compared.
        significance: chance of any false alarm among all the tests together.
    """

    verdict: ComparisonVerdict
    headline: str
    before: ComparedSide
    after: ComparedSide
    reasons: tuple[str, ...]
    engines: tuple[EngineChange, ...]
    causes: tuple[CauseChange, ...]
    notes: tuple[str, ...]
    interval_level: float = 0.9
    significance: float = 0.05
    bets: tuple[Bet, ...] = ()
