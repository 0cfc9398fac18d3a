"""What a Prometheus stores of engines: the last moments, and spans."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dprankdiag.collectors.http import Access, Fetcher
from dprankdiag.collectors.prometheus_select import read_matchers
from dprankdiag.collectors.sglang_metrics import SglangMetrics
from dprankdiag.collectors.vllm_metrics import VllmMetrics
from dprankdiag.errors import InputError
from dprankdiag.model.ledgers import LedgerAnswer, NoData
from dprankdiag.pipelines.stored import MOST_MOMENTS, Span, SpanRead, StoredEngines, choose_step
from dprankdiag.pipelines.stored_span import StoredQuestion, read_servers
from tests.pipelines.test_doctor import sglang_page
from tests.stored import START_S, SmallPrometheus

Open = Callable[..., StoredEngines]


@pytest.fixture
def server() -> SmallPrometheus:
    """A server that has scraped an engine of four ranks every 15 s for ten minutes."""
    told = SmallPrometheus()
    for number in range(41):
        told.scrape(sglang_page(range(4)), START_S - 600 + 15 * number, instance="h:1", job="e")
    return told


@pytest.fixture
def ask(server: SmallPrometheus) -> Iterator[Open]:
    readers = {"sglang": SglangMetrics(), "vllm": VllmMetrics()}
    with closing(Fetcher(Access(reply_s=60.0), transport=server.transport())) as fetcher:

        def make(select: str = "", base: str = "http://p:9090") -> StoredEngines:
            matchers = read_matchers(select) if select else ()
            return StoredEngines(base, fetcher, dict(readers), matchers, clock=lambda: 7)

        yield make


def stamps(answers: object) -> list[float]:
    assert isinstance(answers, (list, tuple))
    return [(one.taken_ns or 0) / 1e9 - START_S for one in answers if isinstance(one, LedgerAnswer)]


def test_every_scrape_of_a_span_is_read_at_its_own_moment(ask: Open) -> None:
    read = ask().read_span(Span(300.0))
    assert isinstance(read, SpanRead)
    assert (read.scrape_s, read.step_s, read.failed) == (15.0, 15.0, ())
    assert stamps(read.answers) == [float(at) for at in range(-285, 1, 15)]


def test_a_span_ends_where_it_is_told_to(ask: Open) -> None:
    read = ask().read_span(Span(60.0, until_s=START_S - 120))
    assert isinstance(read, SpanRead)
    assert stamps(read.answers) == [-165.0, -150.0, -135.0, -120.0]


def test_the_end_is_now_by_the_clock_of_the_server(server: SmallPrometheus, ask: Open) -> None:
    server.now_s = START_S - 30
    read = ask().read_span(Span(45.0))
    assert isinstance(read, SpanRead)
    assert (read.end_s, stamps(read.answers)) == (START_S - 30, [-60.0, -45.0, -30.0])


def test_a_scrape_that_is_missing_is_a_gap_and_no_repeat(ask: Open, server: SmallPrometheus) -> None:
    for _, points in server._series.values():
        points[:] = [point for point in points if not START_S - 120 < point[0] < START_S - 60]
    read = ask().read_span(Span(180.0))
    assert isinstance(read, SpanRead)
    assert stamps(read.answers) == [-165.0, -150.0, -135.0, -120.0, -60.0, -45.0, -30.0, -15.0, 0.0]


def test_a_step_above_the_scrape_interval_reads_fewer_moments(ask: Open) -> None:
    read = ask().read_span(Span(600.0, step_s=60.0))
    assert isinstance(read, SpanRead)
    assert stamps(read.answers) == [float(at) for at in range(-540, 1, 60)]


def test_on_a_grid_a_gap_stays_a_gap(ask: Open, server: SmallPrometheus) -> None:
    for _, points in server._series.values():
        points[:] = [point for point in points if not START_S - 400 < point[0] < START_S - 100]
    read = ask().read_span(Span(600.0, step_s=60.0))
    assert isinstance(read, SpanRead)
    assert stamps(read.answers) == [-540.0, -480.0, -420.0, -60.0, 0.0]


@pytest.mark.parametrize("hours, step_s", [(1, 15.0), (3, 15.0), (3.1, 30.0), (24, 120.0)])
def test_the_moments_of_a_long_span_are_not_too_many(hours: float, step_s: float) -> None:
    chosen = choose_step(Span(3600.0 * hours), 15.0)
    assert chosen == step_s
    assert 3600.0 * hours / chosen <= MOST_MOMENTS


def test_what_a_server_finds_too_much_is_asked_for_in_halves(ask: Open, server: SmallPrometheus) -> None:
    def refuse(path: str, query: dict[str, str]) -> tuple[int, str] | None:
        reach_ms = int(query["query"].rpartition("[")[2].removesuffix("ms]") or 0) if "[" in query["query"] else 0
        is_large = "dp_attention" in query["query"] and reach_ms > 120_000
        return (422, "query processing would load too many samples into memory") if is_large else None

    server.refuse = refuse
    read = ask().read_span(Span(600.0))
    assert isinstance(read, SpanRead)
    assert (len(set(stamps(read.answers))), read.failed) == (40, ())


def test_a_server_that_always_times_out_is_not_asked_for_ever(ask: Open, server: SmallPrometheus) -> None:
    server.refuse = lambda path, query: (503, "query timed out") if "dp_attention" in query["query"] else None
    read = ask().read_span(Span(600.0))
    assert isinstance(read, SpanRead)
    assert read.answers == ()
    assert len(server.asked) < 20
    assert read.failed[0].reason == "refused the question (HTTP 503): query timed out"


def test_labels_choose_engines(ask: Open, server: SmallPrometheus) -> None:
    server.scrape(sglang_page(range(2)), START_S, instance="h:2", job="other")
    read = ask('job="other"').read_span(Span(600.0))
    assert isinstance(read, SpanRead)
    assert {one.where for one in read.answers} == {"http://p:9090 (other h:2)"}


def test_a_path_before_the_api_is_kept(ask: Open, server: SmallPrometheus) -> None:
    assert isinstance(ask(base="http://mimir/prometheus").read_span(Span(60.0)), SpanRead)
    assert {path for path, _ in server.asked} == {"/prometheus/api/v1/query"}


def test_the_first_question_reaches_back_and_the_next_do_not(ask: Open, server: SmallPrometheus) -> None:
    engines = ask()
    assert stamps(engines.poll()) == [-60.0, -45.0, -30.0, -15.0, 0.0]
    assert stamps(engines.poll()) == [-30.0, -15.0, 0.0]


def test_an_engine_of_which_nothing_new_comes_is_gone(ask: Open, server: SmallPrometheus) -> None:
    engines = ask()
    engines.poll()
    server.now_s += 30
    assert stamps(engines.poll()) == [0.0]
    server.now_s += 15
    (gone,) = engines.poll()
    assert isinstance(gone, NoData)
    assert gone.reason == "holds no fresh series of an engine"


def test_servers_become_inputs_of_a_diagnosis(server: SmallPrometheus) -> None:
    question = StoredQuestion(("prometheus+http://p:9090",), Span(300.0))
    (file,) = read_servers(question, Access(reply_s=60.0), transport=server.transport())
    assert (file.source.path, file.source.status, file.source.ranks) == (
        "prometheus+http://p:9090",
        "used",
        (0, 1, 2, 3),
    )
    assert set(file.places) == {"p:9090/e"}
    assert {answer.where for answer in file.answers} == {"prometheus+http://p:9090"}


@pytest.mark.parametrize(
    "now_s, select, words",
    [
        (START_S + 90_000, "", "no series of an engine from 2025-11-25T16:55:00Z to 2025-11-25T17:00:00Z; .*doctor"),
        (START_S, 'job="x"', "with these labels"),
    ],
)
def test_a_span_without_engines_is_no_input(server: SmallPrometheus, now_s: float, select: str, words: str) -> None:
    server.now_s = now_s
    question = StoredQuestion(("prometheus+http://p:9090",), Span(300.0), read_matchers(select) if select else ())
    with pytest.raises(InputError, match=words):
        read_servers(question, Access(reply_s=60.0), transport=server.transport())


def test_what_is_no_prometheus_is_told_so(tmp_path: Path) -> None:
    server = SmallPrometheus()
    question = StoredQuestion(("prometheus+http://p:9090/nowhere/api",), Span(300.0))
    server.refuse = lambda path, query: (404, "")
    with pytest.raises(InputError, match=r"HTTP 404.*give the address of a Prometheus"):
        read_servers(question, Access(reply_s=60.0), transport=server.transport())


def test_what_a_server_says_of_its_answer_is_a_warning(server: SmallPrometheus) -> None:
    server.extra = {"warnings": ["a store is gone"]}
    (file,) = read_servers(
        StoredQuestion(("prometheus+http://p:9090",)), Access(reply_s=60.0), transport=server.transport()
    )
    assert file.source.warnings == ("the server says: a store is gone",)
