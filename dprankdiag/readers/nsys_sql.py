"""Write the questions that readers ask of an export as SQL on the columns that a table has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dprankdiag.readers.nsys_export import Condition, CutText, OneOf, Packed, Wanted


@dataclass(frozen=True, slots=True)
class ColumnFact:
    """What the file declares about a column."""

    not_null: bool
    is_key: bool


Facts = Mapping[str, ColumnFact]
"""What is declared about the columns of a table, by name."""


class _Sql:
    """An SQL expression that layouts write like arithmetic.

    Every step is put in brackets: SQL's precedence knows no difference between shifts, `|` and `&`.
    """

    def __init__(self, text: str) -> None:
        self.text = text

    def __lshift__(self, other: _Sql | int) -> _Sql:
        return self._join("<<", other)

    def __rshift__(self, other: _Sql | int) -> _Sql:
        return self._join(">>", other)

    def __and__(self, other: _Sql | int) -> _Sql:
        return self._join("&", other)

    def __or__(self, other: _Sql | int) -> _Sql:
        return self._join("|", other)

    def __ne__(self, other: object) -> _Sql:  # type: ignore[override]  # compares row by row, as numpy's does
        return self._join("<>", other)

    def _join(self, sign: str, other: object) -> _Sql:
        return _Sql(f"({self.text} {sign} {other.text if isinstance(other, _Sql) else other})")


def write_value(facts: Facts, name: str) -> str:
    """Write a column, null where the table lacks it."""
    return quote_name(name) if name in facts else "NULL"


def write_column(facts: Facts, column: Wanted | Packed) -> str:
    """Write an integer column, or several packed into one."""
    if isinstance(column, Packed):
        packed: _Sql = column.layout(*(_Sql(write_column(facts, part)) for part in column.parts))
        return packed.text
    names = [name for name in column.names if name in facts]
    if not names:
        return str(column.absent)
    if column.is_flag:
        return " OR ".join(f"{quote_name(name)} IS NOT NULL" for name in names)
    if facts[names[0]].not_null:
        return quote_name(names[0])
    return f"COALESCE({', '.join(map(quote_name, names))}, {column.absent})"


def write_text(facts: Facts, text: CutText) -> str:
    """Write a text column up to its marks, never null."""
    if text.column not in facts:
        return "''"
    name = quote_name(text.column)
    cases = "".join(
        f"WHEN instr({name}, '{mark}') THEN substr({name}, 1, instr({name}, '{mark}') - 1) " for mark in text.marks
    )
    whole = f"CAST({name} AS TEXT)"
    return f"COALESCE({f'CASE {cases}ELSE {whole} END' if cases else whole}, '')"


def write_condition(facts: Facts, condition: Condition | None) -> str:
    """Write a condition; empty for none."""
    if condition is None:
        return ""
    value = write_value(facts, condition.column)
    if isinstance(condition, OneOf):
        return f"{value} IN ({', '.join(map(_write_constant, condition.values))})"
    return f"{value} {'NOT ' if condition.is_opposite else ''}LIKE {_write_constant(condition.pattern)}"


def split_condition(condition: OneOf, most: int) -> Sequence[OneOf]:
    """Part a condition of many values into several of few."""
    values = condition.values
    return [OneOf(condition.column, values[start : start + most]) for start in range(0, len(values), most)]


def quote_name(name: str) -> str:
    """Write the name of a table or column."""
    return '"' + name.replace('"', '""') + '"'


def _write_constant(value: int | str) -> str:
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"
