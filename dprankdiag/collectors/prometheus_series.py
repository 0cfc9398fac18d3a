"""Take apart what a Prometheus server answers: series with their samples, each process once, and what it warns of.

Source: Prometheus 2.42 and 3.5 (`/api/v1/query`, `/api/v1/query_range`); Thanos and Mimir answer in the same shape,
VictoriaMetrics adds `isPartial`.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dprankdiag.collectors.decoding import decode_json
from dprankdiag.errors import DamagedInput, InputError
from dprankdiag.units import NS_PER_S

NS_PER_MS = NS_PER_S // 1000
PLACE_LABELS = ("cluster", "namespace", "job")
"""Labels that tell deployments in one server apart, as scrape configurations and the Prometheus operator set them."""

NO_SERVER = "expected an answer of Prometheus' HTTP API"

_ADDRESS = re.compile(r"\[?[\w.:-]+\]?:\d{1,5}")
_SHOWN_WARNING = 200

Point = tuple[int, str]
"""Moment (UTC epoch ns) and value as it is written."""


@dataclass(frozen=True, slots=True)
class StoredSeries:
    """A series with its samples, moments ascending.

    Attributes:
        labels: without the name.
    """

    name: str
    labels: Mapping[str, str]
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Told:
    """One answer of a server.

    Attributes:
        warnings: what the server says of its own answer, such as that a part of it is missing.
    """

    series: tuple[StoredSeries, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Process:
    """What was scraped: a port of a deployment.

    Attributes:
        place: cluster, namespace and job, as far as they are labelled.
        instance: usually host:port.
    """

    place: tuple[str, ...]
    instance: str

    def __str__(self) -> str:
        """Name it for people."""
        return " ".join((*(part for part in self.place if part), self.instance)) or "no instance"


def read_told(body: bytes, where: str, taken_ns: int | None = None, *, needs_name: bool = True) -> Told:
    """Read an instant vector, or a matrix of samples.

    Args:
        taken_ns: moment of samples that carry none.
        needs_name: a series without a name is broken; results of aggregations have none.

    Raises:
        InputError: it is no answer of Prometheus' HTTP API, or one without samples.
        DamagedInput: it is one, with series that are broken.
    """
    told, data = _read_data(body, where)
    if data.get("resultType") not in ("vector", "matrix") or not isinstance(data.get("result"), list):
        raise InputError("expected samples of series from Prometheus", where=where)
    try:
        series = tuple(_read_series(one, taken_ns, needs_name) for one in data["result"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedInput("a series without name, labels or values", where=where) from error
    return Told(series, tuple(_read_warnings(told)))


def read_scalar(body: bytes, where: str) -> float:
    """Read a number that belongs to no series.

    Raises:
        InputError: it is no answer of Prometheus' HTTP API, or another one.
    """
    _, data = _read_data(body, where)
    try:
        _, value = data["result"]
        return float(value)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError("expected a number from Prometheus", where=where) from error


def _read_data(body: bytes, where: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    try:
        told = decode_json(body, where)
    except DamagedInput as error:
        raise InputError(NO_SERVER, where=where) from error
    data = told.get("data") if isinstance(told, dict) else None
    if not isinstance(data, dict) or told.get("status") != "success":
        raise InputError(NO_SERVER, where=where)
    return told, data


def read_refusal(body: bytes) -> str:
    """Read why a server refuses a question; "" if it does not say so in its own way."""
    try:
        told = decode_json(body, "")
    except DamagedInput:
        return ""
    reason = told.get("error") if isinstance(told, dict) else None
    return _shorten(reason) if isinstance(reason, str) else ""


def _read_series(one: Any, taken_ns: int | None, needs_name: bool) -> StoredSeries:
    labels = {key: value for key, value in one["metric"].items() if isinstance(value, str)}
    name = labels.pop("__name__") if needs_name else labels.pop("__name__", "")
    points = one.get("values") or [one["value"]]
    return StoredSeries(name, labels, tuple((_read_time_ns(at, taken_ns), str(value)) for at, value in points))


def _read_time_ns(stamp: Any, taken_ns: int | None) -> int:
    if isinstance(stamp, int | float) and math.isfinite(stamp):
        return round(stamp * 1000) * NS_PER_MS
    if taken_ns is None:
        raise ValueError("no time")
    return taken_ns


def _read_warnings(told: Mapping[str, Any]) -> Iterable[str]:
    said = told.get("warnings")
    yield from (_shorten(text) for text in (said if isinstance(said, list) else ()) if isinstance(text, str))
    if told.get("isPartial") is True:
        yield "the answer is partial"


def _shorten(text: str) -> str:
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return line if len(line) <= _SHOWN_WARNING else f"{line[:_SHOWN_WARNING]}..."


def find_process(labels: Mapping[str, str]) -> Process:
    """Find which process a series is of."""
    return Process(tuple(labels.get(name, "") for name in PLACE_LABELS), labels.get("instance", ""))


def name_own(labels: Mapping[str, str], own: frozenset[str]) -> dict[str, str]:
    """Keep the labels that an engine set itself, by the engine's names.

    A server that was told to put labels of its own over the engine's keeps these as `exported_...`.
    """
    kept = {name: value for name, value in labels.items() if name in own}
    for name, value in labels.items():
        bare = name.removeprefix("exported_")
        if bare != name and bare in own:
            kept[bare] = value
    return kept


def join_copies(
    series: Sequence[StoredSeries], own: frozenset[str]
) -> tuple[dict[Process, list[StoredSeries]], tuple[str, ...]]:
    """Sort series by process, each counted once however often it is stored.

    A process is stored several times where two servers scrape it for safety (a replica label tells them apart), where
    two jobs scrape one address, and one after the other where its pod was renamed. Of samples that were taken in the
    same span those of the copy with the most samples are kept; what others hold of other times is added to them.

    Args:
        own: labels that the process sets itself; by all others copies differ.

    Returns:
        Series by process, with the process's own labels alone; and what was found to be copied.
    """
    addresses: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
    for one in series:
        process = find_process(one.labels)
        if _ADDRESS.fullmatch(process.instance):
            addresses.setdefault(_where_of(process), set()).add(process.place)
    homes = {where: min(places) for where, places in addresses.items()}
    groups: dict[Process, dict[tuple[Any, ...], list[tuple[tuple[Any, ...], StoredSeries]]]] = {}
    sizes: Counter[tuple[Process, tuple[Any, ...]]] = Counter()
    for one in series:
        process = find_process(one.labels)
        process = Process(homes.get(_where_of(process), process.place), process.instance)
        mine = name_own(one.labels, own)
        source = tuple(sorted(item for item in one.labels.items() if item[0] not in own))
        identity = (one.name, tuple(sorted(mine.items())))
        groups.setdefault(process, {}).setdefault(identity, []).append((source, one))
        sizes[process, source] += len(one.points)
    joined = {
        process: [
            StoredSeries(name, dict(labels), _join_points([one for _, one in _rank(parts, process, sizes)]))
            for (name, labels), parts in identities.items()
        ]
        for process, identities in groups.items()
    }
    return joined, tuple(_tell_copies(groups))


def _where_of(process: Process) -> tuple[str, ...]:
    """Return what an address is unique in: its cluster and namespace, whichever job scrapes it."""
    return (*process.place[:-1], process.instance)


def _rank(
    parts: Sequence[tuple[tuple[Any, ...], StoredSeries]],
    process: Process,
    sizes: Mapping[tuple[Process, tuple[Any, ...]], int],
) -> list[tuple[tuple[Any, ...], StoredSeries]]:
    return sorted(parts, key=lambda part: (-sizes[process, part[0]], part[0]))


def _join_points(parts: Sequence[StoredSeries]) -> tuple[Point, ...]:
    points = list(parts[0].points)
    for part in parts[1:]:
        first, last = points[0][0], points[-1][0]
        points = [
            *(point for point in part.points if point[0] < first),
            *points,
            *(point for point in part.points if point[0] > last),
        ]
    return tuple(points)


def _tell_copies(
    groups: Mapping[Process, Mapping[tuple[Any, ...], Sequence[tuple[tuple[Any, ...], StoredSeries]]]],
) -> Iterable[str]:
    """Say what is stored more than once at the same time, and by which label the copies differ."""
    for process, identities in groups.items():
        parts = max(identities.values(), key=len)
        spans = sorted((one.points[0][0], one.points[-1][0]) for _, one in parts)
        overlap = any(later[0] < earlier[1] for earlier, later in itertools.pairwise(spans))
        if len(parts) > 1 and (overlap or len(set(spans)) == 1):
            names = sorted({name for source, _ in parts for name, _ in set(source) ^ set(parts[0][0])})
            by = f" (label {', '.join(names)})" if names else ""
            yield f"{process}: stored {len(parts)} times{by}; counted once"
