"""Bring the clocks of a deployment together before its collectives are matched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dprankdiag.analysis.clock_doubt import Block, Doubt, place_blocks
from dprankdiag.analysis.clocks import ClockFit, fit_clock
from dprankdiag.analysis.lanes import Lane, Naming
from dprankdiag.analysis.matching import CallTable, Matching, match_all
from dprankdiag.analysis.overlap import Overlap
from dprankdiag.analysis.partitions import clock_offsets, transfer_scatter
from dprankdiag.model.schema import ABSENT_NS
from dprankdiag.model.sources import Trace

IntArray = np.ndarray[Any, np.dtype[np.int64]]

LEAST_OFFSET_NS = 500
CLOSE_CLOCKS_NS, SAME_CLOCK_NS = 20_000, 1_000_000
"""Clocks of processes that differ by less agree closely, or may be one."""

CLEARLY = 0.8
"""A reading of the clocks is believed if transfers scatter at most this much of what they do under the other."""

FEWEST_MATCHED = 0.5
"""Share of calls that must find their partners on a clock said to be common, before it is believed."""


@dataclass(frozen=True, slots=True)
class Alignment:
    """How the ranks' clocks were brought together.

    Attributes:
        fits: one a rank, None where the rank's times are used as they are.
        clock: "session", "boot", "collectives" or "unaligned".
        residual_ns: largest residual of the fits; None where none was needed.
        unaligned: ranks (positions) whose clock could not be placed.
        clocks: where clocks were fitted, the ranks of each or of several that agreed before.
        doubts: late exits that the fits may hide.
    """

    fits: tuple[ClockFit | None, ...]
    clock: str
    residual_ns: int | None
    unaligned: tuple[int, ...]
    clocks: tuple[tuple[int, ...], ...] = ()
    doubts: tuple[Doubt, ...] = ()


def align_clocks(trace: Trace, calls: Sequence[CallTable], naming: Naming) -> tuple[Alignment, Matching]:
    """Decide which clocks to trust, fit the others to the collectives, and match the calls on the common axis.

    Sessions of one host are exact by its boot clock. Wall clocks of different hosts are not good enough to tell who
    came last; they are fitted. A clock said to be common is checked: if calls do not overlap on it, every rank is
    fitted by itself.
    """
    alignment, matching = _align_sessions(trace, calls, naming)
    matching = matching or match_all(_shift_all(calls, alignment.fits), naming)
    alone = False
    if alignment.clock == "collectives" and matching.channels:
        middle_ns = int(np.median(np.concatenate([calls.end_ns for calls in matching.channels[0].calls])))
        clocks = _list_clocks(trace, alignment, middle_ns)
        alone = any(len(block.ranks) == 1 for block in clocks.blocks)
        shifts, doubts = place_blocks(matching.channels, matching.found, clocks.blocks, len(calls), clocks.starts_ns)
        alignment, matching = _move_clocks(alignment, matching, calls, naming, [-shift for shift in shifts])
        alignment = replace(alignment, doubts=tuple(doubts))
        alignment = replace(alignment, clocks=_list_clocks(trace, alignment, middle_ns).together)
    if not alone:
        alignment, matching = _move_clocks(alignment, matching, calls, naming, _gpu_offsets(matching, len(calls)))
    return alignment, matching


def _move_clocks(
    alignment: Alignment, matching: Matching, calls: Sequence[CallTable], naming: Naming, offsets_ns: Sequence[int]
) -> tuple[Alignment, Matching]:
    """Set each rank's clock back by its offset and match anew; all stays as it is if there is none."""
    if not any(offsets_ns):
        return alignment, matching
    fits = tuple(_add_offset(fit, offset) for fit, offset in zip(alignment.fits, offsets_ns, strict=True))
    return replace(alignment, fits=fits), match_all(_shift_all(calls, fits), naming)


def _align_sessions(trace: Trace, calls: Sequence[CallTable], naming: Naming) -> tuple[Alignment, Matching | None]:
    """Align the sessions; also return the matching that confirmed a common clock, if one did."""
    domains = trace.clock_domain.tolist()
    exact = all(precision == "exact" for precision in trace.domain_precision)
    if len(set(domains)) == 1 or exact:
        matching = match_all(calls, naming)
        if not matching.calls or matching.matched_calls >= FEWEST_MATCHED * matching.calls:
            clock = "session" if len(set(domains)) == 1 else "boot"
            return Alignment((None,) * len(trace.ranks), clock, None, ()), matching
    units = domains if len(set(domains)) > 1 and not exact else list(range(len(trace.ranks)))
    return _fit_units(calls, naming, units), None


def _gpu_offsets(matching: Matching, n_ranks: int) -> list[int]:
    """Estimate how far each GPU's stamps lie from the others' on one clock, ns; zero where that explains nothing.

    Ends that lie apart by a constant are late exits or a clock that is ahead. Set back, the clock's times make the
    transfers scatter less; a late exit's would make them scatter more.
    """
    offsets = [0] * n_ranks
    pairs = zip(matching.channels, matching.found, strict=True)
    for _, sets in sorted(pairs, key=lambda pair: -sum(len(member) for member in pair[0].calls)):
        if len(sets) != 1 or len(sets[0].ranks) < max(3, n_ranks) or sets[0].halves is not None:
            # Receipts end when each rank looks for them, and tell nothing of its clock.
            continue
        meeting = sets[0]
        found = clock_offsets(meeting.end_ns)
        plain = transfer_scatter(meeting.arrival_ns, meeting.end_ns, None)
        if np.abs(found).max() >= LEAST_OFFSET_NS and (
            transfer_scatter(meeting.arrival_ns, meeting.end_ns, found) <= CLEARLY * plain
        ):
            for rank, offset in zip(meeting.ranks, found, strict=True):
                offsets[rank] = int(offset)
        break
    return offsets


@dataclass(frozen=True, slots=True)
class _Clocks:
    """What may have been set too early or too late where clocks were fitted to ends.

    Attributes:
        together: ranks of each clock or of several that agree closely.
        starts_ns: one a rank, the shift under which it lies to clocks that may be its own as it was recorded.
    """

    blocks: tuple[Block, ...]
    together: tuple[tuple[int, ...], ...]
    starts_ns: tuple[int, ...]


def _list_clocks(trace: Trace, alignment: Alignment, middle_ns: int) -> _Clocks:
    """List what may be shifted: every fitted clock, and those together that agree by themselves.

    Clocks that agree are of one host, or of hosts that nobody knows. They agree closely where all was fitted well, and
    roughly where ends were late.
    """
    domains = trace.clock_domain.tolist()
    shared = len(set(domains)) > 1
    units: dict[int, list[int]] = {}
    for rank, domain in enumerate(domains):
        if rank not in alignment.unaligned:
            units.setdefault(domain if shared else rank, []).append(rank)
    recorded = {unit: _recorded_shift(alignment.fits[ranks[0]], middle_ns) for unit, ranks in units.items()}
    hosts = {unit: trace.domain_hosts[domains[ranks[0]]] for unit, ranks in units.items()}
    close, rough = (_join_clocks(recorded, hosts, apart_ns) for apart_ns in (CLOSE_CLOCKS_NS, SAME_CLOCK_NS))
    starts = [0] * len(domains)
    blocks = []
    for members in rough:
        usual = int(np.median([recorded[unit] for unit in members]))
        for unit in members:
            for rank in units[unit]:
                starts[rank] = recorded[unit] - usual
        for unit in members if len(members) > 1 else ():
            peers = [other for other in members if other != unit]
            near = recorded[unit] - int(np.median([recorded[other] for other in peers]))
            blocks.append(Block(tuple(units[unit]), near, _list_ranks(units, peers)))
    together = tuple(_list_ranks(units, members) for members in close)
    wholes = dict.fromkeys((*together, *(_list_ranks(units, members) for members in rough)))
    singles = {block.ranks for block in blocks}
    blocks += [Block(ranks) for ranks in wholes if ranks not in singles and len(ranks) < sum(map(len, units.values()))]
    return _Clocks(tuple(blocks), together, tuple(starts))


def _join_clocks(recorded: dict[int, int], hosts: dict[int, str | None], apart_ns: int) -> list[list[int]]:
    """Join units of one host, or of unknown ones, whose clocks lie next to each other by less than `apart_ns`."""
    together: list[list[int]] = []
    for unit in sorted(recorded, key=lambda unit: (str(hosts[unit]), recorded[unit])):
        last = together[-1][-1] if together else unit
        near = hosts[last] == hosts[unit] and recorded[unit] - recorded[last] <= apart_ns
        if together and near:
            together[-1].append(unit)
        else:
            together.append([unit])
    return together


def _list_ranks(units: dict[int, list[int]], members: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(rank for unit in members for rank in units[unit]))


def _recorded_shift(fit: ClockFit | None, middle_ns: int) -> int:
    """Return the shift that would undo a fit in the middle of the recording."""
    if fit is None:
        return 0
    return middle_ns - fit.apply_once(middle_ns)


def _add_offset(fit: ClockFit | None, offset_ns: int) -> ClockFit | None:
    if not offset_ns:
        return fit
    if fit is None:
        return ClockFit(offset_ns, 0, 0, 0, None, 0)
    return replace(fit, offset_ns=fit.offset_ns + offset_ns)


def _fit_units(calls: Sequence[CallTable], naming: Naming, units: list[int]) -> Alignment:
    """Fit every clock to that of the unit with most ranks (the first among equals)."""
    members: dict[int, list[int]] = {}
    for rank, unit in enumerate(units):
        if calls[rank]:
            members.setdefault(unit, []).append(rank)
    if not members:
        return Alignment((None,) * len(units), "unaligned", None, ())
    reference = max(members, key=lambda unit: (len(members[unit]), -unit))
    channels = range(len(naming.channels))
    reference_ends = [_unit_ends([calls[rank] for rank in members[reference]], channel) for channel in channels]
    fits: list[ClockFit | None] = [None] * len(units)
    unaligned: list[int] = []
    for unit, ranks in members.items():
        if unit == reference:
            continue
        fit = _best_fit(reference_ends, [calls[rank] for rank in ranks])
        if fit is None:
            unaligned += ranks
        for rank in ranks:
            fits[rank] = fit
    residuals = [fit.residual_ns for fit in fits if fit is not None]
    return Alignment(
        tuple(fits),
        "unaligned" if unaligned and not residuals else "collectives",
        max(residuals) if residuals else None,
        tuple(sorted(unaligned)),
    )


def _best_fit(reference_ends: Sequence[IntArray | None], calls: Sequence[CallTable]) -> ClockFit | None:
    """Try the channels both sides use; the one whose ends agree best is one they share.

    Args:
        reference_ends: of each channel.
        calls: of the clock's ranks.
    """
    best: ClockFit | None = None
    for channel, left in enumerate(reference_ends):
        right = None if left is None else _unit_ends(calls, channel)
        if left is None or right is None:
            continue
        fit = fit_clock(left, right)
        if fit is not None and (best is None or fit.residual_ns < best.residual_ns):
            best = fit
    return best


def _unit_ends(calls: Sequence[CallTable], channel: int) -> IntArray | None:
    """Return the ends of a clock's calls on a channel: the median of its ranks, where they call equally often.

    One rank that leaves late must not drag its whole host's clock along.
    """
    ends = [found for mine in calls if (found := _ends(mine, channel)) is not None]
    if not ends:
        return None
    if len({len(found) for found in ends}) > 1:
        return ends[0]
    return np.sort(np.asarray(np.sort(np.stack(ends), axis=0)[(len(ends) - 1) // 2]))


def _ends(calls: CallTable, channel: int) -> IntArray | None:
    """Return the sorted ends of a rank's calls on a channel."""
    ends = [value.end_ns for (name, _), value in calls.items() if name == channel]
    if not ends:
        return None
    times = ends[0] if len(ends) == 1 else np.concatenate(ends)
    return times if (times[1:] >= times[:-1]).all() else np.sort(times)


def _shift_all(calls: Sequence[CallTable], fits: Sequence[ClockFit | None]) -> list[CallTable]:
    return [shift_calls(mine, fit) for mine, fit in zip(calls, fits, strict=True)]


def shift_calls(calls: CallTable, fit: ClockFit | None) -> CallTable:
    """Carry a rank's calls onto the common axis."""
    if fit is None:
        return calls
    return {
        key: replace(
            value,
            start_ns=fit.apply(value.start_ns),
            arrival_ns=fit.apply(value.arrival_ns),
            end_ns=fit.apply(value.end_ns),
            overlap=None if value.overlap is None else shift_overlap(value.overlap, fit),
        )
        for key, value in calls.items()
    }


def shift_overlap(overlap: Overlap, fit: ClockFit) -> Overlap:
    """Carry the moments of an overlap onto the common axis; durations and rows stay."""
    return replace(overlap, reach_ns=fit.apply(overlap.reach_ns))


def shift_lane(lane: Lane, fit: ClockFit | None) -> Lane:
    """Carry a rank's lane onto the common axis."""
    if fit is None:
        return lane
    launch = lane.launch_ns
    if launch is not None:
        launch = np.where(launch == ABSENT_NS, ABSENT_NS, fit.apply(np.where(launch == ABSENT_NS, 0, launch)))
    return replace(lane, start_ns=fit.apply(lane.start_ns), end_ns=fit.apply(lane.end_ns), launch_ns=launch)
