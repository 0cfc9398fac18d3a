from __future__ import annotations

from pathlib import Path

import pytest

from dprankdiag.errors import UsageError
from dprankdiag.pipelines.poll import Poller
from dprankdiag.pipelines.sources import read_targets


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


def test_publishers_that_are_silent_say_nothing() -> None:
    with Poller(["zmq+tcp://127.0.0.1:1-8"]) as poller:
        assert poller.poll() == []


def test_sockets_of_forward_passes_are_found(tmp_path: Path) -> None:
    (tmp_path / "passes.0").touch()
    (tmp_path / "passes.log").touch()
    with Poller([f"zmq+ipc://{tmp_path}/passes"]) as poller:
        assert poller.poll() == []
