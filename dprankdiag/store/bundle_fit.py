"""Hold the tables of a bundle against their declarations, and against each other, before anything is computed of them.

A bundle is a file that people send each other: what reads it later counts on whole grids of steps and ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dprankdiag.errors import TableError
from dprankdiag.model.compared import COMPARED_TABLES
from dprankdiag.model.ledger_results import LEDGER_TABLES
from dprankdiag.model.results import RESULT_TABLES
from dprankdiag.model.schema import Columns

_DECLARED = {table.name: table for table in (*RESULT_TABLES, *COMPARED_TABLES, *LEDGER_TABLES)}


@dataclass(frozen=True, slots=True)
class _Grid:
    """What the rows of a table are: every combination of its axes once, in each part of it.

    Attributes:
        parts: columns that part it.
        axes: columns; the first counts from 0. Without any, a part is one row.
        in_order: they are sorted by their axes.
    """

    parts: tuple[str, ...]
    axes: tuple[str, ...]
    in_order: bool = True


_GRIDS = {
    "groups": _Grid(("group",), ()),
    "steps": _Grid(("group",), ("step",), in_order=False),
    "step_walls": _Grid(("group",), ("step",)),
    "rank_steps": _Grid(("group",), ("step", "rank"), in_order=False),
    "step_losses": _Grid(("group", "finding"), ("step",)),
    "positions": _Grid(("group", "kind"), ("position",)),
    "layers": _Grid(("group", "kind"), ("position", "rank")),
}
_AS_LONG = (("steps", "step_walls", "rank_steps", "step_losses"), ("positions", "layers"))
"""Tables whose parts of one group (and kind) have first axes of one length."""

_SAME_PARTS = (("groups", "steps", "step_walls", "rank_steps"), ("positions", "layers"))
"""Tables that tell of the same groups (and kinds)."""


def check_tables(tables: Mapping[str, Columns]) -> dict[str, Columns]:
    """Return the tables, those that are declared with their declared columns only; unknown ones are kept as they are.

    Raises:
        TableError: a column is missing or holds what it cannot, or rows are missing.
    """
    checked = {name: _check_columns(name, columns) for name, columns in tables.items()}
    lengths = {name: _measure(name, grid, checked[name]) for name, grid in _GRIDS.items() if name in checked}
    for names in _AS_LONG:
        known: dict[tuple[int, ...], int] = {}
        for name in names:
            for part, length in lengths.get(name, {}).items():
                key = part[: len(_GRIDS[names[0]].parts)]
                if known.setdefault(key, length) != length:
                    raise TableError(f"{length} rows where other tables have {known[key]}", where=f"table {name}")
    for names in _SAME_PARTS:
        there = [name for name in names if name in lengths]
        for name in there[1:]:
            if set(lengths[name]) != set(lengths[there[0]]):
                raise TableError(f"other groups than {there[0]} has", where=f"table {name}")
    return checked


def _check_columns(name: str, columns: Columns) -> Columns:
    table = _DECLARED.get(name)
    if table is None:
        return columns
    checked = table.check({column.name: columns[column.name] for column in table.columns if column.name in columns})
    for column, values in checked.items():
        if values.dtype.kind == "O" and not all(isinstance(value, str | None) for value in values):
            raise TableError(f"column {column} holds what is no text", where=f"table {name}")
    return checked


def _measure(name: str, grid: _Grid, columns: Columns) -> dict[tuple[int, ...], int]:
    """Return the length of the first axis by part.

    Raises:
        TableError: a part is no grid.
    """
    lengths = {}
    parts = np.stack([columns[part].astype(np.int64) for part in grid.parts], axis=1)
    for part in np.unique(parts, axis=0):
        mine = (parts == part).all(axis=1)
        axes = [columns[axis][mine] for axis in grid.axes]
        if not axes and mine.sum() > 1:
            raise TableError("a group is there twice", where=f"table {name}")
        if axes and not grid.in_order:
            order = np.lexsort(axes[::-1])
            axes = [axis[order] for axis in axes]
        length = _count_first(axes)
        if length is None:
            raise TableError("rows are missing, twice there, or not in order", where=f"table {name}")
        lengths[tuple(part.tolist())] = length
    return lengths


def _count_first(axes: Sequence[np.ndarray[Any, Any]]) -> int | None:
    """Return the length of the first axis of a grid; None if it is none, or not in order."""
    if not axes:
        return 1
    values = [np.unique(axis) for axis in axes]
    shape = [len(found) for found in values]
    if np.prod(shape) != len(axes[0]) or not np.array_equal(values[0], np.arange(shape[0])):
        return None
    full = np.meshgrid(*values, indexing="ij")
    return shape[0] if all((axis == one.ravel()).all() for axis, one in zip(axes, full, strict=True)) else None
