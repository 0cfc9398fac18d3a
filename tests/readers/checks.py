"""What must hold for every reading."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dprankdiag.model.schema import count_rows
from dprankdiag.model.sources import Reading
from dprankdiag.model.traces import TRACE_TABLES
from dprankdiag.readers.nsys_walk import Answer
from dprankdiag.readers.sqlite_pages import ForeignPages


def refuse_to_walk(*_: object) -> Iterator[Answer]:
    """Stand in for `walk_rows` where SQLite has to read everything."""
    raise ForeignPages("not now")


def assert_equal(one: Reading, other: Reading) -> None:
    assert one.source == other.source
    assert one.names == other.names
    for table, columns in one.tables.items():
        for name, values in columns.items():
            np.testing.assert_array_equal(values, other.tables[table][name], f"{table}, {name}")


def check_tables(reading: Reading) -> None:
    assert list(reading.tables) == [table.name for table in TRACE_TABLES]
    for table in TRACE_TABLES:
        columns = reading.tables[table.name]
        assert {name: str(values.dtype) for name, values in columns.items()} == {
            column.name: column.dtype for column in table.columns
        }
        table.check(columns)
        if count_rows(columns):
            order = np.lexsort((columns["start_ns"], columns["rank"]))
            assert (order == np.arange(len(order))).all()
            assert (columns["end_ns"] >= columns["start_ns"]).all()
            assert columns["rank"].min() >= 0
            assert columns["rank"].max() < len(reading.actors)
