"""Tell what the recording of a lockstep group carries, and what it cannot show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dprankdiag.analysis.alignment import Alignment
from dprankdiag.analysis.grid import StepGrid
from dprankdiag.analysis.observations import Abilities
from dprankdiag.analysis.segments import Segments
from dprankdiag.analysis.statistics import FloatArray
from dprankdiag.model.schema import count_rows
from dprankdiag.model.sources import Trace

SESSION_CLOCK_BOUND_NS = 30_000
"""GPUs of one host show end offsets of up to this much on the profiler's own clock (measured on real recordings)."""

UNEVEN_OVERHEAD_SHARE = 0.02


def judge_abilities(
    trace: Trace,
    ranks: tuple[int, ...],
    alignment: Alignment,
    own: Sequence[Segments],
    has_kernels: bool,
    sums: dict[str, FloatArray],
    grids: Sequence[StepGrid],
) -> Abilities:
    """Tell what the recording of a group carries.

    Args:
        ranks: the members, as positions in the trace.
        own: their segments.
        sums: sums of every component over the steps, `(n_steps, n_ranks)`.
        grids: their steps.
    """
    shared = alignment.clock in ("session", "boot")
    transfer = float(np.median(sums["transfer"])) if sums["transfer"].size else 0.0
    positions = max(
        1, round(float(np.mean([len(member.arrival_ns) for member in own])) / max(len(sums["transfer"]), 1))
    )
    fitted = round(2 * transfer / positions) + 4 * (alignment.residual_ns or 0)
    able = Abilities(
        has_kernels,
        all(member.has_launches for member in own),
        count_rows(trace.tables["graph_replays"]) > 0,
        _find_uneven(trace, ranks),
        trace.missing_ranks,
        (SESSION_CLOCK_BOUND_NS if has_kernels else 0) if shared else fitted,
    )
    return _add_doubt(able, ranks, alignment, grids)


def _add_doubt(
    abilities: Abilities, ranks: tuple[int, ...], alignment: Alignment, grids: Sequence[StepGrid]
) -> Abilities:
    """Say what late exits the clocks may hide, as a share of the time in which all meetings are late."""
    place = {rank: position for position, rank in enumerate(ranks)}
    clocks = tuple(tuple(place[rank] for rank in clock if rank in place) for clock in alignment.clocks)
    abilities = replace(abilities, clocks=clocks)
    step_ns = float(np.median(grids[0].duration_ns))
    doubts = [doubt for doubt in alignment.doubts if set(doubt.ranks) <= set(ranks)]
    if not doubts or step_ns <= 0:
        return abilities
    worst = max(doubts, key=lambda doubt: doubt.cost_ns)
    members = tuple(place[rank] for rank in worst.ranks)
    ratio = worst.cost_ns * len(grids[0].meetings) / step_ns
    return replace(abilities, clock_doubt_ratio=ratio, clock_doubt=(members, worst.late_ns))


def _find_uneven(trace: Trace, ranks: tuple[int, ...]) -> str | None:
    """Tell why the ranks were not profiled alike (DESIGN 2.1, rule 17)."""
    overhead = trace.tables["overheads"]
    span = max(trace.end_ns - trace.start_ns, 1)
    shares = [
        float((overhead["end_ns"] - overhead["start_ns"])[overhead["rank"] == rank].sum()) / span for rank in ranks
    ]
    if max(shares) - min(shares) > UNEVEN_OVERHEAD_SHARE:
        return "the profiler itself took much more time on some ranks than on others"
    modes = {capture.graph_mode for capture in trace.captures if capture.graph_mode}
    if len(modes) > 1:
        return "CUDA graphs were recorded in different ways on different ranks"
    return None
