"""Ask a Prometheus server for what it stores of engines: the last moments, or a span."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from dprankdiag.collectors.base import Collector
from dprankdiag.collectors.http import ACCEPT_JSON, Fetcher, hide_credentials
from dprankdiag.collectors.prometheus_api import (
    EXTENT_PARTS,
    MOMENTS_AT_ONCE,
    PrometheusApi,
    make_extent_path,
    make_path,
    make_range_paths,
    make_rhythm_path,
)
from dprankdiag.collectors.prometheus_select import Matcher
from dprankdiag.collectors.prometheus_series import (
    Process,
    StoredSeries,
    find_process,
    read_refusal,
    read_scalar,
    read_told,
)
from dprankdiag.errors import InputError
from dprankdiag.model.ledgers import LedgerAnswer, NoData
from dprankdiag.units import NS_PER_S

Answers = list[LedgerAnswer | NoData]

USUAL_SCRAPE_S = 60.0
"""Prometheus' own default; taken where no engine shows how often it is scraped."""

RHYTHM_S = 900.0
"""The last so many seconds show how often engines are scraped: 15 scrapes a minute apart."""

FEWEST_BACK_S = 12.0
"""The first question reaches so far back at least, so that a window is full at once."""

KEPT_SCRAPES = 2.5
"""A target of which nothing newer is stored than so many scrape intervals is gone; one late scrape is no loss."""

MOST_MOMENTS = 720
"""Moments of a span that are read: three hours of scrapes every 15 s; of a longer one every n-th."""

TOO_MUCH = ("too many", "timed out", "timeout", "no answer in time", "larger than", "took longer", "exceed")
"""Words in the refusal of a question that asked for too much at once."""


@dataclass(frozen=True, slots=True)
class Span:
    """A span of time at a server.

    Attributes:
        since_s: seconds before its end.
        until_s: its end, UTC epoch seconds; now by the server's clock if None.
        step_s: between moments; None where it is chosen by the scrape interval and the length.
    """

    since_s: float = 3600.0
    until_s: float | None = None
    step_s: float | None = None


@dataclass(frozen=True, slots=True)
class SpanRead:
    """What a server holds of a span.

    Attributes:
        start_s, end_s: UTC epoch seconds by the server's clock.
        scrape_s: how often engines are scraped; None where it does not show.
        step_s: between the moments that were read.
        answers: of engines.
        failed: questions that got none.
    """

    start_s: float
    end_s: float
    scrape_s: float | None
    step_s: float
    answers: tuple[LedgerAnswer, ...]
    failed: tuple[NoData, ...]


@dataclass(slots=True)
class StoredEngines:
    """Engines as a Prometheus server stores them.

    Attributes:
        base: address of the server, perhaps with a path.
        readers: that read the page of an engine, by its name.
        matchers: conditions on labels.
        clock: UTC epoch ns.
    """

    base: str
    fetcher: Fetcher
    readers: dict[str, Collector]
    matchers: tuple[Matcher, ...] = ()
    clock: Callable[[], int] = field(kw_only=True)
    _scrape_s: float | None = None
    _looked_back: bool = False

    @property
    def where(self) -> str:
        """Name the server for people."""
        return hide_credentials(self.base)

    def poll(self) -> Answers:
        """Ask for the samples of the last scrapes; what was told before is told again as long as it is fresh."""
        if self._scrape_s is None:
            rhythm = self.find_scrape_interval()
            if isinstance(rhythm, NoData):
                return [rhythm]
            self._scrape_s = rhythm
        scrape_s = self._scrape_s or USUAL_SCRAPE_S
        reach_s = KEPT_SCRAPES * scrape_s
        if not self._looked_back:
            reach_s = max(reach_s + 2 * scrape_s, FEWEST_BACK_S)
        answers = self.ask(make_path(reach_s=reach_s, matchers=self.matchers))
        if any(isinstance(answer, LedgerAnswer) for answer in answers):
            self._looked_back = True
        else:
            self._scrape_s = None
        return answers or [self._find_nothing()]

    def read_span(self, span: Span, tell: Callable[[float], None] = lambda share: None) -> SpanRead | NoData:
        """Ask for all moments of a span; `NoData` where the server cannot be asked at all.

        Args:
            tell: told what share of the span has been read.
        """
        end_s = self.tell_time() if span.until_s is None else span.until_s
        if isinstance(end_s, NoData):
            return end_s
        start_s = end_s - span.since_s
        scrape_s = self.find_scrape_interval(end_s, min(span.since_s, RHYTHM_S))
        if isinstance(scrape_s, NoData):
            return scrape_s
        usual_s = scrape_s or min(USUAL_SCRAPE_S, span.since_s)
        if choose_step(span, usual_s) > usual_s:
            start_s, end_s = self._find_extent(start_s, end_s)
        step_s = choose_step(replace(span, since_s=end_s - start_s), usual_s)
        answers: list[LedgerAnswer] = []
        failed: list[NoData] = []
        paths = list(self._make_paths(start_s, end_s, step_s, usual_s, MOMENTS_AT_ONCE))
        for number, path in enumerate(paths):
            piece = (start_s + number * MOMENTS_AT_ONCE * max(step_s, usual_s), end_s, step_s, usual_s)
            for told in self._ask_piece(path, piece, MOMENTS_AT_ONCE):
                (answers if isinstance(told, LedgerAnswer) else failed).append(told)  # type: ignore[arg-type]
            tell((number + 1) / len(paths))
        return SpanRead(start_s, end_s, scrape_s, max(step_s, usual_s), tuple(answers), tuple(failed))

    def _find_extent(self, start_s: float, end_s: float) -> tuple[float, float]:
        """Find the part of a long span in which engines were scraped; the whole where that is not told."""
        told = self.ask_series(make_extent_path(start_s=start_s, end_s=end_s, matchers=self.matchers))
        stamps = [at_ns / NS_PER_S for one in told for at_ns, _ in one.points]
        if not stamps:
            return start_s, end_s
        part_s = (end_s - start_s) / EXTENT_PARTS
        return max(start_s, min(stamps) - part_s), min(end_s, max(stamps))

    def _make_paths(self, start_s: float, end_s: float, step_s: float, scrape_s: float, moments: int) -> Iterator[str]:
        yield from make_range_paths(
            start_s=start_s, end_s=end_s, step_s=step_s, scrape_s=scrape_s, matchers=self.matchers, moments=moments
        )

    def _ask_piece(self, path: str, piece: tuple[float, float, float, float], moments: int) -> Answers:
        """Ask for a piece of a span; in halves where the server finds it too much."""
        answers = self.ask(path)
        failure = next((one for one in answers if isinstance(one, NoData)), None)
        if failure is None or moments == 1 or not any(word in failure.reason for word in TOO_MUCH):
            return answers
        start_s, end_s, step_s, scrape_s = piece
        length_s = moments * max(step_s, scrape_s)
        half = moments // 2
        end_s = min(end_s, start_s + length_s)
        told: Answers = []
        for number, part in enumerate(self._make_paths(start_s, end_s, step_s, scrape_s, half)):
            begin_s = start_s + number * half * max(step_s, scrape_s)
            told += self._ask_piece(part, (begin_s, end_s, step_s, scrape_s), half)
            if told and all(isinstance(one, NoData) for one in told):
                break  # it is not the amount: the rest would fail as slowly
        return told

    def tell_time(self) -> float | NoData:
        """Ask for the server's own time, UTC epoch seconds: its clock stamped what it stores."""
        reply = self.fetcher.fetch(
            PrometheusApi.interface, self.base, "/api/v1/query?query=time()", ACCEPT_JSON, read_refusal
        )
        if isinstance(reply, NoData):
            return reply
        try:
            return read_scalar(reply.body, self.where)
        except InputError as error:
            return self._fail(error.what)

    def find_scrape_interval(self, at_s: float | None = None, reach_s: float = RHYTHM_S) -> float | NoData | None:
        """Find how often engines are scraped, s: the longest usual gap of any; None where no two samples show it."""
        rhythms = self.find_rhythms(at_s, reach_s)
        return rhythms if isinstance(rhythms, NoData) else max(rhythms.values(), default=None)

    def find_rhythms(self, at_s: float | None = None, reach_s: float = RHYTHM_S) -> dict[Process, float] | NoData:
        """Find the usual gap between the samples of each process, s."""
        path = make_rhythm_path(reach_s=reach_s, at_s=at_s, matchers=self.matchers)
        reply = self.fetcher.fetch(PrometheusApi.interface, self.base, path, ACCEPT_JSON, read_refusal)
        if isinstance(reply, NoData):
            return reply
        try:
            series = read_told(reply.body, self.where, reply.received_ns, needs_name=False).series
        except InputError as error:
            return self._fail(error.what)
        gaps: dict[Process, list[float]] = {}
        for one in series:
            stamps = [at_ns for at_ns, _ in one.points]
            found = [(later - earlier) / NS_PER_S for earlier, later in itertools.pairwise(stamps)]
            gaps.setdefault(find_process(one.labels), []).extend(found)
        return {process: statistics.median(found) for process, found in gaps.items() if found}

    def ask(self, path: str) -> Answers:
        """Ask one question about engines."""
        reply = self.fetcher.fetch(PrometheusApi.interface, self.base, path, ACCEPT_JSON, read_refusal)
        if isinstance(reply, NoData):
            return [reply]
        try:
            return list(PrometheusApi(self.readers).parse(reply.body, self.where, reply.received_ns))
        except InputError as error:
            return [self._fail(error.what)]

    def ask_series(self, path: str) -> tuple[StoredSeries, ...]:
        """Ask one question about anything else; nothing where there is no answer: it is wanted beside, not needed."""
        reply = self.fetcher.fetch(PrometheusApi.interface, self.base, path, ACCEPT_JSON, read_refusal)
        if isinstance(reply, NoData):
            return ()
        try:
            return read_told(reply.body, self.where, reply.received_ns, needs_name=False).series
        except InputError:
            return ()

    def _find_nothing(self) -> NoData:
        chosen = " that --select chooses" if self.matchers else ""
        return self._fail(f"holds no fresh series of an engine{chosen}")

    def _fail(self, reason: str) -> NoData:
        return NoData(PrometheusApi.interface, self.where, self.clock(), reason)


def choose_step(span: Span, scrape_s: float) -> float:
    """Choose the seconds between moments: the scrape interval, or so many of them that the moments are not too many."""
    if span.step_s is not None:
        return max(span.step_s, span.since_s / (10 * MOST_MOMENTS))
    return scrape_s * max(1, -(-span.since_s // (scrape_s * MOST_MOMENTS)))
