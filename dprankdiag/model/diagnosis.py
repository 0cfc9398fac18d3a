"""The answer: findings, abstentions, and the account of lost time (DESIGN 4.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dprankdiag.model.ranks import Rank
from dprankdiag.model.sources import Source

Interval = tuple[float, float]
Severity = Literal["critical", "warning", "info"]
Status = Literal["findings", "uniform", "healthy", "inconclusive"]
Who = Literal["one", "group", "rotating", "all"]
When = Literal["steady", "burst", "periodic", "onset"]


@dataclass(frozen=True, slots=True)
class Evidence:
    """A measured number that speaks for a finding; `name` is a row of catalog/evidence.toml."""

    name: str
    value: float | None
    unit: str
    text: str
    expected: float | None = None
    samples: int | None = None


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another cause that could look the same, and what would have to be seen for it."""

    cause: str
    would_need: str


@dataclass(frozen=True, slots=True)
class Remedy:
    """What to do, and the gain to expect: predicted wall time saved over measured wall time.

    Attributes:
        gain_ratio: never more than the share that its finding costs.
        command: what exactly to set or run on the engine that the input shows; where it shows none, both spellings,
            each with its engine. None where nothing is typed.
        why_no_gain: why `gain_ratio` is absent; None where it is given.
    """

    key: str
    text: str
    gain_ratio: float | None
    basis: str
    interval: Interval | None = None
    command: str | None = None
    why_no_gain: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What may be seen after an experiment, and what that means; `cause` is what it speaks for."""

    seen: str
    means: str
    cause: str | None = None


@dataclass(frozen=True, slots=True)
class Experiment:
    """A cheap change that tells one cause from another; it cures nothing."""

    key: str
    text: str
    command: str | None
    outcomes: tuple[Outcome, ...]


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """Half-open span on the deployment's time axis."""

    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause, the ranks it concerns, and what it costs.

    Attributes:
        remedies: best first: those that the engine can do before those that it cannot, then by gain.
        experiments: what would tell the cause from another one.
    """

    id: str
    cause: str
    engine: str
    ranks: tuple[int, ...]
    layers: tuple[int, ...] | None
    who: Who
    when: When
    severity: Severity
    lost_ns: int | None
    lost_ratio: float | None
    window_lost_ratio: float | None
    interval: Interval | None
    basis: str
    recoverable_ns: int | None
    confidence: float
    window: TimeWindow
    onset_ns: int | None
    period_ns: int | None
    summary: str
    evidence: tuple[Evidence, ...]
    alternatives: tuple[Alternative, ...]
    remedies: tuple[Remedy, ...]
    experiments: tuple[Experiment, ...] = ()


@dataclass(frozen=True, slots=True)
class Abstention:
    """A cause that could not be judged, why, and what would show it."""

    cause: str
    reason: str
    lacked: tuple[str, ...] = ()
    get_it_with: str | None = None


@dataclass(frozen=True, slots=True)
class TimeAccount:
    """What was analysed and how well its clocks and meetings fit."""

    clock: str
    start_ns: int | None
    end_ns: int | None
    steps: int
    step_kinds: dict[str, int]
    collectives: int
    matched_ratio: float | None
    clock_residual_ns: int | None
    replay_error_ratio: float | None


@dataclass(frozen=True, slots=True)
class StepTime:
    """Median duration of a step as measured, and replayed without systematic skew."""

    median_ns: int | None
    balanced_median_ns: int | None


@dataclass(frozen=True, slots=True)
class CauseLoss:
    """What one cause costs in all its findings."""

    cause: str
    lost_ns: int | None
    ratio: float | None


@dataclass(frozen=True, slots=True)
class Lost:
    """The account of lost time; None where it cannot be computed."""

    total_ns: int | None
    ratio: float | None
    interval: Interval | None
    by_cause: tuple[CauseLoss, ...]
    unexplained_ns: int | None
    jitter_ns: int | None
    gpu_ns: int | None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All that is said about one deployment."""

    status: Status
    headline: str
    inputs: tuple[Source, ...]
    ranks: tuple[Rank, ...]
    time: TimeAccount
    step: StepTime
    lost: Lost
    findings: tuple[Finding, ...]
    abstentions: tuple[Abstention, ...]
    notes: tuple[str, ...]
    interval_level: float = 0.9
