"""Serve recorded bodies over HTTP on this machine, as an engine would, with the faults that engines have.

    with FakeEngine({"/metrics": [first, second]}) as engine:
        ask(engine.url)

A path has one body, or several that follow each other from one request to the next (the last one stays), or a function
of the seconds since the start, or an `Endpoint` that looks at what is asked. A `Fault` changes how one is served.
"""

from __future__ import annotations

import ssl
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Self
from urllib.parse import parse_qsl, urlsplit


@dataclass(frozen=True, slots=True)
class Asked:
    """A request.

    Attributes:
        query: names and values behind the path; of a name given twice the last value.
        body: what came with it.
        seconds: since the start.
    """

    method: str
    path: str
    query: Mapping[str, str]
    body: bytes
    seconds: float


@dataclass(frozen=True, slots=True)
class Reply:
    """What is answered."""

    body: bytes
    status: int = 200


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Answers requests for a path by looking at them; other methods than these are refused."""

    answer: Callable[[Asked], Reply]
    methods: tuple[str, ...] = ("GET",)


Body = bytes | Sequence[bytes] | Callable[[float], bytes] | Endpoint

_MISSING = Reply(b'{"detail":"Not Found"}', 404)
_REFUSED = Reply(b'{"error":"Unauthorized"}', 401)
_NOT_SO = Reply(b'{"detail":"Method Not Allowed"}', 405)


@dataclass(frozen=True, slots=True)
class Fault:
    """How the requests for a path go wrong.

    Attributes:
        status: answered instead of 200.
        delay_s: before the answer begins.
        keep_ratio: share of the body that is sent before the connection breaks off.
        location: where to send the client, with a status of 300 to 399.
        first, last: numbers of the requests concerned, from 0; all where not given.
    """

    status: int = 200
    delay_s: float = 0.0
    keep_ratio: float = 1.0
    location: str = ""
    first: int = 0
    last: int | None = None

    def concerns(self, number: int) -> bool:
        """Tell whether a request is concerned."""
        return number >= self.first and (self.last is None or number <= self.last)


class FakeEngine:
    """A server on a free port of this machine.

    Args:
        bodies: path → body.
        faults: path → what goes wrong there.
        token: wanted as `Authorization: Bearer TOKEN` on all paths but `/metrics` and `/health`.
        clock: seconds, for bodies that are functions of time.
        port: to listen at; 0 takes a free one.
        tls: to speak TLS with.
    """

    def __init__(
        self,
        bodies: Mapping[str, Body],
        *,
        faults: Mapping[str, Fault] | None = None,
        token: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.bodies = dict(bodies)
        self.faults = dict(faults or {})
        self.requests: Counter[str] = Counter()
        self.headers: list[Mapping[str, str]] = []
        self._token = token
        self._clock = clock
        self._start_s = clock()
        self._lock = Lock()
        self._server = _Server(("127.0.0.1", port), _make_handler(self))
        self._scheme = "https" if tls else "http"
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def port(self) -> int:
        """Tell the port."""
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """Tell the address."""
        return f"{self._scheme}://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        """Start to serve."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop to serve."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def count(self, path: str, headers: Mapping[str, str]) -> int:
        """Count a request; return its number for this path, from 0."""
        with self._lock:
            number = self.requests[path]
            self.requests[path] += 1
            self.headers.append(headers)
            return number

    def is_refused(self, path: str, headers: Mapping[str, str]) -> bool:
        """Tell whether a request lacks the token."""
        is_open = self._token is None or path in ("/metrics", "/health")
        return not is_open and headers.get("Authorization") != f"Bearer {self._token}"

    def answer(self, method: str, address: str, content: bytes, number: int) -> Reply:
        """Answer a request.

        Args:
            number: of this request for its path, from 0.
        """
        parts = urlsplit(address)
        body = self.bodies.get(parts.path)
        if body is None:
            return _MISSING
        seconds = self._clock() - self._start_s
        if isinstance(body, Endpoint):
            query = dict(parse_qsl(parts.query, keep_blank_values=True))
            asked = Asked(method, parts.path, query, content, seconds)
            return body.answer(asked) if method in body.methods else _NOT_SO
        if method != "GET":
            return _NOT_SO
        if isinstance(body, bytes):
            return Reply(body)
        return Reply(body(seconds) if callable(body) else body[min(number, len(body) - 1)])


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: a client that goes away is no fault of ours."""


def _make_handler(engine: FakeEngine) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._serve("GET")

        def do_POST(self) -> None:
            self._serve("POST")

        def _serve(self, method: str) -> None:
            path = urlsplit(self.path).path
            headers = dict(self.headers)
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            number = engine.count(path, headers)
            fault = engine.faults.get(path, Fault())
            fault = fault if fault.concerns(number) else Fault()
            if fault.delay_s:
                time.sleep(fault.delay_s)
            if engine.is_refused(path, headers):
                reply = _REFUSED
            elif fault.status != 200:
                reply = Reply(b"", fault.status)
            else:
                reply = engine.answer(method, self.path, content, number)
            self._send(reply.status, reply.body, fault)

        def _send(self, status: int, body: bytes, fault: Fault) -> None:
            is_text = not body.lstrip().startswith((b"{", b"["))
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; version=0.0.4" if is_text else "application/json")
            self.send_header("Content-Length", str(len(body)))
            if fault.location:
                self.send_header("Location", fault.location)
            self.end_headers()
            try:
                self.wfile.write(body[: int(len(body) * fault.keep_ratio)])
            except OSError:
                self.close_connection = True  # the client did not wait
            if fault.keep_ratio < 1:
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler
