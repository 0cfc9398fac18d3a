"""Serve metrics of our own on a port, on this machine unless the user says otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from typing import TYPE_CHECKING

from dprankdiag.errors import UsageError

if TYPE_CHECKING:
    from dprankdiag.views.metrics import DiagnosisMetrics


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
def serve_metrics(metrics: DiagnosisMetrics, host: str, port: int) -> Iterator[int]:
    """Serve metrics until the block ends; gives the port, which is chosen where 0 is asked for.

    Raises:
        UsageError: the port is taken or the address is not ours.
    """
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry(auto_describe=False)
    registry.register(metrics)
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise UsageError(f"cannot listen ({error.strerror or error})", where=f"{host}:{port}") from error
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
