"""Score the installed command against worlds whose truth is known.

The command is run as a user runs it, on files, and judged by the JSON it prints.
"""

from __future__ import annotations

import json
import math
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from dprankdiag.harness.suites import Format, write_world
from dprankdiag.harness.worlds import Truth, World, truth

HEALTHY = "healthy"
ALARMS = ("critical", "warning")


@dataclass(frozen=True, slots=True)
class Verdict:
    """One world, what is true of it, and what the command said.

    Attributes:
        status: as printed; None if the command failed.
        cause: of the costliest finding of warning or above, else of the first finding; None without findings.
        ranks: of that finding.
        alarms: findings of warning or above.
        lost_ns: of that finding, None if it is not priced.
        seconds: wall time of the command.
        error: why there is no verdict, else "".
    """

    name: str
    truth: Truth
    status: str | None
    cause: str | None
    ranks: tuple[int, ...]
    alarms: int
    lost_ns: int | None
    seconds: float
    error: str = ""

    @property
    def expected(self) -> str:
        """Name what a perfect diagnosis would say."""
        return self.truth.answerable or HEALTHY

    @property
    def said(self) -> str:
        """Name what was said: a cause, a status, or the failure."""
        return "failed" if self.status is None else self.cause or self.status

    @property
    def right_cause(self) -> bool:
        """Tell whether cause (or health) is right; uniform slowness is also right as a status."""
        if self.expected == "uniform.slow":
            return not self.alarms and self.status in ("uniform", HEALTHY)
        if self.truth.healthy:
            return self.status == HEALTHY and not self.alarms
        return self.cause == self.expected

    @property
    def right_ranks(self) -> bool | None:
        """Tell whether exactly the culprits were named; None where nobody is to blame."""
        return self.ranks == self.truth.ranks if self.truth.ranks else None

    @property
    def lost_error(self) -> float | None:
        """Give the error of the lost time, as a share of the wall time; None where there is nothing to compare."""
        if self.truth.healthy or self.lost_ns is None or not self.right_cause:
            return None
        return (self.lost_ns - self.truth.lost_ns) / self.truth.wall_ns


@dataclass(frozen=True, slots=True)
class Rate:
    """A share with its 95 % bounds."""

    hits: int
    count: int

    @property
    def bounds(self) -> tuple[float, float]:
        """Bound the share behind the sample.

        Source: Wilson, Probable inference, the law of succession, and statistical inference, JASA 22 (1927).
        """
        if not self.count:
            return (0.0, 1.0)
        z, share = 1.959964, self.hits / self.count
        middle = share + z * z / (2 * self.count)
        half = z * math.sqrt(share * (1 - share) / self.count + z * z / (4 * self.count**2))
        scale = 1 + z * z / self.count
        return (max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale))

    def __str__(self) -> str:
        low, high = self.bounds
        return f"{self.hits}/{self.count} ({low:.2f}–{high:.2f})" if self.count else "-"


@dataclass(frozen=True, slots=True)
class Scoreboard:
    """All verdicts of a run."""

    verdicts: tuple[Verdict, ...]

    def precision(self, cause: str) -> Rate:
        """Count how often a cause was right when it was named."""
        named = [verdict for verdict in self.verdicts if verdict.said == cause]
        return Rate(sum(verdict.right_cause for verdict in named), len(named))

    def recall(self, cause: str) -> Rate:
        """Count how often a cause was named when it was right."""
        there = [verdict for verdict in self.verdicts if verdict.expected == cause]
        return Rate(sum(verdict.right_cause for verdict in there), len(there))

    def causes(self) -> list[str]:
        """List what was expected or said."""
        return sorted({verdict.expected for verdict in self.verdicts} | {verdict.said for verdict in self.verdicts})

    def culprits(self) -> Rate:
        """Count the worlds in which exactly the culprits were named."""
        judged = [verdict.right_ranks for verdict in self.verdicts if verdict.right_ranks is not None]
        return Rate(sum(judged), len(judged))

    def false_alarms(self) -> Rate:
        """Count the healthy worlds with a finding of warning or above."""
        healthy = [verdict for verdict in self.verdicts if verdict.truth.healthy]
        return Rate(sum(verdict.alarms > 0 for verdict in healthy), len(healthy))

    def lost_errors(self) -> list[float]:
        """List the errors of the lost time as shares of the wall time, where cause and price were given."""
        return [error for verdict in self.verdicts if (error := verdict.lost_error) is not None]

    def text(self) -> str:
        """Write the tables."""
        rows = [_verdict_row(verdict) for verdict in self.verdicts]
        header = ("world", "expected", "said", "ranks", "named", "lost ms", "said ms", "s", "")
        per_cause = [(cause, str(self.precision(cause)), str(self.recall(cause))) for cause in self.causes()]
        errors = [100 * abs(error) for error in self.lost_errors()]
        summary = [
            f"culprits {self.culprits()}",
            f"false alarms {self.false_alarms()}",
            f"lost time, error over wall time: median {median(errors):.2f} %, worst {max(errors):.2f} %"
            if errors
            else "lost time: nothing priced",
        ]
        tables = [_align([header, *rows]), _align([("cause", "precision", "recall"), *per_cause]), "\n".join(summary)]
        return "\n\n".join(tables) + "\n"


def score(
    folder: Path, worlds: Mapping[str, World], command: Sequence[str] = ("dprankdiag",), *, format: Format = "nsys"
) -> Scoreboard:
    """Write each world into a folder, diagnose it with the installed command, and compare with the truth.

    Args:
        folder: a folder of its own is made for each world.
        worlds: worlds by name, with at most one fault each.
        command: how to call the program.
        format: of the recordings.
    """
    return Scoreboard(tuple(_score_world(folder / name, name, it, command, format) for name, it in worlds.items()))


def _score_world(folder: Path, name: str, world: World, command: Sequence[str], format: Format) -> Verdict:
    paths = write_world(world, folder, name=name, format=format)
    begin = time.perf_counter()
    answer, error = run_command(paths, command)
    return read_verdict(name, truth(world), answer, time.perf_counter() - begin, error)


def run_command(paths: Sequence[Path | str], command: Sequence[str]) -> tuple[dict[str, Any] | None, str]:
    """Run the diagnosis; give its JSON, or None and the reason."""
    line = [*command, "analyze", *map(str, paths), "--format", "json"]
    try:
        done = subprocess.run(line, capture_output=True, text=True, check=False)
    except OSError as problem:
        return None, str(problem)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:]
        return None, f"exit code {done.returncode}: {''.join(last)}"
    try:
        answer = json.loads(done.stdout)
    except json.JSONDecodeError as problem:
        return None, f"not JSON: {problem}"
    return (answer, "") if isinstance(answer, dict) else (None, "not one JSON object")


def read_verdict(name: str, true: Truth, answer: dict[str, Any] | None, seconds: float, error: str = "") -> Verdict:
    """Read what the command said."""
    if answer is None:
        return Verdict(name, true, None, None, (), 0, None, seconds, error)
    findings = answer.get("findings", [])
    alarms = [finding for finding in findings if finding.get("severity") in ALARMS]
    first = (alarms or findings or [{}])[0]
    return Verdict(
        name=name,
        truth=true,
        status=answer.get("status"),
        cause=first.get("cause"),
        ranks=tuple(sorted(first.get("ranks") or ())),
        alarms=len(alarms),
        lost_ns=first.get("lost_ns"),
        seconds=seconds,
    )


def _verdict_row(verdict: Verdict) -> tuple[str, ...]:
    mark = "" if verdict.right_cause and verdict.right_ranks is not False else "✗"
    return (
        verdict.name,
        verdict.expected,
        verdict.said,
        _list_ranks(verdict.truth.ranks),
        _list_ranks(verdict.ranks),
        f"{verdict.truth.lost_ns / 1e6:.2f}",
        "-" if verdict.lost_ns is None else f"{verdict.lost_ns / 1e6:.2f}",
        f"{verdict.seconds:.2f}",
        f"{mark} {verdict.error}".strip(),
    )


def _list_ranks(ranks: tuple[int, ...]) -> str:
    return ",".join(map(str, ranks)) or "-"


def _align(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "\n".join(lines)
