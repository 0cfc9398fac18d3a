"""The diagnosis as Prometheus metrics: what is found, where, and how sure (DESIGN 4.4).

Labels are few and stand still: deployment, engine, rank and cause name a series, and what changes is its value. What is
gone from the diagnosis is gone from the page; a verdict of which the source tells nothing any more goes after a while.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from dprankdiag.model.diagnosis import Diagnosis, Finding, Severity, Status
from dprankdiag.model.ledger_results import LEDGER_RANKS
from dprankdiag.model.results import find_table
from dprankdiag.units import NS_PER_S
from dprankdiag.views.base import Tables

if TYPE_CHECKING:
    from prometheus_client.core import GaugeMetricFamily, Metric

STATUSES: tuple[Status, ...] = get_args(Status)
SEVERITIES: dict[Severity, float] = {"info": 1.0, "warning": 2.0, "critical": 3.0}
"""Severity as a number, so that a finding that grows worse stays the same series."""

MOST_ENGINES = 64
MOST_SAMPLES = 4096
"""Samples of one family, 320 ranks with a dozen findings each; a server that stores this page must not choke on it."""

MOST_LABEL = 120
"""Letters of a label."""


@dataclass(frozen=True, slots=True)
class _Engine:
    """What was last told of an engine, and when.

    Attributes:
        told_s: by a clock that only grows.
        at_s: UTC epoch seconds.
        ages_s: rank → age of its load snapshot.
    """

    told_s: float
    at_s: float
    ranks: int
    findings: tuple[Finding, ...]
    ages_s: dict[int, float]


class DiagnosisMetrics:
    """Collects the latest diagnosis for a Prometheus registry.

    Args:
        deployment: label of all series.
        targets: that are asked, for people.
        hold_s: how long the findings of an engine stand that tells nothing any more: a lost answer or two are no end of
            an alert, and no verdict stands for ever.
        now: seconds that only grow.
    """

    def __init__(
        self,
        deployment: str,
        targets: Sequence[str] = (),
        *,
        hold_s: float = math.inf,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._deployment = deployment
        self._targets = tuple(targets)
        self._hold_s = hold_s
        self._now = now
        self._lock = threading.Lock()
        self._engines: dict[str, _Engine] = {}
        self._latest: tuple[float, float, Status] | None = None
        self._silent: frozenset[str] = frozenset()

    def show(self, diagnosis: Diagnosis, tables: Tables, at_ns: int | None = None, silent: Iterable[str] = ()) -> None:
        """Show this diagnosis from now on.

        Args:
            at_ns: moment of the tick, UTC epoch ns; now if not given.
            silent: those of the targets that give no data.
        """
        now_s, at_s = self._now(), (time.time_ns() if at_ns is None else at_ns) / NS_PER_S
        told = _part_by_engine(diagnosis, tables, now_s, at_s)
        with self._lock:
            self._engines |= told
            self._latest = (now_s, at_s, diagnosis.status)
            self._silent = frozenset(silent)
            self._forget(now_s)

    def _forget(self, now_s: float) -> None:
        for name in [name for name, one in self._engines.items() if now_s - one.told_s > self._hold_s]:
            del self._engines[name]

    def collect(self) -> Iterable[Metric]:
        """List the families with their samples; none before the first diagnosis."""
        with self._lock:
            latest, silent, now_s = self._latest, self._silent, self._now()
            self._forget(now_s)
            engines = dict(self._engines)
        if latest is None:
            return []
        told_s, at_s, status = latest
        families = _Families(self._deployment)
        families.add("tick_timestamp_seconds", "When targets were last asked and judged", (), at_s)
        for target in self._targets:
            up = float(target not in silent)
            families.add("target_up", "1 if a target answers, 0 if it gives no data", ("target",), up, target)
        if now_s - told_s <= self._hold_s:
            families.add_status(status)
        families.add_engines(engines)
        return families.finish()


def _part_by_engine(diagnosis: Diagnosis, tables: Tables, told_s: float, at_s: float) -> dict[str, _Engine]:
    """Part a diagnosis by the engines that told something in it."""
    ranks: dict[str, set[int]] = {}
    for rank in diagnosis.ranks:
        ranks.setdefault(rank.engine, set()).add(rank.rank)
    for finding in diagnosis.findings:
        ranks.setdefault(finding.engine, set())
    ages: dict[str, dict[int, float]] = {}
    told = find_table(tables, LEDGER_RANKS)
    if told is not None:
        for engine, number, age_ns in zip(told["engine"], told["rank"], told["snapshot_age_ns"], strict=True):
            ranks.setdefault(str(engine), set()).add(int(number))
            if not math.isnan(age_ns):
                ages.setdefault(str(engine), {})[int(number)] = float(age_ns) / NS_PER_S
    return {
        engine: _Engine(
            told_s,
            at_s,
            len(numbers),
            tuple(finding for finding in diagnosis.findings if finding.engine == engine),
            ages.get(engine, {}),
        )
        for engine, numbers in ranks.items()
    }


_ALWAYS = (
    ("status", "1 for the status that the last diagnosis has", ("status",)),
    ("finding_active", "1 for each rank that a finding names", ("engine", "rank", "cause")),
    (
        "finding_severity",
        "How grave the finding is: 1 info, 2 warning, 3 critical",
        ("engine", "rank", "cause"),
    ),
    (
        "finding_confidence_ratio",
        "How sure the finding is, 0 to 1",
        ("engine", "cause"),
    ),
    (
        "lost_ratio",
        "Share of the time that a finding costs, at most; no sample where it cannot be told",
        ("engine", "cause"),
    ),
    (
        "ledger_age_seconds",
        "Age of a rank's load snapshot against the freshest of any rank",
        ("engine", "rank"),
    ),
    ("ranks", "Ranks that an engine shows", ("engine",)),
    ("verdict_timestamp_seconds", "When an engine last told something that was judged", ("engine",)),
)


class _Families:
    """The families of a page, each with a bound to its samples."""

    def __init__(self, deployment: str) -> None:
        self._deployment = deployment
        self._families: dict[str, GaugeMetricFamily] = {}
        self._seen: dict[str, set[tuple[str, ...]]] = {}
        self._dropped = 0
        for name, says, labels in _ALWAYS:
            self._open(name, says, labels)

    def _open(self, name: str, says: str, labels: Sequence[str]) -> GaugeMetricFamily:
        from prometheus_client.core import GaugeMetricFamily

        if name not in self._families:
            self._families[name] = GaugeMetricFamily(f"dprankdiag_{name}", says, labels=["deployment", *labels])
        return self._families[name]

    def add(self, name: str, says: str, labels: Sequence[str], value: float, *values: str) -> None:
        """Add a sample; one more than the page can hold is counted instead, one of a series that is there is not."""
        family = self._open(name, says, labels)
        key = (self._deployment, *(value[:MOST_LABEL] for value in values))
        seen = self._seen.setdefault(name, set())
        if key in seen:
            return
        if len(seen) >= MOST_SAMPLES:
            self._dropped += 1
            return
        seen.add(key)
        family.add_metric(key, value)

    def add_status(self, status: Status) -> None:
        """Add the status that holds."""
        for name in STATUSES:
            self._put("status", float(status == name), name)

    def add_engines(self, engines: dict[str, _Engine]) -> None:
        """Add what is known of each engine."""
        kept = sorted(engines)[:MOST_ENGINES]
        self._dropped += len(engines) - len(kept)
        for name in kept:
            one = engines[name]
            self._put("ranks", float(one.ranks), name)
            self._put("verdict_timestamp_seconds", one.at_s, name)
            for rank, age_s in sorted(one.ages_s.items()):
                self._put("ledger_age_seconds", age_s, name, str(rank))
            for finding in sorted(one.findings, key=lambda finding: -SEVERITIES[finding.severity]):
                for named in map(str, finding.ranks or ("",)):
                    self._put("finding_active", 1.0, name, named, finding.cause)
                    self._put("finding_severity", SEVERITIES[finding.severity], name, named, finding.cause)
            for cause in sorted({finding.cause for finding in one.findings}):
                self._add_cause(name, cause, [finding for finding in one.findings if finding.cause == cause])

    def _add_cause(self, engine: str, cause: str, findings: Sequence[Finding]) -> None:
        self._put("finding_confidence_ratio", max(finding.confidence for finding in findings), engine, cause)
        lost = [finding.lost_ratio for finding in findings if finding.lost_ratio is not None]
        if lost:
            self._put("lost_ratio", sum(lost), engine, cause)

    def _put(self, name: str, value: float, *values: str) -> None:
        self.add(name, "", (), value, *values)

    def finish(self) -> list[Metric]:
        """List the families, and how many samples the page had no room for."""
        self._open("dropped_samples", "Samples and engines that this page had no room for", ())
        self._families["dropped_samples"].add_metric([self._deployment], float(self._dropped))
        return list(self._families.values())
