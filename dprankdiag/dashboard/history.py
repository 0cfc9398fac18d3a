"""What was seen of running engines before: numbers of the last minutes, and what began and ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dprankdiag.model.diagnosis import Diagnosis
from dprankdiag.model.ledger_results import LEDGER_HISTORY, LEDGER_RANKS
from dprankdiag.model.ledgers import NoData
from dprankdiag.model.results import find_table
from dprankdiag.model.schema import Columns, join_rows
from dprankdiag.pipelines.ledger_history import tabulate_moment
from dprankdiag.views.words import name_ranks

KEPT_TICKS = 600
KEPT_ROWS = 100_000
"""Rows of the history at most: of many ranks fewer ticks are kept, so that memory does not grow with them."""

KEPT_EVENTS = 200


class History:
    """The numbers of the last ticks, a row a rank and tick."""

    def __init__(self) -> None:
        self._ticks: deque[Columns] = deque(maxlen=KEPT_TICKS)
        self._rows = 0

    def add(self, tables: Mapping[str, Columns], at_ns: int) -> None:
        """Keep what a tick shows of each rank."""
        told = find_table(tables, LEDGER_RANKS)
        if told is None:
            return
        if len(self._ticks) == KEPT_TICKS:
            self._forget()
        self._ticks.append(tabulate_moment(told, at_ns))
        self._rows += len(told["rank"])
        while self._rows > KEPT_ROWS and len(self._ticks) > 1:
            self._forget()

    def _forget(self) -> None:
        self._rows -= len(self._ticks.popleft()["rank"])

    def tables(self) -> dict[str, Columns]:
        """Make the table of all that is kept; none before there is anything."""
        return {LEDGER_HISTORY.name: join_rows(LEDGER_HISTORY, list(self._ticks))} if self._ticks else {}


@dataclass(frozen=True, slots=True)
class Event:
    """Something that began or ended, at a moment in UTC epoch ns."""

    at_ns: int
    text: str


class EventLog:
    """Remembers what began and ended."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque(maxlen=KEPT_EVENTS)
        self._standing: dict[str, str] = {}

    def note(self, diagnosis: Diagnosis, failed: Sequence[NoData], at_ns: int) -> None:
        """Hold a tick against the one before."""
        now = dict(_list_standing(diagnosis, failed))
        for key, text in self._standing.items():
            if key not in now:
                self._events.append(Event(at_ns, f"ends: {text}"))
        for key, text in now.items():
            if key not in self._standing:
                self._events.append(Event(at_ns, f"begins: {text}"))
        self._standing = now

    def newest(self) -> tuple[Event, ...]:
        """Return all that is remembered, the newest first."""
        return tuple(reversed(self._events))


def _list_standing(diagnosis: Diagnosis, failed: Sequence[NoData]) -> Iterator[tuple[str, str]]:
    for finding in diagnosis.findings:
        text = f"{finding.cause}, {name_ranks(finding)}"
        yield text, text
    for item in failed:
        yield f"{item.where} {item.interface}", f"no data from {item.where} ({item.reason})"
