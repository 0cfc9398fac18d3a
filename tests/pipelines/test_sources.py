from __future__ import annotations

import json
from pathlib import Path

import pytest

from dprankdiag.errors import UsageError
from dprankdiag.harness.fake_engine import FakeEngine
from dprankdiag.model.ledgers import LedgerAnswer, NoData
from dprankdiag.pipelines.poll import Poller
from dprankdiag.pipelines.sources import read_targets

SAMPLE = {
    "metric": {"__name__": "vllm:num_requests_running", "engine": "0", "model_name": "m", "instance": "h:1"},
    "value": [1_764_000_000, "3"],
}


def test_targets_are_sorted_by_what_they_ask_for() -> None:
    told = read_targets(["h:1", "prometheus+http://p:9090", "zmq+tcp://h:5565-5572", "shm:", "http://h:1"])
    assert (told.engines, told.servers, len(told.streams), told.memory) == (
        ("http://h:1",),
        ("http://p:9090",),
        1,
        True,
    )


@pytest.mark.parametrize(
    "target", ["zmq+udp://h:1", "zmq+tcp://h", "zmq+tcp://h:9-8", "zmq+tcp://h:0", "zmq+tcp://h:1-70000"]
)
def test_publishers_that_are_none_are_refused(target: str) -> None:
    with pytest.raises(UsageError):
        read_targets([target])


def test_a_prometheus_server_is_asked_for_the_latest_and_for_the_past() -> None:
    latest = json.dumps({"status": "success", "data": {"resultType": "vector", "result": [SAMPLE]}}).encode()
    past = {"metric": SAMPLE["metric"], "values": [[1_764_000_000, "3"], [1_764_000_015, "4"]]}
    history = json.dumps({"status": "success", "data": {"resultType": "matrix", "result": [past]}}).encode()
    bodies = {"/api/v1/query": latest, "/api/v1/query_range": history}
    with FakeEngine(bodies) as server, Poller([f"prometheus+{server.url}"]) as poller:
        now, before = poller.poll(), poller.read_back(30, 15)
    told = [one.values["running_requests"].tolist() for one in (*now, *before) if isinstance(one, LedgerAnswer)]
    assert told == [[3.0], [3.0], [4.0]]


def test_a_prometheus_server_without_engines_is_no_data() -> None:
    nothing = b'{"status":"success","data":{"resultType":"vector","result":[]}}'
    with FakeEngine({"/api/v1/query": nothing}) as server, Poller([f"prometheus+{server.url}"]) as poller:
        (answer,) = poller.poll()
    assert isinstance(answer, NoData)
    assert answer.reason == "holds no series of an engine"


def test_publishers_that_are_silent_say_nothing() -> None:
    with Poller(["zmq+tcp://127.0.0.1:1-8"]) as poller:
        assert poller.poll() == []


def test_sockets_of_forward_passes_are_found(tmp_path: Path) -> None:
    (tmp_path / "passes.0").touch()
    (tmp_path / "passes.log").touch()
    with Poller([f"zmq+ipc://{tmp_path}/passes"]) as poller:
        assert poller.poll() == []
