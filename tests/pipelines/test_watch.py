from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest

from dprankdiag.model.ledgers import LedgerAnswer, NoData
from dprankdiag.pipelines.live import join_live
from dprankdiag.pipelines.poll import Poller
from dprankdiag.pipelines.watch import Report, Watcher
from tests.small_engine import SmallEngine, sglang_pages, vllm_pages

SECOND = 10**9
START_NS = 1_764_000_000 * SECOND
URL = "http://127.0.0.1:30000"


class Watch:
    """A watcher beside an engine that goes on in a straight line, and a clock of their own.

    Between the two moments of its pages lie 60 s, so that it never goes beyond them.
    """

    def __init__(self, engine: SmallEngine, window_s: float = 10.0, now_ns: int = START_NS) -> None:
        self.engine = engine
        self.start_ns = self.now_ns = now_ns
        self.watcher = Watcher(window_s)
        self.down = False
        self._inner = engine.transport()
        transport = httpx.MockTransport(self._answer)
        self.poller = Poller([URL], transport=transport, clock=lambda: self.now_ns, chance=lambda: 0.5)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        if self.down:
            raise httpx.ConnectError("refused")
        return self._inner.handler(request)  # type: ignore[return-value]

    def run(self, ticks: int, interval_s: float = 1.0) -> Iterator[Report]:
        """Go on tick by tick."""
        for _ in range(ticks):
            self.engine.grow_to((self.now_ns - self.start_ns) / SECOND / 60)
            yield self.watcher.observe(self.poller.poll(), self.now_ns)
            self.now_ns += round(interval_s * SECOND)


def _named(report: Report) -> set[tuple[str, tuple[int, ...]]]:
    return {(finding.cause, finding.ranks) for finding in report.diagnosis.findings if finding.severity != "info"}


@pytest.mark.parametrize(
    "scenario, cause, rank",
    [
        ("single-slow-rank", "single_point.host", 6),
        ("count-skew", "load.requests", 3),
        ("length-skew", "load.context", 5),
    ],
)
def test_a_fault_is_named_within_ten_seconds_and_stays(fixtures: Path, scenario: str, cause: str, rank: int) -> None:
    watch = Watch(SmallEngine(sglang_pages(fixtures / "sglang-0.5.23" / scenario)))
    reports = list(watch.run(20))
    assert all(_named(report) == {(cause, (rank,))} for report in reports[10:])
    assert not _named(reports[0])
    assert "only one moment is told: counters need two" in reports[0].diagnosis.notes
    pending = next(report for report in reports if "not yet lasting" in report.diagnosis.headline)
    assert pending.diagnosis.status == "inconclusive"


def test_an_even_engine_is_not_accused(fixtures: Path) -> None:
    watch = Watch(SmallEngine(sglang_pages(fixtures / "sglang-0.5.23" / "balanced")))
    assert [report for report in watch.run(15) if _named(report)] == []


def test_a_slow_gpu_in_lockstep_looks_like_an_even_engine_of_vllm(fixtures: Path) -> None:
    said = set()
    for scenario in ("balanced", "moe-slow-gpu"):
        watch = Watch(SmallEngine(vllm_pages(fixtures / "vllm-0.33.0" / scenario)), window_s=15)
        *_, last = watch.run(5, 5.0)
        said.add((last.diagnosis.status, last.diagnosis.headline))
    assert len(said) == 1
    assert "speed not visible" in said.pop()[1]


def test_no_data_is_no_verdict_until_the_engine_answers_again(fixtures: Path) -> None:
    watch = Watch(SmallEngine(sglang_pages(fixtures / "sglang-0.5.23" / "count-skew")))
    *_, before = watch.run(10)
    assert _named(before)
    watch.down = True
    silent = list(watch.run(5))
    assert all(not report.diagnosis.findings and not report.tables for report in silent)
    assert all(report.diagnosis.headline.startswith("No data: ") for report in silent)
    assert all(report.failed for report in silent)
    assert {source.status for source in silent[-1].diagnosis.inputs} == {"unused"}
    watch.down = False
    *_, after = watch.run(40)
    assert _named(after) == _named(before)
    assert after.failed == ()


def test_clocks_of_hosts_that_differ_do_not_part_answers_of_one_tick(fixtures: Path) -> None:
    watch = Watch(
        SmallEngine(sglang_pages(fixtures / "sglang-0.5.23" / "single-slow-rank")), now_ns=START_NS + 3600 * SECOND
    )
    *_, last = watch.run(10)
    assert _named(last) == {("single_point.host", (6,))}


def test_two_scrapes_are_judged_at_once(fixtures: Path) -> None:
    engine = SmallEngine(sglang_pages(fixtures / "sglang-0.5.23" / "single-slow-rank"))
    watch = Watch(engine, window_s=20)
    watch.watcher.conclude_once(watch.poller.poll(), watch.now_ns)
    engine.moment, watch.now_ns = 1, watch.now_ns + 15 * SECOND
    report = watch.watcher.conclude_once(watch.poller.poll(), watch.now_ns)
    assert _named(report) == {("single_point.host", (6,))}


def _answer(base: str, ranks: Sequence[int], model: str = "m", interface: str = "vllm-metrics") -> LedgerAnswer:
    values = {"running_requests": np.arange(len(ranks), dtype=np.float64)}
    return LedgerAnswer(
        interface, f"{base}/metrics", "vllm", model, taken_ns=START_NS, ranks=tuple(ranks), values=values
    )


def test_ports_of_one_engine_are_one_target_and_replicas_are_not() -> None:
    (joined,) = join_live([_answer("http://a:1", [0, 1]), _answer("http://a:2", [2, 3])])
    assert joined.ranks == (0, 1, 2, 3)
    apart = join_live([_answer("http://a:1", [0, 1]), _answer("http://a:2", [0, 1])])
    assert sorted(ledger.name for ledger in apart) == ["a:1", "a:2"]
    others = join_live([_answer("http://a:1", [0, 1]), _answer("http://a:2", [2, 3], model="n")])
    assert len(others) == 2


def test_engines_behind_one_gateway_and_in_one_prometheus_are_judged_apart() -> None:
    for one, other in (("http://gate/a", "http://gate/b"), ("http://p:9090 (llm/x:1)", "http://p:9090 (llm/y:1)")):
        ledgers = join_live([_answer(one, [0, 1]), _answer(other, [0, 1])])
        assert len(ledgers) == 2


def test_a_publisher_belongs_to_the_only_engine_there_is() -> None:
    published = LedgerAnswer(
        "sglang-load-stat", "zmq+tcp://a:5565-5566", "vllm", ranks=(0, 1), values={"load_used_tokens": np.ones(2)}
    )
    (joined,) = join_live([_answer("http://a:1", [0, 1]), published])
    assert {"running_requests", "load_used_tokens"} <= set(joined.values)
    assert len(join_live([_answer("http://a:1", [0, 1]), _answer("http://b:1", [0, 1]), published])) == 3


def test_a_poll_that_fails_is_an_unused_input_beside_what_answered() -> None:
    gap = NoData("sglang-loads", "http://a:1/v1/loads", START_NS, "timed out")
    report = Watcher().observe([_answer("http://a:1", [0, 1]), gap], START_NS)
    assert ("http://a:1/v1/loads", "unused") in {(one.path, one.status) for one in report.diagnosis.inputs}
    absent = Watcher().observe([_answer("http://a:1", [0, 1]), replace(gap, absent=True)], START_NS)
    assert absent.failed == ()
