from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest

from dprankdiag.collectors.http import Access, Secret
from dprankdiag.model.checkup import Checkup
from dprankdiag.pipelines.doctor import examine
from tests.small_engine import Pages, SmallEngine, sglang_pages, vllm_pages

URL = "http://127.0.0.1:30000"


def sglang_page(ranks: Sequence[int], *, counted: bool = True, prefix: str = "sglang:") -> bytes:
    """Write a page of a few series for each rank."""
    lines = []
    for rank in ranks:
        labels = f'dp_rank="{rank}",engine_type="unified",model_name="m",tp_rank="{rank}"'
        lines += [
            f'{prefix}dp_attention_tokens_total{{{labels},kind="scheduled"}} {9 * counted}',
            f'{prefix}dp_attention_steps_total{{{labels},rank_state="active"}} {9 * counted}',
            f"{prefix}num_running_reqs{{{labels}}} 3",
        ]
    return ("\n".join(sorted(lines)) + "\n").encode()


def configuration(**switches: object) -> bytes:
    """Write an answer of /server_info with secrets in it."""
    told = {"version": "0.5.23", "dp_size": 1, "attn_dp_size": 4, "tp_size": 4, "served_model_name": "m"}
    told |= {"disaggregation_mode": "null"}
    return json.dumps({**told, "api_key": "hush", "launch_command": "serve --api-key hush", **switches}).encode()


def loads(ranks: Sequence[int]) -> bytes:
    """Write an answer of /v1/loads."""
    each = [{"dp_rank": rank, "timestamp": 5.0, "num_running_reqs": 3, "num_used_tokens": 9} for rank in ranks]
    return json.dumps({"timestamp": "2025-11-24T16:00:00Z", "version": "0.5.23", "loads": each}).encode()


def _examine(pages: Pages, access: Access | None = None) -> Checkup:
    (checkup,) = examine([URL], access, transport=SmallEngine(pages).transport())
    return checkup


def _keys(checkup: Checkup) -> set[str]:
    return {check.key for check in checkup.checks}


def test_an_engine_that_tells_all_has_all_its_ranks() -> None:
    pages = {"/metrics": [sglang_page(range(4))], "/v1/loads": [loads(range(4))], "/server_info": [configuration()]}
    checkup = _examine(pages)
    assert (checkup.engine, checkup.version, checkup.model) == ("sglang", "0.5.23", "m")
    assert (checkup.ranks, checkup.expected_ranks, checkup.missing_ranks) == ((0, 1, 2, 3), 4, ())
    assert [(one.name, one.status) for one in checkup.interfaces] == [
        ("sglang-metrics", "answered"),
        ("sglang-loads", "answered"),
        ("sglang-server-info", "answered"),
    ]
    assert "keeps-step" in _keys(checkup)
    assert not {"ranks-missing", "metrics-off", "config-hidden"} & _keys(checkup)


def test_what_is_secret_is_kept_nowhere() -> None:
    checkup = _examine({"/metrics": [sglang_page(range(4))], "/server_info": [configuration()]})
    assert "hush" not in repr(checkup)


def test_counters_that_stand_at_zero_are_missing_and_show_nothing() -> None:
    checkup = _examine({"/metrics": [sglang_page(range(4), counted=False)], "/server_info": [configuration()]})
    assert "dp-attention-metrics-off" in _keys(checkup)
    judged = {cause.cause: cause for cause in checkup.causes}
    assert judged["load.context"].answer == "needs"
    assert judged["load.requests"].text == "running requests"


def test_ranks_that_should_be_there_are_missed() -> None:
    checkup = _examine({"/metrics": [sglang_page([0, 2])], "/server_info": [configuration()]})
    assert checkup.missing_ranks == (1, 3)
    (check,) = (one for one in checkup.checks if one.key == "ranks-missing")
    assert "2 of 4" in check.what
    assert "ranks 1, 3" in check.what


def test_a_gap_is_missed_where_nothing_tells_how_many_there_are() -> None:
    assert _examine({"/metrics": [sglang_page([0, 2])]}).missing_ranks == (1,)


def test_nodes_given_together_miss_nothing() -> None:
    engines = {
        "node-a": SmallEngine({"/metrics": [sglang_page([0, 1])], "/server_info": [configuration(nnodes=2)]}),
        "node-b": SmallEngine({"/metrics": [sglang_page([2, 3])]}),
    }

    def answer(request: httpx.Request) -> httpx.Response:
        status, body = engines[request.url.host].answer(request.url.path, request.headers)
        return httpx.Response(status, content=body)

    transport = httpx.MockTransport(answer)
    first, second = examine(["http://node-a:1", "http://node-b:1"], transport=transport)
    assert (first.missing_ranks, second.missing_ranks) == ((), ())
    (alone,) = examine(["http://node-a:1"], transport=transport)
    assert alone.missing_ranks == (2, 3)
    assert {"several-nodes", "ranks-missing"} <= _keys(alone)


def test_a_rank_that_load_answers_leave_out_is_named() -> None:
    checkup = _examine({"/metrics": [sglang_page(range(4))], "/v1/loads": [loads([0, 1, 3])]})
    (check,) = (one for one in checkup.checks if one.key == "loads-rank-missing")
    assert "rank 2" in check.what


def test_an_engine_without_metrics_is_told_how_to_switch_them_on() -> None:
    checkup = _examine({"/v1/loads": [loads(range(4))], "/server_info": [configuration(enable_metrics=False)]})
    assert checkup.engine == "sglang"
    assert "metrics-off" in _keys(checkup)
    assert next(one for one in checkup.interfaces if one.name == "sglang-metrics").status == "absent"


def test_vllm_without_its_series_is_known_by_its_version() -> None:
    checkup = _examine({"/metrics": [b"python_info 1\n"], "/version": [b'{"version":"0.33.0"}']})
    assert (checkup.engine, checkup.version) == ("vllm", "0.33.0")
    assert "vllm-metrics-off" in _keys(checkup)


def test_a_locked_interface_wants_a_token_and_gets_it() -> None:
    pages: Pages = {"/metrics": [sglang_page(range(4))], "/v1/loads": 401}
    checkup = _examine(pages)
    assert next(one for one in checkup.interfaces if one.name == "sglang-loads").status == "refused"
    assert "refused" in _keys(checkup)
    engine = SmallEngine({"/metrics": [sglang_page(range(4))]})
    access = Access(secret=Secret("Authorization", "environment variable KEY", "Bearer hush"))
    examine([URL], access, transport=engine.transport())
    assert all(headers["authorization"] == "Bearer hush" for headers in engine.headers)


def test_what_does_not_answer_in_time_is_slow_and_the_rest_is_still_asked() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/server_info":
            raise httpx.ReadTimeout("")
        if request.url.path == "/metrics":
            return httpx.Response(200, content=sglang_page(range(4)))
        return httpx.Response(404)

    (checkup,) = examine([URL], transport=httpx.MockTransport(answer))
    assert next(one for one in checkup.interfaces if one.name == "sglang-server-info").status == "slow"
    assert {"slow", "config-hidden"} <= _keys(checkup)


def test_a_target_that_is_not_there_is_asked_once() -> None:
    asked = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        raise httpx.ConnectError("refused")

    (checkup,) = examine([URL], transport=httpx.MockTransport(answer))
    assert not checkup.is_reached
    assert [one.status for one in checkup.interfaces] == ["unreachable"]
    assert len(asked) == 1
    assert checkup.causes == ()


def test_series_without_rank_labels_are_a_problem() -> None:
    page = sglang_page(range(2)).decode().replace('dp_rank="0",', "").replace('dp_rank="1",', "")
    assert "unlabelled" in _keys(_examine({"/metrics": [page.encode()]}))


def test_the_spelling_with_an_underscore_is_noted() -> None:
    assert "underscore" in _keys(_examine({"/metrics": [sglang_page(range(4), prefix="sglang_")]}))


@pytest.mark.parametrize(
    "scenario, expected, absent",
    [
        ("balanced", {"keeps-step"}, {"dp-attention-metrics-off", "ranks-missing", "device-timer-off"}),
        ("flags-off", {"dp-attention-metrics-off", "device-timer-off"}, {"keeps-step"}),
        ("missing-rank", {"loads-rank-missing"}, {"ranks-missing"}),
        ("tp16-dp8-default", {"copies"}, {"ranks-missing"}),
    ],
)
def test_recorded_pages_of_sglang_are_understood(
    fixtures: Path, scenario: str, expected: set[str], absent: set[str]
) -> None:
    folder = fixtures / "sglang-0.5.23"
    switches = (folder / "balanced" / "server_info.json").read_bytes() if scenario == "balanced" else None
    keys = _keys(_examine(sglang_pages(folder / scenario, switches=switches)))
    assert expected <= keys
    assert not absent & keys


def test_recorded_pages_of_vllm_are_understood(fixtures: Path) -> None:
    several = _keys(_examine(vllm_pages(fixtures / "vllm-0.33.0" / "balanced-api8")))
    one = _keys(_examine(vllm_pages(fixtures / "vllm-0.33.0" / "balanced")))
    assert "vllm-several-servers" in several
    assert "vllm-several-servers" not in one
    assert {"vllm-speed-unseen", "vllm-config-hidden"} <= one


def _vector(*rows: tuple[dict[str, str], float]) -> bytes:
    result = [{"metric": labels, "value": [5, str(value)]} for labels, value in rows]
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()


def _stored(prefixes: Sequence[str], ranks: Sequence[str], *, steps: float = 5, up: float = 1) -> httpx.MockTransport:
    """Stand for a Prometheus that stores SGLang of one job."""
    names = ["dp_attention_steps_total", "dp_attention_tokens_total", "num_running_reqs"]
    named = [({"__name__": f"{prefix}{name}", "job": "llm"}, 8.0) for prefix in prefixes for name in names]

    def answer(request: httpx.Request) -> httpx.Response:
        query = request.url.params["query"]
        if "__name__, job" in query:
            return httpx.Response(200, content=_vector(*named))
        if "dp_rank" in query:
            rows = [({"job": "llm", "model_name": "m", **({"dp_rank": rank} if rank else {})}, 1.0) for rank in ranks]
            return httpx.Response(200, content=_vector(*rows))
        if '"up"' in query:
            return httpx.Response(200, content=_vector(({"job": "llm"}, up), ({"job": "other"}, 0.0)))
        return httpx.Response(200, content=_vector(({"job": "llm"}, steps)) if "steps" in query else _vector())

    return httpx.MockTransport(answer)


def _examine_store(transport: httpx.MockTransport) -> Checkup:
    (checkup,) = examine(["prometheus+http://p:9090"], transport=transport)
    return checkup


def test_what_prometheus_stores_is_told_by_spelling_ranks_and_families() -> None:
    checkup = _examine_store(_stored(["sglang_"], ["0", "1", "3"]))
    assert (checkup.engine, checkup.ranks, checkup.missing_ranks) == ("sglang", (0, 1, 3), (2,))
    assert checkup.facts["spelling"] == "underscore"
    assert {"underscore", "ranks-missing", "families-not-stored"} <= _keys(checkup)
    assert "scheduler_stage_seconds_total" in str(checkup.facts["families_missing"])
    assert "not-stored-lately" not in _keys(checkup)


def test_both_spellings_in_one_prometheus_are_a_problem() -> None:
    assert "both-spellings" in _keys(_examine_store(_stored(["sglang:", "sglang_"], ["0", "1"])))


def test_a_prometheus_that_lost_the_rank_label_is_told() -> None:
    assert "unlabelled" in _keys(_examine_store(_stored(["sglang:"], [""])))


def test_stored_counters_at_zero_and_targets_that_are_down_are_told() -> None:
    assert "dp-attention-metrics-off" in _keys(_examine_store(_stored(["sglang:"], ["0", "1"], steps=0)))
    assert "not-stored-lately" in _keys(_examine_store(_stored(["sglang:"], ["0", "1"], up=0)))


def test_a_prometheus_without_engines_and_one_that_is_none_are_told_apart() -> None:
    empty = _examine_store(httpx.MockTransport(lambda request: httpx.Response(200, content=_vector())))
    assert _keys(empty) == {"nothing-stored"}
    other = _examine_store(httpx.MockTransport(lambda request: httpx.Response(200, content=b"<html>")))
    assert [one.status for one in other.interfaces] == ["failed"]
    assert not other.is_reached


@pytest.mark.parametrize("gap_s, is_rare", [(15, False), (60, True)])
def test_how_often_engines_are_scraped_and_whether_devices_are_is_told(gap_s: int, is_rare: bool) -> None:
    stored = _stored(["sglang:"], ["0", "1"])

    def answer(request: httpx.Request) -> httpx.Response:
        query = request.url.params["query"]
        if "DCGM" in query:
            return httpx.Response(200, content=_vector(({"__name__": "node_load1"}, 1.0)))
        if query.endswith("ms]"):
            series = {"metric": {"job": "llm"}, "values": [[at, "3"] for at in range(0, 5 * gap_s, gap_s)]}
            told = {"status": "success", "data": {"resultType": "matrix", "result": [series]}}
            return httpx.Response(200, json=told)
        return stored.handle_request(request)

    checkup = _examine_store(httpx.MockTransport(answer))
    assert (checkup.facts["scrape_interval_s"], checkup.facts["devices_stored"]) == (gap_s, True)
    assert ("scraped-rarely" in _keys(checkup)) is is_rare
    assert "devices-not-stored" not in _keys(checkup)
    assert "devices-not-stored" in _keys(_examine_store(stored))
