"""Ways to spoil a file, in two sorts.

A loss takes something away and leaves the rest true: the rest may still name the guilty, or nobody, and no one else.
A lie puts something else in its place: then nobody knows what would be right, only that the program must stay calm.
"""

from __future__ import annotations

import gzip
import json
import random
import re
import sqlite3
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

Sort = Literal["loss", "lie"]
Files = dict[str, bytes]

GZIP, SQLITE, ZIP, PARQUET = b"\x1f\x8b", b"SQLite format 3\0", b"PK\x03\x04", b"PAR1"
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
HOSTILE_TEXT = (
    b"NaN", b"Inf", b"-Inf", b"-1", b"0", b"1e308", b"-1e308", b"9223372036854775807", b"9223372036854775808",
    b"-9223372036854775809", b"1" + b"0" * 400, b"", b"x", b"0x10", b"1_000", b"\xff\xfe", b"null", b"\0",
    "١٢".encode(),
)  # fmt: skip
"""What may stand where a number belongs."""

HOSTILE_VALUES: tuple[Any, ...] = (
    *(None, True, False, "", "7", "nan", -1, 0, 2**31, 2**53, 2**63 - 1, 2**63, -(2**63) - 1, 2**200, 10**400),
    *(1e308, -1e308, float("nan"), float("inf"), 0.1, [], {}, [[]], [None], {"a": {"b": [1, 2]}}, "x" * 10_000),
    *("\ud800", "\0", "\x1b[2J", "<script>", "٣", [1] * 1000),
)
"""What may stand in the place of any value of JSON."""

HOSTILE_CELLS: tuple[Any, ...] = (
    *(None, "", "x", "7", "1e3", -1, 0, 1, 2**31, 2**53, 2**63 - 1, -(2**63), 0.5, 1e308, float("inf")),
    *(b"", b"\xff\xfe", "x" * 5000, "\x1b[2J"),
)


@dataclass(frozen=True, slots=True)
class Damage:
    """A way to spoil files.

    Attributes:
        spoil: makes the spoiled files; the same draw, the same files.
    """

    name: str
    sort: Sort
    fits: Callable[[Mapping[str, bytes]], bool]
    spoil: Callable[[Files, random.Random], Files]


def _pick(files: Mapping[str, bytes], draw: random.Random) -> str:
    return draw.choice(sorted(files))


def _on_one(change: Callable[[bytes, random.Random], bytes]) -> Callable[[Files, random.Random], Files]:
    def spoil(files: Files, draw: random.Random) -> Files:
        name = _pick(files, draw)
        return {**files, name: change(files[name], draw)}

    return spoil


def _has(test: Callable[[bytes], bool]) -> Callable[[Mapping[str, bytes]], bool]:
    return lambda files: any(test(content) for content in files.values())


def is_sqlite(content: bytes) -> bool:
    """Tell a database."""
    return content.startswith(SQLITE)


def is_text(content: bytes) -> bool:
    """Tell text, JSON or not."""
    return b"\0" not in content[:4096] and not content.startswith((GZIP, b"PK", b"PAR1"))


def is_json(content: bytes) -> bool:
    """Tell JSON, packed or not."""
    return unpack(content).lstrip()[:1] in (b"{", b"[")


def is_bundle(content: bytes) -> bool:
    """Tell an archive that begins with a diagnosis."""
    return content.startswith(ZIP) and b"diagnosis.json" in content[:64]


def unpack(content: bytes) -> bytes:
    """Unpack what gzip packed."""
    if content.startswith(GZIP):
        with suppress(OSError, EOFError):
            return gzip.decompress(content)
    return content


def _inside(change: Callable[[bytes, random.Random], bytes]) -> Callable[[bytes, random.Random], bytes]:
    """Change what is packed, if it is."""

    def changed(content: bytes, draw: random.Random) -> bytes:
        new = change(unpack(content), draw)
        return gzip.compress(new, 1) if content.startswith(GZIP) else new

    return changed


# Losses of any file.


def cut(content: bytes, draw: random.Random) -> bytes:
    """Keep only the beginning."""
    return content[: draw.randrange(len(content) + 1)]


def hole(content: bytes, draw: random.Random) -> bytes:
    """Put zeros in place of a block, as a bad sector does."""
    size = draw.choice((512, 4096, 65536))
    start = draw.randrange(0, len(content) + 1) // size * size
    gone = content[start : start + size]
    return content[:start] + bytes(len(gone)) + content[start + len(gone) :]


def lose_lines(content: bytes, draw: random.Random) -> bytes:
    """Lose lines one by one, or a run of them."""
    lines = content.splitlines(keepends=True)
    if draw.random() < 0.5:
        share = draw.choice((0.02, 0.2, 0.6))
        return b"".join(line for line in lines if draw.random() >= share)
    first, last = sorted(draw.randrange(len(lines) + 1) for _ in range(2))
    return b"".join(lines[:first] + lines[last:])


def lose_files(files: Files, draw: random.Random) -> Files:
    """Lose one of several files, or what is in it."""
    gone = _pick(files, draw)
    if draw.random() < 0.5:
        return {**files, gone: b""}
    return {name: content for name, content in files.items() if name != gone}


# JSON.


def _walk(value: Any) -> Iterator[tuple[Any, Any]]:
    """List every place in a document: what holds it, and by which key."""
    todo = [value]
    while todo:
        one = todo.pop()
        pairs = one.items() if isinstance(one, dict) else enumerate(one) if isinstance(one, list) else ()
        for key, inner in pairs:
            yield one, key
            todo.append(inner)


def _events(document: Any) -> list[Any] | None:
    if isinstance(document, dict):
        return next((value for value in document.values() if isinstance(value, list) and len(value) > 3), None)
    return document if isinstance(document, list) else None


def _on_document(change: Callable[[Any, random.Random], Any]) -> Callable[[bytes, random.Random], bytes]:
    def changed(content: bytes, draw: random.Random) -> bytes:
        try:
            document = json.loads(content)
        except ValueError:  # lines of JSON
            return content
        return json.dumps(change(document, draw)).encode()

    return _inside(changed)


def _lose_events(document: Any, draw: random.Random) -> Any:
    events = _events(document)
    if events is not None:
        share = draw.choice((0.01, 0.1, 0.5))
        first, last = sorted(draw.randrange(len(events) + 1) for _ in range(2))
        kept = [event for event in events if draw.random() >= share]
        events[:] = kept if draw.random() < 0.5 else events[:first] + events[last:]
    return document


def _lose_key(document: Any, draw: random.Random) -> Any:
    """Take a key away, here or wherever it stands."""
    places = [(holder, key) for holder, key in _walk(document) if isinstance(key, str)]
    if places:
        holder, key = draw.choice(places)
        everywhere = draw.random() < 0.5
        for one, name in places:
            if name == key and (everywhere or one is holder):
                one.pop(key, None)
    return document


def _swap_values(document: Any, draw: random.Random) -> Any:
    """Put hostile values in place of some, or of all of one key."""
    places = list(_walk(document))
    holder, key = draw.choice(places)
    value = draw.choice(HOSTILE_VALUES)
    same = [(one, name) for one, name in places if name == key and isinstance(name, str)]
    for one, name in same if same and draw.random() < 0.4 else [(holder, key)]:
        one[name] = value
    return document


def _nest(content: bytes, draw: random.Random) -> bytes:
    """Put a pit of brackets in place of a value."""
    numbers = list(_NUMBER.finditer(content))
    place = draw.choice(numbers) if numbers else None
    depth = draw.choice((100, 5_000, 200_000))
    pit = b"[" * depth + (b"]" * depth if draw.random() < 0.5 else b"")
    return content[: place.start()] + pit + content[place.end() :] if place else pit


# Text.


def swap_numbers(content: bytes, draw: random.Random) -> bytes:
    """Put hostile words in place of some numbers."""
    places = list(_NUMBER.finditer(content))
    for place in sorted(draw.sample(places, min(len(places), draw.choice((1, 3, 50)))), key=lambda one: -one.start()):
        content = content[: place.start()] + draw.choice(HOSTILE_TEXT) + content[place.end() :]
    return content


def flip(content: bytes, draw: random.Random) -> bytes:
    """Flip some bits."""
    spoiled = bytearray(content)
    for _ in range(draw.choice((1, 8, 200)) if spoiled else 0):
        spoiled[draw.randrange(len(spoiled))] ^= 1 << draw.randrange(8)
    return bytes(spoiled)


def splice(content: bytes, draw: random.Random) -> bytes:
    """Put one part of the file, or noise, in place of another."""
    start, source = (draw.randrange(len(content) + 1) for _ in range(2))
    size = draw.choice((1, 40, 4096))
    new = content[source : source + size] if draw.random() < 0.7 else draw.randbytes(size)
    return content[:start] + new + content[start + draw.choice((0, len(new))) :]


# Databases.


def _on_database(
    change: Callable[[sqlite3.Connection, random.Random], None],
) -> Callable[[bytes, random.Random], bytes]:
    def changed(content: bytes, draw: random.Random) -> bytes:
        if not is_sqlite(content):
            return content
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "one"
            path.write_bytes(content)
            with closing(sqlite3.connect(path, isolation_level=None)) as database, suppress(sqlite3.Error):
                database.execute("PRAGMA journal_mode = DELETE")
                database.execute("PRAGMA synchronous = OFF")
                change(database, draw)
            return path.read_bytes()

    return changed


def _tables(database: sqlite3.Connection) -> list[str]:
    found = database.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
    return [name for (name,) in found if not name.startswith("sqlite_")]


def _columns(database: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in database.execute(f'PRAGMA table_info("{table}")')]


def _choose(database: sqlite3.Connection, draw: random.Random) -> tuple[str, str]:
    """Choose a table, a full one more often, and one of its columns."""
    tables = _tables(database)
    full = [name for name in tables if database.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] > 1]
    table = draw.choice(full if full and draw.random() < 0.9 else tables)
    return table, draw.choice(_columns(database, table))


def _lose_rows(database: sqlite3.Connection, draw: random.Random) -> None:
    table, _ = _choose(database, draw)
    rows = [row for (row,) in database.execute(f'SELECT rowid FROM "{table}" ORDER BY rowid')]
    if draw.random() < 0.5:
        first, last = sorted(draw.randrange(len(rows) + 1) for _ in range(2))
        gone = rows[first:last]
    else:
        share = draw.choice((0.01, 0.05, 0.5, 1.0))
        gone = [row for row in rows if draw.random() < share]
    database.execute("BEGIN")
    database.executemany(f'DELETE FROM "{table}" WHERE rowid = ?', [(row,) for row in gone])
    database.execute("COMMIT")


def _lose_table(database: sqlite3.Connection, draw: random.Random) -> None:
    database.execute(f'DROP TABLE "{draw.choice(_tables(database))}"')


def _lose_column(database: sqlite3.Connection, draw: random.Random) -> None:
    table, column = _choose(database, draw)
    database.execute(f'ALTER TABLE "{table}" DROP COLUMN "{column}"')


def _rename(database: sqlite3.Connection, draw: random.Random) -> None:
    """Give a table or column a name nobody knows: as good as lost."""
    table, column = _choose(database, draw)
    if draw.random() < 0.3:
        database.execute(f'ALTER TABLE "{table}" RENAME TO "{table}_v9"')
    else:
        database.execute(f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "{column}_v9"')


def _add_column(database: sqlite3.Connection, draw: random.Random) -> None:
    """Add what a later release may add."""
    table, _ = _choose(database, draw)
    database.execute(f'ALTER TABLE "{table}" ADD COLUMN "later ""release" TEXT DEFAULT \'x\'')
    database.execute(f"CREATE TABLE LATER_RELEASE_{draw.randrange(9)} (start INTEGER, value)")


def _swap_cells(database: sqlite3.Connection, draw: random.Random) -> None:
    """Put hostile values in place of some cells of a column, or all."""
    table, column = _choose(database, draw)
    _loosen(database, table)
    value = draw.choice(HOSTILE_CELLS)
    which = draw.choice(("rowid", f'(SELECT max(rowid) FROM "{table}")', "rowid / 97 * 97"))
    database.execute(f'UPDATE "{table}" SET "{column}" = ? WHERE rowid = {which}', (value,))


def _loosen(database: sqlite3.Connection, table: str) -> None:
    """Make a table again without types and rules, so that anything can be stored."""
    names = ", ".join(f'"{name}"' for name in _columns(database, table))
    database.execute(f'CREATE TABLE loose_ AS SELECT {names} FROM "{table}"')
    database.execute(f'DROP TABLE "{table}"')
    database.execute(f'CREATE TABLE "{table}" ({names})')
    database.execute(f'INSERT INTO "{table}" SELECT * FROM loose_')
    database.execute("DROP TABLE loose_")


# Columns, alone or in a bundle.


def _on_columns(change: Callable[[Any, random.Random], Any]) -> Callable[[bytes, random.Random], bytes]:
    def changed(content: bytes, draw: random.Random) -> bytes:
        if not content.startswith(PARQUET):
            return content
        table = pq.read_table(BytesIO(content))
        buffer = BytesIO()
        pq.write_table(change(table, draw), buffer)
        return buffer.getvalue()

    return changed


def _lose_values(table: Any, draw: random.Random) -> Any:
    """Lose rows, or a column."""
    if draw.random() < 0.5 and table.num_columns:
        return table.drop_columns([draw.choice(table.column_names)])
    first, last = sorted(draw.randrange(table.num_rows + 1) for _ in range(2))
    return pa.concat_tables([table.slice(0, first), table.slice(last)])


def _swap_columns(table: Any, draw: random.Random) -> Any:
    """Put a column of another type or of hostile numbers in place of one."""
    if not table.num_columns:
        return table
    place = draw.randrange(table.num_columns)
    value = draw.choice((None, "x", 0.5, -1, 2**62, -(2**63), float("nan"), True, b"\xff", [1], {"a": 1}))
    return table.set_column(place, table.column_names[place], pa.array([value] * table.num_rows))


def _in_bundle(change: Callable[[bytes, random.Random], bytes], end: str) -> Callable[[bytes, random.Random], bytes]:
    """Change a member of an archive, so that its checksum is right again."""

    def changed(content: bytes, draw: random.Random) -> bytes:
        if not content.startswith(ZIP):
            return content
        with zipfile.ZipFile(BytesIO(content)) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        name = draw.choice([name for name in members if name.endswith(end)])
        members[name] = change(members[name], draw)
        buffer = BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
            for member, inside in members.items():
                archive.writestr(member, inside)
        return buffer.getvalue()

    return changed


_any = _has(bool)
_text, _document, _database = _has(is_text), _has(is_json), _has(is_sqlite)
_columnar, _bundled = _has(lambda one: one.startswith(PARQUET)), _has(is_bundle)


def _several(files: Mapping[str, bytes]) -> bool:
    return len(files) > 1


DAMAGES: tuple[Damage, ...] = (
    Damage("cut short", "loss", _any, _on_one(cut)),
    Damage("a block of zeros", "loss", _any, _on_one(hole)),
    Damage("files missing or empty", "loss", _several, lose_files),
    Damage("lines lost", "loss", _text, _on_one(lose_lines)),
    Damage("unpacked part cut short", "loss", _has(lambda one: one.startswith(GZIP)), _on_one(_inside(cut))),
    Damage("events lost", "loss", _document, _on_one(_on_document(_lose_events))),
    Damage("keys lost", "loss", _document, _on_one(_on_document(_lose_key))),
    Damage("rows lost", "loss", _database, _on_one(_on_database(_lose_rows))),
    Damage("table lost", "loss", _database, _on_one(_on_database(_lose_table))),
    Damage("column lost", "loss", _database, _on_one(_on_database(_lose_column))),
    Damage("table or column renamed", "loss", _database, _on_one(_on_database(_rename))),
    Damage("columns and tables added", "loss", _database, _on_one(_on_database(_add_column))),
    Damage("rows or columns lost", "loss", _columnar, _on_one(_on_columns(_lose_values))),
    Damage("bits flipped", "lie", _any, _on_one(flip)),
    Damage("unpacked bits flipped", "lie", _has(lambda one: one.startswith(GZIP)), _on_one(_inside(flip))),
    Damage("parts spliced", "lie", _any, _on_one(splice)),
    Damage("numbers swapped", "lie", _text, _on_one(swap_numbers)),
    Damage("values swapped", "lie", _document, _on_one(_on_document(_swap_values))),
    Damage("nested deeply", "lie", _document, _on_one(_inside(_nest))),
    Damage("cells swapped", "lie", _database, _on_one(_on_database(_swap_cells))),
    Damage("columns swapped", "lie", _columnar, _on_one(_on_columns(_swap_columns))),
    Damage("saved values swapped", "lie", _bundled, _on_one(_in_bundle(_on_document(_swap_values), ".json"))),
    Damage("saved columns swapped", "lie", _bundled, _on_one(_in_bundle(_on_columns(_swap_columns), ".parquet"))),
    Damage("saved rows or columns lost", "lie", _bundled, _on_one(_in_bundle(_on_columns(_lose_values), ".parquet"))),
)
