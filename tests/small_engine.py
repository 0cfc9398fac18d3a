"""An engine that answers from files: paths to bodies, over a transport or a real socket."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx

Pages = Mapping[str, "Sequence[bytes] | int"]
"""Path → bodies in the order they are given out, the last again and again; or the status that refuses it."""


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
    """Gives out pages in order and remembers what was asked."""

    def __init__(self, pages: Pages) -> None:
        self.pages = dict(pages)
        self.asked: list[str] = []
        self.seen_headers: list[dict[str, str]] = []

    def answer(self, path: str) -> tuple[int, bytes]:
        page = self.pages.get(path, 404)
        if isinstance(page, int):
            return page, b"no"
        self.asked.append(path)
        return 200, page[min(self.asked.count(path), len(page)) - 1]

    def transport(self) -> httpx.MockTransport:
        def handle(request: httpx.Request) -> httpx.Response:
            self.seen_headers.append({name.lower(): value for name, value in request.headers.items()})
            status, body = self.answer(request.url.path)
            return httpx.Response(status, content=body)

        return httpx.MockTransport(handle)


@contextmanager
def serve(engine: SmallEngine) -> Iterator[str]:
    """Serve over a loopback socket; gives its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, body = engine.answer(self.path.partition("?")[0])
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
