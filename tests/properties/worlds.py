"""Small worlds to vary, files to change, and the part of a diagnosis that must not change with them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from dprankdiag.harness.faults import Fault, host_late, hot_expert, load_context, load_requests, slow_gpu, slow_link
from dprankdiag.harness.worlds import World
from dprankdiag.model.diagnosis import Diagnosis
from dprankdiag.pipelines.diagnose import diagnose

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
Verdict = tuple[str, frozenset[tuple[str, tuple[int, ...]]]]

few = settings(
    max_examples=10,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
"""Worlds take a quarter of a second each: too long to shrink an example that fails."""

FAULTS: tuple[Fault, ...] = (
    load_context(3, 2.5),
    load_requests(2, 1.8),
    slow_gpu(1, 1.3),
    host_late(2, 450_000),
    hot_expert({0: 3, 1: 3, 2: 3}, 2.5),
    slow_link(0, 40_000),
)
EVEN = World(ranks=4, steps=30, layers=3)
LONG = replace(EVEN, steps=60, layers=8)
"""Enough rows a rank that three in ten may be lost and their times still be known."""
worlds = st.builds(
    lambda fault, seed, graph: replace(EVEN, seed=seed, graph=graph, faults=(fault,)),
    st.sampled_from(FAULTS),
    st.integers(0, 10_000),
    st.booleans(),
)


def verdict(diagnosis: Diagnosis) -> Verdict:
    """Give the status, and cause and ranks of what is warned of."""
    warned = [item for item in diagnosis.findings if item.severity != "info"]
    return diagnosis.status, frozenset((item.cause, item.ranks) for item in warned)


def judge(paths: Sequence[Path]) -> Diagnosis:
    """Diagnose files."""
    return diagnose(paths).diagnosis


def rename_ranks(verdict_of: Verdict, to: Mapping[int, int]) -> Verdict:
    """Put other ranks for those that a verdict names."""
    status, named = verdict_of
    return status, frozenset((cause, tuple(sorted(to[rank] for rank in ranks))) for cause, ranks in named)


def permute(world: World, order: Sequence[int]) -> World:
    """Let what befalls rank k befall rank `order[k]`."""
    (fault,) = world.faults
    layers = tuple((layer, order[rank]) for layer, rank in fault.layers)
    moved = replace(fault, ranks=tuple(sorted(order[rank] for rank in fault.ranks)), layers=layers)
    return replace(world, faults=(moved,))


def change(paths: Iterable[Path], *statements: str) -> None:
    """Run statements on exports."""
    for path in paths:
        with closing(sqlite3.connect(path)) as database:
            for statement in statements:
                database.execute(statement)
            database.commit()


def lose_rows(path: Path, share: float, seed: int, *, of_meetings: bool) -> None:
    """Delete a random share of an export's collective kernels, or of its other kernels."""
    with closing(sqlite3.connect(path)) as database:
        which = "IN" if of_meetings else "NOT IN"
        names = "SELECT id FROM StringIds WHERE value LIKE '%nccl%'"
        found = database.execute(f"SELECT rowid FROM {KERNELS} WHERE shortName {which} ({names})").fetchall()
        lost = np.random.default_rng(seed).random(len(found)) < share
        chosen = [row for row, is_lost in zip(found, lost, strict=True) if is_lost]
        database.executemany(f"DELETE FROM {KERNELS} WHERE rowid = ?", chosen)
        database.commit()


def list_timed(path: Path) -> dict[str, list[str]]:
    """List the columns that hold times, by table."""
    with closing(sqlite3.connect(path)) as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        columns = {name: [row[1] for row in database.execute(f"PRAGMA table_info({name})")] for name in tables}
    timed = {name: [column for column in ("start", "end") if column in found] for name, found in columns.items()}
    return {name: found for name, found in timed.items() if found}


def move_times(paths: Iterable[Path], expression: str) -> None:
    """Replace every time `t` of exports by an SQL expression of `{t}`."""
    for path in paths:
        change([path], *(_update(table, columns, expression) for table, columns in list_timed(path).items()))


def _update(table: str, columns: Sequence[str], expression: str) -> str:
    sets = ", ".join(f'"{column}" = {expression}'.replace("{t}", f'"{column}"') for column in columns)
    return f"UPDATE {table} SET {sets}"
