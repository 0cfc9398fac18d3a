"""A small Prometheus: it holds pages as it would have scraped them, and answers the questions that are asked of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

import httpx
from prometheus_client.parser import text_string_to_metric_families

START_S = 1_764_000_000.0
_QUERY = re.compile(r"(?P<over>last_over_time\()?\{(?P<inner>.*)\}\[(?P<ms>\d+)ms\]\)?\Z", re.DOTALL)
_MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"((?:[^"\\]|\\.)*)"')


@dataclass
class SmallPrometheus:
    """Stores series; stands in for the network.

    Attributes:
        now_s: what its clock shows.
        asked: paths with their questions, in order.
        refuse: tells for a question why it is refused (status, reason); None where it is answered.
        extra: beside the data of every answer.
    """

    now_s: float = START_S
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    refuse: Callable[[str, dict[str, str]], tuple[int, str] | None] = lambda path, query: None
    extra: dict[str, Any] = field(default_factory=dict)
    _series: dict[str, tuple[dict[str, str], list[tuple[float, str]]]] = field(default_factory=dict)

    def scrape(self, page: bytes | str, at_s: float, mark: str = ":", **target: str) -> None:
        """Store a page, with the labels of its target."""
        text = page if isinstance(page, str) else page.decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = {"__name__": sample.name.replace(":", mark, 1), **sample.labels, **target}
                _, points = self._series.setdefault(repr(sorted(labels.items())), (labels, []))
                points.append((at_s, repr(sample.value)))

    def transport(self) -> httpx.MockTransport:
        """Give what answers in place of the network."""
        return httpx.MockTransport(self._answer)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        query = {name: values[0] for name, values in parse_qs(request.url.query.decode()).items()}
        self.asked.append((request.url.path, query))
        refused = self.refuse(request.url.path, query)
        if refused is not None:
            status, reason = refused
            return httpx.Response(status, json={"status": "error", "errorType": "execution", "error": reason})
        if not request.url.path.endswith(("/api/v1/query", "/api/v1/query_range")):
            return httpx.Response(404, text="404 page not found")
        return httpx.Response(200, content=self._evaluate(query))

    def _evaluate(self, query: dict[str, str]) -> bytes:
        if query["query"] == "time()":
            return self._write("scalar", [self.now_s, str(self.now_s)])
        found = _QUERY.fullmatch(query["query"])
        if found is None:
            return self._write("vector", [])
        chosen = [one for one in self._series.values() if _matches(one[0], found["inner"])]
        reach_s = int(found["ms"]) / 1000
        if found["over"] is None:
            end_s = float(query.get("time", self.now_s))
            moments = {id(points): [p for p in points if end_s - reach_s <= p[0] <= end_s] for _, points in chosen}
        else:
            start_s, end_s, step_s = (float(query[name]) for name in ("start", "end", "step"))
            grid = [start_s + number * step_s for number in range(int((end_s - start_s) / step_s + 1e-9) + 1)]
            moments = {
                id(points): [
                    (at_s, within[-1][1])
                    for at_s in grid
                    if (within := [point for point in points if at_s - reach_s <= point[0] <= at_s])
                ]
                for _, points in chosen
            }
        result = [{"metric": labels, "values": moments[id(points)]} for labels, points in chosen if moments[id(points)]]
        return self._write("matrix", result)

    def _write(self, kind: str, result: Any) -> bytes:
        return json.dumps({"status": "success", "data": {"resultType": kind, "result": result}, **self.extra}).encode()


def _matches(labels: dict[str, str], inner: str) -> bool:
    for name, operator, value in _MATCHER.findall(inner):
        told = labels.get(name, "")
        same = re.fullmatch(value, told) is not None if operator.endswith("~") else told == value
        if same is operator.startswith("!"):
            return False
    return True
