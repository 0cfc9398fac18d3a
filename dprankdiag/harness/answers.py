"""What the command said about a recording, and how that compares with the truth."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from dprankdiag.harness.cases import HEALTHY, UNIFORM, Facts
from dprankdiag.harness.worlds import Truth

ALARMS = ("critical", "warning")
_SAME = "same_verdict_ratio"


@dataclass(frozen=True, slots=True)
class Said:
    """One finding as printed; what was not given is None.

    Attributes:
        same_ratio: share of the draws of steps in which it comes back, as its evidence says.
    """

    cause: str
    ranks: tuple[int, ...]
    severity: str
    lost_ratio: float | None = None
    interval: tuple[float, float] | None = None
    confidence: float | None = None
    who: str | None = None
    when: str | None = None
    same_ratio: float | None = None

    @property
    def is_alarm(self) -> bool:
        """Tell whether it is a warning or graver."""
        return self.severity in ALARMS


@dataclass(frozen=True, slots=True)
class Answer:
    """What the command printed.

    Attributes:
        status: None if it failed.
        findings: in the order printed.
        total_ns, unexplained_ns: all that is lost, and the part that no finding explains.
        total_ratio: all that is lost, as a share of the time.
        seconds: wall time of the command.
        error: why there is no answer, else "".
    """

    status: str | None
    findings: tuple[Said, ...] = ()
    total_ns: int | None = None
    unexplained_ns: int | None = None
    total_ratio: float | None = None
    seconds: float = 0.0
    error: str = ""

    @property
    def alarms(self) -> tuple[Said, ...]:
        """List the findings of warning or above."""
        return tuple(said for said in self.findings if said.is_alarm)

    @property
    def first(self) -> Said | None:
        """Give the costliest alarm, else the first finding, None without any."""
        return next(iter((*self.alarms, *self.findings)), None)

    def summary(self) -> str:
        """List what was said in one line; findings below a warning stand in brackets."""
        if self.status is None:
            return f"failed: {self.error}"
        shown = [f"{said.cause} {list_ranks(said.ranks)}" for said in self.alarms]
        shown += [f"({said.cause} {list_ranks(said.ranks)})" for said in self.findings if not said.is_alarm]
        return "; ".join(shown) or self.status


@dataclass(frozen=True, slots=True)
class Outcome:
    """A recording, what is true of it, what was said of it, and of changed copies by the change's name.

    Attributes:
        renamed: by change, which rank became which, where ranks were renumbered.
    """

    facts: Facts
    answer: Answer
    changed: dict[str, Answer] = field(default_factory=dict)
    renamed: dict[str, dict[int, int]] = field(default_factory=dict)

    @property
    def said(self) -> str:
        """Name what was said: a cause, a status, or the failure; of calm worlds only a warning counts."""
        first = self.answer.first if self.answer.alarms or not self.facts.is_calm else None
        if self.answer.status is None:
            return "failed"
        return first.cause if first else self.answer.status

    @property
    def right_cause(self) -> bool:
        """Tell whether cause, or health, is right; uniform slowness is also right as a status."""
        if self.facts.silent:
            return self.answer.status is not None and not self.answer.alarms
        if self.facts.expected == UNIFORM:
            return self.answer.status in ("uniform", HEALTHY) and not self.answer.alarms
        if self.facts.expected == HEALTHY:
            return self.answer.status == HEALTHY and not self.answer.alarms
        return self.said == self.facts.expected

    @property
    def right_ranks(self) -> bool | None:
        """Tell whether exactly the culprits are named; None where nobody is to blame.

        With several faults the alarms must together name every culprit of a fault that costs a warning, and no other.
        """
        if self.facts.is_calm or not self.facts.culprits:
            return None
        if len(self.facts.truths) == 1:
            first = self.answer.first
            return first is not None and first.ranks == self.facts.truths[0].ranks
        named = {rank for said in self.answer.alarms for rank in said.ranks}
        grave = {rank for true in self.facts.truths if true.lost_ratio >= 0.03 for rank in true.ranks}
        return grave <= named <= self.facts.culprits

    @property
    def right(self) -> bool:
        """Tell whether the answer is right as a whole: every fault that costs a warning named, and no alarm beside."""
        if len(self.facts.truths) < 2 or self.facts.is_calm:
            return self.right_cause and self.right_ranks is not False and len(self.answer.alarms) <= 1
        pairs = list(self.match())
        missed = any(true and true.lost_ratio >= 0.03 and not fits(true, said) for true, said in pairs)
        return not missed and not any(true is None and said and said.is_alarm for true, said in pairs)

    @property
    def names_others(self) -> bool:
        """Tell whether an alarm names a rank that is not to blame."""
        return any(set(said.ranks) - self.facts.culprits for said in self.answer.alarms)

    def match(self) -> Iterator[tuple[Truth | None, Said | None]]:
        """Pair truths with findings: the best of those left for each truth, the costliest truth first."""
        left = list(self.answer.findings)
        for true in () if self.facts.silent else self.facts.truths:
            best = max(left, key=lambda said: _likeness(true, said), default=None)
            if best is not None and _likeness(true, best) > (0, 0, 0, 0):
                left.remove(best)
                yield true, best
            elif true.cause != UNIFORM:
                yield true, None
        yield from ((None, said) for said in left)


def fits(true: Truth | None, said: Said | None) -> bool:
    """Tell whether a finding is a fault itself: its cause and exactly its ranks."""
    if true is None or said is None:
        return False
    return said.cause == true.answerable and (not true.ranks or said.ranks == true.ranks)


def class_of(cause: str) -> str:
    """Give the class of a cause."""
    return cause.split(".")[0]


def list_ranks(ranks: Iterable[int]) -> str:
    """List ranks, or a dash for none."""
    return ",".join(map(str, sorted(ranks))) or "-"


def _likeness(true: Truth, said: Said) -> tuple[int, int, int, int]:
    """Grade how well a finding fits a truth: the cause, the ranks, the class, a rank in common."""
    cause, ranks = said.cause == true.answerable, said.ranks == true.ranks
    common = bool(set(said.ranks) & set(true.ranks)) or (not true.ranks and cause)
    alike = class_of(said.cause) in (class_of(str(true.answerable)), "unclassified")
    return (cause and ranks, cause and common, ranks and alike, common and alike)


def read_answer(printed: Mapping[str, Any] | None, seconds: float, error: str = "") -> Answer:
    """Read what the command printed; None if it printed nothing of use."""
    if printed is None:
        return Answer(None, seconds=seconds, error=error)
    lost = printed.get("lost") or {}
    return Answer(
        status=printed.get("status"),
        findings=tuple(_read_finding(it) for it in printed.get("findings", ())),
        total_ns=lost.get("total_ns"),
        unexplained_ns=lost.get("unexplained_ns"),
        total_ratio=lost.get("ratio"),
        seconds=round(seconds, 3),
    )


def _read_finding(printed: Mapping[str, Any]) -> Said:
    bounds = printed.get("interval")
    return Said(
        cause=str(printed.get("cause")),
        ranks=tuple(sorted(printed.get("ranks") or ())),
        severity=str(printed.get("severity")),
        lost_ratio=printed.get("lost_ratio"),
        interval=(float(bounds[0]), float(bounds[1])) if bounds else None,
        confidence=printed.get("confidence"),
        who=printed.get("who"),
        when=printed.get("when"),
        same_ratio=next((it.get("value") for it in printed.get("evidence") or () if it.get("name") == _SAME), None),
    )


def read_outcomes(path: Path) -> list[Outcome]:
    """Read outcomes, one a line; a last line that was cut short is left out."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    return [msgspec.json.decode(line, type=Outcome) for line in lines if line]
