"""Recorded engines, scraped by a real Prometheus with our rules: the right alert and no other."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from dprankdiag.model.diagnosis import Diagnosis
from dprankdiag.model.ledgers import LedgerAnswer, LedgerFile
from dprankdiag.pipelines.ledgers import diagnose_view, view_whole
from dprankdiag.pipelines.live import join_live
from dprankdiag.pipelines.poll import Poller
from dprankdiag.pipelines.snapshots import diagnose_ledger_files
from dprankdiag.pipelines.stored import Span
from dprankdiag.pipelines.stored_span import StoredQuestion, read_servers
from tests.conftest import ROOT
from tests.e2e.live_pages import Page, read_measured, read_page, read_series, serve_pages
from tests.prometheus import Server, find_tool, run_prometheus

pytestmark = pytest.mark.slow

SETTINGS = {"window": "10s", "hold": "4s", "info_hold": "4s", "interval": "1s"}
WARM_UP_S = 22.0
DEADLINE_S = 120.0

Alert = tuple[str, str]
STAGES: Alert = ("DPRankCannotJudge", "stages_not_counted")
STEPS: Alert = ("DPRankCannotJudge", "steps_not_counted")

SGLANG: dict[str, set[Alert]] = {
    "balanced": set(),
    "count-skew": {("DPRankRequestSkew", "3")},
    "length-skew": {("DPRankContextSkew", "5")},
    "single-slow-rank": {("DPRankHostLate", "6")},
    "one-busy-seven-idle": {("DPRankIdle", "")},
    "prefill-on-one-rank": {("DPRankPrefillSkew", "1")},
    "health-check-only": set(),
    "flags-off": {("DPRankRequestSkew", "3"), STEPS},
    "tp16-dp8-default": {("DPRankRequestSkew", "3")},
    "spec-decode": set(),
}
VLLM: dict[str, set[Alert]] = {
    "balanced": set(),
    "balanced-api8": set(),
    "hot-rank": {("DPRankRequestSkew", "3")},
    "kv-skew": {("DPRankKvUsageSkew", "5")},
    "half-idle": {("DPRankIdle", "")},
    "moe-slow-gpu": set(),
    "dense-slow-gpu": {("DPRankSlow", "6")},
}
MEASURED: dict[str, set[Alert]] = {
    "measured-gloo-balanced": set(),
    "measured-gloo-slow-rank": {("DPRankHostLate", "6")},
    "measured-gloo-ctrl-slow-rank6": {("DPRankHostLate", "6")},
}
OTHERS: dict[str, set[Alert]] = {
    "underscores-sglang": {("DPRankRequestSkew", "3")},
    "underscores-vllm": {("DPRankKvUsageSkew", "5")},
    "external-lb": {("DPRankRequestSkew", "3")},
    "two-deployments": {("DPRankRequestSkew", "3")},
    "without-stages": {STAGES},
    "stale-snapshot": {("DPRankLedgerStale", "4")},
    "expert-skew": {("DPRankExpertImbalance", "5"), ("DPRankExpertsUneven", "")},
}
EXPECTED = SGLANG | {f"vllm-{name}": alerts for name, alerts in VLLM.items()} | MEASURED | OTHERS


CAUSES = {
    "DPRankRequestSkew": "load.requests",
    "DPRankContextSkew": "load.context",
    "DPRankKvUsageSkew": "load.context",
    "DPRankPrefillSkew": "load.prefill",
    "DPRankHostLate": "single_point.host",
    "DPRankIdle": "load.idle",
    "DPRankSlow": "single_point.unknown",
    "DPRankLedgerStale": "ledger.stale",
    "DPRankExpertImbalance": "structural.expert",
}
"""What each alert about a rank is called in a diagnosis."""

ONLY_TOLD = {"load.speculation"}
"""What no rule alerts on, since it costs nothing of itself."""

BUSY = {"one-busy-seven-idle": "2", "vllm-half-idle": "0,1,2,3"}
"""The ranks with work, which an alert on idle ranks does not name."""

BETWEEN_POLLS_S = 12.0


@dataclass(frozen=True, slots=True)
class Watched:
    """A Prometheus that has scraped every scenario for a while.

    Attributes:
        firing: alerts by job.
        verdicts: what our collectors find beside the engines.
        stored: what they find in what the server stores of the same seconds.
        at_s: when the alerts were listed, Unix time in seconds. Later the machine may be too busy to scrape.
    """

    server: Server
    firing: dict[str, set[Alert]]
    verdicts: dict[str, set[Alert]]
    stored: dict[str, set[Alert]]
    at_s: float

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return what an expression gave when the alerts were listed."""
        result: list[dict[str, Any]] = self.server.ask("query", query=expression, time=f"{self.at_s:.3f}")["result"]
        return result


def _read_pages(fixtures: Path) -> dict[str, Page]:
    sglang, vllm = fixtures / "sglang-0.5.23", fixtures / "vllm-0.33.0"
    external = vllm / "hot-rank-external-lb"

    def read_sglang(name: str, *, underscores: bool = False) -> Page:
        return read_page(sglang / name / "metrics_t0.prom", sglang / name / "metrics_t1.prom", underscores=underscores)

    def read_vllm(name: str, *, underscores: bool = False) -> Page:
        return read_page(vllm / name / "scrape1.prom", vllm / name / "scrape2.prom", underscores=underscores)

    experts = read_series(sglang / "expert-skew" / "metrics_eplb.prom")
    stale = sglang / "one-rank-stale-snapshot"
    return (
        {name: read_sglang(name) for name in SGLANG}
        | {f"vllm-{name}": read_vllm(name) for name in VLLM}
        | {name: read_measured(sglang / name, with_stages=True) for name in MEASURED}
        | {
            "underscores-sglang": read_sglang("count-skew", underscores=True),
            "underscores-vllm": read_vllm("kv-skew", underscores=True),
            "two-balanced": read_sglang("balanced"),
            "two-skewed": read_sglang("count-skew"),
            "without-stages": read_measured(sglang / "measured-gloo-ctrl-slow-rank6", with_stages=False),
            "expert-skew": Page(dict.fromkeys(experts, 0.0), experts, 15.0),
            "stale-metrics": read_sglang("one-rank-stale-snapshot"),
            "stale-loads": read_page(stale / "v1_loads_t0.prom", stale / "v1_loads_t1.prom"),
        }
        | {
            f"external-{rank}": read_page(external / f"rank{rank}.scrape1.prom", external / f"rank{rank}.scrape2.prom")
            for rank in range(8)
        }
    )


def _list_jobs(pages: dict[str, Page]) -> dict[str, list[str]]:
    several = {
        "external-lb": [name for name in pages if name.startswith("external-")],
        "two-deployments": ["two-balanced", "two-skewed"],
        "stale-snapshot": ["stale-metrics", "stale-loads"],
    }
    return {job: several.get(job, [job]) for job in EXPECTED}


def write_rules(path: Path) -> None:
    """Print the rules with short windows, as a user would."""
    options = [part for key, value in SETTINGS.items() for part in ("--set", f"{key}={value}")]
    subprocess.run([sys.executable, "-m", "dprankdiag", "rules", *options, "-o", str(path)], check=True)


@pytest.fixture(scope="module")
def watched(fixtures: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """Scrape all scenarios at once until every expected alert fires, and a little longer for those that must not."""
    find_tool("prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    write_rules(folder / "rules.yml")
    pages = _read_pages(fixtures)
    expected = {job: alerts for job, alerts in EXPECTED.items() if alerts}
    started = time.monotonic()
    with (
        serve_pages(pages) as address,
        run_prometheus(folder, folder / "rules.yml", _list_jobs(pages), address) as server,
    ):
        time.sleep(WARM_UP_S)
        while server.list_firing() != expected and time.monotonic() - started < DEADLINE_S:
            time.sleep(1)
        firing, at_s = server.list_firing(), time.time()
        verdicts = _ask_collectors(_list_jobs(pages), address)
        yield Watched(server, firing, verdicts, _ask_server(server), at_s)


def _ask_collectors(jobs: dict[str, list[str]], address: str) -> dict[str, set[Alert]]:
    """Poll every engine twice, as `watch --once` does, and list cause and ranks of what is found."""
    pollers = {job: Poller([f"http://{address}/{name}" for name in names]) for job, names in jobs.items()}
    told: dict[str, list[LedgerAnswer]] = {job: [] for job in jobs}
    for pause_s in (BETWEEN_POLLS_S, 0.0):
        for job, poller in pollers.items():
            told[job] += [answer for answer in poller.poll() if isinstance(answer, LedgerAnswer)]
        time.sleep(pause_s)
    for poller in pollers.values():
        poller.close()
    return {job: _judge(answers) for job, answers in told.items()}


def _judge(answers: list[LedgerAnswer]) -> set[Alert]:
    return set().union(*(_list_findings(diagnose_view(view_whole(ledger))) for ledger in join_live(answers)))


def _ask_server(server: Server) -> dict[str, set[Alert]]:
    """Diagnose what the server stores of the seconds in which its engines were polled, job by job."""
    (file,) = read_servers(StoredQuestion((f"prometheus+{server.url}",), Span(BETWEEN_POLLS_S)))
    told: dict[str, list[tuple[LedgerAnswer, str]]] = {job: [] for job in EXPECTED}
    for answer, place in zip(file.answers, file.places, strict=True):
        told[str(answer.facts["stored_in"])].append((answer, place))
    return {
        job: _judge_stored(replace(file, answers=answers, places=places))
        for job, (answers, places) in ((job, zip(*parts, strict=True)) for job, parts in told.items())
    }


def _judge_stored(file: LedgerFile) -> set[Alert]:
    return _list_findings(diagnose_ledger_files([file])[0])


def _list_findings(diagnosis: Diagnosis) -> set[Alert]:
    return {(item.cause, ",".join(map(str, item.ranks))) for item in diagnosis.findings}


@pytest.mark.parametrize("job", EXPECTED)
def test_the_right_alert_fires_and_no_other(watched: Watched, job: str) -> None:
    assert watched.firing.get(job, set()) == EXPECTED[job]


@pytest.mark.parametrize("job", EXPECTED)
def test_the_collectors_give_the_verdict_of_the_alert(watched: Watched, job: str) -> None:
    alerts = {alert: rank for alert, rank in EXPECTED[job] if alert in CAUSES}
    wanted = {(CAUSES[alert], rank) for alert, rank in alerts.items()}
    assert {(cause, BUSY.get(job, ranks) if cause == "load.idle" else ranks) for cause, ranks in wanted} == {
        (cause, ranks) for cause, ranks in watched.verdicts[job] if cause not in ONLY_TOLD
    }


@pytest.mark.parametrize("job", EXPECTED)
def test_what_the_server_stores_gives_the_verdict_of_the_engines(watched: Watched, job: str) -> None:
    assert watched.stored[job] == watched.verdicts[job]


def test_no_rule_fails(watched: Watched) -> None:
    for group in watched.server.ask("rules")["groups"]:
        for rule in group["rules"]:
            assert rule["health"] == "ok", (rule["name"], rule.get("lastError"))


NEEDS_MORE = {
    "Retractions and preemptions by rank",
    "Lost time as dprankdiag watch sees it",
}
"""Panels whose series no page served here has with a value above 0, or at all."""


def _list_panels() -> list[tuple[str, str]]:
    board = json.loads((ROOT / "dashboards" / "grafana" / "dprankdiag.json").read_text("utf-8"))
    return [(panel["title"], target["expr"]) for panel in board["panels"] for target in panel.get("targets", ())]


@pytest.mark.parametrize("title, expr", _list_panels())
def test_every_panel_of_the_dashboard_shows_something(watched: Watched, title: str, expr: str) -> None:
    query = expr.replace("$job", ".+").replace("$instance", ".*")
    result = watched.query(query)
    assert result or title in NEEDS_MORE
    if result and title not in NEEDS_MORE:
        assert any(float(sample["value"][1]) > 0 for sample in result)


def test_the_verdict_row_counts_ranks_and_alerts(watched: Watched) -> None:
    queries = dict(_list_panels())
    ranks = queries["Ranks seen by the rules"].replace("$job", "two-deployments").replace("$instance", ".*")
    alerts = queries["Alerts firing"].replace("$job", "count-skew")
    assert watched.query(ranks)[0]["value"][1] == "16"
    assert watched.query(alerts)[0]["value"][1] == "1"
    nothing = queries["Ranks seen by the rules"].replace("$job", "no-such-job").replace("$instance", ".*")
    assert watched.query(nothing)[0]["value"][1] == "0"
