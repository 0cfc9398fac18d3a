"""The program with one of its stages left out: what the stage is worth shows beside the whole.

    python -m tests.bench.without STAGE analyze PATH... --format json

Stages are exchanged here, in the running process; the program itself has no such switch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

from dprankdiag.analysis.alignment import Alignment
from dprankdiag.analysis.lanes import Naming
from dprankdiag.analysis.matching import CallTable, Matching, match_all
from dprankdiag.analysis.observations import Observations
from dprankdiag.analysis.observe import Observed, observe
from dprankdiag.cli import main
from dprankdiag.model.results import WORK
from dprankdiag.model.sources import Trace


def take_clocks(trace: Trace, calls: Sequence[CallTable], naming: Naming) -> tuple[Alignment, Matching]:
    """Take every clock as it is, in place of `align_clocks`."""
    return Alignment((None,) * len(trace.ranks), "session", None, ()), match_all(calls, naming)


def observe_blindly(*asked: Any) -> Observed:
    """Take all work for equal work, in place of `observe`: who is busy longer is slow."""
    observed = observe(*asked)
    return replace(observed, groups=tuple(map(_blind, observed.groups)))


def _blind(seen: Observations) -> Observations:
    grids = tuple(replace(grid, components=_lump(grid.components)) for grid in seen.grids)
    return replace(seen, grids=grids, sums=_lump(seen.sums), batches=(), row_ratio=None, prefill=None)


def _lump(parts: dict[str, Any]) -> dict[str, Any]:
    busy = sum(parts[name] for name in WORK)
    return parts | {name: np.zeros_like(busy) for name in WORK} | {"probe": busy}


STAGES: dict[str, tuple[str, Callable[..., Any]]] = {
    "clock-repair": ("dprankdiag.analysis.observe.align_clocks", take_clocks),
    "work-model": ("dprankdiag.pipelines.diagnose.observe", observe_blindly),
}
"""By the name of what is left out: the place of the stage, and what stands there instead."""


def run(stage: str, asked: Sequence[str]) -> int:
    """Run the command line without a stage."""
    with patch(*STAGES[stage]):
        return main(list(asked))


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], sys.argv[2:]))
