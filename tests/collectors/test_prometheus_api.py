"""Series read back from Prometheus are the pages that engines wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dprankdiag.collectors.base import Collector
from dprankdiag.collectors.prometheus_api import (
    PrometheusApi,
    make_path,
    make_range_paths,
    make_rhythm_path,
    make_selector,
)
from dprankdiag.collectors.prometheus_select import read_matchers
from dprankdiag.collectors.prometheus_series import read_refusal, read_scalar
from dprankdiag.collectors.sglang_metrics import SglangMetrics
from dprankdiag.collectors.vllm_metrics import VllmMetrics
from dprankdiag.errors import DamagedInput, InputError, UsageError
from dprankdiag.model.ledgers import LedgerAnswer

T0_S, STEP_S = 1_764_000_000, 15


def store(pages: list[bytes], mark: str = ":", **added: str) -> list[dict[str, Any]]:
    """Store pages as Prometheus would: a page a step, target labels added."""
    series: dict[str, dict[str, Any]] = {}
    for step, page in enumerate(pages):
        for family in text_string_to_metric_families(page.decode()):
            for sample in family.samples:
                labels = {"__name__": sample.name.replace(":", mark, 1), **sample.labels, **added}
                one = series.setdefault(repr(sorted(labels.items())), {"metric": labels, "values": []})
                one["values"].append([T0_S + step * STEP_S, repr(sample.value)])
    return list(series.values())


def answer(result: list[dict[str, Any]], kind: str = "matrix") -> bytes:
    return json.dumps({"status": "success", "data": {"resultType": kind, "result": result}}).encode()


def collectors() -> dict[str, Collector]:
    return {"sglang": SglangMetrics(), "vllm": VllmMetrics()}


def parse(body: bytes) -> tuple[LedgerAnswer, ...]:
    return PrometheusApi(collectors()).parse(body, "http://prometheus:9090", 77)


@pytest.mark.parametrize("mark", [":", "_"])
@pytest.mark.parametrize(
    "engine, files",
    [
        ("sglang", "sglang-0.5.23/prefill-on-one-rank/metrics_t{}.prom"),
        ("vllm", "vllm-0.33.0/hot-rank/scrape{}.prom"),
    ],
)
def test_each_moment_is_the_page_of_that_moment(fixtures: Path, engine: str, files: str, mark: str) -> None:
    first = 0 if engine == "sglang" else 1
    pages = [(fixtures / files.format(number)).read_bytes() for number in (first, first + 1)]
    told = parse(answer(store(pages, mark, instance="10.0.0.1:30000", job="engines", pod="p-1")))
    assert [one.taken_ns for one in told] == [T0_S * 10**9, (T0_S + STEP_S) * 10**9]
    assert {one.where for one in told} == {"http://prometheus:9090 (engines 10.0.0.1:30000)"}
    assert {one.facts["spelling"] for one in told} == {"colon" if mark == ":" else "underscore"}
    for one, page in zip(told, pages, strict=True):
        (direct,) = collectors()[engine].parse(page, "x")
        assert (one.ranks, one.model, set(one.values)) == (direct.ranks, direct.model, set(direct.values))
        for name, values in one.values.items():
            np.testing.assert_allclose(values, direct.values[name], rtol=1e-12)


def test_engines_are_told_apart_by_job_and_instance(fixtures: Path) -> None:
    folder = fixtures / "vllm-0.33.0" / "hot-rank-external-lb"
    result = [
        one
        for rank in range(3)
        for one in store([(folder / f"rank{rank}.scrape1.prom").read_bytes()], instance=f"h{rank}:8000", job="vllm")
    ]
    assert [(one.ranks, one.where.split()[-1]) for one in parse(answer(result))] == [
        ((0,), "h0:8000)"), ((1,), "h1:8000)"), ((2,), "h2:8000)"),
    ]  # fmt: skip


def test_a_target_scraped_twice_counts_once(fixtures: Path) -> None:
    page = (fixtures / "sglang-0.5.23" / "balanced" / "metrics_t1.prom").read_bytes()
    result = [*store([page], instance="h:1", pod="a"), *store([page], instance="h:1", pod="b")]
    (told,) = parse(answer(result))
    (direct,) = SglangMetrics().parse(page, "x")
    assert told.values["stages_s"] == pytest.approx(direct.values["stages_s"])


def test_the_latest_samples_come_as_a_vector() -> None:
    labels = {"__name__": "vllm:num_requests_running", "engine": "0", "model_name": 'a"b\\', "instance": "h:1"}
    (told,) = parse(answer([{"metric": labels, "value": [T0_S, "3"]}], "vector"))
    assert (told.model, told.values["running_requests"].tolist()) == ('a"b\\', [3.0])


def test_a_server_that_holds_no_engine_tells_nothing() -> None:
    assert parse(answer([])) == ()


@pytest.mark.parametrize("body", [b"[]", b'{"status":"error","error":"x"}', answer([], "scalar"), b"{}"])
def test_other_answers_are_refused(body: bytes) -> None:
    with pytest.raises(InputError):
        parse(body)


@pytest.mark.parametrize("one", [{}, {"metric": {}, "values": []}, {"metric": 5, "value": [1, "2"]}, 7])
def test_broken_series_are_damage(one: Any) -> None:
    with pytest.raises(DamagedInput):
        parse(answer([one]))


def test_questions_name_what_collectors_read() -> None:
    asked = parse_qs(urlsplit(make_path(reach_s=37.5, at_s=12.5)).query)
    assert (asked["query"], asked["time"]) == ([f"{make_selector()}[37500ms]"], ["12.500"])
    for name in ("dp_attention_tokens_total", "eplb_gpu_physical_count_bucket", "kv_cache_usage_perc"):
        assert name in make_selector()


def test_the_latest_is_the_latest_by_the_clock_of_the_server() -> None:
    assert "time" not in parse_qs(urlsplit(make_path(reach_s=1.0)).query)


def test_every_scrape_of_a_span_is_asked_for_once_piece_by_piece() -> None:
    paths = list(make_range_paths(start_s=0, end_s=1000, step_s=15, scrape_s=15))
    assert all(path.startswith("/api/v1/query?") for path in paths)
    asked = [parse_qs(urlsplit(path).query) for path in paths]
    spans = [(float(one["time"][0]), one["query"][0].rpartition("[")[2]) for one in asked]
    assert spans == [(480, "479999ms]"), (960, "479999ms]"), (1000, "39999ms]")]


def test_of_a_long_span_the_last_scrape_before_each_step_is_asked_for() -> None:
    asked = [
        parse_qs(urlsplit(path).query) for path in make_range_paths(start_s=0, end_s=7200, step_s=120, scrape_s=15)
    ]
    assert [(float(one["start"][0]), float(one["end"][0])) for one in asked] == [(120, 3840), (3960, 7200)]
    assert {one["query"][0] for one in asked} == {f"last_over_time({make_selector()}[22500ms])"}
    assert all((float(one["end"][0]) - float(one["start"][0])) / 120 < 11_000 for one in asked)


def test_the_labels_chosen_stand_in_every_question() -> None:
    matchers = read_matchers('namespace="a\\"b",pod=~"e-.+"')
    wanted = ',namespace="a\\"b",pod=~"e-.+"}'
    span = {"start_s": 0.0, "end_s": 7200.0, "scrape_s": 15.0, "matchers": matchers}
    paths = [
        make_path(reach_s=1.0, matchers=matchers),
        make_rhythm_path(reach_s=1.0, matchers=matchers),
        *make_range_paths(step_s=15.0, **span),
        *make_range_paths(step_s=120.0, **span),
    ]
    assert all(wanted in parse_qs(urlsplit(path).query)["query"][0] for path in paths)


@pytest.mark.parametrize("end_s, step_s", [(0, 1), (10, 0), (10, -1)])
def test_no_span_is_refused(end_s: float, step_s: float) -> None:
    with pytest.raises(UsageError, match="above 0"):
        list(make_range_paths(start_s=0, end_s=end_s, step_s=step_s, scrape_s=1))


def test_two_servers_that_scrape_one_engine_count_once(fixtures: Path) -> None:
    """Servers in pairs, as Thanos and Mimir show them, scrape at moments of their own."""
    page = (fixtures / "sglang-0.5.23" / "balanced" / "metrics_t1.prom").read_bytes()
    one = store([page, page], instance="h:1", job="e", prometheus_replica="a")
    other = store([page, page], instance="h:1", job="e", prometheus_replica="b")
    for series in other:
        series["values"] = [[at - 7.0, value] for at, value in series["values"]]
    told = parse(answer([*other, *one]))
    # The first to be scraped is a sample of the other server alone, before those of the one that counts.
    assert [answered.taken_ns for answered in told] == [at * 10**9 for at in (T0_S - 7, T0_S, T0_S + 15)]
    assert all("counted once" in text and "prometheus_replica" in text for one in told for text in one.warnings)


def test_an_address_that_two_jobs_scrape_is_one_engine(fixtures: Path) -> None:
    page = (fixtures / "sglang-0.5.23" / "balanced" / "metrics_t1.prom").read_bytes()
    told = parse(answer([*store([page], instance="h:1", job="b"), *store([page], instance="h:1", job="a")]))
    assert [one.facts["stored_in"] for one in told] == ["a"]
    apart = parse(answer([*store([page], instance="x", job="b"), *store([page], instance="x", job="a")]))
    assert [one.facts["stored_in"] for one in apart] == ["a", "b"]


def test_a_pod_that_was_renamed_goes_on(fixtures: Path) -> None:
    page = (fixtures / "sglang-0.5.23" / "balanced" / "metrics_t1.prom").read_bytes()
    before = store([page, page], instance="h:1", pod="old")
    after = store([page, page], instance="h:1", pod="new")
    for series in after:
        series["values"] = [[at + 60.0, value] for at, value in series["values"]]
    told = parse(answer([*before, *after]))
    assert [one.taken_ns for one in told] == [(T0_S + at) * 10**9 for at in (0, 15, 60, 75)]
    assert not any("counted once" in text for one in told for text in one.warnings)


def test_labels_that_the_server_renamed_are_read(fixtures: Path) -> None:
    folder = fixtures / "vllm-0.33.0" / "hot-rank"
    result = store([(folder / "scrape1.prom").read_bytes()], instance="h:1", job="v")
    for series in result:
        series["metric"]["exported_engine"] = series["metric"].pop("engine", "")
        series["metric"]["engine"] = "set-by-the-server"
    (told,) = parse(answer([one for one in result if one["metric"]["exported_engine"]]))
    assert told.ranks == tuple(range(8))


def test_what_the_server_warns_of_is_told() -> None:
    labels = {"__name__": "vllm:num_requests_running", "engine": "0", "model_name": "m", "instance": "h:1"}
    body = json.loads(answer([{"metric": labels, "value": [T0_S, "3"]}], "vector"))
    body |= {"warnings": ["store \x1b[31m10.0.0.9 is\ngone" + "x" * 500], "isPartial": True}
    (told,) = parse(json.dumps(body).encode())
    assert told.warnings[0].startswith("the server says: store [31m10.0.0.9 is gone")
    assert len(told.warnings[0]) < 250
    assert told.warnings[1] == "the server says: the answer is partial"


@pytest.mark.parametrize(
    "body, reason",
    [
        (b'{"status":"error","errorType":"bad_data","error":"1:2: parse error"}', "1:2: parse error"),
        (b"<html>502</html>", ""),
        (b"[]", ""),
        (b'{"error":5}', ""),
    ],
)
def test_why_a_question_is_refused_is_read(body: bytes, reason: str) -> None:
    assert read_refusal(body) == reason


def test_the_time_of_the_server_is_read() -> None:
    assert read_scalar(b'{"status":"success","data":{"resultType":"scalar","result":[5,"17.5"]}}', "x") == 17.5
    for body in (b"{}", b"<html>", answer([]), b'{"status":"success","data":{"result":[1]}}'):
        with pytest.raises(InputError):
            read_scalar(body, "x")
