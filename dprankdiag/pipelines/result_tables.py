"""The small tables that a bundle keeps, so that views and joins never need the trace again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dprankdiag.analysis.grid import COMPONENTS
from dprankdiag.analysis.observations import Observations
from dprankdiag.model.schema import Columns


def tabulate(groups: Sequence[Observations]) -> dict[str, Columns]:
    """Tabulate the steps, the components of every rank's step, and the excess by layer.

    Returns:
        `steps` (a row a step of a group), `rank_steps` (a row a rank and step), `layers` (a row a rank and position).
    """
    steps: list[Columns] = []
    rank_steps: list[Columns] = []
    layers: list[Columns] = []
    for group_id, group in enumerate(groups):
        n = group.n_steps
        steps.append(
            {
                "group": np.full(n, group_id, np.int16),
                "step": np.arange(n, dtype=np.int32),
                "kind": group.grid_of.astype(np.int16),
                "start_ns": group.start_ns,
                "end_ns": group.end_ns,
            }
        )
        rank_steps += [_rank_steps(group, group_id, position) for position in range(group.n_ranks)]
        layers += _layers(group, group_id)
    return {
        name: _join(parts)
        for name, parts in (("steps", steps), ("rank_steps", rank_steps), ("layers", layers))
        if parts
    }


def _rank_steps(group: Observations, group_id: int, position: int) -> Columns:
    n = group.n_steps
    columns: Columns = {
        "group": np.full(n, group_id, np.int16),
        "step": np.arange(n, dtype=np.int32),
        "rank": np.full(n, group.ranks[position].rank, np.int32),
    }
    for name in (*COMPONENTS, "wait", "exit", "transfer"):
        columns[f"{name}_ns"] = group.sums[name][:, position].astype(np.int64)
    return columns


def _layers(group: Observations, group_id: int) -> list[Columns]:
    """Tabulate the mean of every component by position of a kind of step."""
    parts = []
    for kind, grid in enumerate(group.grids):
        n_positions, n_ranks = grid.group.shape
        positions = np.repeat(np.arange(n_positions, dtype=np.int32), n_ranks)
        columns: Columns = {
            "group": np.full(len(positions), group_id, np.int16),
            "kind": np.full(len(positions), kind, np.int16),
            "position": positions,
            "layer": np.repeat(grid.layer.astype(np.int32), n_ranks),
            "rank": np.tile(np.array([rank.rank for rank in group.ranks], np.int32), n_positions),
        }
        for name in COMPONENTS:
            columns[f"{name}_ns"] = np.round(grid.components[name].mean(axis=0)).astype(np.int64).ravel()
        for name in ("wait", "exit", "transfer"):
            values = getattr(grid, name)
            columns[f"{name}_ns"] = np.round(values.mean(axis=0)).astype(np.int64).ravel()
        parts.append(columns)
    return parts


def _join(parts: Sequence[Columns]) -> Columns:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
