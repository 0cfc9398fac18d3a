"""The tables of a recording, made to be read by any SQLite tool.

A recording holds what engines told, as told: counters are raw, never rates. Absent is NULL. Times are UTC epoch
nanoseconds. What repeats from answer to answer (targets, facts, sets of fields) is kept once. The view `told` joins the
tables: a row is one rank of one answer, with its moment, address and engine; most questions are asked of it:

```sql
SELECT moment, rank, load_running_requests, load_used_tokens
FROM told WHERE interface = 'sglang-loads' AND rank = 3 ORDER BY seconds;
```
"""

from __future__ import annotations

from dataclasses import dataclass

from dprankdiag.catalog.ledger import load_fields

SCHEMA_VERSION = 1
"""In the header (user_version, offset 60); raised when a column changes its meaning. New columns leave it alone."""

NOT_AN_ANSWER = ("failed", "absent")
"""The status of a poll that gave nothing: it failed, or the engine does not offer the interface."""


@dataclass(frozen=True, slots=True)
class RecordedColumn:
    """A column: its SQLite declaration and what it means."""

    name: str
    declared: str
    meaning: str


@dataclass(frozen=True, slots=True)
class RecordedTable:
    """A table of the recording.

    Attributes:
        key: columns of the primary key where it is not in a column's declaration.
    """

    name: str
    row_is: str
    columns: tuple[RecordedColumn, ...]
    key: tuple[str, ...] = ()

    def declare(self) -> str:
        """Write the statement that makes the table."""
        parts = [f"{quote_name(column.name)} {column.declared}".rstrip() for column in self.columns]
        parts += [f"PRIMARY KEY ({', '.join(quote_name(name) for name in self.key)})"] if self.key else []
        return f"CREATE TABLE {self.name} ({', '.join(parts)}){' WITHOUT ROWID' if self.key else ''}"


def quote_name(name: str) -> str:
    """Quote a column name for SQL."""
    return '"' + name.replace('"', '""') + '"'


def _columns(*rows: tuple[str, str, str]) -> tuple[RecordedColumn, ...]:
    return tuple(RecordedColumn(*row) for row in rows)


META = RecordedTable(
    "meta",
    "something to know of the file",
    _columns(("name", "TEXT", "schema_version, tool, tool_version, created_ns"), ("value", "", "its value")),
    ("name",),
)
TARGETS = RecordedTable(
    "targets",
    "an interface of an engine that was asked",
    _columns(
        ("target", "INTEGER PRIMARY KEY", "number of the row"),
        ("address", "TEXT NOT NULL", "URL without credentials, or path"),
        ("interface", "TEXT NOT NULL", "sglang-metrics, sglang-loads, vllm-metrics, ..."),
        ("engine", "TEXT", "sglang or vllm; NULL where nothing came"),
        ("model", "TEXT", "served model; NULL where the interface does not say"),
        ("role", "TEXT", "unified, prefill or decode; NULL where the interface does not say"),
    ),
)
ANSWERS = RecordedTable(
    "answers",
    "one answer of one interface, or its absence, at one tick",
    _columns(
        ("answer", "INTEGER PRIMARY KEY", "number of the row; later answers have higher numbers"),
        ("tick", "INTEGER NOT NULL", "answers of one tick were asked for together"),
        ("recorded_ns", "INTEGER NOT NULL", "moment of the tick by the recorder's clock"),
        ("taken_ns", "INTEGER", "moment of the answer: a stamp in it, else the recorder's clock; NULL if unknown"),
        ("target", "INTEGER NOT NULL", "row of targets"),
        ("status", "TEXT NOT NULL", "answered, failed, or absent (the engine does not offer the interface)"),
        ("reason", "TEXT", "why nothing came"),
        ("unlabelled", "INTEGER NOT NULL", "1 if the series carry no rank label"),
        ("field_set", "INTEGER", "row of field_sets: which fields were told; NULL where nothing came"),
        ("fact_set", "INTEGER", "rows of facts; NULL where none were told"),
        ("warnings", "TEXT", "what was passed over in the answer: a JSON list; NULL if nothing was"),
    ),
)
FACTS = RecordedTable(
    "facts",
    "one fact that engines told of their configuration",
    _columns(
        ("fact_set", "INTEGER NOT NULL", "facts told together"),
        ("name", "TEXT NOT NULL", "by the engine's own name"),
        ("value", "", "the value; truth is 1 or 0"),
        ("kind", "TEXT NOT NULL", "text, integer, number or truth"),
    ),
    ("fact_set", "name"),
)
FIELD_SETS = RecordedTable(
    "field_sets",
    "the fields that an answer told, with NULL for ranks of which it did not",
    _columns(
        ("field_set", "INTEGER PRIMARY KEY", "number of the row"),
        ("names", "TEXT NOT NULL", "column names of loads: a JSON list"),
    ),
)
EXPERTS = RecordedTable(
    "experts",
    "one layer of an answer that tells of experts",
    _columns(
        ("answer", "INTEGER NOT NULL", "row of answers"),
        ("layer", "INTEGER NOT NULL", "layer, from 0"),
        ("tokens", "TEXT NOT NULL", "tokens routed so far to the experts of each GPU: a JSON list"),
    ),
    ("answer", "layer"),
)


def describe_loads() -> RecordedTable:
    """Declare the table with one column for each field of the catalogue."""
    fields = [
        RecordedColumn(field.name, "REAL", f"{field.kind}, {field.unit}: {field.meaning}")
        for field in load_fields().values()
    ]
    own = _columns(("answer", "INTEGER NOT NULL", "row of answers"), ("rank", "INTEGER NOT NULL", "DP rank"))
    return RecordedTable("loads", "one rank of one answer", (*own, *fields), ("answer", "rank"))


def list_tables() -> tuple[RecordedTable, ...]:
    """List the tables of a recording."""
    return (META, TARGETS, ANSWERS, describe_loads(), EXPERTS, FACTS, FIELD_SETS)


VIEW = (
    "CREATE VIEW told AS SELECT datetime(recorded_ns / 1000000000, 'unixepoch') AS moment, "
    "(recorded_ns - (SELECT recorded_ns FROM answers ORDER BY answer LIMIT 1)) / 1e9 AS seconds, "
    "tick, address, interface, engine, model, role, loads.* "
    "FROM loads JOIN answers USING (answer) JOIN targets USING (target)"
)
"""Each rank of each answer with its moment and its target: what most questions are asked of."""
