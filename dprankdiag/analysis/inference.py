"""Find collectives by what they do where no kernel has a name that is known.

A blocking collective is the one kernel whose calls start apart and end together on all members of a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dprankdiag.analysis.calls import Calls, Channel
from dprankdiag.analysis.collectives import match_channel
from dprankdiag.analysis.lanes import FAMILY_CODE, Naming
from dprankdiag.model.sources import Trace

FEWEST_CALLS = 16
COUNTS_ALIKE = 0.05
TOGETHER = 0.5
"""Ends of a meeting must spread at most this much of what its starts do."""


def infer_channels(trace: Trace, naming: Naming) -> Naming:
    """Give a channel to every kernel of unknown name that behaves like a collective.

    Only recordings of one clock are judged: ends can be compared there without knowing the collectives first.
    """
    if len(trace.ranks) < 2 or any(precision != "exact" for precision in trace.domain_precision):
        return naming
    family, channel = naming.family.copy(), naming.channel.copy()
    names, families, operations = list(naming.channels), list(naming.channel_family), list(naming.channel_operation)
    for name_id in np.flatnonzero(naming.family == FAMILY_CODE["other"]):
        calls = _calls_of(trace, int(name_id))
        if calls is not None and _meets(calls):
            channel[name_id] = len(names)
            family[name_id] = FAMILY_CODE["collective"]
            names.append(trace.names.kernel_names[name_id].demangled)
            families.append("collective")
            operations.append("unknown")
    return replace(
        naming,
        family=family,
        channel=channel,
        channels=tuple(names),
        channel_family=tuple(families),
        channel_operation=tuple(operations),
    )


def _calls_of(trace: Trace, name_id: int) -> list[Calls] | None:
    """Take every rank's calls of a kernel name; None if the ranks do not call it about equally often."""
    kernels = trace.tables["kernels"]
    rows = np.flatnonzero(kernels["name_id"] == name_id)
    rank = kernels["rank"][rows]
    counts = np.bincount(rank, minlength=len(trace.ranks))
    if counts.min() < FEWEST_CALLS or counts.max() - counts.min() > COUNTS_ALIKE * counts.max() + 1:
        return None
    calls = []
    for position in range(len(trace.ranks)):
        mine = rows[rank == position]
        start = kernels["start_ns"][mine]
        calls.append(Calls(position, start, start, kernels["end_ns"][mine], np.zeros(len(mine), np.int64)))
    return calls


def _meets(calls: Sequence[Calls]) -> bool:
    sets, _ = match_channel(Channel("", "collective", "unknown", tuple(calls)))
    total = sum(len(member) for member in calls)
    if not sets or sum(item.arrival_ns.size for item in sets) < 0.8 * total:
        return False
    starts = np.concatenate([np.ptp(item.arrival_ns, axis=1) for item in sets])
    ends = np.concatenate([np.ptp(item.end_ns, axis=1) for item in sets])
    waits = np.concatenate([item.waits for item in sets])
    return bool(np.median(ends) <= TOGETHER * np.median(starts) and waits.mean() >= 0.5 and _follows(sets))


def _follows(sets: Sequence[Any]) -> bool:
    """Check that calls which start early last longer, by as much as they started early."""
    wait = np.concatenate([(item.arrival_ns.max(axis=1)[:, None] - item.arrival_ns).ravel() for item in sets])
    duration = np.concatenate([(item.end_ns - item.arrival_ns).ravel() for item in sets])
    reach = wait - wait.mean()
    power = float(np.sum(reach.astype(np.float64) ** 2))
    if power <= 0:
        return False
    return float(np.sum(reach * (duration - duration.mean())) / power) >= 0.8
