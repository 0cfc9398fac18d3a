"""Find who comes last to every meeting of a grid: the rank on whose arrival the others of its meeting wait."""

from __future__ import annotations

from typing import Any

import numpy as np

from dprankdiag.analysis.grid import StepGrid
from dprankdiag.analysis.participations import JOIN
from dprankdiag.model.schema import ABSENT_ID

IntArray = np.ndarray[Any, np.dtype[np.int64]]


def list_together(grid: StepGrid, position: int) -> list[IntArray]:
    """List the members of every meeting of two or more ranks at a position."""
    groups = grid.group[position]
    found = [np.flatnonzero(groups == value) for value in np.unique(groups)]
    return [members for members in found if len(members) > 1]


def find_awaited(grid: StepGrid) -> IntArray:
    """Return the position of the meeting waited for at each position: of a join its call's, -1 in an earlier step."""
    own = np.arange(len(grid.operation))
    return own if grid.beside is None else np.where(grid.beside.event == JOIN, grid.beside.partner, own)


def find_last(grid: StepGrid) -> IntArray:
    """Return the place among the ranks of who comes last to what each rank waits for; of equals the first.

    Who is waited for is unknown (-1) where the meeting stands at another place in the other members' step, or lies in
    an earlier step.

    Returns:
        `(n_steps, n_positions, n_ranks)`.
    """
    behind = grid.behind_ns
    own = np.arange(behind.shape[2])
    last = np.where(behind < 0, ABSENT_ID, own)
    for position in range(behind.shape[1]):
        together = list_together(grid, position)
        if len(together) == 1 and len(together[0]) == len(own):
            last[:, position] = behind[:, position].argmax(axis=1)[:, None]
            continue
        for members in together:
            last[:, position, members] = members[behind[:, position, members].argmax(axis=1)][:, None]
    if grid.beside is None:
        return last
    awaited = find_awaited(grid)
    return np.where(awaited[None, :, None] >= 0, last[:, awaited], ABSENT_ID)
