"""Read pages of the Prometheus text format into samples of the series that are wanted.

A page repeats the same series at every tick, so the text before the value is parsed once and then looked up. What a
client library makes of it (quoting, escapes, quoted names) is left to `prometheus_client`, series by series: page by
page it would cost ten times as much, and it refuses pages on which sample names and TYPE lines are spelled apart.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from threading import Lock
from typing import Any, Generic, TypeVar

import numpy as np

from dprankdiag.collectors.base import MOST_NUMBER
from dprankdiag.errors import DamagedInput, InputError
from dprankdiag.model.ledgers import FloatArray

IntArray = np.ndarray[Any, np.dtype[np.int64]]

Place = TypeVar("Place", bound=Hashable)
Item = TypeVar("Item", bound=Hashable)
Key = TypeVar("Key", bound=Hashable)

MOST_SERIES = 600_000
"""Series remembered. One that is split by how many ranks computed a prefill alone comes to 200 000 on 320 ranks."""

MOST_IDENTITY = 16_384
"""Characters of a series with its labels; more would only take time, which grows faster than they do."""

WHOLE = -1
"""Part of a series that is not split into parts."""

EOF = "# EOF"
"""Last line of a page that is known to be whole."""

_IDENTITY = re.compile(r'[^\s{]*(?:\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\})?')
_NOWHERE = -1


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
        places: where its samples belong, each once.
        at: (sample) index into `places`; samples are those of wanted series that have a number, in the page's order,
            duplicates dropped.
        parts: (sample) which part of its place a sample is, `WHOLE` where it is not split.
        values: (sample); NaN where a series is told twice with values that differ.
        names: of the engine's series, without prefix, wanted or not.
        prefixes: spellings seen.
        last: place of the last line of the engine, whose series may lack lines; None where nobody reads it, or the
            page ends with `# EOF` and so is whole.
        warnings: lines and values passed over.
    """

    places: Sequence[Place]
    at: IntArray
    parts: IntArray
    values: FloatArray
    names: frozenset[str]
    prefixes: frozenset[str]
    last: Place | None
    warnings: tuple[str, ...]

    def __iter__(self) -> Iterator[tuple[Place, float]]:
        """Go through the samples one by one."""
        return ((self.places[at], value) for at, value in zip(self.at.tolist(), self.values.tolist(), strict=True))

    def split(self, tell: Callable[[Place], Key]) -> dict[Key, Page[Place]]:
        """Part the samples by what is told of their places, in the order of each one's first sample."""
        keys = [tell(place) for place in self.places]
        index = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        number_of = np.array([index[key] for key in keys], np.int64)
        numbers, first = np.unique(number_of[self.at], return_index=True)
        every = list(index)
        return {every[one]: self._take(number_of, one) for one in numbers[np.argsort(first)].tolist()}

    def take_none(self) -> Page[Place]:
        """Take no sample, for an engine of which the page tells beside them."""
        return self._take(np.zeros(len(self.places), np.int64), 1)

    def _take(self, number_of: IntArray, number: int) -> Page[Place]:
        """Take the samples of the places that have a number."""
        is_mine = number_of == number
        mine = np.flatnonzero(is_mine)
        here = is_mine[self.at]
        return replace(
            self,
            places=[self.places[one] for one in mine.tolist()],
            at=np.searchsorted(mine, self.at[here]),
            parts=self.parts[here],
            values=self.values[here],
        )


class _Known(Generic[Place]):
    """The wanted series seen so far, each with a number; several threads read, and learn new ones.

    Attributes:
        numbers: identity → number.
        places: where series belong, each place once.
        spelled: prefix and name of series, each once.
        facts: (3, number and room for more) indices into `places` (`_NOWHERE` where a series is of no use) and
            `spelled`, and the part.
    """

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.places: list[Place] = []
        self.spelled: list[tuple[str, str]] = []
        self.facts: IntArray = np.zeros((3, 1024), np.int64)
        self._place_index: dict[Place, int] = {}
        self._spelled_index: dict[tuple[str, str], int] = {}
        self._lock = Lock()

    def add(self, identity: str, series: Series, told: tuple[Place, int] | None) -> int:
        """Give a series its number."""
        with self._lock:
            if identity in self.numbers:
                return self.numbers[identity]
            number = len(self.numbers)
            if number == self.facts.shape[1]:
                self.facts = np.tile(self.facts, 2)
            place = _NOWHERE if told is None else _find(told[0], self.places, self._place_index)
            spelled = _find((series.prefix, series.name), self.spelled, self._spelled_index)
            self.facts[:, number] = place, spelled, WHOLE if told is None else told[1]
            self.numbers[identity] = number  # last: whoever finds the number finds the facts
            return number


class PageReader(Generic[Place]):
    """Reads pages of one engine; remembers where each series belongs.

    Args:
        prefixes: spellings of the engine's prefix.
        wanted: names of series, without prefix.
        place: tells where a series belongs, and which part of that place it is; None where it is of no use.
    """

    def __init__(
        self, prefixes: tuple[str, ...], wanted: frozenset[str], place: Callable[[Series], tuple[Place, int] | None]
    ) -> None:
        self._prefixes = prefixes
        self._wanted = wanted
        self._place = place
        self._known = _Known[Place]()

    def read(self, body: bytes, where: str) -> Page[Place]:
        """Read a page.

        Raises:
            InputError: no line of it is a series of this engine.
            DamagedInput: it is no text.
        """
        lines, is_cut = _split(body, where)
        if len(self._known.numbers) >= MOST_SERIES:
            self._known = _Known()
        scan = _Scan(self._known, is_cut)
        numbers, texts, find = scan.numbers, scan.texts, self._known.numbers.get
        for line in lines:
            identity, _, text = line.rpartition(" ")
            number = find(identity)
            if number is not None:
                numbers.append(number)
                texts.append(text)
            elif not line.startswith("#"):
                self._take(line, scan)
        page = scan.close(is_whole=EOF in lines[-1:])
        if not page.names:
            raise InputError(f"holds no series of {self._prefixes[0].rstrip(':_')}", where=where, mend=_mend(lines))
        return page

    def _take(self, line: str, scan: _Scan[Place]) -> None:
        """Take a line that is not known as it stands: of a new series or an unwanted one, or spelled in another way."""
        if line.startswith('{"'):
            line = _unquote(line)
        if not line.startswith(self._prefixes):
            return
        brace = line.find("{")
        spelled = line[:brace] if brace > 0 else line.split(None, 1)[0]
        if spelled in scan.unwanted:
            scan.note_unwanted()
            return
        prefix = next(one for one in self._prefixes if spelled.startswith(one))
        name = spelled[len(prefix) :]
        if name not in self._wanted:
            scan.unwanted[spelled] = (prefix, name)
            scan.note_unwanted()
            return
        scan.note_wanted(prefix, name)
        identity, value = _divide(line)
        number = scan.known.numbers.get(identity)
        if number is None:
            labels = _parse_labels(identity)
            if labels is None:
                scan.skip("lines that are no sample")
                return
            series = Series(name, prefix, labels)
            number = scan.known.add(identity, series, self._place(series))
        scan.numbers.append(number)
        scan.texts.append(value)


class _Scan(Generic[Place]):
    """What was found so far on one page.

    Attributes:
        numbers: of the series of the samples, in the page's order.
        texts: their values as they stand.
        unwanted: series nobody reads: how they are spelled → prefix and name.
    """

    def __init__(self, known: _Known[Place], is_cut: bool) -> None:
        self.known = known
        self.numbers: list[int] = []
        self.texts: list[str] = []
        self.unwanted: dict[str, tuple[str, str]] = {}
        self._spelled: set[tuple[str, str]] = set()
        self._unwanted_after = -1
        self._skipped: dict[str, int] = {"last lines cut short": 1} if is_cut else {}

    def note_unwanted(self) -> None:
        """Note that the engine's last line so far is one that nobody reads."""
        self._unwanted_after = len(self.numbers)

    def note_wanted(self, prefix: str, name: str) -> None:
        """Note the series of a line that is wanted, and not known as it stands."""
        self._spelled.add((prefix, name))
        self._unwanted_after = -1

    def skip(self, what: str, count: int = 1) -> None:
        """Count what is passed over."""
        if count:
            self._skipped[what] = self._skipped.get(what, 0) + count

    def close(self, *, is_whole: bool) -> Page[Place]:
        """Read the values, and gather what the page tells."""
        every = np.array(self.numbers, np.int64)
        place, spelled, part = self.known.facts[:, every]
        told = {
            *self._spelled,
            *self.unwanted.values(),
            *(self.known.spelled[one] for one in np.unique(spelled).tolist()),
        }
        useful = place != _NOWHERE
        kept, values = self._settle(every[useful], list(compress(self.texts, useful)))
        at, parts = place[useful][kept], part[useful][kept]
        mine, index = np.unique(at, return_inverse=True)
        ends_wanted = self._unwanted_after != len(self.numbers) and len(at) > 0 and not is_whole
        return Page(
            places=[self.known.places[one] for one in mine.tolist()],
            at=index.astype(np.int64),
            parts=parts,
            values=values,
            names=frozenset(name for _, name in told),
            prefixes=frozenset(prefix for prefix, _ in told),
            last=self.known.places[int(at[-1])] if ends_wanted else None,
            warnings=tuple(f"passed over: {count} {what}" for what, count in self._skipped.items()),
        )

    def _settle(self, numbers: IntArray, texts: list[str]) -> tuple[IntArray, FloatArray]:
        """Read the values of samples; gives the samples that count, and their values."""
        try:
            values = np.array(list(map(float, texts)), np.float64)
            is_number = np.ones(len(texts), bool)
        except ValueError:
            read = [_read_number(text) for text in texts]
            is_number = np.array([value is not None for value in read], bool)
            values = np.array([math.nan if value is None else value for value in read], np.float64)
            self.skip("values that are no number", int((~is_number).sum()))
        if len(np.unique(numbers)) < len(numbers):
            return self._settle_doubles(numbers, values, is_number)
        self.skip("values beyond all measure", int((np.abs(values) > MOST_NUMBER).sum()))
        kept = np.flatnonzero(np.abs(values) <= MOST_NUMBER)
        return kept, values[kept]

    def _settle_doubles(
        self, numbers: IntArray, values: FloatArray, is_number: np.ndarray[Any, np.dtype[np.bool_]]
    ) -> tuple[IntArray, FloatArray]:
        """Settle what a page means on which some series stand more than once."""
        told: dict[int, tuple[int, float]] = {}
        torn: set[int] = set()
        for place in np.flatnonzero(is_number).tolist():
            number, value = int(numbers[place]), float(values[place])
            first = told.get(number)
            if number in torn:
                continue
            if first is not None and first[1] != value:
                self.skip("series told twice, with values that differ")
                torn.add(number)
                told[number] = (first[0], math.nan)
            elif first is not None:
                self.skip("series told twice")
            elif abs(value) <= MOST_NUMBER:
                told[number] = (place, value)
            elif not math.isnan(value):
                self.skip("values beyond all measure")
        kept = np.array([place for place, _ in told.values()], np.int64)
        return kept, np.array([value for _, value in told.values()], np.float64)


def _find(item: Item, items: list[Item], index: dict[Item, int]) -> int:
    """Find an item among those that are kept once; a new one is added."""
    found = index.setdefault(item, len(items))
    if found == len(items):
        items.append(item)
    return found


def _read_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _split(body: bytes, where: str) -> tuple[list[str], bool]:
    """Split a page into whole lines; a last line without its end may have lost digits, so it is dropped."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.end < len(body) or error.reason != "unexpected end of data":
            raise DamagedInput("expected UTF-8 text", where=where) from error
        text = body[: error.start].decode("utf-8")
    lines = (text.replace("\r\n", "\n") if "\r" in text else text).split("\n")
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

    if len(identity) > MOST_IDENTITY:
        return None
    try:
        families = list(text_string_to_metric_families(f"{identity} 0\n"))
        return dict(families[0].samples[0].labels)
    except (ValueError, IndexError, KeyError):
        return None


def _mend(lines: list[str]) -> str:
    if not any(line and not line.startswith("#") for line in lines):
        return "the page is empty; start the engine with its metrics switched on"
    return "the page shows other series only; give the engine's own port, with its metrics switched on"
