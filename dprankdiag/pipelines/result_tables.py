"""The small tables that a bundle keeps, so that views and joins never need the trace again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dprankdiag.analysis.blame import Blame, spread_blame
from dprankdiag.analysis.last_arrivals import list_together
from dprankdiag.analysis.observations import Observations
from dprankdiag.model import results
from dprankdiag.model.results import COMPONENTS, STEP_KERNELS
from dprankdiag.model.schema import ABSENT_ID, Columns, Table, join_rows
from dprankdiag.pipelines.step_record import StepRecord, find_worst, median_length

IntArray = np.ndarray[Any, np.dtype[np.int64]]

MOST_BLAMED = 64
"""Ranks of a group that pairs name: of more, those the others wait for longest, so that pairs grow as ranks do."""

LAG_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True, slots=True)
class _Group:
    """A lockstep group, its ordinal among all, and who waits for whom in it."""

    number: int
    seen: Observations
    blame: Blame

    @property
    def ranks(self) -> np.ndarray[Any, np.dtype[np.int32]]:
        """Rank numbers of the members, `(n_ranks,)`."""
        return np.array([rank.rank for rank in self.seen.ranks], np.int32)

    def label(self, n_rows: int) -> np.ndarray[Any, np.dtype[np.int16]]:
        """Fill the `group` column."""
        return np.full(n_rows, self.number, np.int16)


def tabulate(seen: Sequence[Observations], kernels: Sequence[Columns] = ()) -> dict[str, Columns]:
    """Tabulate the lockstep groups of all deployments.

    Args:
        kernels: of the groups' worst steps, as many as are kept.

    Returns:
        The tables of `model.results` by name; nothing if there are no groups.
    """
    groups = [_Group(number, group, spread_blame(group)) for number, group in enumerate(seen)]
    if not groups:
        return {}
    made = {table.name: _join(table, [rows for group in groups for rows in make(group)]) for table, make in _MAKERS}
    return made | {STEP_KERNELS.name: _join(STEP_KERNELS, list(kernels))}


def _join(table: Table, parts: list[Columns]) -> Columns:
    return join_rows(table, [table.check(part) for part in parts])


def _members(group: _Group) -> list[Columns]:
    n = group.seen.n_ranks
    return [{"group": group.label(n), "rank": group.ranks, "engine": np.full(n, group.seen.engine, object)}]


def _kinds(group: _Group) -> list[Columns]:
    grids = group.seen.grids
    return [
        {
            "group": group.label(len(grids)),
            "kind": np.arange(len(grids), dtype=np.int16),
            "name": np.array([grid.kind for grid in grids], object),
            "steps": np.array([len(grid.number) for grid in grids], np.int32),
            "median_ns": np.array([median_length(grid) for grid in grids], np.int64),
        }
    ]


def _steps(group: _Group) -> list[Columns]:
    seen = group.seen
    return [
        {
            "group": group.label(seen.n_steps),
            "step": np.arange(seen.n_steps, dtype=np.int32),
            "kind": seen.grid_of.astype(np.int16),
            "start_ns": seen.start_ns,
            "end_ns": seen.end_ns,
        }
    ]


def _rank_steps(group: _Group) -> list[Columns]:
    """Tabulate the components of every rank's step, rank by rank."""
    n = group.seen.n_steps
    parts = []
    for position, rank in enumerate(group.ranks):
        columns: Columns = {
            "group": group.label(n),
            "step": np.arange(n, dtype=np.int32),
            "rank": np.full(n, rank, np.int32),
        }
        for name in (*COMPONENTS, "wait", "exit", "transfer"):
            columns[f"{name}_ns"] = group.seen.sums[name][:, position].astype(np.int64)
        for_hosts = group.seen.sums["inherited"][:, position].astype(np.int64)
        columns["host_ns"] -= for_hosts
        columns["wait_ns"] += for_hosts
        parts.append(columns)
    return parts


def _positions(group: _Group) -> list[Columns]:
    return [
        {
            "group": group.label(len(grid.layer)),
            "kind": np.full(len(grid.layer), kind, np.int16),
            "position": np.arange(len(grid.layer), dtype=np.int32),
            "layer": grid.layer.astype(np.int32),
            "side": np.array(grid.side, object),
            "operation": np.array(grid.operation, object),
        }
        for kind, grid in enumerate(group.seen.grids)
    ]


def _layers(group: _Group) -> list[Columns]:
    """Tabulate the mean of every component by position of a kind of step."""
    parts = []
    for kind, grid in enumerate(group.seen.grids):
        n_positions, n_ranks = grid.group.shape
        columns: Columns = {
            "group": group.label(n_positions * n_ranks),
            "kind": np.full(n_positions * n_ranks, kind, np.int16),
            "position": np.repeat(np.arange(n_positions, dtype=np.int32), n_ranks),
            "layer": np.repeat(grid.layer.astype(np.int32), n_ranks),
            "rank": np.tile(group.ranks, n_positions),
        }
        for name in (*COMPONENTS, "wait", "exit", "transfer"):
            values = grid.components[name] if name in COMPONENTS else getattr(grid, name)
            columns[f"{name}_ns"] = np.round(values.mean(axis=0)).astype(np.int64).ravel()
        for_hosts = np.round(grid.inherited_ns.mean(axis=0)).astype(np.int64)
        columns["host_ns"][:n_ranks] -= for_hosts  # hosts meet before the first position
        columns["wait_ns"][:n_ranks] += for_hosts
        parts.append(columns)
    return parts


def _arrivals(group: _Group) -> list[Columns]:
    lags: list[list[IntArray]] = [[] for _ in group.seen.ranks]
    last = np.zeros(group.seen.n_ranks, np.int64)
    for grid in group.seen.grids:
        arrival = grid.behind_ns
        for position in range(arrival.shape[1]):
            for members in list_together(grid, position):
                mine = arrival[:, position, members]
                middle = np.round(np.median(mine, axis=1)).astype(np.int64)
                last += np.bincount(members[mine.argmax(axis=1)], minlength=len(last))
                for place, member in enumerate(members):
                    lags[member].append(mine[:, place] - middle)
    joined = [np.concatenate(mine) if mine else np.zeros(1, np.int64) for mine in lags]
    quantiles = np.round([np.quantile(mine, LAG_QUANTILES) for mine in joined]).astype(np.int64)
    columns: Columns = {
        "group": group.label(len(joined)),
        "rank": group.ranks,
        "meetings": np.array([sum(len(part) for part in mine) for mine in lags], np.int64),
        "last": last,
    }
    for number, share in enumerate(LAG_QUANTILES):
        columns[f"lag_p{round(100 * share):02d}_ns"] = quantiles[:, number]
    columns["lag_max_ns"] = np.array([mine.max() for mine in joined], np.int64)
    return [columns]


def _worst_steps(group: _Group) -> list[Columns]:
    worst = find_worst(group.seen)
    kind = int(group.seen.grid_of[worst])
    return [
        {
            "group": group.label(1),
            "step": np.array([worst], np.int32),
            "kind": np.array([kind], np.int16),
            "wait_ns": np.array([round(float(group.seen.sums["wait"][worst].mean()))], np.int64),
            "median_ns": np.array([median_length(group.seen.grids[kind])], np.int64),
        }
    ]


def _worst_meetings(group: _Group) -> list[Columns]:
    return [StepRecord(group.number, group.seen).list_meetings(find_worst(group.seen))]


def _blame(group: _Group) -> list[Columns]:
    """Tabulate for whom each rank waits; of very many ranks those that others wait for longest are told apart."""
    last_ns, caused_ns = group.blame.last_ns, group.blame.caused_ns
    order = np.argsort(-(last_ns + caused_ns)[:, :-1].sum(axis=0), kind="stable")
    named = np.sort(order[:MOST_BLAMED])
    columns = np.append(group.ranks[named], np.int32(ABSENT_ID))
    others = np.setdiff1d(np.arange(last_ns.shape[1]), named)
    last_ns, caused_ns = (
        np.column_stack([values[:, named], values[:, others].sum(axis=1)]) for values in (last_ns, caused_ns)
    )
    waiting, place = np.nonzero(last_ns | caused_ns)
    return [
        {
            "group": group.label(len(waiting)),
            "rank": group.ranks[waiting],
            "blamed": columns[place],
            "last_ns": last_ns[waiting, place],
            "caused_ns": caused_ns[waiting, place],
        }
    ]


def _blame_steps(group: _Group) -> list[Columns]:
    """Tabulate what each rank makes all others wait in each step."""
    step, place = np.nonzero(group.blame.by_step)
    return [
        {
            "group": group.label(len(step)),
            "step": step.astype(np.int32),
            "rank": group.ranks[place],
            "caused_ns": group.blame.by_step[step, place],
        }
    ]


_MAKERS: tuple[tuple[Table, Callable[[_Group], list[Columns]]], ...] = (
    (results.MEMBERS, _members),
    (results.KINDS, _kinds),
    (results.STEPS, _steps),
    (results.RANK_STEPS, _rank_steps),
    (results.POSITIONS, _positions),
    (results.LAYERS, _layers),
    (results.ARRIVALS, _arrivals),
    (results.WORST_STEPS, _worst_steps),
    (results.WORST_MEETINGS, _worst_meetings),
    (results.BLAME, _blame),
    (results.BLAME_STEPS, _blame_steps),
)
