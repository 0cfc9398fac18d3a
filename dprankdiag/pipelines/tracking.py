"""Findings that last: what is seen at moment after moment becomes one, and what is gone for a while ends it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from dprankdiag.analysis.ledger_view import LedgerView, view_ledger
from dprankdiag.analysis.ledger_window import LedgerWindow
from dprankdiag.model.diagnosis import Finding, Severity, TimeWindow, When
from dprankdiag.model.ledgers import Ledger
from dprankdiag.pipelines.ledgers import judge_view, price_claim
from dprankdiag.units import NS_PER_S

WINDOW_S = 10.0
"""Seconds that are judged together: enough requests and steps to tell, little enough to answer within ten seconds."""

WINDOW_MOMENTS = 3.0
"""Where moments are further apart, so many of their gaps make a window: fewer are not told from a hiccup."""

SHORT_SHARE = 0.4
"""This last part of a window is judged by itself too: what has just begun fills a short window sooner."""

RAISE_LAST, RAISE_SHARE = 2, 1.0
"""A rank is named when it was named in so many of so many last moments ..."""

CLEAR_LAST, CLEAR_SHARE = 20, 0.2
"""... and no longer when it was named in so few of so many: in between it stays what it is. Windows overlap, so that
moments a window apart are two looks, and one look that shows nothing, by its own noise, ends no verdict."""

LEAVE_LAST = 5
"""A rank leaves a cause that goes on without it, or for another cause of the class, after so many moments: with a short
window, who is meant and why is told within ten seconds also where it changes."""

FEWEST_MOMENTS = 12
"""From so many moments on a recording is searched for times; fewer are judged together."""

MOST_JUDGED = 4000
"""Windows of a recording that are judged; of a longer one every n-th moment."""

STEADY_SHARE = 0.8
FEWEST_EVENTS = 5

_SEVERITIES: tuple[Severity, ...] = ("critical", "warning", "info")

Key = tuple[str, str]
"""Engine and cause."""


@dataclass(slots=True)
class _Rank:
    """What was seen of one rank under one cause: hits of the last moments, newest last.

    Attributes:
        named: it is named now.
        since_s: since when.
        first_hit_s: the first of the hits that led there.
        left: how many moments in a row named others without it, or it for another cause of the class.
    """

    hits: deque[bool] = field(default_factory=lambda: deque(maxlen=CLEAR_LAST))
    named: bool = False
    since_s: float = 0.0
    first_hit_s: float | None = None
    left: int = 0

    def see(self, at_s: float, hit: bool, told_otherwise: bool = False) -> None:
        """Take in a moment; `told_otherwise`: it names other ranks under the cause, or the rank under another cause."""
        self.hits.append(hit)
        self.left = self.left + 1 if told_otherwise and not hit else 0
        if hit and self.first_hit_s is None:
            self.first_hit_s = at_s
        recent = list(self.hits)[-RAISE_LAST:]
        if not self.named and len(recent) == RAISE_LAST and sum(recent) >= RAISE_SHARE * RAISE_LAST:
            self.named = True
            # What came before is not held against it: only moments from now on can clear it.
            self.hits.extend([True] * CLEAR_LAST)
            self.since_s = at_s if self.first_hit_s is None else self.first_hit_s
        elif self.named and (sum(self.hits) <= CLEAR_SHARE * len(self.hits) or self.left >= LEAVE_LAST):
            self.named = False
        if not any(self.hits):
            self.first_hit_s = None


class Tracker:
    """Follows findings from moment to moment.

    A rank is named once two moments in a row name it, and stays named until 16 of 20 do not, or five in a row name
    others without it or it for another cause of the class; so a verdict neither comes from a single moment nor flickers
    at a threshold.
    """

    def __init__(self) -> None:
        self._seen: dict[Key, dict[int | None, _Rank]] = {}
        self._latest: dict[Key, Finding] = {}

    def observe(self, at_s: float, findings: Iterable[Finding]) -> tuple[Finding, ...]:
        """Take in the findings of a moment; return those that last, with the moment they began.

        Args:
            at_s: seconds on any axis that only grows.
            findings: what this moment alone shows.
        """
        now: dict[Key, set[int | None]] = {}
        for finding in findings:
            key = (finding.engine, finding.cause)
            now[key] = set(finding.ranks) or {None}
            self._latest[key] = finding
        for key in {*now, *self._seen}:
            akin = [ranks for other, ranks in now.items() if other != key and _are_akin(other, key)]
            self._see(key, at_s, now.get(key, set()), set().union(*akin))
        return tuple(sorted(self._list_named(), key=_gravity))

    def _see(self, key: Key, at_s: float, hit: set[int | None], akin: set[int | None]) -> None:
        ranks = self._seen.setdefault(key, {})
        for rank in hit:
            ranks.setdefault(rank, _Rank())
        for rank, state in list(ranks.items()):
            state.see(at_s, rank in hit, told_otherwise=bool(hit) or rank in akin)
            if not state.named and not any(state.hits):
                del ranks[rank]
        if not ranks:
            del self._seen[key]
            self._latest.pop(key, None)

    def _list_named(self) -> Iterator[Finding]:
        for key, ranks in self._seen.items():
            named = {rank: state for rank, state in ranks.items() if state.named}
            if not named:
                continue
            numbers = tuple(sorted(rank for rank in named if rank is not None))
            since_s = min(state.since_s for state in named.values())
            finding = self._latest[key]
            yield replace(
                finding,
                ranks=numbers,
                who=finding.who if set(numbers) == set(finding.ranks) else "one" if len(numbers) == 1 else "group",
                onset_ns=round(since_s * NS_PER_S),
            )


def _are_akin(one: Key, other: Key) -> bool:
    """Tell whether two causes are of one class and engine."""
    return one[0] == other[0] and one[1].split(".")[0] == other[1].split(".")[0]


def _gravity(finding: Finding) -> tuple[int, float, str, str]:
    return _SEVERITIES.index(finding.severity), -finding.confidence, finding.engine, finding.cause


def judge_moment(
    ledger: Ledger, last: int, window_s: float = WINDOW_S, expect_ranks: int | None = None
) -> tuple[LedgerView, list[Finding]]:
    """Judge the window that ends at a moment.

    Args:
        ledger: with seconds.
    """
    seen = view_moment(ledger, last, window_s, expect_ranks)
    findings = _judge(seen)
    if ledger.seconds is not None and window_s >= WINDOW_S:
        known = {_class_of(finding) for finding in findings}
        short = view_moment(ledger, last, SHORT_SHARE * window_s, expect_ranks)
        findings += [one for one in _judge(short) if _class_of(one) not in known]
    return seen, findings


def find_window_s(ledger: Ledger) -> float:
    """Find the seconds to judge together: the usual window, or more where moments are far apart."""
    if ledger.seconds is None or ledger.n_moments < 2:
        return WINDOW_S
    return max(WINDOW_S, WINDOW_MOMENTS * float(np.median(np.diff(ledger.seconds))))


def find_last_ns(ledger: Ledger) -> int | None:
    """Find the last moment of a ledger, UTC epoch ns."""
    if ledger.start_ns is None or ledger.seconds is None or not ledger.n_moments:
        return None
    return ledger.start_ns + round(float(ledger.seconds[-1]) * NS_PER_S)


def _class_of(finding: Finding) -> str:
    return finding.cause.split(".")[0]


def view_moment(ledger: Ledger, last: int, window_s: float, expect_ranks: int | None) -> LedgerView:
    """View the window that ends at a moment; of a ledger without seconds, the moment alone."""
    first = last
    if ledger.seconds is not None:
        first = int(np.searchsorted(ledger.seconds, ledger.seconds[last] - window_s - 1e-6))
    return view_ledger(LedgerWindow(ledger, first, last), expect_ranks)


def _judge(seen: LedgerView) -> list[Finding]:
    claims, _ = judge_view(seen)
    return [price_claim(claim, seen) for claim in claims]


@dataclass(slots=True)
class _Span:
    """Time through which ranks were named: from the first to the last moment that showed it, and how long it stood."""

    first_s: float
    last_s: float
    stood_s: float
    finding: Finding


def is_series(ledger: Ledger) -> bool:
    """Tell whether a ledger is long enough to be searched for times."""
    if ledger.seconds is None or ledger.n_moments < FEWEST_MOMENTS:
        return False
    return float(ledger.seconds[-1]) >= 2 * find_window_s(ledger)


def find_episodes(ledger: Ledger, expect_ranks: int | None = None) -> list[Finding]:
    """Follow a recording from moment to moment and list what lasted, when, and how it came."""
    assert ledger.seconds is not None
    tracker = Tracker()
    window_s = find_window_s(ledger)
    spans: dict[tuple[str, tuple[int, ...]], list[_Span]] = {}
    stride = max(1, ledger.n_moments // MOST_JUDGED)
    places = range(1, ledger.n_moments, stride)
    gap_s = 2.0 * stride * float(np.median(np.diff(ledger.seconds)))
    for place in places:
        at_s = float(ledger.seconds[place])
        if at_s < window_s / 2:
            continue
        _, findings = judge_moment(ledger, place, window_s, expect_ranks)
        for finding in tracker.observe(at_s, findings):
            known = spans.setdefault((finding.cause, finding.ranks), [])
            since_s = (finding.onset_ns or 0) / NS_PER_S
            if not known or at_s - known[-1].stood_s > gap_s:
                known.append(_Span(min(since_s, at_s), at_s, at_s, finding))
            known[-1].stood_s = at_s
            if any(one.cause == finding.cause and set(one.ranks) >= set(finding.ranks) for one in findings):
                known[-1].last_s = at_s
            known[-1].finding = min(known[-1].finding, finding, key=_gravity)
    return [_join_spans(ledger, parts, window_s) for parts in spans.values()]


def _join_spans(ledger: Ledger, spans: Sequence[_Span], window_s: float) -> Finding:
    """Make one finding of all times at which the same ranks were named for the same cause."""
    assert ledger.seconds is not None
    origin_ns, length_s = ledger.start_ns or 0, float(ledger.seconds[-1])
    first_s, last_s = spans[0].first_s, spans[-1].last_s
    covered_s = sum(span.last_s - span.first_s for span in spans)
    worst = min((span.finding for span in spans), key=_gravity)
    window = TimeWindow(*(origin_ns + round(one * NS_PER_S) for one in (first_s, last_s)))
    finding = _spread_loss(worst, covered_s, length_s)
    if covered_s >= STEADY_SHARE * length_s:
        return replace(finding, when="steady", window=window, onset_ns=None)
    if len(spans) == 1 and first_s > window_s and last_s >= length_s - window_s:
        return replace(finding, when="onset", window=window, onset_ns=window.start_ns)
    period_ns = _find_period(spans)
    when: When = "periodic" if period_ns is not None else "burst"
    return replace(finding, when=when, window=window, onset_ns=None, period_ns=period_ns)


def _spread_loss(finding: Finding, covered_s: float, length_s: float) -> Finding:
    """Give a loss found in one window to all the time covered, and set it against the whole recording."""
    if finding.lost_ratio is None:
        return finding
    lost_ns = round(finding.lost_ratio * covered_s * NS_PER_S)
    ratio = finding.lost_ratio * covered_s / length_s
    return replace(finding, lost_ns=lost_ns, lost_ratio=ratio, window_lost_ratio=finding.lost_ratio)


def _find_period(spans: Sequence[_Span]) -> int | None:
    if len(spans) < FEWEST_EVENTS:
        return None
    gaps = np.diff([span.first_s for span in spans])
    period = float(np.median(gaps))
    even = bool((np.abs(gaps - period) <= 0.2 * period).mean() >= STEADY_SHARE)
    return round(period * NS_PER_S) if even else None
