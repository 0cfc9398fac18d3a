"""Exports to measure with, each made in a process of its own so that this one stays small."""

from __future__ import annotations

import gzip
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from dprankdiag.harness.faults import load_context, window
from dprankdiag.harness.suites import write_world
from dprankdiag.harness.world import World
from tests.bench.measure import weigh

CULPRIT = 3
_LAYERS = 16
_KERNELS_A_STEP = 229
"""Kernels of one rank in one step of 16 layers, each launched by a call of its own."""


@dataclass(frozen=True, slots=True)
class Size:
    """How many ranks, and about how many kernels in all."""

    ranks: int
    kernels: int

    @property
    def steps(self) -> int:
        """Count the steps that hold so many kernels."""
        return round(self.kernels / self.ranks / _KERNELS_A_STEP)


LARGE = Size(8, 4_000_000)
MILLION = Size(8, 1_000_000)
TENTH = Size(8, 400_000)
MANY_RANKS = Size(64, 4_000_000)
SMALL = Size(8, 36_000)
TRACES = Size(8, 620_000)
"""Torch traces of 100 MB a rank, unpacked."""
SIZES = {"large": LARGE, "million": MILLION, "tenth": TENTH, "many-ranks": MANY_RANKS, "small": SMALL}


def plan(size: Size, one_of: int = 100) -> World:
    """Plan a deployment in which one rank carries three times the context in one step of a hundred, or of fewer."""
    first, length = size.steps // 2, max(1, round(size.steps / one_of))
    fault = load_context(min(CULPRIT, size.ranks - 1), 3.0, when=window(first, first + length))
    return World(seed=77, ranks=size.ranks, steps=size.steps, layers=_LAYERS, graph=False, faults=(fault,))


class Exports:
    """Exports by name, written when first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @cached_property
    def large(self) -> Path:
        """8 ranks, 4 million kernels."""
        return self._write("large")

    @cached_property
    def million(self) -> Path:
        """8 ranks, a million kernels."""
        return self._write("million")

    @cached_property
    def million_folder(self) -> Path:
        """The same million kernels as a parquetdir."""
        folder = self._folder / "million"
        subprocess.run([sys.executable, "-m", "tests.parquetdir", str(self.million), str(folder)], check=True)
        return folder

    @cached_property
    def tenth(self) -> Path:
        """8 ranks, a tenth of the kernels."""
        return self._write("tenth")

    @cached_property
    def many_ranks(self) -> Path:
        """64 ranks, as many kernels as the large one."""
        return self._write("many-ranks")

    @cached_property
    def small(self) -> Path:
        """A file of less than 5 MB."""
        return self._write("small")

    @cached_property
    def traces(self) -> Path:
        """A folder of 8 torch profiler traces, packed as the profiler packs them."""
        subprocess.run([sys.executable, "-m", __name__, "traces", str(self._folder / "traces")], check=True)
        return self._folder / "traces"

    def _write(self, name: str) -> Path:
        subprocess.run([sys.executable, "-m", __name__, name, str(self._folder)], check=True)
        return self._folder / f"{name}.sqlite"


def count_bytes(path: Path) -> int:
    """Count the bytes of a packed trace as they were before."""
    with gzip.open(path) as file:
        return sum(map(len, iter(lambda: file.read(1 << 20), b"")))


def count_kernels(path: Path) -> int:
    """Count the kernels of an export with the database's own shell."""
    return int(weigh(["sqlite3", str(path), "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL"]).output)


if __name__ == "__main__":
    if sys.argv[1] == "traces":
        write_world(plan(TRACES, one_of=10), Path(sys.argv[2]), name="traces", format="torch")
    else:
        write_world(plan(SIZES[sys.argv[1]]), Path(sys.argv[2]), name=sys.argv[1])
