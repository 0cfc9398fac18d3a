"""A small Prometheus: it holds pages as it would have scraped them, and answers the questions that are asked of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

import httpx

START_S = 1_764_000_000.0
_QUERY = re.compile(r"(?P<over>last_over_time\()?\{(?P<inner>.*)\}\[(?P<ms>\d+)ms\]\)?\Z", re.DOTALL)
_SAMPLE = re.compile(r"(?P<identity>(?P<name>[^\s{]+)(?:\{(?P<labels>.*)\})?) (?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_FOLD = re.compile(r"(?P<how>sum|count) (?P<what>by|without) \((?P<labels>[^)]*)\) \((?P<inner>.*)\)\Z", re.DOTALL)
_MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"((?:[^"\\]|\\.)*)"')


@dataclass
class SmallPrometheus:
    """Stores series, without buckets; stands in for the network.

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
    _series: dict[Any, tuple[dict[str, str], list[tuple[float, str]]]] = field(default_factory=dict)
    _chosen: dict[str, list[tuple[dict[str, str], list[tuple[float, str]]]]] = field(default_factory=dict)

    def scrape(self, page: bytes | str, at_s: float, mark: str = ":", **target: str) -> None:
        """Store a page, with the labels of its target."""
        text = page if isinstance(page, str) else page.decode()
        for line in text.splitlines():
            found = None if line.startswith("#") else _SAMPLE.fullmatch(line)
            if found is not None and not found["name"].endswith("_bucket"):
                key = (found["identity"], mark, *sorted(target.items()))
                if key not in self._series:
                    name = found["name"].replace(":", mark, 1)
                    own = dict(_LABEL.findall(found["labels"] or ""))
                    self._series[key] = ({"__name__": name, **own, **target}, [])
                    self._chosen.clear()
                self._series[key][1].append((at_s, found["value"]))

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
        fold = _FOLD.fullmatch(query["query"])
        found = _QUERY.fullmatch(fold["inner"] if fold else query["query"])
        if found is None:
            return self._write("vector", [])
        chosen = self._choose(found["inner"])
        reach_s = int(found["ms"]) / 1000
        end_s = float(query.get("time", query.get("end", self.now_s)))
        if found["over"] is None:
            within = [(labels, [p for p in points if end_s - reach_s <= p[0] <= end_s]) for labels, points in chosen]
            return self._write("matrix", [{"metric": labels, "values": points} for labels, points in within if points])
        start_s, step_s = float(query.get("start", end_s)), float(query.get("step", 1.0))
        grid = [start_s + number * step_s for number in range(int((end_s - start_s) / step_s + 1e-9) + 1)]
        told: dict[str, tuple[dict[str, str], list[tuple[float, str]]]] = {}
        for at_s in grid:
            last = [
                (labels, float(within[-1][1]))
                for labels, points in chosen
                if (within := [point for point in points if at_s - reach_s <= point[0] <= at_s])
            ]
            for labels, value in _fold(last, fold) if fold else last:
                told.setdefault(repr(sorted(labels.items())), (labels, []))[1].append((at_s, repr(value)))
        if "time" in query:
            return self._write("vector", [{"metric": one, "value": points[-1]} for one, points in told.values()])
        return self._write("matrix", [{"metric": one, "values": points} for one, points in told.values()])

    def _choose(self, inner: str) -> list[tuple[dict[str, str], list[tuple[float, str]]]]:
        if inner not in self._chosen:
            self._chosen[inner] = [one for one in self._series.values() if _matches(one[0], inner)]
        return self._chosen[inner]

    def _write(self, kind: str, result: Any) -> bytes:
        return json.dumps({"status": "success", "data": {"resultType": kind, "result": result}, **self.extra}).encode()


def _matches(labels: dict[str, str], inner: str) -> bool:
    for name, operator, value in _MATCHER.findall(inner):
        told = labels.get(name, "")
        same = re.fullmatch(value, told) is not None if operator.endswith("~") else told == value
        if same is operator.startswith("!"):
            return False
    return True


def _fold(last: list[tuple[dict[str, str], float]], fold: re.Match[str]) -> list[tuple[dict[str, str], float]]:
    names = {name.strip() for name in fold["labels"].split(",")}
    sums: dict[str, tuple[dict[str, str], float]] = {}
    for labels, value in last:
        is_kept = (
            (lambda name: name in names) if fold["what"] == "by" else (lambda name: name not in {*names, "__name__"})
        )
        kept = {name: text for name, text in labels.items() if is_kept(name)}
        key = repr(sorted(kept.items()))
        sums[key] = (kept, sums.get(key, (kept, 0.0))[1] + (value if fold["how"] == "sum" else 1.0))
    return list(sums.values())
