"""The three ledgers of a scenario as tables to read: dispatch by dispatch, and what each ledger was worth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from textwrap import fill

from dprankdiag.harness.scenario_ledger import GATEWAY, SCHEDULER
from dprankdiag.harness.score_tables import align
from dprankdiag.model.dispatches import Belief, Dispatch, LedgerRecord, LedgerRun, LedgerTotals
from dprankdiag.units import NS_PER_S, format_ns, format_ratio

WIDTH = 120
FIRST, WORST, LAST = 5, 8, 3
"""Dispatches shown: the first, the worst of each ledger, and the last that a policy chose."""


def render_ledgers(record: LedgerRecord, shown: Sequence[Dispatch], run: LedgerRun) -> str:
    """Write the dispatches chosen of a run, and the totals of all runs side by side."""
    parts = [f"{record.title} ({record.name})\n{fill(record.why, WIDTH)}"]
    parts.append(f"{_count_shown(shown, run)}\n\n{_align_dispatches(shown, run)}")
    parts.append(_align_totals(record.runs))
    parts.append("\n".join(_list_remarks(record)))
    return "\n\n".join(parts) + "\n"


def choose_dispatches(run: LedgerRun) -> list[Dispatch]:
    """Choose what is worth reading: the first, the worst of each ledger and the last, in order of time.

    Where a policy chose anything, choices that requests demanded are left out.
    """
    free = [place for place, each in enumerate(run.dispatches) if each.router.reason == "policy"]
    places = free or list(range(len(run.dispatches)))
    chosen = {*places[:FIRST], *places[len(places) - LAST :]}
    for ledger in ("gateway", "router"):
        chosen.update(sorted(places, key=lambda place: _rate(getattr(run.dispatches[place], ledger)))[:WORST])
    return [run.dispatches[place] for place in sorted(chosen)]


def find_request(run: LedgerRun, number: int) -> list[Dispatch]:
    """Find the dispatches of a request.

    Raises:
        ValueError: there is no such request.
    """
    found = [dispatch for dispatch in run.dispatches if dispatch.request == number]
    if not found:
        numbers = [dispatch.request for dispatch in run.dispatches]
        raise ValueError(f"no request {number}; there are {min(numbers)} to {max(numbers)}")
    return found


def _rate(belief: Belief | None) -> tuple[float, int, int]:
    """Rate a choice, the worst first: by regret, then by error."""
    if belief is None:
        return 0.0, 0, 0
    return -(belief.regret or 0.0), -abs(belief.tokens_error or 0), -abs(belief.requests_error or 0)


def _count_shown(shown: Sequence[Dispatch], run: LedgerRun) -> str:
    said = f"{len(shown)} of {len(run.dispatches)} dispatches, {run.name}."
    demanded = sum(dispatch.router.reason != "policy" for dispatch in run.dispatches)
    return f"{said} {demanded} were demanded by the request itself." if demanded else said


def _align_dispatches(shown: Sequence[Dispatch], run: LedgerRun) -> str:
    layout = _Layout.of(run)
    rows = [*layout.list_headings()]
    places = {id(dispatch): place for place, dispatch in enumerate(run.dispatches)}
    last = None
    for dispatch in shown:
        place = places[id(dispatch)]
        if last is not None and place > last + 1:
            rows.append(("...", *("",) * (len(rows[0]) - 1)))
        last = place
        rows.append(tuple(layout.list_cells(dispatch)))
    return align(rows)


@dataclass(frozen=True, slots=True)
class _Layout:
    """Which columns a run needs.

    Attributes:
        router: what the router inside a worker is called.
        compares: of each ledger, what its policy compares.
        has_gateway, has_role, several: there is a gateway, there are roles, there are several workers.
    """

    router: str
    compares: dict[str, str | None]
    has_gateway: bool
    has_role: bool
    several: bool

    @classmethod
    def of(cls, run: LedgerRun) -> _Layout:
        return cls(
            run.router,
            {totals.ledger: totals.compares for totals in run.totals},
            any(dispatch.gateway is not None for dispatch in run.dispatches),
            any(dispatch.role is not None for dispatch in run.dispatches),
            len({dispatch.worker for dispatch in run.dispatches}) > 1,
        )

    def list_headings(self) -> Iterator[tuple[str, ...]]:
        role = ("role",) if self.has_role else ()
        ledgers = [(GATEWAY, "worker")] if self.has_gateway else []
        ledgers.append((self.router, "rank"))
        above = [""] * (2 + len(role))
        below = ["time", *role, "request"]
        for ledger, choice in ledgers:
            above += [ledger, "", "", ""]
            below += [choice, "believes", "age", "off by"]
        yield (*above, SCHEDULER, "", "", "", "the rank has", "", "the truth would take")
        yield (*below, "running", "waiting", "off by", "to compute", "requests", "tokens", "")

    def list_cells(self, dispatch: Dispatch) -> Iterator[str]:
        yield f"{dispatch.time_ns / NS_PER_S:.3f} s"
        if self.has_role:
            yield dispatch.role or "-"
        yield str(dispatch.request)
        prefix = f"{dispatch.role} " if dispatch.role else ""
        better = []
        if self.has_gateway:
            compares = self.compares.get(f"{prefix}{GATEWAY}")
            yield from _list_belief(dispatch.gateway, "", compares)
            better.append(_tell_better("worker", dispatch.gateway, compares))
        compares = self.compares.get(f"{prefix}{self.router}")
        yield from _list_belief(dispatch.router, f"{dispatch.worker}." if self.several else "", compares)
        better.append(_tell_better("rank", dispatch.router, compares))
        load = dispatch.scheduler
        yield from (str(load.running), str(load.waiting), _write_error(load.requests_error))
        yield f"{load.uncached_tokens:,}"
        yield "-" if load.requests is None else str(load.requests)
        yield f"{load.tokens:,}"
        yield "; ".join(text for text in better if text) or "-"


def _list_belief(belief: Belief | None, prefix: str, compares: str | None) -> Iterator[str]:
    """List choice, belief, age and error, in what the policy compares; in requests where it compares no loads."""
    if belief is None:
        yield from ("-",) * 4
        return
    by_tokens = compares is not None and "tokens" in compares
    believed, error = (belief.tokens, belief.tokens_error) if by_tokens else (belief.requests, belief.requests_error)
    demanded = "" if belief.reason == "policy" else f" {belief.reason}"
    yield f"{prefix}{belief.chosen}{demanded}"
    yield "-" if believed is None else _count(believed, "tokens" if by_tokens else "requests")
    yield format_ns(belief.age_ns)
    yield _write_error(error)


def _tell_better(what: str, belief: Belief | None, compares: str | None) -> str:
    if belief is None or belief.better is None or belief.regret is None or compares is None:
        return ""
    return f"{what} {belief.better}, by {_count(belief.regret, compares)}"


def _count(value: float, unit: str) -> str:
    text = f"{value:,.0f}" if value == int(value) else f"{value:,.2f}"
    return f"{text} {unit.removesuffix('s') if value == 1 else unit}"


def _write_error(error: int | None) -> str:
    return "-" if error is None else f"{error:+,}" if error else "0"


def _align_totals(runs: Sequence[LedgerRun]) -> str:
    head = ("", "", "", "", "age", "", "requests off by", "", "tokens off by", "", "the truth", "")
    names = ("ledger", "", "choices", "demanded", *("median", "worst") * 3, "would differ", "by in all")
    ledgers = dict.fromkeys(totals.ledger for run in runs for totals in run.totals)
    rows = [
        (ledger, run.name, *_list_figures(totals))
        for ledger in ledgers
        for run in runs
        for totals in run.totals
        if totals.ledger == ledger
    ]
    return align([head, names, *rows])


def _list_figures(totals: LedgerTotals) -> Iterator[str]:
    yield str(totals.choices)
    yield str(totals.demanded)
    yield format_ns(totals.median_age_ns)
    yield format_ns(totals.worst_age_ns)
    for error in (
        totals.median_requests_error,
        totals.worst_requests_error,
        totals.median_tokens_error,
        totals.worst_tokens_error,
    ):
        yield "-" if error is None else f"{error:,}"
    yield f"{totals.otherwise} of {totals.judged}" if totals.judged else "-"
    yield "-" if totals.regret is None or totals.compares is None else _count(totals.regret, totals.compares)


def _list_remarks(record: LedgerRecord) -> Iterator[str]:
    yield "Off by is what was believed of the choice less what was true: below 0 it was believed too idle."
    for run in record.runs:
        if run.waiting_ratio is not None:
            yield f"Ranks waited {format_ratio(run.waiting_ratio)} of the time for the slowest, {run.name}."
    yield f"Cure: {record.cure}"
