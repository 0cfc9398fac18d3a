"""Serve metrics of our own on a port, on this machine unless the user says otherwise."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dprankdiag.cli.stored import is_server
from dprankdiag.errors import UsageError

if TYPE_CHECKING:
    from dprankdiag.model.ledgers import LedgerAnswer, NoData
    from dprankdiag.pipelines.watch import Report
    from dprankdiag.views.metrics import DiagnosisMetrics

Keep = Callable[["Sequence[LedgerAnswer | NoData]", int], None]
"""Keep what was told at a moment (UTC epoch ns)."""

ALIVE_TICKS = 3.0
"""Ticks that may be missed before the loop counts as stuck: one slow target costs one or two."""

SLOWEST_REQUEST_S = 10.0
"""A client that takes longer to send its question is let go."""

_INDEX = b"dprankdiag: /metrics for Prometheus, /healthz (the loop runs), /readyz (an engine was judged)\n"


@dataclass(slots=True)
class Health:
    """Whether ticks go on, and whether they judge anything.

    Attributes:
        late_s: a tick older than this is late.
        now: seconds that only grow.
    """

    late_s: float
    now: Callable[[], float] = time.monotonic
    _began_s: float = field(init=False)
    _tick_s: float | None = None
    _judged_s: float | None = None
    _ticks: int = 0
    _silent: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Count from now on."""
        self._began_s = self.now()

    def note_tick(self, judged: bool, silent: tuple[str, ...] = ()) -> None:
        """Note that a tick is over.

        Args:
            judged: some engine told enough to be judged.
            silent: targets that gave no data.
        """
        self._tick_s = self.now()
        self._ticks += 1
        self._silent = silent
        if judged:
            self._judged_s = self._tick_s

    def tell(self) -> dict[str, Any]:
        """Tell how it is; ages are null before the first."""
        now_s = self.now()
        tick_age_s = None if self._tick_s is None else now_s - self._tick_s
        judged_age_s = None if self._judged_s is None else now_s - self._judged_s
        return {
            "alive": (now_s - self._began_s if tick_age_s is None else tick_age_s) <= self.late_s,
            "ready": judged_age_s is not None and judged_age_s <= self.late_s,
            "ticks": self._ticks,
            "tick_age_seconds": None if tick_age_s is None else round(tick_age_s, 3),
            "verdict_age_seconds": None if judged_age_s is None else round(judged_age_s, 3),
            "targets_without_data": list(self._silent),
        }


class Page:
    """The page of metrics, and how the loop that fills it is doing."""

    def __init__(self, metrics: DiagnosisMetrics, health: Health, bases: Mapping[str, str]) -> None:
        self._metrics = metrics
        self._health = health
        self._bases = bases

    def show(self, report: Report) -> None:
        """Show a tick from now on."""
        silent = tuple(
            target for target, base in self._bases.items() if any(_is_of(item, base) for item in report.failed)
        )
        self._metrics.show(report.diagnosis, report.tables, report.at_ns, silent)
        self._health.note_tick(bool(report.tables), silent)

    def note_trouble(self) -> None:
        """Note a tick that could not be judged."""
        self._health.note_tick(False)


def _is_of(failed: NoData, base: str) -> bool:
    """Tell whether the numbers of a target are missing, not only what stands beside them."""
    is_numbers = failed.interface.endswith("metrics") or failed.interface == "prometheus-api"
    return is_numbers and (failed.where == base or failed.where.startswith((f"{base}/", f"{base} ")))


@contextmanager
def open_page(given: Mapping[str, Any], targets: Sequence[str], place: tuple[str, int]) -> Iterator[tuple[Page, str]]:
    """Serve a page of metrics until the block ends; gives the page to fill, and its address.

    Raises:
        UsageError: the port is taken or the address is not ours.
    """
    from dprankdiag.collectors.http import check_target, hide_credentials
    from dprankdiag.pipelines.sources import check_server
    from dprankdiag.views.metrics import DiagnosisMetrics

    late_s = find_late_s(given["interval_s"], given["timeout_s"])
    bases = {
        hide_credentials(target): hide_credentials((check_server if is_server(target) else check_target)(target))
        for target in targets
        if not target.startswith(("zmq+", "shm:"))
    }
    metrics = DiagnosisMetrics(given["deployment"], tuple(bases), hold_s=late_s)
    health = Health(late_s)
    with serve_metrics(metrics, health, *place) as port:
        host = f"[{place[0]}]" if ":" in place[0] else place[0]
        yield Page(metrics, health, bases), f"http://{host}:{port}/metrics"


@contextmanager
def open_recording(path: Path | None) -> Iterator[Keep]:
    """Keep what is told in a recording until the block ends; nowhere without a path."""
    if path is None:
        yield lambda told, at_ns: None
        return
    from dprankdiag.store.recorder import Recorder

    with Recorder(path) as recorder:
        yield recorder.write


def find_late_s(interval_s: float, timeout_s: float) -> float:
    """Find the age at which a tick is late, s: a tick may wait for a silent target as long as `--timeout` says."""
    return ALIVE_TICKS * (interval_s + 2 * timeout_s)


def read_address(text: str, allow_remote: bool) -> tuple[str, int]:
    """Read HOST:PORT, :PORT or PORT; without a host this machine alone is meant.

    Raises:
        UsageError: no usable address, or one that others can reach although that is not allowed.
    """
    host, _, port_text = text.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not (port_text.isascii() and port_text.isdigit() and int(port_text) < 65_536):
        raise UsageError("expected HOST:PORT", where=f"--listen {text}", mend="such as 127.0.0.1:9479")
    if not allow_remote and not _is_loopback(host):
        mend = "listen on 127.0.0.1, or add --allow-remote if everybody who reaches it may read it"
        raise UsageError("others could reach it", where=f"--listen {text}", mend=mend)
    return host, int(port_text)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@contextmanager
def serve_metrics(metrics: DiagnosisMetrics, health: Health, host: str, port: int) -> Iterator[int]:
    """Serve metrics until the block ends; gives the port, which is chosen where 0 is asked for.

    Raises:
        UsageError: the port is taken or the address is not ours.
    """
    try:
        server = _open_server(metrics, health, host, port)
    except OSError as error:
        raise UsageError(f"cannot listen ({error.strerror or error})", where=f"{host}:{port}") from error
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _open_server(metrics: DiagnosisMetrics, health: Health, host: str, port: int) -> ThreadingHTTPServer:
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import choose_encoder

    registry = CollectorRegistry(auto_describe=False)
    registry.register(metrics)

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        daemon_threads = True

    class Handler(BaseHTTPRequestHandler):
        timeout = SLOWEST_REQUEST_S
        server_version, sys_version = "dprankdiag", ""

        def do_GET(self) -> None:
            path = self.path.partition("?")[0].rstrip("/")
            if path == "/metrics":
                encode, kind = choose_encoder(self.headers.get("Accept", ""))
                self._reply(200, kind, encode(registry))
            elif path in ("/healthz", "/readyz"):
                told = health.tell()
                good = told["alive"] if path == "/healthz" else told["alive"] and told["ready"]
                self._reply(200 if good else 503, "application/json", json.dumps(told).encode() + b"\n")
            elif path == "":
                self._reply(200, "text/plain; charset=utf-8", _INDEX)
            else:
                self._reply(404, "text/plain; charset=utf-8", _INDEX)

        do_HEAD = do_GET

        def _reply(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Say nothing: standard error is for what happens to engines."""

        def handle(self) -> None:
            try:
                super().handle()
            except (ConnectionError, TimeoutError):
                self.close_connection = True

    return Server((host, port), Handler)
