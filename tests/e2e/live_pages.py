"""Serve recorded /metrics pages of an engine as if it were running: two recorded moments, and the line through them."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_SAMPLE = re.compile(r"(?P<series>(?P<name>[^\s{]+)(?:\{.*\})?) (?P<value>\S+)")
_GROWING = ("_total", "_bucket", "_sum", "_count", "sglang_timestamp")


@dataclass(frozen=True, slots=True)
class Page:
    """One page at two moments: series to its values, and the seconds between."""

    before: Mapping[str, float]
    after: Mapping[str, float]
    seconds: float
    underscores: bool = False

    def render(self, elapsed_s: float) -> str:
        """Write the page some seconds after the first moment; gauges go to and fro between their two values."""
        lines = []
        share = elapsed_s / self.seconds
        for series, after in self.after.items():
            grows = series.split("{")[0].endswith(_GROWING)
            before = self.before.get(series, 0.0 if grows else 0.9 * after)  # a gauge written once yet would move
            way = share if grows else 1 - abs(share % 2 - 1)
            lines.append(f"{series} {before + (after - before) * way!r}")
        text = "\n".join(lines) + "\n"
        return re.sub(r"^(sglang|vllm):", r"\1_", text, flags=re.MULTILINE) if self.underscores else text


def read_series(path: Path) -> dict[str, float]:
    """Read the samples of a page."""
    found = (_SAMPLE.fullmatch(line) for line in path.read_text("utf-8").splitlines() if not line.startswith("#"))
    return {one["series"]: float(one["value"]) for one in found if one is not None}


def read_page(before: Path, after: Path, seconds: float = 15.0, *, underscores: bool = False) -> Page:
    """Read a page recorded twice."""
    return Page(read_series(before), read_series(after), seconds, underscores)


def read_measured(folder: Path, *, with_stages: bool) -> Page:
    """Read a page of really measured waits; the stage counters, zero in the recording, are filled from its truth.

    The recording ran the engine's gather and control broadcast without its scheduler loop, which would count them.
    """
    truth = json.loads((folder / "ground_truth.json").read_text("utf-8"))
    page = read_page(folder / "metrics_t0.prom", folder / "metrics_t1.prom", truth["seconds_between_scrapes"])
    if not with_stages:
        return page
    moments = [_fill_stages(page.before, truth, "t0"), _fill_stages(page.after, truth, "t1")]
    return Page(moments[0], moments[1], page.seconds)


def _fill_stages(
    series: Mapping[str, float], truth: Mapping[str, dict[str, dict[str, dict[str, float]]]], moment: str
) -> dict[str, float]:
    stages = {"recv_requests": "ctrl_wait", "get_next_batch_to_run": "wait"}
    filled = dict(series)
    for name in series:
        found = re.match(r'sglang:scheduler_stage_seconds_total\{category="(\w+)",dp_rank="(\d+)"', name)
        if found and found[1] in stages:
            filled[name] = truth["measured"][found[2]][moment].get(stages[found[1]], 0.0)
    return filled


@contextmanager
def serve_pages(pages: Mapping[str, Page]) -> Iterator[str]:
    """Serve each page under `/NAME`, and where an engine would, on a free loopback port; yield host and port.

    As an engine: `/NAME/metrics`, or `/NAME/v1/loads` of a page whose name ends in `-loads`.
    """
    start = time.monotonic()
    places = {f"/{name}": page for name, page in pages.items()}
    for name, page in pages.items():
        places[f"/{name}/v1/loads" if name.endswith("-loads") else f"/{name}/metrics"] = page

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = places.get(self.path)
            if page is None:
                self.send_error(404)
                return
            body = page.render(time.monotonic() - start).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
