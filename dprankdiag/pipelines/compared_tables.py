"""Tabulate what another recording is held against: steps, losses, kernels and transfers of every group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dprankdiag.analysis.observations import Observations
from dprankdiag.analysis.work import average_batch, digest_order, sum_transfers
from dprankdiag.model.compared import (
    COMPARED_KINDS,
    COMPARED_TABLES,
    GROUPS,
    KERNELS_USED,
    STEP_LOSSES,
    STEP_TRANSFERS,
    STEP_WALLS,
)
from dprankdiag.model.diagnosis import Finding
from dprankdiag.model.schema import Columns, Table
from dprankdiag.pipelines.pricing import Account


@dataclass(frozen=True, slots=True)
class GroupPart:
    """A lockstep group with its account (None before it is priced)."""

    seen: Observations
    account: Account | None


def tabulate_compared(parts: Sequence[GroupPart], findings: Sequence[Finding]) -> dict[str, Columns]:
    """Make the tables of `model.compared`.

    Args:
        findings: of the whole diagnosis, numbered.
    """
    rows: dict[str, list[Columns]] = {table.name: [] for table in COMPARED_TABLES}
    for group_id, part in enumerate(parts):
        rows[GROUPS.name].append(_group(part, group_id))
        rows[COMPARED_KINDS.name] += [_kind(part.seen, group_id, kind) for kind in range(len(part.seen.grids))]
        rows[STEP_WALLS.name].append(_walls(part, group_id))
        rows[STEP_LOSSES.name] += _losses(part, group_id, findings)
        rows[KERNELS_USED.name] += _kernels(part.seen, group_id)
        rows[STEP_TRANSFERS.name] += _transfers(part.seen, group_id)
    return {table.name: _join(table, rows[table.name]) for table in COMPARED_TABLES}


def _join(table: Table, parts: Sequence[Columns]) -> Columns:
    if not parts:
        return table.empty()
    return table.check({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})


def _row(**values: Any) -> Columns:
    """Make a table of one row."""
    return {
        name: np.array([value], object) if isinstance(value, str) else np.array([value])
        for name, value in values.items()
    }


def _group(part: GroupPart, group_id: int) -> Columns:
    seen = part.seen
    return _row(
        group=np.int16(group_id),
        engine=part.seen.engine,
        ranks=np.int16(seen.n_ranks),
        missing=np.int16(len(seen.abilities.missing_ranks)),
        team=np.int16(max((len(team) for team in seen.teams), default=1)),
        basis=seen.basis,
        has_kernels=seen.abilities.has_kernels,
        trusted=part.account is not None and part.account.total_ns is not None,
    )


def _kind(seen: Observations, group_id: int, kind: int) -> Columns:
    grid = seen.grids[kind]
    return _row(
        group=np.int16(group_id),
        kind=np.int16(kind),
        name=grid.kind,
        order=digest_order(grid),
        meetings=np.int32(len(grid.meetings)),
        **average_batch(seen, kind),
    )


def _walls(part: GroupPart, group_id: int) -> Columns:
    n = part.seen.n_steps
    return {
        "group": np.full(n, group_id, np.int16),
        "step": np.arange(n, dtype=np.int32),
        "kind": part.seen.grid_of.astype(np.int16),
        "measured_ns": part.account.measured_ns if part.account else part.seen.duration_ns.astype(np.float64),
        "balanced_ns": part.account.balanced_ns if part.account else part.seen.duration_ns.astype(np.float64),
    }


def _losses(part: GroupPart, group_id: int, findings: Sequence[Finding]) -> Iterator[Columns]:
    if part.account is None:
        return
    number = {replace(finding, id=""): position for position, finding in enumerate(findings, 1)}
    for finding, loss in zip(part.account.findings, part.account.losses, strict=True):
        if loss is None:
            continue
        n = len(loss.lost_ns)
        yield {
            "group": np.full(n, group_id, np.int16),
            "step": np.arange(n, dtype=np.int32),
            "finding": np.full(n, number[finding], np.int16),
            "lost_ns": loss.lost_ns,
            "spread_ns": loss.spread_ns,
            "is_covered": loss.covered,
        }


def _kernels(seen: Observations, group_id: int) -> Iterator[Columns]:
    n = seen.n_ranks
    ranks = np.array([rank.rank for rank in seen.ranks], np.int32)
    for use in seen.kernels:
        yield {
            "group": np.full(n, group_id, np.int16),
            "name": np.full(n, use.name, object),
            "shape": np.full(n, ",".join(str(size) for size in use.shape), object),
            "family": np.full(n, use.family, object),
            "is_equal_work": np.full(n, use.is_equal_work),
            "rank": ranks,
            "calls": use.calls,
            "total_ns": use.total_ns,
        }


def _transfers(seen: Observations, group_id: int) -> Iterator[Columns]:
    for kind, grid in enumerate(seen.grids):
        steps = np.flatnonzero(seen.grid_of == kind).astype(np.int32)
        n = len(steps)
        for (operation, members), (calls, transfer_ns) in sum_transfers(grid).items():
            yield {
                "group": np.full(n, group_id, np.int16),
                "step": steps,
                "operation": np.full(n, operation, object),
                "members": np.full(n, members, np.int16),
                "calls": np.full(n, calls, np.int32),
                "transfer_ns": transfer_ns,
            }
