"""Read the ranks' batch annotations, and find when the GPU began what each of them announces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dprankdiag.analysis.alignment import Alignment
from dprankdiag.analysis.lanes import Lane
from dprankdiag.analysis.observations import BatchSeries, Observations
from dprankdiag.analysis.statistics import FloatArray
from dprankdiag.catalog.batches import parse_batch
from dprankdiag.model.schema import ABSENT_NS
from dprankdiag.model.sources import Trace

IntArray = np.ndarray[Any, np.dtype[np.int64]]


def parse_batches(range_names: Sequence[str]) -> FloatArray:
    """Parse all range names: `(n_names, 3)` requests, held tokens and prompt tokens; NaN where a name does not say."""
    parsed = [parse_batch(name) for name in range_names]
    told = [
        (np.nan,) * 3 if it is None else (it.requests, _or_nan(it.held_tokens), _or_nan(it.prefill_tokens))
        for it in parsed
    ]
    return np.array(told, np.float64).reshape(len(parsed), 3)


def read_batches(trace: Trace, told: FloatArray, rank: int, lane: Lane) -> BatchSeries | None:
    """Read one rank's annotations, on its own clock; None without any.

    An annotation is written on the host, which may be steps ahead of its GPU: its time is taken to be the start of the
    first row launched after it began.

    Args:
        told: what every range name says (see `parse_batches`).
    """
    ranges = trace.tables["ranges"]
    rows = np.flatnonzero((ranges["rank"] == rank) & ~np.isnan(told[ranges["name_id"], 0]))
    if not len(rows):
        return None
    requests, held, prompt = told[ranges["name_id"][rows]].T
    return BatchSeries(find_begins(lane, ranges["start_ns"][rows]), requests, held, prompt)


def align_batches(
    series: Sequence[BatchSeries | None], ranks: Sequence[int], alignment: Alignment
) -> tuple[BatchSeries, ...]:
    """Bring the members' annotations to the common axis; nothing unless some member has any."""
    found = []
    for rank in ranks:
        own, fit = series[rank] or _NOTHING, alignment.fits[rank]
        found.append(replace(own, start_ns=fit.apply(own.start_ns)) if fit else own)
    return tuple(found) if any(len(own.start_ns) for own in found) else ()


_NOTHING = BatchSeries(np.empty(0, np.int64), np.empty(0), np.empty(0), np.empty(0))
"""Of a rank that never announces a batch."""


def tabulate_requests(seen: Observations) -> FloatArray:
    """Lay out what annotations say of requests, `(n_steps, n_ranks)`; NaN where they say nothing."""
    return _tabulate(seen, [series.requests for series in seen.batches])


def tabulate_held_tokens(seen: Observations) -> FloatArray:
    """Lay out KV tokens held, as `tabulate_requests`."""
    return _tabulate(seen, [series.held_tokens for series in seen.batches])


def tabulate_rows(seen: Observations) -> FloatArray:
    """Lay out requests, and prompt tokens where there are some, as `tabulate_requests`."""
    return _tabulate(seen, [series.requests + series.prefill_tokens for series in seen.batches])


def tabulate_prompts(seen: Observations) -> FloatArray:
    """Lay out prompt tokens, `(n_steps, n_ranks)`: as annotated, else 1 where a rank ran prefill attention; 0 else."""
    told = _tabulate(seen, [series.prefill_tokens for series in seen.batches])
    runs = np.zeros(told.shape) if seen.prefill is None else seen.prefill.astype(np.float64)
    return np.nan_to_num(told) if np.nansum(told) > 0 else runs


def _tabulate(seen: Observations, values: Sequence[FloatArray]) -> FloatArray:
    """Average what each rank's annotations say in a step, `(n_steps, n_ranks)`.

    A batch that began before its step did belongs to one that was left out.
    """
    table = np.full((seen.n_steps, seen.n_ranks), np.nan)
    for rank, (series, own) in enumerate(zip(seen.batches, values, strict=True)):
        step = seen.find_step(series.start_ns)
        inside = step < seen.n_steps
        inside[inside] = series.start_ns[inside] >= seen.start_ns[step[inside]]
        count = np.bincount(step[inside], minlength=seen.n_steps)
        total = np.bincount(step[inside], own[inside], minlength=seen.n_steps)
        table[:, rank] = total / np.where(count, count, np.nan)
    return table


def find_begins(lane: Lane, announced_ns: IntArray) -> IntArray:
    """Find the start of the first row launched after each moment; the moment itself where no launches are known."""
    if lane.launch_ns is None:
        return announced_ns
    known = np.flatnonzero(lane.launch_ns != ABSENT_NS)
    launch = lane.launch_ns[known]
    if (launch[1:] < launch[:-1]).any():
        order = np.argsort(launch, kind="stable")
        known, launch = known[order], launch[order]
    place = np.searchsorted(launch, announced_ns, side="left")
    inside = place < len(known)
    begins = announced_ns.copy()
    begins[inside] = lane.start_ns[known[place[inside]]]
    return begins


def _or_nan(value: int | None) -> float:
    return np.nan if value is None else float(value)
