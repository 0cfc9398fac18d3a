"""Run promtool, and a real Prometheus on loopback in a folder of its own."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml


@dataclass(frozen=True, slots=True)
class Server:
    """A Prometheus that answers at an address."""

    url: str

    def ask(self, path: str, **parameters: str) -> Any:
        """Return the `data` of an API answer."""
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=10) as answer:
            return json.load(answer)["data"]

    def list_firing(self) -> dict[str, set[tuple[str, str]]]:
        """Return per job the alerts that fire, each with the rank, GPU or reason it names."""
        firing: dict[str, set[tuple[str, str]]] = {}
        for alert in self.ask("alerts")["alerts"]:
            labels = alert["labels"]
            if alert["state"] == "firing":
                named = labels.get("rank") or labels.get("gpu") or labels.get("reason") or ""
                firing.setdefault(labels["job"], set()).add((labels["alertname"], named))
        return firing


def find_tool(name: str) -> str:
    """Return the path of prometheus or promtool; the test is skipped where there is none."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no {name}; install the system package prometheus")
    return found


def find_free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def run_prometheus(
    folder: Path, rules: Path, jobs: Mapping[str, Sequence[str]], address: str, exporter: str = ""
) -> Iterator[Server]:
    """Scrape pages at an address each second, grouped into jobs; yield the server once it is ready.

    Args:
        exporter: host and port of `dprankdiag export`, scraped too.
    """
    configuration = _configure(rules, jobs, address)
    if exporter:
        job = {"job_name": "dprankdiag", "static_configs": [{"targets": [exporter]}]}
        configuration["scrape_configs"].append(job)
    with _run(folder, configuration) as server:
        yield server


@contextmanager
def serve_blocks(folder: Path) -> Iterator[Server]:
    """Serve what lies in the folder `data`, and scrape nothing."""
    with _run(folder, {"global": {"scrape_interval": "30s"}}) as server:
        yield server


@contextmanager
def _run(folder: Path, configuration: Mapping[str, Any]) -> Iterator[Server]:
    port = find_free_port()
    config = folder / "prometheus.yml"
    config.write_text(yaml.safe_dump(dict(configuration)))
    log = (folder / "log").open("w")
    process = subprocess.Popen(
        [
            find_tool("prometheus"),
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=warn",
        ],
        stdout=log,
        stderr=log,
    )
    try:
        _wait_until_ready(f"http://127.0.0.1:{port}", process, folder / "log")
        yield Server(f"http://127.0.0.1:{port}")
    finally:
        process.terminate()
        process.wait(timeout=20)
        log.close()


class Blocks:
    """Collects pages that engines told at moments, and makes blocks of them as Prometheus writes them."""

    def __init__(self) -> None:
        self._samples: dict[str, dict[str, list[str]]] = {}

    def add(self, page: str, at_s: float, **target: str) -> None:
        """Add a page as if it had been scraped then, with the labels of its target; buckets are left out."""
        added = ",".join(f'{name}="{value}"' for name, value in target.items())
        for line in page.splitlines():
            name, brace, rest = line.partition("{")
            if not line.startswith("#") and brace and not name.endswith("_bucket"):
                labels, _, value = rest.rpartition("} ")
                series = self._samples.setdefault(name, {}).setdefault(f"{name}{{{added},{labels}}}", [])
                series.append(f"{value} {at_s:.3f}")

    def write(self, folder: Path) -> None:
        """Write all of it into the folder `data`."""
        lines: list[str] = []
        for name, series in sorted(self._samples.items()):
            lines.append(f"# TYPE {name} unknown")
            lines += [f"{identity} {sample}" for identity, samples in series.items() for sample in samples]
        told = folder / "told.openmetrics"
        told.write_text("\n".join([*lines, "# EOF", ""]), "utf-8")
        command = [find_tool("promtool"), "tsdb", "create-blocks-from", "openmetrics", told, folder / "data"]
        subprocess.run(command, check=True, capture_output=True)


def _configure(rules: Path, jobs: Mapping[str, Sequence[str]], address: str) -> dict[str, Any]:
    return {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": [
            {
                "job_name": job,
                "static_configs": [
                    {"targets": [address], "labels": {"__metrics_path__": f"/{page}", "instance": page}}
                    for page in pages
                ],
            }
            for job, pages in jobs.items()
        ],
    }


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(100):
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"{url}/-/ready", timeout=2):
                return
        except OSError:
            time.sleep(0.1)
    pytest.fail(f"prometheus did not start: {log.read_text()}")
