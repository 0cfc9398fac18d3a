"""The diagnosis as Prometheus metrics: what is found, where, and how sure (DESIGN 4.4)."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, get_args

from dprankdiag.model.diagnosis import Diagnosis, Status
from dprankdiag.model.ledger_results import LEDGER_RANKS
from dprankdiag.model.results import find_table
from dprankdiag.units import NS_PER_S
from dprankdiag.views.base import Tables

if TYPE_CHECKING:
    from prometheus_client.core import Metric

STATUSES: tuple[Status, ...] = get_args(Status)


class DiagnosisMetrics:
    """Collects the latest diagnosis for a Prometheus registry; what is gone from it is gone from the page."""

    def __init__(self, deployment: str) -> None:
        self._deployment = deployment
        self._lock = threading.Lock()
        self._latest: tuple[Diagnosis, Tables] | None = None

    def show(self, diagnosis: Diagnosis, tables: Tables) -> None:
        """Show this diagnosis from now on."""
        with self._lock:
            self._latest = (diagnosis, tables)

    def collect(self) -> Iterable[Metric]:
        """List the families with their samples; none before the first diagnosis."""
        with self._lock:
            latest = self._latest
        return list(make_families(self._deployment, *latest)) if latest is not None else []


def make_families(deployment: str, diagnosis: Diagnosis, tables: Tables) -> Iterator[Metric]:
    """Make the metric families of a diagnosis; a number that is not known has no sample."""
    from prometheus_client.core import GaugeMetricFamily

    status = GaugeMetricFamily(
        "dprankdiag_status", "1 for the status that the last diagnosis has", labels=["deployment", "status"]
    )
    for name in STATUSES:
        status.add_metric([deployment, name], float(diagnosis.status == name))
    yield status
    active = GaugeMetricFamily(
        "dprankdiag_finding_active",
        "1 for each rank that a finding names",
        labels=["deployment", "engine", "rank", "cause", "severity"],
    )
    lost = GaugeMetricFamily(
        "dprankdiag_lost_ratio",
        "Share of the time that a finding costs, at most; no sample where it cannot be told",
        labels=["deployment", "engine", "cause"],
    )
    for finding in diagnosis.findings:
        for rank in finding.ranks or ("",):
            active.add_metric([deployment, finding.engine, str(rank), finding.cause, finding.severity], 1.0)
        if finding.lost_ratio is not None:
            lost.add_metric([deployment, finding.engine, finding.cause], finding.lost_ratio)
    yield active
    yield lost
    age = GaugeMetricFamily(
        "dprankdiag_ledger_age_seconds",
        "Age of a rank's load snapshot against the freshest of any rank",
        labels=["deployment", "engine", "rank"],
    )
    told = find_table(tables, LEDGER_RANKS)
    if told is not None:
        for engine, rank, age_ns in zip(told["engine"], told["rank"], told["snapshot_age_ns"], strict=True):
            if not math.isnan(age_ns):
                age.add_metric([deployment, str(engine), str(rank)], float(age_ns) / NS_PER_S)
    yield age
