"""Read a receive-wait matrix: text, a row for each waiting rank, a column for each awaited one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dprankdiag.errors import DamagedInput, InputError
from dprankdiag.model.ranks import Grade
from dprankdiag.model.sources import Source
from dprankdiag.model.wait_matrix import WaitMatrix
from dprankdiag.readers.base import Array

WAIT_MATRIX = "wait-matrix"

MOST_BYTES = 256 << 20
"""Longer texts are no matrix: 4,096 ranks take a tenth of it."""

_LAYOUT = "expected a row for each waiting rank, a column for each awaited rank (waiting_rank,on_0,on_1,...)"
_ABSENT = frozenset({"", "-", "--", "nan", "na", "n/a", "none", "null", "inf", "+inf", "-inf", "infinity"})
_CORNER = re.compile(r"^$|rank|wait|row|recv|receiv|src|dst|gpu|device|from", re.IGNORECASE)
"""What may stand over the row labels; "step" or "time" would make it a series."""

_LABEL = re.compile(r"^([^0-9]*)([0-9]{1,6})$")
_SHOWN = 3


@dataclass(slots=True)
class _Grid:
    """Cells of a text with what its labels say.

    Attributes:
        lines: line number in the file of each row, for people.
        rows, columns: rank of each row and column.
        named: the file itself says which rank a row and a column is.
    """

    cells: list[list[str]]
    lines: list[int]
    rows: list[int]
    columns: list[int]
    named: bool
    odd: list[str] = field(default_factory=list)
    absent: int = 0


class WaitMatrixReader:
    """Reads comma, semicolon, tab or blank separated matrices."""

    kind = WAIT_MATRIX

    def can_read(self, path: Path) -> bool:
        """Say whether the file is laid out as a matrix; its cells may still be wrong."""
        try:
            return is_wait_matrix(path.read_bytes()) if path.is_file() and path.stat().st_size < MOST_BYTES else False
        except OSError:
            return False

    def read(self, path: Path) -> WaitMatrix:
        """Read one matrix.

        Raises:
            InputError: the file is of another kind.
            DamagedInput: a row of another length, a cell that is no number, or a rank that comes twice.
        """
        try:
            content = path.read_bytes()
        except OSError as error:
            raise InputError(f"cannot be read ({error.strerror})", where=str(path)) from error
        return parse_wait_matrix(content, str(path))


def is_wait_matrix(content: bytes) -> bool:
    """Tell a matrix by its labels, or without labels by being square and all numbers."""
    text = _decode(content)
    return text is not None and _lay_out(_split(text)) is not None


def parse_wait_matrix(content: bytes, where: str) -> WaitMatrix:
    """Turn a text into a matrix; ranks come out ascending.

    A cell that is 0, empty, not a number or infinite is absent; so is a negative one, which no wait can be, and the
    source says so.

    Raises:
        InputError: it is not laid out as a matrix.
        DamagedInput: see `WaitMatrixReader.read`.
    """
    text = _decode(content)
    grid = _lay_out(_split(text)) if text is not None else None
    if grid is None:
        raise InputError(f"not a receive-wait matrix, {_LAYOUT}", where=where)
    _refuse_twice(grid.rows, "row", where)
    _refuse_twice(grid.columns, "column", where)
    waits = np.array([_parse_row(grid, number, where) for number in range(len(grid.cells))])
    waits = waits.reshape(len(grid.rows), len(grid.columns))
    if np.isnan(waits).all():
        raise DamagedInput(
            "a receive-wait matrix without any wait", where=where, mend="record while requests are served"
        )
    by_row, by_column = np.argsort(grid.rows), np.argsort(grid.columns)
    rows, columns = sorted(grid.rows), sorted(grid.columns)
    grade: Grade = "sure" if grid.named else "assumed"
    source = Source(
        where,
        WAIT_MATRIX,
        "partial" if grid.odd else "used",
        ranks=tuple(sorted({*rows, *columns})),
        lacked=tuple(_lacks(rows, columns)),
        warnings=tuple(_warn(grid)),
    )
    return WaitMatrix(tuple(rows), tuple(columns), waits[by_row][:, by_column], grade, source)


def _decode(content: bytes) -> str | None:
    if b"\0" in content[:4096]:
        return None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None


def _split(text: str) -> list[tuple[int, list[str]]]:
    """Split into cells by the separator of the first line; blank lines and comments are passed over."""
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
    lines = [(number, line) for number, line in lines if line and not line.startswith("#")]
    if not lines:
        return []
    separator = next((mark for mark in (",", ";", "\t") if mark in lines[0][1]), None)
    return [(number, [cell.strip().strip("\"'") for cell in line.split(separator)]) for number, line in lines]


def _lay_out(lines: Sequence[tuple[int, list[str]]]) -> _Grid | None:
    """Tell labels from cells; None where the text is no matrix."""
    if len(lines) < 2 or len(lines[0][1]) < 2:
        return None
    head, body = lines[0][1], lines[1:]
    columns = _read_labels(head[1:])
    if columns is not None and not _is_data(head, body):
        if _read_labels(head) is not None and all(len(cells) == len(head) for _, cells in body):
            columns = _read_labels(head)
            return None if len(body) != len(head) else _number_rows(body, columns or [])
        rows = _read_row_labels([cells[0] for _, cells in body])
        if rows is None or not _CORNER.search(head[0]) or not (set(rows) <= set(columns) or set(columns) <= set(rows)):
            return None
        return _Grid([cells[1:] for _, cells in body], [number for number, _ in body], rows, columns, True)
    return _lay_out_bare(lines)


def _is_data(head: Sequence[str], body: Sequence[tuple[int, list[str]]]) -> bool:
    """Tell a first row of waits from a row of plain rank numbers 0, 1, 2 ..., which has one row less below it."""
    if not all(_is_number(cell) for cell in head):
        return False
    return [float(cell) for cell in head] != list(range(len(head))) or len(body) != len(head)


def _lay_out_bare(lines: Sequence[tuple[int, list[str]]]) -> _Grid | None:
    """Take numbers alone: a square, or a square after a column that counts from 0."""
    cells = [row for _, row in lines]
    width = len(cells[0])
    if not all(len(row) == width and all(_is_number(cell) or _is_absent(cell) for cell in row) for row in cells):
        return None
    if width == len(cells) + 1 and [row[0] for row in cells] == [str(number) for number in range(len(cells))]:
        rows, columns = list(range(len(cells))), list(range(width - 1))
        return _Grid([row[1:] for row in cells], [number for number, _ in lines], rows, columns, True)
    return _number_rows(lines, list(range(width))) if width == len(cells) else None


def _number_rows(lines: Sequence[tuple[int, list[str]]], columns: list[int]) -> _Grid:
    rows = list(range(len(lines)))
    return _Grid([cells for _, cells in lines], [number for number, _ in lines], rows, columns, False)


def _read_labels(cells: Sequence[str]) -> list[int] | None:
    """Read rank numbers from column labels of one spelling: 0, on_0, rank0, "from 0"; None where they are none."""
    found = [_LABEL.match(cell) for cell in cells]
    matched = [match for match in found if match is not None]
    if len(matched) != len(cells) or len(cells) < 2 or len({match[1] for match in matched}) != 1:
        return None
    return [int(match[2]) for match in matched]


def _read_row_labels(cells: Sequence[str]) -> list[int] | None:
    found = [_LABEL.match(cell) for cell in cells]
    return [int(match[2]) for match in found if match is not None] if all(found) else None


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


def _is_absent(cell: str) -> bool:
    return cell.lower() in _ABSENT


def _refuse_twice(ranks: Sequence[int], what: str, where: str) -> None:
    twice = sorted({rank for rank in ranks if ranks.count(rank) > 1})
    if twice:
        raise DamagedInput(f"rank {twice[0]} has more than one {what}", where=where, mend="give one matrix a file")


def _parse_row(grid: _Grid, number: int, where: str) -> Array:
    """Parse a row of cells, NaN where absent.

    Raises:
        DamagedInput: too few or too many cells, or one that is no number.
    """
    cells, line = grid.cells[number], grid.lines[number]
    if len(cells) != len(grid.columns):
        text = f"line {line} has {len(cells)} waits, expected {len(grid.columns)}"
        raise DamagedInput(text, where=where, mend="export the matrix again")
    values = np.full(len(cells), np.nan)
    for position, cell in enumerate(cells):
        if _is_absent(cell):
            grid.absent += 1
            continue
        if not _is_number(cell):
            text = f"line {line}, awaited rank {grid.columns[position]}: {cell[:20]!r} is no number"
            raise DamagedInput(text, where=where, mend="export the matrix again")
        value = float(cell)
        if value < 0:
            grid.odd.append(f"line {line}, awaited rank {grid.columns[position]}: {cell} is no wait")
        elif not np.isfinite(value):
            grid.absent += 1
        elif value > 0:
            values[position] = value
    return values


def _lacks(rows: Sequence[int], columns: Sequence[int]) -> list[str]:
    unseen = sorted(set(columns) - set(rows))
    unasked = sorted(set(rows) - set(columns))
    found = [f"rows of ranks {_list(unseen)}"] if unseen else []
    return found + ([f"columns of ranks {_list(unasked)}"] if unasked else [])


def _list(ranks: Sequence[int]) -> str:
    if len(ranks) > _SHOWN and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"{ranks[0]}-{ranks[-1]}"
    return ", ".join(str(rank) for rank in ranks)


def _warn(grid: _Grid) -> list[str]:
    warnings = []
    if grid.odd:
        more = f" (and {len(grid.odd) - _SHOWN} more)" if len(grid.odd) > _SHOWN else ""
        warnings.append(f"taken as absent: {'; '.join(grid.odd[:_SHOWN])}{more}")
    if grid.absent:
        warnings.append(f"{grid.absent} cells are empty or not finite and are taken as absent")
    return warnings
