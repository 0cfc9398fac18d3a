"""What each ledger believed, dispatch by dispatch and in sum: as text, and as rows for views that show tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import fill

from dprankdiag.model.dispatches import Belief, Dispatch, LedgerRecord, LedgerRun, LedgerTotals
from dprankdiag.units import NS_PER_S, format_ns, format_ratio
from dprankdiag.views.printable import make_printable
from dprankdiag.views.words import ABSENT

WIDTH = 120
GATEWAY, SCHEDULER, TRUTH = "gateway", "scheduler", "the rank has"
FIRST, WORST, LAST = 5, 8, 3
"""Dispatches shown: the first, the worst of each ledger, and the last that a policy chose."""

OFF_BY = "Off by is what was believed of the choice less what was true: below 0 it was believed too idle."
DIFFER = "Would differ: choices that are not as good as another by the truth, in what the policy compares."
TOTALS_COLUMNS = (
    "ledger",
    "deployment",
    "choices",
    "demanded",
    "age, worst",
    "requests off by, worst",
    "tokens off by, worst",
    "would differ",
    "by in all",
)
"""Medians stand before what was worst."""


def render_text(record: LedgerRecord, run: LedgerRun, shown: Sequence[Dispatch]) -> str:
    """Write the dispatches chosen of a run, and the totals of all runs side by side."""
    columns = list_columns(run)
    rows = [_list_above(columns), tuple(name for _, name in columns), *_list_rows(run, shown)]
    parts = [
        f"{make_printable(f'{record.title} ({record.name})')}\n{fill(make_printable(record.why), WIDTH)}",
        make_printable(count_shown(shown, run)),
        _align(rows),
        _align([TOTALS_COLUMNS, *list_totals(record.runs)]),
        "\n".join(map(make_printable, list_remarks(record))),
    ]
    return "\n\n".join(parts) + "\n"


def choose_dispatches(run: LedgerRun) -> list[Dispatch]:
    """Choose what is worth reading: the first, the worst of each ledger and the last, in order of time.

    Where a policy chose anything, choices that requests demanded are left out.
    """
    free = [place for place, each in enumerate(run.dispatches) if each.router.reason == "policy"]
    places = free or list(range(len(run.dispatches)))
    chosen = {*places[:FIRST], *places[max(len(places) - LAST, 0) :]}
    chosen.update(sorted(places, key=lambda place: _rate(run.dispatches[place].gateway))[:WORST])
    chosen.update(sorted(places, key=lambda place: _rate(run.dispatches[place].router))[:WORST])
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


def count_shown(shown: Sequence[Dispatch], run: LedgerRun) -> str:
    """Say how many of the dispatches are shown."""
    said = f"{len(shown)} of {len(run.dispatches)} dispatches, {run.name}."
    demanded = sum(dispatch.router.reason != "policy" for dispatch in run.dispatches)
    return f"{said} {demanded} were demanded by the request itself." if demanded else said


def list_columns(run: LedgerRun) -> list[tuple[str, str]]:
    """List whose ledger each column of a dispatch is of, and its heading."""
    columns = [("", "time (s)"), *([("", "role")] if _has_role(run) else []), ("", "request")]
    ledgers = [(GATEWAY, "worker")] if _has_gateway(run) else []
    for ledger, choice in (*ledgers, (run.router, "rank")):
        columns += [(ledger, name) for name in (choice, "believes", "age", "off by")]
    columns += [(SCHEDULER, name) for name in ("running", "waiting", "off by", "to compute")]
    return [*columns, (TRUTH, "requests"), (TRUTH, "tokens"), ("the truth would take", "")]


def list_cells(run: LedgerRun, dispatch: Dispatch) -> list[str]:
    """List the cells of a dispatch, one a column."""
    compared = {totals.ledger: totals.compares for totals in run.totals}
    prefix = f"{dispatch.role} " if dispatch.role else ""
    own, whole = compared.get(f"{prefix}{run.router}"), compared.get(f"{prefix}{GATEWAY}")
    several = len({track.worker for track in run.tracks} - {None}) > 1
    cells = [f"{dispatch.time_ns / NS_PER_S:.3f}"]
    if _has_role(run):
        cells.append(dispatch.role or ABSENT)
    cells.append(str(dispatch.request))
    if _has_gateway(run):
        cells += _list_belief(dispatch.gateway, "", whole)
    cells += _list_belief(dispatch.router, f"{dispatch.worker}." if several else "", own)
    cells += _list_load(dispatch)
    better = (_tell_better("worker", dispatch.gateway, whole), _tell_better("rank", dispatch.router, own))
    return [*cells, "; ".join(text for text in better if text) or ABSENT]


def list_totals(runs: Sequence[LedgerRun]) -> list[tuple[str, ...]]:
    """List what each ledger was worth, the deployments of each beside one another."""
    ledgers = dict.fromkeys(totals.ledger for run in runs for totals in run.totals)
    return [
        (ledger, run.name, *_list_figures(totals))
        for ledger in ledgers
        for run in runs
        for totals in run.totals
        if totals.ledger == ledger
    ]


def list_remarks(record: LedgerRecord) -> Iterator[str]:
    """Say how to read the numbers, what the ledgers cost, and what cures it."""
    yield OFF_BY
    yield DIFFER
    for run in record.runs:
        if run.waiting_ratio is not None:
            yield f"Ranks waited {format_ratio(run.waiting_ratio)} of the time for the slowest, {run.name}."
    if record.cure:
        yield f"Cure: {record.cure}"


def tell_worst(run: LedgerRun) -> Iterator[str]:
    """Say in words how old and how wrong each ledger was at worst."""
    for totals in run.totals:
        error, unit = totals.worst_requests_error, "requests"
        if totals.compares is not None and "tokens" in totals.compares and totals.worst_tokens_error is not None:
            error, unit = totals.worst_tokens_error, "tokens"
        wrong = "believed nothing" if error is None else f"was off by up to {_write_count(error, unit)}"
        old = "" if not totals.worst_age_ns else f", up to {format_ns(totals.worst_age_ns)} old"
        yield f"The {totals.ledger} {wrong}{old}."


def _list_above(columns: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """List whose ledgers columns are of, each once above its first column."""
    groups = [group for group, _ in columns]
    return tuple("" if group == before else group for group, before in zip(groups, ["", *groups], strict=False))


def _has_gateway(run: LedgerRun) -> bool:
    return any(totals.ledger.endswith(GATEWAY) for totals in run.totals)


def _has_role(run: LedgerRun) -> bool:
    return bool(run.dispatches) and run.dispatches[0].role is not None


def _list_rows(run: LedgerRun, shown: Sequence[Dispatch]) -> Iterator[tuple[str, ...]]:
    """List the rows of dispatches, with a row of dots for those left out between two."""
    places = {id(dispatch): place for place, dispatch in enumerate(run.dispatches)}
    last = None
    for dispatch in shown:
        place = places[id(dispatch)]
        cells = tuple(list_cells(run, dispatch))
        if last is not None and place > last + 1:
            yield ("...", *("",) * (len(cells) - 1))
        last = place
        yield cells


def _rate(belief: Belief | None) -> tuple[float, int, int]:
    """Rate a choice, the worst first: by regret, then by error."""
    if belief is None:
        return 0.0, 0, 0
    return -(belief.regret or 0.0), -abs(belief.tokens_error or 0), -abs(belief.requests_error or 0)


def _list_belief(belief: Belief | None, prefix: str, compares: str | None) -> Iterator[str]:
    """List choice, belief, age and error, in what the policy compares; in requests where it compares no loads."""
    if belief is None:
        yield from (ABSENT,) * 4
        return
    by_tokens = compares is not None and "tokens" in compares
    believed, error = (belief.tokens, belief.tokens_error) if by_tokens else (belief.requests, belief.requests_error)
    demanded = "" if belief.reason == "policy" else f" {belief.reason}"
    yield f"{prefix}{belief.chosen}{demanded}"
    yield ABSENT if believed is None else _write_count(believed, "tokens" if by_tokens else "requests")
    yield format_ns(belief.age_ns)
    yield _write_error(error)


def _list_load(dispatch: Dispatch) -> Iterator[str]:
    load = dispatch.scheduler
    yield from (str(load.running), str(load.waiting), _write_error(load.requests_error), f"{load.uncached_tokens:,}")
    yield from (ABSENT if load.requests is None else str(load.requests), f"{load.tokens:,}")


def _list_figures(totals: LedgerTotals) -> Iterator[str]:
    yield from (str(totals.choices), str(totals.demanded))
    yield _pair(format_ns(totals.median_age_ns), format_ns(totals.worst_age_ns))
    yield _pair(_write_size(totals.median_requests_error), _write_size(totals.worst_requests_error))
    yield _pair(_write_size(totals.median_tokens_error), _write_size(totals.worst_tokens_error))
    yield f"{totals.otherwise} of {totals.judged}" if totals.judged else ABSENT
    regret, compares = totals.regret, totals.compares
    yield ABSENT if regret is None or compares is None else _write_count(regret, compares)


def _pair(median: str, worst: str) -> str:
    return ABSENT if median == worst == ABSENT else f"{median}, {worst}"


def _write_size(error: int | None) -> str:
    return ABSENT if error is None else f"{error:,}"


def _tell_better(what: str, belief: Belief | None, compares: str | None) -> str:
    if belief is None or belief.better is None or belief.regret is None or compares is None:
        return ""
    return f"{what} {belief.better}, by {_write_count(belief.regret, compares)}"


def _write_count(value: float, unit: str) -> str:
    text = f"{value:,.0f}" if value == int(value) else f"{value:,.2f}"
    return f"{text} {unit.removesuffix('s') if value == 1 else unit}"


def _write_error(error: int | None) -> str:
    return ABSENT if error is None else f"{error:+,}" if error else "0"


def _align(rows: Sequence[Sequence[str]]) -> str:
    """Set rows in columns, safe to print."""
    cells = [[make_printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells)
    return "\n".join(lines)
