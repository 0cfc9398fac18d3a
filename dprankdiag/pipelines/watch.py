"""Judge running engines tick by tick: the last seconds of each, and what lasts of what they show."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dprankdiag.analysis.ledger_view import LedgerView
from dprankdiag.catalog.causes import load_causes
from dprankdiag.classifiers.base import name_numbers
from dprankdiag.model.bundle import publish_numbers
from dprankdiag.model.diagnosis import Diagnosis, Finding
from dprankdiag.model.ledgers import Ledger, LedgerAnswer, NoData
from dprankdiag.model.schema import Columns
from dprankdiag.model.sources import Source
from dprankdiag.pipelines.failures import UNKNOWN, Failures, Told, find_base
from dprankdiag.pipelines.join import join_diagnoses
from dprankdiag.pipelines.ledger_tables import tabulate_ledgers
from dprankdiag.pipelines.ledgers import conclude_ledger, diagnose_view, judge_view, view_whole
from dprankdiag.pipelines.live import join_live
from dprankdiag.pipelines.remedies import advise
from dprankdiag.pipelines.tracking import WINDOW_S, Tracker, judge_moment
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
    _failures: Failures = field(default_factory=Failures)
    _tracker: Tracker = field(default_factory=Tracker)

    def observe(self, told: Sequence[Told], at_ns: int) -> Report:
        """Take in a tick and judge the last window; a finding is named once it lasts."""
        seen: list[LedgerView] = []
        shown: list[Finding] = []
        for ledger in self._take_in(told, at_ns):
            view, findings = judge_moment(ledger, ledger.n_moments - 1, self.window_s, self.expect_ranks)
            seen.append(view)
            shown += findings
        lasting = self._tracker.observe(at_ns / NS_PER_S, shown)
        return self._report([self._conclude(view, lasting, shown) for view in seen], seen, at_ns)

    def conclude_once(self, told: Sequence[Told], at_ns: int) -> Report:
        """Take in a tick and judge all that was told so far together, without asking that it lasts."""
        seen = [view_whole(ledger, self.expect_ranks) for ledger in self._take_in(told, at_ns)]
        return self._report([diagnose_view(view) for view in seen], seen, at_ns)

    def _take_in(self, told: Sequence[Told], at_ns: int) -> list[Ledger]:
        """Keep a tick and join what is kept of engines that told something in it: no data is no verdict.

        All answers of a tick are of its moment, whatever the clocks of the engines' hosts say.
        """
        self._failures.note(told)
        answers = tuple(replace(item, taken_ns=at_ns) for item in told if isinstance(item, LedgerAnswer))
        # Configuration is told once in a while and holds until it is told again.
        self._config |= {(item.where, item.interface): item for item in answers if not _is_load(item)}
        self._told.append((at_ns, tuple(item for item in answers if _is_load(item))))
        while self._told[0][0] < at_ns - KEPT_WINDOWS * self.window_s * NS_PER_S:
            self._told.popleft()
        fresh = {find_base(item) for item in self._told[-1][1]}
        kept = [item for _, tick in self._told for item in tick]
        config = [replace(item, taken_ns=None) for item in self._config.values()]
        return join_live([item for item in (*config, *kept) if find_base(item) in fresh])

    def _conclude(self, seen: LedgerView, lasting: Iterable[Finding], shown: Iterable[Finding]) -> Diagnosis:
        engine = seen.window.ledger.name
        named = [finding for finding in lasting if finding.engine == engine]
        _, abstentions = judge_view(seen)
        diagnosis = conclude_ledger(seen, named, abstentions)
        pending = tuple(_list_pending([finding for finding in shown if finding.engine == engine], named))
        headline = diagnosis.headline
        if not named:
            headline = pending[0] if pending else headline if seen.window.has_growth else _FIRST_TICK
        return replace(diagnosis, headline=headline, notes=(*pending, *diagnosis.notes))

    def _report(self, diagnoses: Sequence[Diagnosis], seen: Sequence[LedgerView], at_ns: int) -> Report:
        failed = tuple(self._failures.current.values())
        unusable = tuple(_make_unused(item) for item in failed)
        joined = join_diagnoses(diagnoses, unusable) if diagnoses else _say_nothing(failed, unusable)
        return Report(publish_numbers(advise(joined)), tabulate_ledgers(seen), failed, at_ns)


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
