"""Where the screens get what they show: a diagnosis that was made, or engines that are judged tick by tick.

Live, one thread asks, judges and keeps; whoever draws only reads the last snapshot, which never changes.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

from dprankdiag.dashboard.asked import Asked
from dprankdiag.dashboard.history import Event, EventLog, History
from dprankdiag.dashboard.runs import SavedRuns
from dprankdiag.errors import DprankdiagError
from dprankdiag.model import results
from dprankdiag.model.diagnosis import Diagnosis
from dprankdiag.model.dispatches import LedgerRecord
from dprankdiag.model.ledgers import LedgerAnswer, NoData
from dprankdiag.model.results import find_table
from dprankdiag.model.schema import Columns, take_rows
from dprankdiag.model.whatif import WhatIf
from dprankdiag.pipelines.compare import Input
from dprankdiag.pipelines.record import Asker
from dprankdiag.pipelines.step_record import StepRecord
from dprankdiag.pipelines.ticks import run_ticks
from dprankdiag.pipelines.watch import Report, Watcher
from dprankdiag.views.panels import take_group_rows

YOUNG_OBJECTS = 50_000
"""New objects before the youngest are looked through for garbage."""

_OF_THE_TICK = 1
"""Generation of the objects that a tick made, and younger."""

BELIEFS_ALONE = "What ledgers believed tells of no rank's time, so that no rank is judged: see the page Ledger"

OTHERWISE_ALONE = "What other policies would have made of a load judges no rank: see the page What-if"

NO_RUNS = SavedRuns(())

Keep = Callable[[Sequence[LedgerAnswer | NoData], int], None]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What there is to see at one moment.

    Attributes:
        revision: grows with every snapshot of a provider; equal revisions show the same.
        source: what is looked at, in words.
        tables: bundle tables by name, and live the history.
        failures: what gives no data now.
        events: what began and ended, newest first.
        at_ns: moment of the last tick, UTC epoch ns; None of what is not live.
        trouble: why nothing new will come; empty if all is well.
        steps: any step in full, by lockstep group, while its recording is open.
        ledgers: what routers believed at each dispatch; None where nobody has told.
        asked: what would be under other policies; None where nothing can be asked.
        runs: the bundles that were opened, this one first; empty of what is no bundle.
    """

    revision: int
    source: str
    diagnosis: Diagnosis
    tables: Mapping[str, Columns]
    failures: tuple[NoData, ...] = ()
    events: tuple[Event, ...] = ()
    at_ns: int | None = None
    trouble: str = ""
    steps: tuple[StepRecord, ...] = ()
    ledgers: LedgerRecord | None = None
    runs: SavedRuns = NO_RUNS
    asked: Asked | None = None

    def take_step(self, group: int, step: int) -> FullStep:
        """Take all that is known of a step: of an open recording any, of a bundle the worst of its group."""
        if group < len(self.steps):
            record = self.steps[group]
            return FullStep(record.list_meetings(step), record.list_kernels(step))
        worst = take_group_rows(self.tables, results.WORST_STEPS, group)
        if worst is None or int(worst["step"][0]) != step:
            return FullStep(None, None)
        kernels = find_table(self.tables, results.STEP_KERNELS)
        return FullStep(
            take_group_rows(self.tables, results.WORST_MEETINGS, group),
            None if kernels is None else take_rows(kernels, kernels["group"] == group),
        )


@dataclass(frozen=True, slots=True)
class FullStep:
    """A step in full.

    Attributes:
        meetings: rows of `model.results.WORST_MEETINGS`; None if not kept.
        kernels: rows of `model.results.STEP_KERNELS`; empty if the recording holds none, None if not kept.
    """

    meetings: Columns | None
    kernels: Columns | None


class Provider(Protocol):
    """Gives the last snapshot at any time, at once."""

    @property
    def interval_s(self) -> float | None:
        """Tell how often there is something new; None if never."""
        ...

    def latest(self) -> Snapshot | None:
        """Return what there is to see; None before there is anything."""
        ...


@dataclass(frozen=True, slots=True)
class OfflineProvider:
    """Shows one diagnosis with its tables."""

    snapshot: Snapshot

    @property
    def interval_s(self) -> float | None:
        """Tell that nothing new comes."""
        return None

    def latest(self) -> Snapshot | None:
        """Return the diagnosis."""
        return self.snapshot


def show_saved(
    source: str, diagnosis: Diagnosis, tables: Mapping[str, Columns], steps: tuple[StepRecord, ...] = ()
) -> OfflineProvider:
    """Make a provider of a diagnosis that was made already."""
    asked = _ask_later(source, diagnosis, tables)
    return OfflineProvider(Snapshot(0, source, diagnosis, tables, steps=steps, asked=asked))


def _ask_later(source: str, diagnosis: Diagnosis, tables: Mapping[str, Columns]) -> Asked:
    def ask() -> WhatIf:
        from dprankdiag.pipelines.whatif_bundle import ask_bundle

        return ask_bundle(diagnosis, tables, (source,))

    return Asked(ask)


def show_runs(names: Sequence[str], saved: Sequence[tuple[Diagnosis, Mapping[str, Columns]]]) -> OfflineProvider:
    """Make a provider of bundles: it shows the first, and compares any two."""
    runs = SavedRuns(tuple(Input(*run, name) for name, run in zip(names, saved, strict=True)))
    return OfflineProvider(Snapshot(0, names[0], *saved[0], runs=runs, asked=_ask_later(names[0], *saved[0])))


def show_ledgers(source: str, record: LedgerRecord) -> OfflineProvider:
    """Make a provider of what routers believed, which judges no rank."""
    from dprankdiag.pipelines.untimed import conclude_untimed

    diagnosis = conclude_untimed([], BELIEFS_ALONE, (), (), (), ())
    return OfflineProvider(Snapshot(0, source, diagnosis, {}, ledgers=record))


def show_what_if(source: str, result: WhatIf) -> OfflineProvider:
    """Make a provider of a what-if, which judges no rank."""
    from dprankdiag.pipelines.untimed import conclude_untimed

    diagnosis = conclude_untimed([], OTHERWISE_ALONE, (), (), (), ())
    return OfflineProvider(Snapshot(0, source, diagnosis, {}, asked=Asked(lambda: result)))


def _rest_from_garbage() -> None:
    """Look for cyclic garbage more rarely, and never among what was there before the first tick.

    A tick of hundreds of ranks makes hundreds of thousands of small objects and drops them again: with the settings of
    the interpreter all modules are walked through for garbage several times a tick. What a tick leaves in cycles, such
    as the answers it read, is looked for after it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)


class LiveProvider:
    """Asks engines and judges them in a thread of its own, from `with` on.

    Args:
        source: what is looked at, in words.
        asker: asks the targets; closed by whoever opened it.
        watcher: judges.
        interval_s: time between two ticks.
        keep: also keeps what is told, such as a recorder.
        moment: UTC epoch ns.
    """

    def __init__(
        self,
        source: str,
        asker: Asker,
        watcher: Watcher,
        *,
        interval_s: float,
        keep: Keep = lambda told, at_ns: None,
        moment: Callable[[], int] = time.time_ns,
    ) -> None:
        self._source = source
        self._asker = asker
        self._watcher = watcher
        self._interval_s = interval_s
        self._keep = keep
        self._moment = moment
        self._history = History()
        self._events = EventLog()
        self._latest: Snapshot | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._collect, name="collector", daemon=True)

    @property
    def interval_s(self) -> float | None:
        """Tell the time between two ticks."""
        return self._interval_s

    def latest(self) -> Snapshot | None:
        """Return what the last tick showed."""
        return self._latest

    def __enter__(self) -> LiveProvider:
        """Begin to ask."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End with the tick that is under way."""
        self._stop.set()
        self._thread.join()

    def tick(self) -> None:
        """Ask once, judge, and keep what it shows."""
        at_ns = self._moment()
        told = self._asker.poll()
        self._keep(told, at_ns)
        self._take(self._watcher.observe(told, at_ns))

    def _take(self, report: Report) -> None:
        self._history.add(report.tables, report.at_ns)
        self._events.note(report.diagnosis, report.failed, report.at_ns)
        self._latest = Snapshot(
            revision=self._latest.revision + 1 if self._latest else 0,
            source=self._source,
            diagnosis=report.diagnosis,
            tables={**report.tables, **self._history.tables()},
            failures=report.failed,
            events=self._events.newest(),
            at_ns=report.at_ns,
        )

    def _collect(self) -> None:
        _rest_from_garbage()
        for _ in self._ticks():
            try:
                self.tick()
                gc.collect(_OF_THE_TICK)
            except DprankdiagError as error:
                self._end(str(error))
                return
            except Exception as error:
                self._end(f"internal error: {type(error).__name__}")
                raise

    def _ticks(self) -> Iterator[int]:
        return run_ticks(self._interval_s, self._stop.wait)

    def _end(self, why: str) -> None:
        """Say on every screen that nothing new will come, and why."""
        from dataclasses import replace

        from dprankdiag.pipelines.untimed import NO_TIME, conclude_untimed

        last = self._latest or Snapshot(0, self._source, conclude_untimed([], why, (), (), (), (), NO_TIME), {})
        self._latest = replace(last, revision=last.revision + 1, trouble=why)
