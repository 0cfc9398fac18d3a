"""What the readers ask of an Nsight Systems export, however its tables are stored.

A question is a value (`Wanted`, `Packed`, `OneOf`, `Like`, `CutText`), so that each kind of storage can answer it in
its own way: `NsysDatabase` writes SQL, `NsysFolder` computes on Arrow columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from dprankdiag.readers.base import Array

Layout = Callable[..., Any]
"""Packs columns: takes one operand a column and joins them by `<<`, `>>`, `|`, `&` and `!=` with integers.

The operands are int64 arrays, or SQL that writes itself.
"""


@dataclass(frozen=True, slots=True)
class Wanted:
    """An integer column to read: the first of `names` that is not null, else `absent`.

    As a flag: 1 where any of `names` is not null.
    """

    names: tuple[str, ...]
    absent: int = 0
    is_flag: bool = False


@dataclass(frozen=True, slots=True)
class Packed:
    """Several columns in the bits of one integer: SQLite packs them for less than it costs to hand each over."""

    layout: Layout
    parts: tuple[Wanted, ...]


@dataclass(frozen=True, slots=True)
class OneOf:
    """The condition that a column holds one of these values; they are all integers or all texts."""

    column: str
    values: tuple[int, ...] | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Like:
    """The condition that a text matches a pattern, in which `%` stands for any text; the case of letters is ignored.

    Attributes:
        column: the column; a null fulfils neither the condition nor its opposite.
        pattern: SQL pattern without quotes and backslashes.
        is_opposite: the text must not match.
    """

    column: str
    pattern: str
    is_opposite: bool = False


Condition = OneOf | Like


@dataclass(frozen=True, slots=True)
class CutText:
    """A text column, empty where it is null.

    Attributes:
        column: the column; a missing one is empty throughout.
        marks: the first of these that a text holds ends it.
    """

    column: str
    marks: tuple[str, ...] = ()

    def cut(self, text: str) -> str:
        """Return a text up to its mark."""
        for mark in self.marks:
            head, found, _ = text.partition(mark)
            if found:
                return head
        return text


def want(*names: str, absent: int = 0) -> Wanted:
    """Describe an integer column to read."""
    return Wanted(names, absent)


def pack(layout: Layout, *parts: Wanted) -> Packed:
    """Describe an integer made of several columns."""
    return Packed(layout, parts)


def want_flag(*names: str) -> Wanted:
    """Describe a column that tells whether any of these is not null."""
    return Wanted(names, is_flag=True)


class NsysExport(Protocol):
    """An open export. A missing table has no rows, a missing column is null throughout.

    Attributes:
        path: the file or folder as it was given.
        failures: table or file name to what went wrong with it, a clause without subject. What could be read before
            that is kept.
    """

    path: Path
    failures: dict[str, str]

    def list_remarks(self) -> list[str]:
        """Return what the user should know about how the export lies there."""
        ...

    def has(self, table: str, *columns: str) -> bool:
        """Say whether the table exists and has all of these columns."""
        ...

    def has_rows(self, table: str) -> bool:
        """Say whether the table exists and holds a row that can be read."""
        ...

    def bound_rows(self, table: str) -> int:
        """Return a number that is likely not below the number of rows, without counting them."""
        ...

    def rows(
        self, table: str, columns: Sequence[str], where: Condition | None = None, limit: int | None = None
    ) -> list[tuple[Any, ...]]:
        """Read a small table, or few rows of a long one.

        Args:
            table: table name.
            columns: columns to read, at least one.
            where: which rows; all if None.
            limit: the most rows to read.

        Returns:
            A row holds int, float, str, bytes or None; order as in the file, but rows of `OneOf` may come in any.
        """
        ...

    def batches(
        self,
        table: str,
        wanted: Sequence[Wanted | Packed],
        *,
        where: Condition | None = None,
        text: CutText | None = None,
        texts: dict[str, int] | None = None,
    ) -> Iterator[list[Array]]:
        """Stream integer columns in batches of rows, in file order.

        Args:
            table: table name; a missing one gives no batch.
            wanted: the integer columns.
            where: which rows; all if None.
            text: one more column, of texts.
            texts: numbers the distinct texts; it grows while reading.

        Yields:
            One int64 array a wanted column, then, if `text` is given, the int64 numbers of the texts.
        """
        ...
