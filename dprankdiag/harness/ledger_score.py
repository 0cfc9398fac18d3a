"""Score the installed command on two scrapes of deployments whose truth is known.

The command is run as a user runs it, on files, and judged by the JSON it prints.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from dprankdiag.harness.answers import ALARMS
from dprankdiag.harness.cases import HEALTHY
from dprankdiag.harness.ledger_worlds import (
    LedgerTruth,
    LedgerWorld,
    fault_shows,
    ledger_truths,
    measure_growth,
    simulate_ledger,
    write_ledger_world,
)
from dprankdiag.harness.score import Rate, run_command

Outcome = Literal["right", "wrong ranks", "wrong cause", "wrong class", "abstained", "false alarm", "quiet", "failed"]
OUTCOMES: tuple[Outcome, ...] = (
    "right", "wrong ranks", "wrong cause", "wrong class", "abstained", "false alarm", "quiet", "failed"
)  # fmt: skip

Named = tuple[str, tuple[int, ...]]
"""A cause and ranks."""


@dataclass(frozen=True, slots=True)
class LedgerVerdict:
    """One world, what is true of it, and what the command said.

    Attributes:
        truth: None if nothing is wrong.
        status: as printed; None if the command failed.
        alarms: what it warns of, the gravest first.
        hints: what it mentions below a warning.
        growth_ratio: by how much steps are longer than without the fault.
        shows: the fault has had its effect on what ranks hold; one that has not need not be named, but may be.
        seconds: wall time of the command.
        error: why there is no verdict, else "".
    """

    name: str
    truth: LedgerTruth | None
    status: str | None
    alarms: tuple[Named, ...]
    hints: tuple[Named, ...]
    growth_ratio: float
    seconds: float
    error: str = ""
    shows: bool = True

    @property
    def expected(self) -> str:
        """Name what a perfect diagnosis would say of these pages."""
        return self.truth.accepted[0] if self.truth and self.truth.accepted and self.shows else HEALTHY

    @property
    def said(self) -> Named | None:
        """Give the gravest finding, None without one."""
        return next(iter((*self.alarms, *self.hints)), None)

    @property
    def outcome(self) -> Outcome:
        """Sum the verdict up; where the pages cannot show what is wrong, any alarm is a false one."""
        if self.status is None:
            return "failed"
        if self.truth is None or not self.truth.accepted:
            return "false alarm" if self.alarms else "quiet"
        if self.said is None:
            return "abstained" if self.shows else "quiet"
        cause, ranks = self.said
        if cause in self.truth.accepted:
            return "right" if ranks == self.truth.ranks else "wrong ranks"
        return "wrong cause" if _class(cause) == _class(self.truth.accepted[0]) else "wrong class"

    @property
    def names_others(self) -> bool:
        """Tell whether an alarm names a rank that is not to blame."""
        culprits = set(self.truth.ranks) if self.truth else set()
        return any(set(ranks) - culprits for _, ranks in self.alarms)


@dataclass(frozen=True, slots=True)
class LedgerBoard:
    """All verdicts of a run."""

    verdicts: tuple[LedgerVerdict, ...]

    def count(self, *outcomes: Outcome) -> int:
        """Count the worlds of some outcomes."""
        return sum(verdict.outcome in outcomes for verdict in self.verdicts)

    def rights(self, least_growth: float = 0.0) -> Rate:
        """Count how often cause and ranks were right, of the faults that pages show and that cost so much at least."""
        shown = [it for it in self.verdicts if it.expected != HEALTHY and it.growth_ratio >= least_growth]
        return Rate(sum(it.outcome == "right" for it in shown), len(shown))

    def false_alarms(self) -> Rate:
        """Count the worlds that warrant no alarm and got one."""
        calm = [verdict for verdict in self.verdicts if verdict.expected == HEALTHY]
        return Rate(sum(verdict.outcome == "false alarm" for verdict in calm), len(calm))

    def others_named(self) -> Rate:
        """Count the worlds in which a rank without fault was blamed."""
        return Rate(sum(verdict.names_others for verdict in self.verdicts), len(self.verdicts))

    def class_score(self, least_growth: float = 0.0) -> float:
        """Give the macro-F1 over classes, with health as one of them."""
        pairs = [
            (_class(it.expected), _class(it.said[0]) if _counts(it) and it.said else HEALTHY)
            for it in self.verdicts
            if it.expected == HEALTHY or it.growth_ratio >= least_growth
        ]
        names = {expected for expected, _ in pairs}
        return sum(_f1(pairs, name) for name in names) / max(1, len(names))

    def by_cause(self) -> list[tuple[str, Rate]]:
        """Count the right ones by cause."""
        causes = sorted({verdict.expected for verdict in self.verdicts} - {HEALTHY})
        return [
            (cause, Rate(sum(it.outcome == "right" for it in told), len(told)))
            for cause in causes
            if (told := [it for it in self.verdicts if it.expected == cause])
        ]

    def text(self) -> str:
        """Write the tables."""
        lines = [
            f"{it.name:28} {it.outcome:12} expected {it.expected} {_list(it.truth)}; said {_show(it)}"
            f"{'; ' + it.error if it.error else ''}"
            for it in self.verdicts
        ]
        lines += ["", *(f"{cause:28} {rate}" for cause, rate in self.by_cause()), ""]
        lines += [f"{outcome:28} {self.count(outcome)}" for outcome in OUTCOMES]
        lines += [
            f"right, step 10 % longer       {self.rights(0.1)}",
            f"class macro-F1, 10 % longer   {self.class_score(0.1):.3f}",
            f"false alarms                  {self.false_alarms()}",
            f"a rank without fault blamed   {self.others_named()}",
        ]
        return "\n".join(lines) + "\n"


def score_ledgers(
    folder: Path, worlds: Mapping[str, LedgerWorld], command: Sequence[str] = ("dprankdiag",)
) -> LedgerBoard:
    """Write two scrapes of each world, let the installed command judge them, and compare with the truth.

    Args:
        folder: a folder of its own is made for each world.
        worlds: worlds by name, with at most one fault each.
        command: how to call the program.
    """
    return LedgerBoard(tuple(_score(folder / name, name, world, command) for name, world in worlds.items()))


def _score(folder: Path, name: str, world: LedgerWorld, command: Sequence[str]) -> LedgerVerdict:
    inputs = write_ledger_world(world, folder, name=name)
    begin = time.perf_counter()
    answer, error = run_command(inputs, command)
    seconds = time.perf_counter() - begin
    truths = ledger_truths(world)
    if not truths:
        return read_ledger_verdict(name, None, answer, 0.0, seconds, error)
    verdict = read_ledger_verdict(name, truths[0], answer, measure_growth(world), seconds, error)
    *_, last = simulate_ledger(world)
    return replace(verdict, shows=fault_shows(truths[0], last.state))


def read_ledger_verdict(
    name: str, true: LedgerTruth | None, answer: dict[str, Any] | None, growth: float, seconds: float, error: str = ""
) -> LedgerVerdict:
    """Read what the command said."""
    if answer is None:
        return LedgerVerdict(name, true, None, (), (), growth, seconds, error)
    named = [
        (finding.get("severity") in ALARMS, (str(finding.get("cause")), tuple(sorted(finding.get("ranks") or ()))))
        for finding in answer.get("findings", [])
    ]
    alarms = tuple(item for grave, item in named if grave)
    hints = tuple(item for grave, item in named if not grave)
    return LedgerVerdict(name, true, answer.get("status"), alarms, hints, growth, seconds)


def _counts(verdict: LedgerVerdict) -> bool:
    """Tell whether a finding counts as said: of a world without a fault to find only an alarm does."""
    return bool(verdict.alarms) or verdict.expected != HEALTHY


def _class(cause: str) -> str:
    return cause.split(".")[0]


def _f1(pairs: Sequence[tuple[str, str]], name: str) -> float:
    both = sum(expected == said == name for expected, said in pairs)
    total = sum((expected == name) + (said == name) for expected, said in pairs)
    return 2 * both / total if total else 0.0


def _list(true: LedgerTruth | None) -> str:
    return ",".join(map(str, true.ranks)) if true and true.accepted else ""


def _show(verdict: LedgerVerdict) -> str:
    shown = [f"{cause} {','.join(map(str, ranks))}" for cause, ranks in verdict.alarms]
    shown += [f"({cause} {','.join(map(str, ranks))})" for cause, ranks in verdict.hints]
    return "; ".join(shown) or str(verdict.status)
