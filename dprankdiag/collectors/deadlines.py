"""Let no question outlast its deadline, however slowly the other side talks.

A timeout of a single read begins anew with every byte, so that a server that sends one byte at a time holds a client
for hours. Here every read and write of a question gets what is left of its time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpcore
import httpx

if TYPE_CHECKING:
    import ssl


class Deadline:
    """The moment until which the question of this thread may last."""

    def __init__(self) -> None:
        self._own = threading.local()

    @contextmanager
    def within(self, seconds: float) -> Iterator[float]:
        """Set the deadline for what is asked inside; gives it, by the monotonic clock."""
        until = time.monotonic() + seconds
        self._own.until = until
        try:
            yield until
        finally:
            self._own.until = None

    def limit(self, timeout: float | None) -> float | None:
        """Shorten a timeout to what is left.

        Raises:
            httpcore.ReadTimeout: nothing is left.
        """
        until = getattr(self._own, "until", None)
        if until is None:
            return timeout
        left: float = until - time.monotonic()
        if left <= 0:
            raise httpcore.ReadTimeout("the time of the question is over")
        return left if timeout is None else min(timeout, left)


def make_transport(deadline: Deadline, context: ssl.SSLContext, limits: httpx.Limits) -> httpx.BaseTransport:
    """Make a transport whose connections keep a deadline."""
    transport = httpx.HTTPTransport(verify=context, limits=limits, trust_env=False)
    transport._pool = httpcore.ConnectionPool(
        ssl_context=context,
        max_connections=limits.max_connections,
        max_keepalive_connections=limits.max_keepalive_connections,
        keepalive_expiry=limits.keepalive_expiry,
        network_backend=_Backend(deadline),
    )
    return transport


class _Backend(httpcore.NetworkBackend):
    """Connects as httpcore does."""

    def __init__(self, deadline: Deadline) -> None:
        self._plain = httpcore.SyncBackend()
        self._deadline = deadline

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        stream = self._plain.connect_tcp(host, port, timeout, local_address, socket_options)
        return _Stream(stream, self._deadline)

    def sleep(self, seconds: float) -> None:
        self._plain.sleep(seconds)


class _Stream(httpcore.NetworkStream):
    """A connection that reads and writes only as long as the question of the thread may last."""

    def __init__(self, stream: httpcore.NetworkStream, deadline: Deadline) -> None:
        self._stream = stream
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, self._deadline.limit(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, self._deadline.limit(timeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        secure = self._stream.start_tls(ssl_context, server_hostname, self._deadline.limit(timeout))
        return _Stream(secure, self._deadline)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
