"""Read pages of the Prometheus text format into samples of the series that are wanted.

A page repeats the same series at every tick, so the text before the value is parsed once and then looked up. What a
client library makes of it (quoting, escapes, quoted names) is left to `prometheus_client`, series by series: page by
page it would cost ten times as much, and it refuses pages on which sample names and TYPE lines are spelled apart.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from dprankdiag.errors import DamagedInput, InputError

Place = TypeVar("Place")

MOST_SERIES = 200_000
"""Series remembered; 320 ranks of an engine with all switches on show 50 000."""

EOF = "# EOF"
"""Last line of a page that is known to be whole."""

_IDENTITY = re.compile(r'[^\s{]*(?:\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\})?')


@dataclass(frozen=True, slots=True)
class Series:
    """Identity of a series.

    Attributes:
        name: without the engine's prefix.
        prefix: as it was spelled ("sglang:", "sglang_").
    """

    name: str
    prefix: str
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Page(Generic[Place]):
    """What a page tells.

    Attributes:
        samples: (place, value) of the wanted series that have a number, in the page's order, duplicates dropped; NaN
            where a series is told twice with values that differ.
        names: of the engine's series, without prefix, wanted or not; in order of the first line of each.
        prefixes: spellings seen.
        last: place of the last line of the engine, whose series may lack lines; None where nobody reads it, or the
            page ends with `# EOF` and so is whole.
        warnings: lines and values passed over.
    """

    samples: list[tuple[Place, float]]
    names: tuple[str, ...]
    prefixes: frozenset[str]
    last: Place | None
    warnings: tuple[str, ...]


class PageReader(Generic[Place]):
    """Reads pages of one engine; remembers where each series belongs.

    Args:
        prefixes: spellings of the engine's prefix.
        wanted: names of series, without prefix.
        place: tells where a series belongs; None where it is of no use.
    """

    def __init__(
        self, prefixes: tuple[str, ...], wanted: frozenset[str], place: Callable[[Series], Place | None]
    ) -> None:
        self._prefixes = prefixes
        self._wanted = wanted
        self._place = place
        self._known: dict[str, Place | None] = {}

    def read(self, body: bytes, where: str) -> Page[Place]:
        """Read a page.

        Raises:
            InputError: no line of it is a series of this engine.
            DamagedInput: it is no text.
        """
        lines, is_cut = _split(body, where)
        scan = _Scan[Place](is_cut)
        current, name, is_wanted = "", "", False
        for line in lines:
            if not line.startswith(self._prefixes):
                if not line.startswith('{"'):
                    continue
                line = _unquote(line)
                if not line.startswith(self._prefixes):
                    continue
            brace = line.find("{")
            spelled = line[:brace] if brace > 0 else line.split(None, 1)[0]
            if spelled != current:
                current, name = spelled, self._note(spelled, scan)
                is_wanted = name in self._wanted
            if is_wanted:
                self._take(line, name, scan)
        if not scan.names:
            raise InputError(f"holds no series of {self._prefixes[0].rstrip(':_')}", where=where, mend=_mend(lines))
        return scan.close(is_wanted and EOF not in lines[-1:])

    def _note(self, spelled: str, scan: _Scan[Place]) -> str:
        prefix = next(one for one in self._prefixes if spelled.startswith(one))
        scan.prefixes.add(prefix)
        name = spelled[len(prefix) :]
        scan.names[name] = None
        return name

    def _take(self, line: str, name: str, scan: _Scan[Place]) -> None:
        identity, _, value = line.rpartition(" ")
        try:
            place = self._known[identity]
        except KeyError:
            identity, value = _divide(line)
            place = self._learn(identity, name, scan)
        if place is not None:
            scan.add(identity, place, value)

    def _learn(self, identity: str, name: str, scan: _Scan[Place]) -> Place | None:
        if identity in self._known:
            return self._known[identity]
        labels = _parse_labels(identity)
        if labels is None:
            scan.skip("lines that are no sample")
            return None
        if len(self._known) >= MOST_SERIES:
            self._known.clear()
        prefix = next(one for one in self._prefixes if identity.startswith(one))
        place = self._place(Series(name, prefix, labels))
        self._known[identity] = place
        return place


class _Scan(Generic[Place]):
    """What was found so far on one page."""

    def __init__(self, is_cut: bool) -> None:
        self.values: dict[str, tuple[Place, float]] = {}
        self.torn: set[str] = set()
        self.names: dict[str, None] = {}
        self.prefixes: set[str] = set()
        self.skipped: dict[str, int] = {"last lines cut short": 1} if is_cut else {}

    def skip(self, what: str) -> None:
        self.skipped[what] = self.skipped.get(what, 0) + 1

    def add(self, identity: str, place: Place, text: str) -> None:
        try:
            value = float(text)
        except ValueError:
            self.skip("values that are no number")
            return
        if identity in self.torn:
            return
        told = self.values.get(identity)
        if told is not None and told[1] != value:
            self.skip("series told twice, with values that differ")
            self.torn.add(identity)
            self.values[identity] = (place, math.nan)
        elif told is not None:
            self.skip("series told twice")
        elif math.isfinite(value):
            self.values[identity] = (place, value)
        elif math.isinf(value):
            self.skip("infinite values")

    def close(self, ends_wanted: bool) -> Page[Place]:
        warnings = tuple(f"passed over: {count} {what}" for what, count in self.skipped.items())
        samples = list(self.values.values())
        last = samples[-1][0] if samples and ends_wanted else None
        return Page(samples, tuple(self.names), frozenset(self.prefixes), last, warnings)


def _split(body: bytes, where: str) -> tuple[list[str], bool]:
    """Split a page into whole lines; a last line without its end may have lost digits, so it is dropped."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.end < len(body) or error.reason != "unexpected end of data":
            raise DamagedInput("expected UTF-8 text", where=where) from error
        text = body[: error.start].decode("utf-8")
    lines = text.replace("\r\n", "\n").split("\n")
    return lines[:-1], bool(lines[-1])


def _unquote(line: str) -> str:
    """Turn the form with a quoted name, as Prometheus 3 asks for it, into the usual one."""
    end = line.find('"', 2)
    return f"{line[2:end]}{{{line[end + 1 :].lstrip(', ')}"


def _divide(line: str) -> tuple[str, str]:
    """Divide a line into identity and value; a time stamp and an exemplar may follow the value."""
    found = _IDENTITY.match(line)
    identity = found.group() if found else ""
    rest = line[len(identity) :]
    if rest.startswith("{"):
        return "", ""  # labels that never end
    return identity, rest.split(None, 1)[0] if rest.strip() else ""


def _parse_labels(identity: str) -> Mapping[str, str] | None:
    from prometheus_client.parser import text_string_to_metric_families

    try:
        families = list(text_string_to_metric_families(f"{identity} 0\n"))
        return dict(families[0].samples[0].labels)
    except (ValueError, IndexError, KeyError):
        return None


def _mend(lines: list[str]) -> str:
    if not any(line and not line.startswith("#") for line in lines):
        return "the page is empty; start the engine with its metrics switched on"
    return "the page shows other series only; give the engine's own port, with its metrics switched on"
