"""Change copies of written recordings: what must not change a verdict, and what may only make it more careful.

Each change works on the files alone, with SQL of its own, as damage or another profiler would.
"""

from __future__ import annotations

import math
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dprankdiag.harness.draws import open_stream
from dprankdiag.harness.kernel_names import CUSTOM_REDUCE_SIZES, NAME_SETS
from dprankdiag.harness.world import World

_KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
_COLLECTIVES = (
    "all_gather", "reduce_scatter", "attention_all_reduce", "notify_dispatch", "dispatch", "combine", "dispatch_normal",
    "combine_normal", *(f"custom_reduce_{size}" for size in CUSTOM_REDUCE_SIZES),
)  # fmt: skip
_SECOND_NS = 1_000_000_000
_FAR_NS = 1_000_000_000_000
_DRIFT = 50e-6
_WOBBLES = 3
_WOBBLE_SLOPE = 0.05
_LEAST_KEPT = 2


@dataclass(frozen=True, slots=True)
class Changed:
    """A changed copy: its files in the order to give them, and which rank became which (empty: none did)."""

    paths: tuple[Path, ...]
    renamed: tuple[tuple[int, int], ...] = ()


Change = Callable[[list[Path], World], Changed]


def change_copy(name: str, paths: Sequence[Path], folder: Path, world: World) -> Changed:
    """Copy a recording into a folder and change the copy.

    Raises:
        KeyError: no such change.
        ValueError: the recording cannot be changed so.
    """
    folder.mkdir(parents=True)
    copies = [folder / path.name for path in paths]
    for path, copy in zip(paths, copies, strict=True):
        shutil.copyfile(path, copy)
    return CHANGES[name](copies, world)


def _renumber_ranks(paths: list[Path], world: World) -> Changed:
    """Give every DP rank another number in every title; ranks that share attention stay together and in order."""
    ring = open_stream(world.seed, "renumber").permutation(world.dp_size).tolist()
    next_of = dict(zip(ring, ring[1:] + ring[:1], strict=True))
    size = world.attention_tp
    new_of = {rank: next_of[rank // size] * size + rank % size for rank in range(world.ranks)}
    titles = {_make_title(world, rank): _make_title(world, new) for rank, new in new_of.items()}

    def rename(text: str | None) -> str | None:
        return titles.get(text, text) if text else text

    for path in paths:
        with _edit(path) as database:
            database.create_function("rename", 1, rename)
            database.execute("UPDATE StringIds SET value = rename(value)")
            if _has_table(database, "NVTX_EVENTS"):
                database.execute("UPDATE NVTX_EVENTS SET text = rename(text) WHERE eventType = 39")
    return Changed(tuple(paths), tuple(sorted(new_of.items())))


def _reorder_files(paths: list[Path], world: World) -> Changed:
    """Name the files anew and give them in another order."""
    order = open_stream(world.seed, "reorder").permutation(len(paths)).tolist()
    renamed = [path.rename(path.with_name(f"{chr(97 + place % 26)}{place}.sqlite")) for place, path in
               zip(order, paths, strict=True)]  # fmt: skip
    return Changed(tuple(reversed(renamed)))


def _rename_kernels(paths: list[Path], world: World) -> Changed:
    """Call every kernel what another engine calls the one of its family."""
    ours, other = (NAME_SETS[name] for name in ((world.names, "vllm") if world.names != "vllm" else ("vllm", "sglang")))
    texts: dict[str, str] = {}
    for key, text in ours.kernels.items():
        texts.setdefault(text.demangled, other.kernel(key).demangled)
        if sum(it.short == text.short for it in ours.kernels.values()) == 1:
            texts.setdefault(text.short, other.kernel(key).short)
    for path in paths:
        with _edit(path) as database:
            database.create_function("rename", 1, lambda text: texts.get(text, text))
            database.execute("UPDATE StringIds SET value = rename(value)")
    return Changed(tuple(paths))


def _shift_clocks(paths: list[Path], world: World) -> Changed:
    """Set every file's clock wrong by up to a second and let it run up to 50 ppm fast or slow."""
    random = open_stream(world.seed, "clocks")
    for path in paths:
        shift, rate = int(random.integers(-_SECOND_NS, _SECOND_NS)), float(random.uniform(-_DRIFT, _DRIFT))
        _move_times([path], partial(_read_wrong, shift_ns=shift, rate=rate))
    return Changed(tuple(paths))


def _shift_time(paths: list[Path], world: World) -> Changed:
    """Let everything happen a quarter of an hour later."""
    _move_times(paths, lambda time: time + _FAR_NS)
    return Changed(tuple(paths))


def _lose_work(paths: list[Path], world: World) -> Changed:
    """Lose three in ten kernels that are not collectives."""
    _lose_rows(paths, world, 0.3, of_meetings=False)
    return Changed(tuple(paths))


def _lose_meetings(paths: list[Path], world: World) -> Changed:
    """Lose one in a hundred collectives of a rank."""
    _lose_rows(paths, world, 0.01, of_meetings=True)
    return Changed(tuple(paths))


def _lose_culprit(paths: list[Path], world: World) -> Changed:
    """Lose the file of the first culprit, of rank 0 where nobody is to blame."""
    return _lose_file(paths, world, (*world.faults[0].ranks, 0)[0])


def _lose_other(paths: list[Path], world: World) -> Changed:
    """Lose the file of a rank that is not to blame, of any where all are."""
    ranks = range(world.ranks)
    innocent = [rank for rank in ranks if rank not in world.faults[0].ranks] or ranks
    return _lose_file(paths, world, innocent[len(innocent) // 2])


def _lose_file(paths: list[Path], world: World, rank: int) -> Changed:
    if len(paths) <= _LEAST_KEPT:
        raise ValueError("too few files to lose one")
    lost = rank * len(paths) // world.ranks
    paths[lost].unlink()
    return Changed(tuple(path for position, path in enumerate(paths) if position != lost))


def _drop_labels(paths: list[Path], world: World) -> Changed:
    """Call every process python3, and drop what threads and ranges are called."""
    for path in paths:
        with _edit(path) as database:
            for table in ("ThreadNames", "NVTX_EVENTS"):
                database.execute(f"DROP TABLE IF EXISTS {table}")
            if _has_table(database, "PROCESSES"):
                database.execute("UPDATE PROCESSES SET name = 'python3'")
    return Changed(tuple(paths))


def _lose_calls(paths: list[Path], world: World) -> Changed:
    """Lose the runtime calls of the first file: it was recorded with other settings."""
    with _edit(paths[0]) as database:
        database.execute("DROP TABLE IF EXISTS CUPTI_ACTIVITY_KIND_RUNTIME")
    return Changed(tuple(paths))


def _wobble_clocks(paths: list[Path], world: World) -> Changed:
    """Let every file's clock run now fast, now slow, by a twentieth: no offset and no rate mends it."""
    random = open_stream(world.seed, "wobble")
    for path in paths:
        first, last = _find_span(path)
        period = (last - first) / _WOBBLES
        phase = float(random.uniform(0, 2 * math.pi))
        height = _WOBBLE_SLOPE * period / (2 * math.pi)

        _move_times([path], partial(_warp, period_ns=period, height_ns=height, phase=phase))
    return Changed(tuple(paths))


def _read_wrong(time: int, shift_ns: int, rate: float) -> int:
    return time + shift_ns + round(time * rate)


def _warp(time: int, period_ns: float, height_ns: float, phase: float) -> int:
    return time + round(height_ns * math.sin(2 * math.pi * time / period_ns + phase))


INVARIANT: dict[str, Change] = {
    "ranks renumbered": _renumber_ranks,
    "files reordered": _reorder_files,
    "kernels renamed": _rename_kernels,
    "clocks shifted": _shift_clocks,
    "time shifted": _shift_time,
    "work lost": _lose_work,
    "meetings lost": _lose_meetings,
}
"""After these nothing may change but the numbers of renumbered ranks."""

CAREFUL: dict[str, Change] = {
    "culprit's file lost": _lose_culprit,
    "other file lost": _lose_other,
    "labels dropped": _drop_labels,
    "calls of one file lost": _lose_calls,
    "clocks beyond repair": _wobble_clocks,
}
"""After these a rank may be named less surely or not at all, but no other."""

CHANGES = INVARIANT | CAREFUL
"""All changes by name."""


def _make_title(world: World, rank: int) -> str:
    dp, tp = divmod(rank, world.attention_tp)
    tp_part = f"_TP{tp}" if world.attention_tp > 1 else ""
    return NAME_SETS[world.names].title.format(dp=dp, tp_part=tp_part, rank=rank)


class _edit:
    """Open an export for changes; they are kept when the block ends."""

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path)

    def __enter__(self) -> sqlite3.Connection:
        return self._database

    def __exit__(self, *failure: object) -> None:
        with closing(self._database):
            if failure[0] is None:
                self._database.commit()


def _has_table(database: sqlite3.Connection, table: str) -> bool:
    found = database.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (table,))
    return found.fetchone() is not None


def _lose_rows(paths: Iterable[Path], world: World, share: float, *, of_meetings: bool) -> None:
    names = NAME_SETS[world.names]
    collectives = {names.kernel(key).demangled for key in _COLLECTIVES}
    random = open_stream(world.seed, "lost", str(of_meetings))
    for path in paths:
        with _edit(path) as database:
            texts = database.execute("SELECT id, value FROM StringIds").fetchall()
            chosen = {number for number, text in texts if (text in collectives) == of_meetings}
            rows = database.execute(f"SELECT rowid, demangledName FROM {_KERNELS}").fetchall()
            rows = [(row,) for row, name in rows if name in chosen]
            drawn = random.random(len(rows)) < share
            lost = [row for row, is_lost in zip(rows, drawn.tolist(), strict=True) if is_lost]
            database.executemany(f"DELETE FROM {_KERNELS} WHERE rowid = ?", lost)


def _move_times(paths: Iterable[Path], move: Callable[[int], int]) -> None:
    for path in paths:
        with _edit(path) as database:
            database.create_function("move", 1, lambda time: None if time is None else move(time), deterministic=True)
            for table, columns in _list_timed(database):
                sets = ", ".join(f'"{column}" = move("{column}")' for column in columns)
                database.execute(f"UPDATE {table} SET {sets}")


def _list_timed(database: sqlite3.Connection) -> list[tuple[str, list[str]]]:
    """List the tables of events with their columns of times."""
    tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    timed = []
    for table in tables:
        columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})") if row[1] in ("start", "end")]
        if columns:
            timed.append((table, columns))
    return timed


def _find_span(path: Path) -> tuple[int, int]:
    with closing(sqlite3.connect(path)) as database:
        first, last = database.execute(f"SELECT min(start), max(end) FROM {_KERNELS}").fetchone()
    return first, last
