"""Workers of a Dask cluster digest what they see; one that dies loses nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dprankdiag.errors import DprankdiagError, InputError, UsageError
from dprankdiag.harness.suites import write_world
from dprankdiag.harness.world import World
from dprankdiag.pipelines import cluster
from dprankdiag.pipelines.cluster import digest_on_cluster
from dprankdiag.pipelines.digest import Digested, digest
from tests.conftest import ROOT

PATIENCE_S = 60.0


@dataclass
class Cluster:
    """A scheduler and workers on this machine, each a process of its own."""

    folder: Path
    stack: ExitStack
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    address: str = ""

    def start(self, command: str, *options: str) -> subprocess.Popen[bytes]:
        """Start a process that ends with the test."""
        log = self.stack.enter_context((self.folder / f"{command}-{len(self.workers)}.log").open("wb"))
        asked = [sys.executable, "-m", f"distributed.cli.{command}", "--host", "127.0.0.1", "--no-dashboard", *options]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        made = subprocess.Popen(asked, stdout=log, stderr=log, env=environment, cwd=self.folder)
        self.stack.callback(_end, made)
        return made

    def open(self, n_workers: int) -> None:
        """Start a scheduler and workers, and wait until all are there."""
        from distributed import Client

        told = self.folder / "scheduler.json"
        self.start("dask_scheduler", "--port", "0", "--scheduler-file", str(told))
        until = time.monotonic() + PATIENCE_S
        while not told.exists() or not told.read_text():
            assert time.monotonic() < until, "the scheduler does not start"
            time.sleep(0.1)
        self.address = json.loads(told.read_text())["address"]
        for _ in range(n_workers):
            self.workers.append(self.start("dask_worker", self.address, "--nthreads", "1", "--no-nanny"))
        if n_workers:
            with Client(self.address, set_as_default=False) as client:
                client.wait_for_workers(n_workers, timeout=PATIENCE_S)

    def kill(self, number: int) -> None:
        """End a worker as the system ends one for its memory."""
        self.workers[number].send_signal(signal.SIGKILL)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


@pytest.fixture
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(tmp_path_factory.mktemp("cluster"), stack)


@pytest.fixture
def traces(tmp_path: Path) -> list[Path]:
    world = World(seed=4, ranks=12, steps=12, layers=2, files="node", ranks_per_node=2)
    return write_world(world, tmp_path / "traces", name="node")


@pytest.mark.slow
def test_a_worker_that_is_killed_in_the_middle_loses_nothing(started: Cluster, traces: list[Path]) -> None:
    started.open(2)
    broken, nowhere = traces[0].with_name("broken.sqlite"), traces[0].with_name("nowhere.sqlite")
    broken.write_bytes(traces[0].read_bytes()[:20_000])
    found: dict[str, Digested | DprankdiagError] = {}
    names: dict[str, str] = {}
    for path, name, one in digest_on_cluster(started.address, [*traces, broken, nowhere]):
        if not any(isinstance(item, Digested) for item in found.values()) and isinstance(one, Digested):
            started.kill(0)
        found[path], names[path] = one, name
    assert set(found) == {str(path) for path in (*traces, broken, nowhere)}
    for path in traces:
        assert found[str(path)] == digest(path)
        assert names[str(path)] == f"{path.stem}.dprank"
    assert "broken.sqlite" in str(found[str(broken)])
    assert "no worker sees a recording there" in str(found[str(nowhere)])


@pytest.mark.slow
def test_what_only_lost_workers_saw_is_given_up_after_a_while(
    started: Cluster, traces: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "GONE_S", 1.0)
    started.open(1)
    found = {}
    for path, _, one in digest_on_cluster(started.address, traces):
        if not found:
            started.kill(0)
        found[path] = one
    lost = [one for one in found.values() if isinstance(one, InputError)]
    assert len(found) == len(traces)
    assert lost
    assert all("every worker that saw it is gone" in str(one) for one in lost)


@pytest.mark.slow
def test_a_cluster_without_workers_is_told_in_a_line(started: Cluster, traces: list[Path]) -> None:
    started.open(0)
    with pytest.raises(InputError, match="has no workers; start some"):
        list(digest_on_cluster(started.address, traces))


def test_no_scheduler_is_told_in_a_line(traces: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "CONNECT_S", 0.5)
    with pytest.raises(UsageError, match=r"no Dask scheduler answers.*give the address of the scheduler"):
        list(digest_on_cluster("tcp://127.0.0.1:9", traces))


def test_the_missing_package_is_told_with_the_command_that_installs_it(
    traces: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UsageError, match=r"--dask: needs the package distributed.*pip install"):
        list(digest_on_cluster("tcp://127.0.0.1:9", traces))


def test_files_of_one_path_on_two_hosts_are_two_recordings() -> None:
    here, there = (cluster.Seen("/data/run.sqlite", 10, moment) for moment in (1, 2))
    both = {
        "tcp://a:1": cluster.Place("node-a", "1", ((here,),)),
        "tcp://b:1": cluster.Place("node-b", "1", ((there,),)),
        "tcp://b:2": cluster.Place("node-b", "1", ((there,),)),
    }
    jobs = cluster._list_jobs(both)
    assert [(job.seen, job.name) for job in jobs] == [(here, "node-a-run.dprank"), (there, "node-b-run.dprank")]
