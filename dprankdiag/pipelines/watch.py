"""Judge running engines tick by tick: the last seconds of each, and what lasts of what they show."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dprankdiag.analysis.ledger_view import LedgerView
from dprankdiag.catalog.causes import load_causes
from dprankdiag.classifiers.base import name_numbers
from dprankdiag.model.bundle import publish_numbers
from dprankdiag.model.diagnosis import Diagnosis, Finding
from dprankdiag.model.ledgers import STORED_IN, Ledger, LedgerAnswer, NoData
from dprankdiag.model.schema import Columns
from dprankdiag.model.sources import Source
from dprankdiag.pipelines.failures import UNKNOWN, Failures, Told, find_base
from dprankdiag.pipelines.join import join_diagnoses
from dprankdiag.pipelines.ledger_tables import tabulate_ledgers
from dprankdiag.pipelines.ledgers import conclude_ledger, diagnose_view, judge_view, view_whole
from dprankdiag.pipelines.live import join_live
from dprankdiag.pipelines.remedies import advise
from dprankdiag.pipelines.stored_told import StoredTold
from dprankdiag.pipelines.tracking import WINDOW_S, Tracker, find_last_ns, find_window_s, judge_moment
from dprankdiag.pipelines.untimed import NO_TIME, conclude_untimed
from dprankdiag.readers.ledger_kinds import LEDGER
from dprankdiag.units import NS_PER_S

_FIRST_TICK = "One moment seen: counters need two, the next tick tells what moves"

KEPT_WINDOWS = 2.0
"""Answers are kept for so many windows: the first of a window needs the one before it."""


@dataclass(frozen=True, slots=True)
class Report:
    """What one tick shows.

    Attributes:
        diagnosis: over the last window, with the findings that last.
        tables: what each rank tells, for views.
        failed: what gives no data now, without what is not offered.
        at_ns: moment of the tick, UTC epoch ns.
    """

    diagnosis: Diagnosis
    tables: Mapping[str, Columns]
    failed: tuple[NoData, ...]
    at_ns: int


@dataclass(slots=True)
class _Followed:
    """What is known of one engine from tick to tick.

    Attributes:
        judged_ns: the last moment that was judged, UTC epoch ns; a tick without a newer one is no second sight of it.
        view, shown: the window that ends there, and its findings.
        lasting: findings that last.
    """

    judged_ns: int | None = None
    view: LedgerView | None = None
    shown: tuple[Finding, ...] = ()
    lasting: tuple[Finding, ...] = ()
    tracker: Tracker = field(default_factory=Tracker)

    def observe(self, ledger: Ledger | None, window_s: float, expect_ranks: int | None, at_ns: int) -> None:
        """Take in a tick; without a ledger the engine told nothing in it."""
        last_ns = None if ledger is None else find_last_ns(ledger)
        if ledger is not None and last_ns is not None and last_ns == self.judged_ns:
            return
        self.judged_ns, self.view, self.shown = last_ns, None, ()
        if ledger is not None:
            if STORED_IN in ledger.facts:  # the scrape interval is not the user's to choose
                window_s = max(window_s, find_window_s(ledger))
            self.view, findings = judge_moment(ledger, ledger.n_moments - 1, window_s, expect_ranks)
            self.shown = tuple(findings)
        self.lasting = self.tracker.observe((last_ns or at_ns) / NS_PER_S, self.shown)


@dataclass(slots=True)
class Watcher:
    """Takes in what engines tell, tick by tick.

    Attributes:
        window_s: seconds that are judged together.
        expect_ranks: how many DP ranks there should be.
    """

    window_s: float = WINDOW_S
    expect_ranks: int | None = None
    _told: deque[tuple[int, tuple[LedgerAnswer, ...]]] = field(default_factory=deque)
    _config: dict[tuple[str, str], LedgerAnswer] = field(default_factory=dict)
    _stored: StoredTold = field(default_factory=StoredTold)
    _failures: Failures = field(default_factory=Failures)
    _names: dict[str, str] = field(default_factory=dict)
    _followed: dict[str, _Followed] = field(default_factory=dict)

    def observe(self, told: Sequence[Told], at_ns: int) -> Report:
        """Take in a tick and judge the last window; a finding is named once it lasts."""
        ledgers = {ledger.name: ledger for ledger in self._take_in(told, at_ns)}
        for name in [*ledgers, *(name for name in self._followed if name not in ledgers)]:
            followed = self._followed.setdefault(name, _Followed())
            followed.observe(ledgers.get(name), self.window_s, self.expect_ranks, at_ns)
        seen = [self._followed[name] for name in ledgers]
        self._followed = {name: one for name, one in self._followed.items() if name in ledgers or one.lasting}
        views = [one.view for one in seen if one.view is not None]
        return self._report([_conclude(one.view, one.lasting, one.shown) for one in seen if one.view], views, at_ns)

    def conclude_once(self, told: Sequence[Told], at_ns: int) -> Report:
        """Take in a tick and judge all that was told so far together, without asking that it lasts."""
        seen = [view_whole(ledger, self.expect_ranks) for ledger in self._take_in(told, at_ns)]
        return self._report([diagnose_view(view) for view in seen], seen, at_ns)

    def _take_in(self, told: Sequence[Told], at_ns: int) -> list[Ledger]:
        """Keep a tick and join what is kept of engines that told something in it: no data is no verdict.

        All answers of a tick are of its moment, whatever the clocks of the engines' hosts say; those that a server
        stored are of the moment at which it scraped them, and count once however often they are told.
        """
        self._failures.note(told)
        answers = tuple(
            item if item.is_stored else replace(item, taken_ns=at_ns) for item in told if isinstance(item, LedgerAnswer)
        )
        # Configuration is told once in a while and holds until it is told again.
        self._config |= {(item.where, item.interface): item for item in answers if not _is_load(item)}
        loads = tuple(item for item in answers if _is_load(item))
        fresh = {find_base(item) for item in loads}
        self._told.append((at_ns, tuple(item for item in loads if not item.is_stored)))
        while self._told[0][0] < at_ns - KEPT_WINDOWS * self.window_s * NS_PER_S:
            self._told.popleft()
        stored = self._stored.keep([item for item in loads if item.is_stored], self.window_s)
        kept = [*(item for _, tick in self._told for item in tick), *stored]
        config = [replace(item, taken_ns=None) for item in self._config.values()]
        return join_live([item for item in (*config, *kept) if find_base(item) in fresh], self._names)

    def _report(self, diagnoses: Sequence[Diagnosis], seen: Sequence[LedgerView], at_ns: int) -> Report:
        failed = tuple(self._failures.current.values())
        unusable = tuple(_make_unused(item) for item in failed)
        joined = join_diagnoses(diagnoses, unusable) if diagnoses else _say_nothing(failed, unusable)
        return Report(publish_numbers(advise(joined)), tabulate_ledgers(seen), failed, at_ns)


def _conclude(seen: LedgerView, named: Sequence[Finding], shown: Sequence[Finding]) -> Diagnosis:
    """Conclude what a window shows, with the findings that last; what does not yet is said beside them."""
    _, abstentions = judge_view(seen)
    diagnosis = conclude_ledger(seen, named, abstentions)
    pending = tuple(_list_pending(shown, named))
    headline = diagnosis.headline
    if not named:
        headline = pending[0] if pending else headline if seen.window.has_growth else _FIRST_TICK
    return replace(diagnosis, headline=headline, notes=(*pending, *diagnosis.notes))


def _make_unused(failed: NoData) -> Source:
    kind = LEDGER if failed.interface == UNKNOWN else failed.interface
    return Source(failed.where, kind, "unused", warnings=(failed.reason,))


def _is_load(answer: LedgerAnswer) -> bool:
    """Tell whether an answer holds numbers of ranks, or of ranks that cannot be told apart."""
    return bool(answer.ranks) or answer.unlabelled


def _list_pending(shown: Sequence[Finding], named: Sequence[Finding]) -> Iterator[str]:
    """Say what this moment shows that has not lasted long enough to be named."""
    told = {(finding.cause, rank) for finding in named for rank in finding.ranks}
    for finding in shown:
        fresh = [rank for rank in finding.ranks if (finding.cause, rank) not in told]
        if fresh:
            yield f"{name_numbers(fresh)}: {load_causes()[finding.cause].title.lower()}, seen just now, not yet lasting"


def _say_nothing(failed: Sequence[NoData], unusable: tuple[Source, ...]) -> Diagnosis:
    """Make the diagnosis of a tick in which no target answered: no data is no verdict."""
    why = "; ".join(dict.fromkeys(item.reason for item in failed)) or "no target tells numbers of its ranks"
    return conclude_untimed([], f"No data: {why}", unusable, (), (), (), NO_TIME)
