"""Find who stands out in a wait matrix: ranks that are waited for, ranks that wait for all, and single pairs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from dprankdiag.analysis.median_polish import (
    cell_noise,
    line_medians,
    middle,
    polish,
    tail_scale,
)
from dprankdiag.analysis.statistics import EVENT_SCORE, MEDIAN_ERROR, OUTLIER_SCORE, FloatArray, find_high
from dprankdiag.analysis.wait_blocks import Blocks, find_blocks
from dprankdiag.model.claims import BoolArray
from dprankdiag.model.wait_matrix import WaitMatrix

Scope = Literal["all", "near", "far"]

LEAST_RANKS = 4
"""Fewer ranks leave no contrast of two waiting and two awaited ranks."""

FEWEST_VOTERS = 3
LEAST_EXCESS = float(np.log(1.5))
HEALTHY_SD = 0.1
"""What the lines of a healthy matrix differ by, as a logarithm.

Source: github.com/deepseek-ai/DeepEP pull request 311: the medians of the undisturbed columns of its example scatter by
3 % between nodes and by 10 % inside one.
"""

AGREEING = 0.75
"""Share of the others that must see it for themselves: everybody waits for a late rank."""

LEAST_PAIR_EXCESS = float(np.log(5.0))
"""Single cells of a healthy matrix reach four times the rest.

Source: github.com/deepseek-ai/DeepEP pull request 311: 1,824 and 1,334 among 400 to 600.
"""

LEAST_PAIRS = 20
"""Fewer pairs (those of five ranks) do not show how far single waits scatter without a fault."""

CLEAR_OF_REST = 2.0
"""A pair must stand out, as a logarithm, this many times as far as any pair that does not."""

RESAMPLES = 200


@dataclass(frozen=True, slots=True)
class Line:
    """A rank that stands out.

    Attributes:
        rank: position in `WaitView.ranks`.
        ratio: waits for it (or its own) over the level of the others.
        scope: who sees it: "all", or only ranks "near" (of its node) or "far" (of other nodes).
        agreeing: share of the voters that see at least half of it, as a logarithm.
        voters: ranks asked.
        support: share of resamples of the voters that return it.
        own_ratio: for an awaited rank, its own waits over those of the others; None where it has no row.
        own_high: its own waits stand out as well.
    """

    rank: int
    ratio: float
    scope: Scope
    agreeing: float
    voters: int
    support: float
    own_ratio: float | None = None
    own_high: bool = False


@dataclass(frozen=True, slots=True)
class Pair:
    """A cell that stands out.

    Attributes:
        waiting, awaited: positions in `WaitView.ranks`.
        ratio: its wait over what its row and column would have it be.
        support: grows from one half at the threshold to 1 far beyond it.
    """

    waiting: int
    awaited: int
    ratio: float
    support: float


@dataclass(frozen=True, slots=True)
class WaitView:
    """What a matrix shows.

    Attributes:
        ranks: every rank with a row or a column, ascending.
        awaited: late ranks, by how far they stand out.
        waiting: ranks that wait long for everyone.
        pairs: single slow pairs.
        noise_ratio: standard deviation of a cell, as a ratio to its level.
        blocks: nodes found and taken out.
        reason: why nothing can be judged; empty where it can.
    """

    ranks: tuple[int, ...]
    awaited: tuple[Line, ...] = ()
    waiting: tuple[Line, ...] = ()
    pairs: tuple[Pair, ...] = ()
    noise_ratio: float | None = None
    blocks: Blocks | None = None
    reason: str = ""


@dataclass(slots=True)
class _Search:
    """The matrix while culprits are taken out of it, in logarithms.

    Attributes:
        table: `(n_ranks, n_ranks)`, NaN where nothing is known and on the diagonal.
        judged: columns, and rows, still to be judged (`(n_ranks,)` each).
        telling: rows, and columns, whose cells still tell something of the others.
    """

    table: FloatArray
    crossing: BoolArray
    noise: float
    columns: BoolArray
    rows: BoolArray
    telling_rows: BoolArray
    telling_columns: BoolArray
    awaited: list[Line] = field(default_factory=list)
    waiting: list[Line] = field(default_factory=list)


def judge_waits(matrix: WaitMatrix) -> WaitView:
    """Find the ranks and pairs that a matrix shows to be slow.

    In logarithms, because the levels differ by orders of magnitude; thresholds come from the matrix's own noise. Each
    culprit found is taken out before the next is sought: the row of a late rank tells nothing (whoever comes last waits
    for nobody), and a strong culprit must not hide a weak one.
    """
    ranks = matrix.ranks
    logs = _square(matrix, ranks)
    if reason := _check(logs):
        return WaitView(ranks, reason=reason)
    blocks = find_blocks(logs)
    table = logs - blocks.levels
    noise = _widen(cell_noise(table), table)
    search = _start(table, blocks, noise)
    while _take_columns(search) or _take_rows(search):
        pass
    return WaitView(
        ranks,
        tuple(_add_own_row(search, line) for line in search.awaited),
        tuple(search.waiting),
        tuple(_find_pairs(search)),
        float(np.expm1(search.noise)),
        blocks,
    )


def _square(matrix: WaitMatrix, ranks: tuple[int, ...]) -> FloatArray:
    """Lay the logarithms out by rank, the diagonal left out: a rank's wait for itself crosses no link."""
    place = {rank: position for position, rank in enumerate(ranks)}
    table = np.full((len(ranks), len(ranks)), np.nan)
    rows = [place[rank] for rank in matrix.waiting]
    columns = [place[rank] for rank in matrix.awaited]
    with np.errstate(invalid="ignore", divide="ignore"):
        table[np.ix_(rows, columns)] = np.where(matrix.waits > 0, np.log(matrix.waits), np.nan)
    np.fill_diagonal(table, np.nan)
    return table


def _check(logs: FloatArray) -> str:
    known = ~np.isnan(logs)
    rows, columns = int(np.sum(known.any(axis=1))), int(np.sum(known.any(axis=0)))
    if min(rows, columns) < LEAST_RANKS:
        return f"waits of {rows} ranks for {columns} are too few to tell one from the others ({LEAST_RANKS} are needed)"
    if np.isnan(_widen(cell_noise(logs), logs)):
        return "too few pairs of ranks talk to each other to tell one rank from the others"
    return ""


def _widen(noise: float, table: FloatArray) -> float:
    """Allow for how little a small matrix tells of its noise once a level of every line has been taken from it."""
    known = ~np.isnan(table)
    cells = int(known.sum())
    free = cells - int(known.any(axis=0).sum()) - int(known.any(axis=1).sum()) + 1
    return noise * float(np.sqrt(cells / free)) if free > 0 else float("nan")


def _start(table: FloatArray, blocks: Blocks, noise: float) -> _Search:
    known = ~np.isnan(table)
    rows = known.sum(axis=1) >= FEWEST_VOTERS
    columns = known.sum(axis=0) >= FEWEST_VOTERS
    talking_rows, talking_columns = np.any(known, axis=1), np.any(known, axis=0)
    return _Search(
        table, blocks.crossing, noise, columns.copy(), rows.copy(), np.array(talking_rows), np.array(talking_columns)
    )


def _take_columns(search: _Search) -> bool:
    """Take the strongest late ranks out; say whether there were any."""
    for scope in _scopes(search):
        lines = _stand_out(search, scope, by_column=True)
        if lines:
            search.awaited += lines
            for line in lines:
                search.columns[line.rank] = search.telling_columns[line.rank] = False
                search.rows[line.rank] = search.telling_rows[line.rank] = False
            return True
    return False


def _take_rows(search: _Search) -> bool:
    lines = _stand_out(search, "all", by_column=False)
    search.waiting += lines
    for line in lines:
        search.rows[line.rank] = search.telling_rows[line.rank] = False
    return bool(lines)


def _scopes(search: _Search) -> tuple[Scope, ...]:
    return ("all", "near", "far") if search.crossing.any() else ("all",)


def _stand_out(search: _Search, scope: Scope, *, by_column: bool) -> list[Line]:
    """Judge all columns, or rows, by what the telling cells of a scope say."""
    table = np.where(search.telling_rows[:, None] & search.telling_columns[None, :], search.table, np.nan)
    if scope != "all":
        table = np.where(search.crossing == (scope == "far"), table, np.nan)
    excess = table - polish(table).rows[:, None] if by_column else (table - polish(table).columns[None, :]).T
    judged = (search.columns if by_column else search.rows) & (np.sum(~np.isnan(excess), axis=0) >= FEWEST_VOTERS)
    places = np.flatnonzero(judged)
    if len(places) < LEAST_RANKS:
        return []
    levels = line_medians(excess[:, places], axis=0)
    counts = np.sum(~np.isnan(excess[:, places]), axis=0)
    errors = MEDIAN_ERROR * search.noise / np.sqrt(counts)
    found = find_high(levels, errors, HEALTHY_SD, LEAST_EXCESS)
    voters = np.ones(len(excess), bool)
    voters[places[found.mask]] = False
    lines = []
    for column in np.flatnonzero(found.mask):
        cells = excess[voters, places[column]] - found.centre
        cells = np.sort(cells[~np.isnan(cells)])
        height = float(levels[column] - found.centre)
        agreeing = float(np.mean(cells > height / 2)) if len(cells) else 0.0
        if len(cells) >= FEWEST_VOTERS and agreeing >= AGREEING:
            bound = max(OUTLIER_SCORE * float(errors[column]), LEAST_EXCESS)
            support = _support(cells, bound)
            lines.append(Line(int(places[column]), float(np.exp(height)), scope, agreeing, len(cells), support))
    return sorted(lines, key=lambda line: (-line.ratio, line.rank))


def _support(cells: FloatArray, bound: float) -> float:
    """Return the share of resamples of the voters whose median stays above a bound."""
    index = np.random.default_rng(0).integers(0, len(cells), (RESAMPLES, len(cells)))
    return float(np.mean(np.median(cells[index], axis=1) > bound))


def _add_own_row(search: _Search, line: Line) -> Line:
    """Compare the late rank's own waits with those of the ranks that are well."""
    others = search.telling_rows.copy()
    others[line.rank] = False
    table = np.where(search.telling_columns[None, :] & ~search.crossing, search.table, np.nan)
    fit = polish(np.where(others[:, None], table, np.nan))
    own = middle(table[line.rank] - fit.columns) - middle(fit.rows)
    if np.isnan(own):
        return line
    bound = max(
        LEAST_EXCESS, OUTLIER_SCORE * float(np.hypot(HEALTHY_SD, MEDIAN_ERROR * search.noise / np.sqrt(FEWEST_VOTERS)))
    )
    return Line(
        line.rank, line.ratio, line.scope, line.agreeing, line.voters, line.support, float(np.exp(own)), own > bound
    )


def _find_pairs(search: _Search) -> Iterator[Pair]:
    """Find single cells clear of all others, once the slow ranks are out."""
    table = np.where(search.telling_rows[:, None] & search.telling_columns[None, :], search.table, np.nan)
    left = polish(table).residuals
    known = np.argwhere(~np.isnan(left))
    if len(known) < LEAST_PAIRS:
        return
    values = left[known[:, 0], known[:, 1]]
    order = np.argsort(-values, kind="stable")
    ordered = values[order]
    bound = max(LEAST_PAIR_EXCESS, EVENT_SCORE * max(tail_scale(left), cell_noise(table)))
    most = max(1, min(len(table) // 4, len(values) // 10))
    passing = [n for n in range(1, most + 1) if ordered[n - 1] > max(bound, CLEAR_OF_REST * ordered[n])]
    if not passing:
        return
    level = middle(table)
    for place in order[: passing[-1]]:
        waiting, awaited = (int(position) for position in known[place])
        if table[waiting, awaited] - level > LEAST_PAIR_EXCESS:
            support = 1.0 - bound / float(2 * values[place])
            yield Pair(waiting, awaited, float(np.exp(values[place])), support)
