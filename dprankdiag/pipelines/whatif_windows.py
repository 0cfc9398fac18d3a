"""From what engines tell of their load over time to the steps that they counted."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dprankdiag.model.ledgers import FloatArray, Ledger
from dprankdiag.simulate.base import IntArray
from dprankdiag.simulate.cost_windows import Counted, Window
from dprankdiag.units import NS_PER_S

LEAST_STEPS = 3
"""Fewer steps between two looks say less than their edges cost."""


def list_windows(ledger: Ledger, worker: int, begin_ns: int, lockstep: bool) -> list[Window]:
    """List the steps that an engine counted, on an axis that begins at `begin_ns` (UTC epoch).

    Of the ranks of a group, which all take the same steps, the one that counted most is taken for each kind of count.
    """
    if ledger.seconds is None or ledger.start_ns is None or ledger.n_moments < 2:
        return []
    moments = ledger.start_ns - begin_ns + np.rint(ledger.seconds * NS_PER_S).astype(np.int64)
    looks = np.repeat(moments[:, None], len(ledger.ranks), axis=1)
    windows: list[Window] = []
    for counted, stamps, count, total_s in _list_counts(ledger, looks, begin_ns):
        for first, places in _list_groups(len(ledger.ranks), lockstep):
            place = max(places, key=lambda one: float(np.nan_to_num(_last(count[:, one]))))
            seen = _cut(stamps[:, place], count[:, place], total_s[:, place])
            windows += [Window(worker, first, place - first, *when, counted, *spent) for when, spent in seen]
    return windows


def _list_groups(ranks: int, lockstep: bool) -> Iterator[tuple[int, range]]:
    if lockstep:
        yield 0, range(ranks)
    else:
        yield from ((rank, range(rank, rank + 1)) for rank in range(ranks))


def _list_counts(
    ledger: Ledger, looks: IntArray, begin_ns: int
) -> Iterator[tuple[Counted, IntArray, FloatArray, FloatArray]]:
    """List counters of steps and of the time they took, `(moments, ranks)`, with the moments they are of."""
    told = ledger.values
    if "load_decode_steps" in told and "load_decode_step_s" in told:
        stamps = looks
        if "load_stamp_s" in told:
            own = told["load_stamp_s"]
            stamps = np.where(own > 0, np.rint((own - begin_ns / NS_PER_S) * NS_PER_S), looks).astype(np.int64)
        yield "decode", stamps, told["load_decode_steps"], told["load_decode_step_s"]
    if "active_steps" in told and "idle_steps" in told and ledger.facts.get("dp_attention_steps_seen"):
        elapsed = (looks - looks[:1]) / NS_PER_S
        rest = told.get("idle_stage_s", told.get("scheduler_idle_s"))
        if rest is not None:
            yield "all", looks, told["active_steps"] + told["idle_steps"], elapsed - rest
    if "token_gaps" in told and "token_gap_s" in told:
        yield "tokens", looks, told["token_gaps"], told["token_gap_s"]


def _last(values: FloatArray) -> float:
    told = values[np.isfinite(values)]
    return float(told[-1] - told[0]) if len(told) else 0.0


def _cut(
    stamps: IntArray, count: FloatArray, total_s: FloatArray
) -> Iterator[tuple[tuple[int, int], tuple[float, float]]]:
    """Cut counters into windows from look to look; a counter that fell began anew, and its window is left out."""
    for at in range(1, len(count)):
        steps, spent_s = float(count[at] - count[at - 1]), float(total_s[at] - total_s[at - 1])
        begin, end = int(stamps[at - 1]), int(stamps[at])
        if np.isfinite(steps) and np.isfinite(spent_s) and steps >= LEAST_STEPS and spent_s > 0 and end > begin:
            yield (begin, end), (steps, spent_s * NS_PER_S)
