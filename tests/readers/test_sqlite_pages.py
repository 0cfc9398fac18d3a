"""What is read from pages is what SQLite says, whatever lies in them."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dprankdiag.errors import DamagedInput
from dprankdiag.readers import nsys_database
from dprankdiag.readers.nsys_database import NsysDatabase
from dprankdiag.readers.nsys_export import CutText, OneOf, Packed, Wanted, pack, want, want_flag
from dprankdiag.readers.nsys_sqlite import read
from dprankdiag.readers.nsys_walk import Question, walk_rows
from dprankdiag.readers.sniff import NSYS_SQLITE, is_kind
from dprankdiag.readers.sqlite_pages import ForeignPages
from tests.readers.checks import assert_equal, refuse_to_walk

BORDERS = [0, 1, -1, 127, 128, -128, -129, 1 << 15, (1 << 23) - 1, -(1 << 23), 1 << 31, (1 << 47) - 1, 1 << 62]
INTEGERS = st.one_of(st.none(), st.sampled_from(BORDERS), st.integers(-(1 << 63), (1 << 63) - 1), st.integers(0, 300))
TEXTS = st.one_of(st.none(), st.text(max_size=70), st.sampled_from(["", "a" * 57, "a" * 58, "step, seq = 5", "é" * 40]))
ROWS = st.lists(st.tuples(INTEGERS, INTEGERS, TEXTS, INTEGERS, st.integers(0, 3)), max_size=60)
QUESTIONS: dict[str, dict[str, Any]] = {
    "plain": {"wanted": [want("a"), want("d")]},
    "filled": {"wanted": [want("a", "b", absent=-7), want("b", "missing", absent=3), want("missing", absent=5)]},
    "packed": {"wanted": [pack(lambda x, y: (x << 8) | (y != 0), want("a"), want("kind"))]},
    "flag": {"wanted": [want_flag("text", "missing"), want_flag("b"), want("kind")]},
    "some": {"wanted": [want("d")], "where": OneOf("kind", (1, 3))},
    "none": {"wanted": [want("d")], "where": OneOf("missing", (1, 3))},
    "text": {"wanted": [want("d")], "where": OneOf("kind", (0, 2)), "text": CutText("text", (", seq = ",))},
    "no text": {"wanted": [want("missing")], "text": CutText("missing")},
}

Told = tuple[list[list[int]], list[str], dict[str, str]]


def make(path: Path, rows: list[tuple[Any, ...]], page_bytes: int = 512, ending: str = "") -> Path:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA page_size = {page_bytes}")
        connection.execute(f"CREATE TABLE t (a INTEGER, b INT, text TEXT, d BIGINT, kind INTEGER) {ending}")
        connection.executemany("INSERT INTO t VALUES (?, ?, ?, ?, ?)", rows)
        connection.commit()
    return path


def ask(path: Path, wanted: list[Wanted | Packed], **asked: Any) -> Told:
    texts: dict[str, int] = {}
    with NsysDatabase(path) as db:
        batches = list(db.batches("t", wanted, texts=texts, **asked))
        columns = [np.concatenate(parts).tolist() for parts in zip(*batches, strict=True)]
        names = list(texts)
        told = [names[number] for number in columns.pop()] if columns and "text" in asked else []
        return columns, told, db.failures


@pytest.fixture
def ask_sqlite(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Told]:
    def ask_it(path: Path, **question: Any) -> Told:
        with monkeypatch.context() as patch:
            patch.setattr(nsys_database, "walk_rows", refuse_to_walk)
            return ask(path, **question)

    return ask_it


def count_walked(path: Path, **asked: Any) -> int:
    """Count the rows that were read without SQLite; -1 if it was not read to the end."""
    question = Question("t", tuple(asked["wanted"]), asked.get("where"), asked.get("text"))
    with closing(sqlite3.connect(path)) as connection:
        try:
            return sum(len(answer.numbers) for answer in walk_rows(connection, path, question))
        except ForeignPages:
            return -1


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=ROWS, repeat=st.integers(1, 12), page_bytes=st.sampled_from([512, 1024, 4096, 65536]))
def test_any_rows_are_read_as_sqlite_reads_them(
    rows: list[tuple[Any, ...]],
    repeat: int,
    page_bytes: int,
    ask_sqlite: Callable[..., Told],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = make(tmp_path_factory.mktemp("rows") / "t.sqlite", rows * repeat, page_bytes)
    for question in QUESTIONS.values():
        assert ask(path, **question) == ask_sqlite(path, **question)
        assert count_walked(path, **question) >= 0 or page_bytes == 512


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
def test_long_tables_with_gaps_are_read_in_order(
    tmp_path: Path, question: dict[str, Any], ask_sqlite: Callable[..., Told]
) -> None:
    draw = random.Random(5)
    rows = [(number, draw.choice(BORDERS), f"n{number % 97}", -number, number % 4) for number in range(30_000)]
    path = make(tmp_path / "t.sqlite", rows)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DELETE FROM t WHERE a % 7 = 3 OR a BETWEEN 9000 AND 11000")
        connection.execute("INSERT INTO t (rowid, a) VALUES (9500, 1), (-5, 2), (1 << 60, 3)")
        connection.commit()
    assert ask(path, **question) == ask_sqlite(path, **question)
    columns, _, failures = ask_sqlite(path, **question)
    assert not failures
    assert count_walked(path, **question) == (len(columns[0]) if columns else 0)


ODD: dict[str, Callable[[Path], object]] = {
    "a column added later": lambda path: change(path, "ALTER TABLE t ADD COLUMN e INTEGER DEFAULT 9"),
    "a text among integers": lambda path: change(path, "UPDATE t SET a = 'x' WHERE a = 900"),
    "a float among integers": lambda path: change(path, "UPDATE t SET a = 1.5 WHERE a = 900"),
    "a row longer than its page": lambda path: change(path, "UPDATE t SET text = hex(zeroblob(400)) WHERE a = 900"),
    "a blob as text": lambda path: change(path, "UPDATE t SET text = x'61ff62' WHERE a % 9 = 1"),
    "no rows": lambda path: change(path, "DELETE FROM t"),
    "a generated column": lambda path: change(path, "ALTER TABLE t ADD COLUMN e INTEGER AS (a + 1)"),
    "a write-ahead log": lambda path: change(path, "PRAGMA journal_mode = WAL"),
    "pages moved by autovacuum": lambda path: change(path, "PRAGMA auto_vacuum = 1", "VACUUM"),
}


def change(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
            connection.commit()


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_what_is_not_read_from_pages_is_read_by_sqlite(
    tmp_path: Path, odd: Callable[[Path], object], ask_sqlite: Callable[..., Told]
) -> None:
    path = make(tmp_path / "t.sqlite", [(number, 5, f"n{number % 9}", 2, number % 4) for number in range(1000)])
    odd(path)
    for question in (*QUESTIONS.values(), {"wanted": [want("e", "a")]}):
        assert ask(path, **question) == ask_sqlite(path, **question)


@pytest.mark.parametrize(
    "schema",
    [
        "(a INTEGER PRIMARY KEY, b INT, text TEXT, d BIGINT, kind INTEGER)",
        "(a INTEGER, b INT, text TEXT, d BIGINT, kind INTEGER, PRIMARY KEY (a, kind)) WITHOUT ROWID",
        "(a REAL, b INT, text TEXT, d BIGINT, kind INTEGER)",
    ],
)
def test_other_kinds_of_tables_are_left_to_sqlite(tmp_path: Path, schema: str, ask_sqlite: Callable[..., Told]) -> None:
    path = tmp_path / "t.sqlite"
    change(path, f"CREATE TABLE t {schema}", "INSERT INTO t VALUES (4, 5, 'x', 6, 1), (3, 5, 'y', 7, 3)")
    assert count_walked(path, **QUESTIONS["plain"]) == -1
    for question in QUESTIONS.values():
        assert ask(path, **question) == ask_sqlite(path, **question)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1 << 32), count=st.integers(1, 40))
def test_damaged_pages_break_nothing(seed: int, count: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    """SQLite overlooks some damage and so may the walk; but it never crashes, hangs, or reads more rows than fit."""
    path = tmp_path_factory.mktemp("damaged") / "t.sqlite"
    make(path, [(number, number << 20, f"n{number % 9}", 2, number % 4) for number in range(400)])
    draw = random.Random(seed)
    content = bytearray(path.read_bytes())
    for _ in range(count):
        content[draw.randrange(512, len(content))] = draw.randrange(256)
    path.write_bytes(content[: draw.randrange(len(content) // 2, len(content) + 1)] if seed % 3 == 0 else content)
    for question in QUESTIONS.values():
        try:
            columns, _, _ = ask(path, **question)
        except DamagedInput:
            continue
        assert all(len(column) <= len(content) // 2 for column in columns)


def test_real_exports_are_read_as_sqlite_reads_them(
    fixtures: Path, payloads: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exports = [path for folder in (fixtures, payloads) for path in sorted(folder.rglob("*.sqlite"))]
    assert len(exports) > 5
    for path in exports:
        if not is_kind(path, NSYS_SQLITE):
            continue
        walked = read(path)
        with monkeypatch.context() as patch:
            patch.setattr(nsys_database, "walk_rows", refuse_to_walk)
            assert_equal(walked, read(path))
