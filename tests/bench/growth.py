"""How time and memory grow with kernels, ranks and steps, and what the same data cost others."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dprankdiag.harness.suites import write_world
from tests.bench import commands
from tests.bench.exports import Size, count_kernels, plan
from tests.bench.measure import Weight, weigh
from tests.bench.table import Section, write_table

TITLE = "How it grows"
INTRO = """Wall time and the most memory that any one process held, each measured once, files in memory
(`./dev bench tests/bench/test_growth.py`). Exports hold a file a rank, each kernel with its launch call. Beside
`analyze`: the `sqlite3` shell that reads every value of the columns once, `pandas.read_sql` of the same columns, and
the way recipes over such exports go: a pool with a process a core, which reads each file's kernel and call tables
whole, puts names to their numbers and sums times by name. A dash: not tried, for rows that become Python objects would
fill the memory."""

OTHERS_MOST = 1_000_000
"""Kernels up to which others are measured beside."""

_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is measured.

    Attributes:
        kernels: of one deployment of 8 ranks.
        trace_ranks: deployments whose traces are read, with `kernels_a_rank` each.
        ranks: of cells whose digests are joined, each of `steps_a_cell` steps of `layers` layers.
        steps: of a cell of `ranks_a_cell` ranks.
    """

    kernels: tuple[int, ...] = (100_000, 300_000, 1_000_000, 3_000_000, 10_000_000)
    trace_ranks: tuple[int, ...] = (2, 8, 32, 64)
    kernels_a_rank: int = 20_000
    ranks: tuple[int, ...] = (2, 8, 32, 128, 512)
    steps_a_cell: int = 300
    steps: tuple[int, ...] = (100, 300, 1000, 3000)
    ranks_a_cell: int = 64
    layers: int = 8


SMALL = Sizes((5_000, 10_000), (2, 4), 2_000, (2, 8), 20, (20, 40), 8, 2)
"""Enough to try it."""


def measure(folder: Path, sizes: Sizes = Sizes()) -> Section:
    """Measure all curves; each file is removed once it is measured."""
    kernels = [_weigh_traces(folder, Size(8, count), f"{count:,}") for count in sizes.kernels]
    traces = [
        _weigh_traces(folder, Size(ranks, ranks * sizes.kernels_a_rank), f"{ranks}") for ranks in sizes.trace_ranks
    ]
    ranks = [_weigh_cell(folder, number, sizes.steps_a_cell, sizes.layers, f"{number}") for number in sizes.ranks]
    steps = [_weigh_cell(folder, sizes.ranks_a_cell, number, sizes.layers, f"{number:,}") for number in sizes.steps]
    meetings = 2 * sizes.layers
    return Section(
        TITLE,
        INTRO,
        (
            write_table(("kernels, 8 ranks", *_COLUMNS), kernels),
            write_table((f"ranks, {sizes.kernels_a_rank:,} kernels each", *_COLUMNS), traces),
            write_table((f"ranks, digests of {sizes.steps_a_cell:,} steps × {meetings} meetings", *_JOINED), ranks),
            write_table((f"steps, digests of {sizes.ranks_a_cell} ranks × {meetings} meetings", *_JOINED), steps),
        ),
    )


_COLUMNS = ("`analyze`", "µs a kernel", "`sqlite3` scan", "`pandas.read_sql`", "recipe")
_JOINED = ("`analyze *.dprank`", "µs a rank and step", "digests")


def _weigh_traces(folder: Path, size: Size, label: str) -> tuple[str, ...]:
    """Write a deployment's exports, weigh every way to read them, and remove them."""
    place = folder / f"traces-{size.ranks}-{size.kernels}"
    subprocess.run([sys.executable, "-m", __name__, str(place), str(size.ranks), str(size.kernels)], check=True)
    paths = sorted(place.glob("*.sqlite"))
    kernels = sum(map(count_kernels, paths))
    own = weigh(commands.analyze(place))
    ways: tuple[Callable[[], list[Weight]], ...] = (
        lambda: [weigh(commands.scan(path)) for path in paths],
        lambda: [weigh(commands.read_frames(*paths))],
        lambda: [weigh(commands.load_as_recipe(paths))],
    )
    tried = [way() if number == 0 or size.kernels <= OTHERS_MOST else [] for number, way in enumerate(ways)]
    shutil.rmtree(place)
    return label, _show([own]), f"{1e6 * own.wall_s / kernels:.2f}", *map(_show, tried)


def _weigh_cell(folder: Path, ranks: int, steps: int, layers: int, label: str) -> tuple[str, ...]:
    """Write a cell's digests, weigh the join, and remove them."""
    place = folder / f"cell-{ranks}-{steps}"
    size = map(str, (ranks, steps, layers))
    subprocess.run([sys.executable, "-m", "tests.bench.digests", str(place), *size], check=True)
    paths = sorted(place.glob("*.dprank"))
    size_mb = sum(path.stat().st_size for path in paths) / 1e6
    own = weigh(commands.join(paths))
    shutil.rmtree(place)
    return label, _show([own]), f"{1e6 * own.wall_s / ranks / steps:.1f}", f"{len(paths)}, {size_mb:.1f} MB"


def _show(weights: Sequence[Weight]) -> str:
    if not weights:
        return "–"
    wall_s, peak = sum(weight.wall_s for weight in weights), max(weight.peak_bytes for weight in weights)
    return f"{wall_s:.3g} s, {peak / _MIB:,.0f} MiB"


def write_traces(folder: Path, size: Size) -> list[Path]:
    """Write the exports of a deployment, a file a rank."""
    return write_world(replace(plan(size), files="rank", ranks_per_node=8), folder, name="rank")


if __name__ == "__main__":
    write_traces(Path(sys.argv[1]), Size(*map(int, sys.argv[2:4])))
