"""What must hold for every reading."""

from __future__ import annotations

import numpy as np

from dprankdiag.model.schema import count_rows
from dprankdiag.model.sources import Reading
from dprankdiag.model.traces import TRACE_TABLES


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
