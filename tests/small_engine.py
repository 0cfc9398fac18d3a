"""An engine that answers from files: paths to bodies, over a transport or a real socket."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

Pages = Mapping[str, "Sequence[bytes] | int"]
"""Path → bodies, one a moment, the last one holds on; or the status that refuses it."""


def sglang_pages(folder: Path, *, switches: bytes | None = None) -> dict[str, Sequence[bytes] | int]:
    """Serve a folder of two scrapes as SGLang would."""
    pages: dict[str, Sequence[bytes] | int] = {}
    for path, names in (
        ("/metrics", ("metrics_t0.prom", "metrics_t1.prom")),
        ("/v1/loads", ("v1_loads_t0.json", "v1_loads_t1.json")),
    ):
        if (folder / names[0]).exists():
            pages[path] = [(folder / name).read_bytes() for name in names]
    if switches is not None:
        pages["/server_info"] = [switches]
    return pages


def vllm_pages(folder: Path) -> dict[str, Sequence[bytes] | int]:
    """Serve a folder of two scrapes as vLLM would."""
    return {
        "/metrics": [(folder / f"scrape{number}.prom").read_bytes() for number in (1, 2)],
        "/version": [b'{"version":"0.33.0"}'],
    }


class SmallEngine:
    """Gives out the pages of the moment it stands at, and remembers what was asked.

    Attributes:
        moment: which body of each page is given out.
        asked: paths, in order.
        headers: of each question.
    """

    def __init__(self, pages: Pages) -> None:
        self.pages = dict(pages)
        self.moment = 0
        self.asked: list[str] = []
        self.headers: list[dict[str, str]] = []
        self._lines: dict[str, tuple[bytes, bytes]] = {}

    def answer(self, path: str, headers: Mapping[str, str]) -> tuple[int, bytes]:
        self.asked.append(path)
        self.headers.append({name.lower(): value for name, value in headers.items()})
        page = self.pages.get(path, 404)
        return (page, b"no") if isinstance(page, int) else (200, page[min(self.moment, len(page) - 1)])

    def grow_to(self, share: float) -> None:
        """Stand between two moments, or beyond the last: counters and gauges on a straight line."""
        for path, page in self.pages.items():
            if not isinstance(page, int) and len(page) > 1:
                self._lines.setdefault(path, (page[0], page[1]))
        for path, (first, last) in self._lines.items():
            grow = _grow_json if first.lstrip().startswith(b"{") else _grow_page
            self.pages[path] = [grow(first, last, share)]

    def transport(self) -> httpx.MockTransport:
        def handle(request: httpx.Request) -> httpx.Response:
            status, body = self.answer(request.url.path, request.headers)
            return httpx.Response(status, content=body)

        return httpx.MockTransport(handle)


def _grow_page(first: bytes, last: bytes, share: float) -> bytes:
    before = dict(line.rsplit(" ", 1) for line in first.decode().splitlines() if line and line[0] != "#")
    lines = []
    for line in last.decode().splitlines():
        series, _, value = line.rpartition(" ")
        lines.append(line if line[:1] in ("", "#") else f"{series} {_between(before.get(series, '0'), value, share)}")
    return ("\n".join(lines) + "\n").encode()


def _between(first: str, last: str, share: float) -> float:
    return float(first) + share * (float(last) - float(first))


def _grow_json(first: bytes, last: bytes, share: float) -> bytes:
    return json.dumps(_mix(json.loads(first), json.loads(last), share)).encode()


def _mix(first: Any, last: Any, share: float) -> Any:
    if isinstance(last, dict):
        return {name: _mix(first.get(name, value), value, share) for name, value in last.items()}
    if isinstance(last, list):
        return [_mix(one, other, share) for one, other in zip(first, last, strict=True)]
    if isinstance(last, bool) or not isinstance(last, int | float) or not isinstance(first, int | float):
        return last
    mixed = first + share * (last - first)
    return round(mixed) if isinstance(last, int) else mixed


@contextmanager
def serve(engine: SmallEngine, port: int = 0) -> Iterator[str]:
    """Serve over a loopback socket, at a free port if none is given; gives its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, body = engine.answer(self.path.partition("?")[0], dict(self.headers.items()))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
