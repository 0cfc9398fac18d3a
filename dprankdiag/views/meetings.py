"""What the meetings of a step are called."""

from __future__ import annotations

from dprankdiag.model import results
from dprankdiag.model.results import find_table
from dprankdiag.model.schema import ABSENT_ID
from dprankdiag.views.base import Tables

_SIDES = {"pre": " (gather)", "post": " (after the experts)"}


def name_meetings(tables: Tables) -> dict[tuple[int, int, int], str]:
    """Name every meeting by (group, kind, position): its operation, and its layer if it lies in one.

    Nothing if an older version saved no positions.
    """
    columns = find_table(tables, results.POSITIONS)
    if columns is None:
        return {}
    rows = zip(*(columns[column.name].tolist() for column in results.POSITIONS.columns), strict=True)
    return {
        (group, kind, position): operation + (f", layer {layer}{_SIDES.get(side, '')}" if layer >= 0 else "")
        for group, kind, position, layer, side, operation in rows
    }


def name_rank(number: int) -> str:
    """Name the rank that came last to a meeting."""
    return "an unknown rank" if number == ABSENT_ID else f"rank {number}"
