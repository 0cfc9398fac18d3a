"""From a trace to observations: meetings, clocks, steps, segments and skews of every lockstep group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from dprankdiag.analysis.abilities import judge_abilities
from dprankdiag.analysis.alignment import Alignment, align_clocks, shift_lane
from dprankdiag.analysis.batches import align_batches, parse_batches, read_batches
from dprankdiag.analysis.calls import Calls, extract_calls
from dprankdiag.analysis.collectives import MeetingSet, Refusal
from dprankdiag.analysis.digested import DigestShelf
from dprankdiag.analysis.grid import bound_steps, build_grids
from dprankdiag.analysis.host_meetings import time_host_meetings
from dprankdiag.analysis.inference import infer_channels
from dprankdiag.analysis.kernel_record import KernelRecord
from dprankdiag.analysis.lanes import Lane, Naming, add_replays, name_kernels, name_ranges, range_lane
from dprankdiag.analysis.left_out import LeftOut
from dprankdiag.analysis.observations import BatchSeries, NamedSpans, Observations, ProbeTimes, sum_steps
from dprankdiag.analysis.overlap import list_work, measure_contention, measure_stops, vote_joins
from dprankdiag.analysis.participations import (
    Participation,
    add_joins,
    collect_participations,
    find_world,
    locate_world,
)
from dprankdiag.analysis.partitions import TICK_NS
from dprankdiag.analysis.probes import choose_probes, list_row_blocks, measure_row_ratio
from dprankdiag.analysis.segments import KeyTimes, Segments, cut_segments, measure_keys
from dprankdiag.analysis.shelf import KernelShelf
from dprankdiag.analysis.statistics import BoolArray, FloatArray
from dprankdiag.analysis.steps import Cut, cut_steps
from dprankdiag.analysis.unseen import Unseen, find_unseen
from dprankdiag.analysis.work import list_kernel_uses
from dprankdiag.catalog.kernels import KernelCatalog
from dprankdiag.catalog.ranges import RangeCatalog
from dprankdiag.model.schema import Columns, count_rows, take_rows
from dprankdiag.model.sources import Trace

IntArray = np.ndarray[Any, np.dtype[np.int64]]

FEWEST_MATCHED = 0.95

MOST_EARLY = 0.01
"""Share of calls that may end before the last arrival where clocks are taken as they are."""


@dataclass(frozen=True, slots=True)
class Observed:
    """What the analysis of a trace found.

    Attributes:
        groups: lockstep groups with comparable steps.
        alignment: how clocks were brought together.
        refusals: channels whose meetings could not be told apart.
        meetings, calls: matched meetings, and communication calls on channels that two or more ranks use.
        matched_calls: calls that found all their partners.
        local_calls: communication calls that seem to wait for no other rank.
        left_out: complete steps whose kind is too rare to compare.
        reasons: why no group could be compared, for people; empty if one could.
        kernels: of the groups' ranks, packed; None if the recording holds none, or only digests of some.
        unseen: work that the recording shows only from beside; None if nobody looked.
    """

    groups: tuple[Observations, ...]
    alignment: Alignment
    refusals: tuple[Refusal, ...]
    meetings: int
    calls: int
    matched_calls: int
    local_calls: int
    left_out: LeftOut
    reasons: tuple[str, ...]
    kernels: KernelRecord | None = None
    unseen: Unseen | None = None

    @property
    def local_ratio(self) -> float:
        """Share of all communication calls that seem to wait for no other rank."""
        return self.local_calls / max(self.local_calls + self.calls, 1)

    @property
    def matched_ratio(self) -> float | None:
        """Share of the calls that were matched; None without calls."""
        return self.matched_calls / self.calls if self.calls else None


@dataclass(frozen=True, slots=True)
class Lanes:
    """Makes the lanes of the ranks, on the common axis.

    Attributes:
        make, give: make a lane; `give` for the last time.
        contention: how much slower work is while calls run beside it, in the median rank; 0 where that cannot be seen.
        digests: what stands in for the lanes of some ranks, or of all; None if every rank has one.
    """

    make: Callable[[int], Lane]
    give: Callable[[int], Lane]
    alignment: Alignment
    contention: float
    digests: DigestShelf | None = None

    def cut(self, rank: int, part: Participation, probe_keys: IntArray, *, beside: bool) -> Segments:
        """Cut a rank's time at its meetings, by its digest where it has one.

        Args:
            beside: its calls run beside work, so that its lane will be made again.
        """
        if self.digests is not None and rank in self.digests:
            return self.digests.cut(rank, part.arrival_ns, part.end_ns, probe_keys, self.alignment.fits[rank])
        lane = self.keep(rank) if beside else self.spend(rank)
        return cut_segments(lane, part.arrival_ns, part.end_ns, probe_keys, self.contention if beside else 0.0)

    def keep(self, rank: int) -> Lane:
        """Make a rank's lane, to be made again."""
        return shift_lane(self.make(rank), self.alignment.fits[rank])

    def spend(self, rank: int) -> Lane:
        """Make a rank's lane for the last time."""
        return shift_lane(self.give(rank), self.alignment.fits[rank])


def observe(trace: Trace, kernel_catalog: KernelCatalog, range_catalog: RangeCatalog) -> Observed:
    """Analyse a trace up to the point where causes can be judged.

    Takes the kernels over: the trace holds none afterwards.
    """
    has_rows = count_rows(trace.tables["kernels"]) > 0 or count_rows(trace.tables["graph_replays"]) > 0
    has_kernels = has_rows or bool(trace.digests)
    unseen = find_unseen(trace)
    if has_kernels:
        naming = name_kernels(trace.names, kernel_catalog)
        if not naming.channels:
            naming = infer_channels(trace, naming)
        if count_rows(trace.tables["graph_replays"]) > 0:
            naming = add_replays(naming)
        is_step = np.zeros(0, bool)
    else:
        naming, is_step = name_ranges(trace.names, range_catalog)
    shelf = KernelShelf(trace.tables, trace.names, len(trace.ranks), naming) if has_rows else None
    digests = DigestShelf(trace, naming) if trace.digests else None
    make = shelf.lane if shelf else partial(range_lane, trace, naming)
    calls, keys, slower = [], [], []
    batches: list[BatchSeries | None] = []
    told = parse_batches(trace.names.range_names)
    messages = _split_messages(trace)
    for rank in range(len(trace.ranks)):
        if digests is not None and rank in digests:
            calls.append(digests.list_calls(rank, messages[rank]))
            keys.append(digests.list_keys(rank))
            slower.append(digests.tell_contention(rank))
            batches.append(digests.list_batches(rank))
            continue
        lane = make(rank)
        found = extract_calls(lane, rank, messages[rank])
        calls.append(_leave_out_overlap(found) if digests is not None else found)
        keys.append(measure_keys(lane))
        slower.append(measure_contention(lane))
        batches.append(read_batches(trace, told, rank, lane))
        del lane  # before the next one is made: a lane is long
    has_calls = any(calls)
    alignment, matching = align_clocks(trace, calls, naming)
    sets, refusals, n_calls, local_calls = matching.sets, matching.refusals, matching.calls, matching.local_calls
    del calls, matching  # they hold every call, and the sets have what matters
    marks = _step_marks(trace, is_step)
    spend = shelf.spend if shelf else make
    known = [factor for factor in slower if factor is not None]
    lanes = Lanes(make, spend, alignment, float(np.median(known)) if known else 0.0, digests)
    groups, left_out = _build_groups(trace, naming, sets, keys, batches, lanes, marks, has_kernels)
    if has_kernels:
        groups = [_add_host_meetings(trace, range_catalog, group, alignment) for group in groups]
    return Observed(
        tuple(groups),
        alignment,
        refusals,
        sum(len(item.arrival_ns) for item in sets),
        n_calls,
        sum(item.matched_calls for item in sets),
        local_calls,
        left_out,
        () if groups else tuple(_explain_nothing(trace, has_calls, sets, alignment, has_kernels)),
        None if shelf is None or digests is not None else _record_kernels(trace, shelf, alignment),
        unseen,
    )


def _leave_out_overlap(calls: dict[tuple[int, int], Calls]) -> dict[tuple[int, int], Calls]:
    """Leave out how calls lie beside work: of other ranks only a digest is there, which is made where it is little."""
    return {place: replace(mine, overlap=None) for place, mine in calls.items()}


def _add_host_meetings(trace: Trace, catalog: RangeCatalog, group: Observations, alignment: Alignment) -> Observations:
    """Add when the hosts of a group came to their meeting."""
    ranks = tuple(trace.ranks.index(rank) for rank in group.ranks)
    return replace(group, host_come=time_host_meetings(trace, catalog, ranks, alignment, group.start_ns))


def _record_kernels(trace: Trace, shelf: KernelShelf, alignment: Alignment) -> KernelRecord:
    packed = {
        (trace.ranks[rank].engine, trace.ranks[rank].rank): (rows, alignment.fits[rank])
        for rank, rows in shelf.packed.items()
    }
    return KernelRecord(packed, *shelf.list_names())


def _contradict(sets: Sequence[MeetingSet], ranks: tuple[int, ...], alignment: Alignment) -> bool:
    """Tell whether clocks that nothing brought together make calls end before the last has come."""
    if not set(alignment.unaligned).intersection(ranks):
        return False
    mine = [item for item in sets if set(item.ranks) <= set(ranks)]
    early = sum(int((item.end_ns < item.arrival_ns.max(axis=1, keepdims=True) - TICK_NS).sum()) for item in mine)
    return early > MOST_EARLY * sum(item.end_ns.size for item in mine)


def _split_messages(trace: Trace) -> list[Columns]:
    """Return what the recording says of each rank's communication kernels."""
    table = trace.tables["messages"]
    edges = np.searchsorted(table["rank"], np.arange(len(trace.ranks) + 1)).tolist()
    return [take_rows(table, slice(low, high)) for low, high in pairwise(edges)]


def _build_groups(
    trace: Trace,
    naming: Naming,
    sets: Sequence[MeetingSet],
    keys: Sequence[KeyTimes],
    batches: Sequence[BatchSeries | None],
    lanes: Lanes,
    marks: Sequence[IntArray],
    has_kernels: bool,
) -> tuple[list[Observations], LeftOut]:
    components = [
        ranks
        for ranks in join_groups(sets)
        if find_world(sets, ranks) and not _contradict(sets, ranks, lanes.alignment)
    ]
    if not components:
        return [], LeftOut(0, 0.0)
    participations = collect_participations(sets, len(trace.ranks))
    probe_keys = {ranks: choose_probes([keys[rank] for rank in ranks], naming, trace.names) for ranks in components}
    owner = {rank: ranks for ranks in components for rank in ranks}
    segments: dict[int, Segments] = {}
    beside = {rank for item in sets if item.beside for rank in item.ranks}
    for rank, ranks in owner.items():
        segments[rank] = lanes.cut(rank, participations[rank], probe_keys[ranks].keys, beside=rank in beside)
    groups, count, hidden_ns = [], 0, 0.0
    for ranks in components:
        world = find_world(sets, ranks)
        members = [participations[rank] for rank in ranks]
        position = [locate_world(member, sets, world) for member in members]
        own = [segments[rank] for rank in ranks]
        last = members[0].last_ns[position[0]]
        matched = _matched_share(sets, ranks)
        cut = cut_steps(own, position, last, members[0].shared_end_ns[position[0]], [marks[rank] for rank in ranks])
        lost_ns = 0.0
        if beside.intersection(ranks):
            members, own, lost_ns = _join_lanes(lanes, ranks, members, position, cut, len(sets), probe_keys[ranks].keys)
            position = [locate_world(member, sets, world) for member in members]
        if cut.basis == "meeting" and matched < FEWEST_MATCHED:
            # Between meetings that were lost and found, nothing is comparable.
            continue
        grids, dropped = build_grids(members, own, position, sets, cut)
        count, hidden_ns = count + dropped.count, hidden_ns + dropped.hidden_ns
        if not grids:
            continue
        grid_of, row_of, sums = sum_steps(grids)
        by_grid = [(grid.start_ns, grid.end_ns) for grid in grids]
        start = np.array([by_grid[g][0][r] for g, r in zip(grid_of, row_of, strict=True)], np.int64)
        end = np.array([by_grid[g][1][r] for g, r in zip(grid_of, row_of, strict=True)], np.int64)
        groups.append(
            Observations(
                tuple(trace.ranks[rank] for rank in ranks),
                tuple(grids),
                grid_of,
                row_of,
                start,
                end,
                cut.basis,
                sums,
                probe_keys[ranks].times if has_kernels else ProbeTimes(np.empty((0, len(ranks))), np.empty(0), ()),
                replace(
                    judge_abilities(trace, ranks, lanes.alignment, own, has_kernels, sums, grids),
                    unplaced_ratio=lost_ns / max(int(end[-1] - start[0]), 1),
                ),
                _find_teams(sets, ranks),
                _row_ratio([keys[rank] for rank in ranks], own, trace) if has_kernels else None,
                np.array([float((member.prefill > 0).mean()) if len(member.prefill) else 0.0 for member in own]),
                align_batches(batches, ranks, lanes.alignment),
                _take_spans(trace, "os_calls", trace.names.call_names, ranks, lanes.alignment),
                None if has_kernels else _take_spans(trace, "ranges", trace.names.range_names, ranks, lanes.alignment),
                list_kernel_uses([keys[rank] for rank in ranks], probe_keys[ranks].keys, trace.names)
                if has_kernels
                else (),
                prefill=np.stack([_mark_prefill(member, start, end) for member in own], axis=1)
                if has_kernels
                else None,
                row_blocks=list_row_blocks([keys[rank] for rank in ranks], trace.names) if has_kernels else None,
            )
        )
    return groups, LeftOut(count, hidden_ns)


def _join_lanes(
    lanes: Lanes,
    ranks: tuple[int, ...],
    members: Sequence[Participation],
    position: Sequence[IntArray],
    cut: Cut,
    n_sets: int,
    probe_keys: IntArray,
) -> tuple[list[Participation], list[Segments], float]:
    """Add to each member's events those at which its work needs what ran beside it, and cut its time there too.

    Returns:
        The events, the segments, and how long the mean rank stood still for calls at places that fit no step, ns.
    """
    begin, stop = bound_steps(cut, position)
    joins = vote_joins([part.work_row for part in members], [part.stop_row for part in members], begin, stop)
    joined, segments = [], []
    explained = stood = 0
    for rank, part, found in zip(ranks, members, joins, strict=True):
        lane = lanes.spend(rank)
        work = list_work(lane)
        known, whole = measure_stops(work, part.stop_row, found)
        explained, stood = explained + known, stood + whole
        part = add_joins(part, found, work, n_sets)
        joined.append(part)
        segments.append(cut_segments(lane, part.arrival_ns, part.end_ns, probe_keys, lanes.contention))
        del lane
    return joined, segments, (stood - explained) / len(ranks)


def _mark_prefill(own: Segments, start_ns: IntArray, end_ns: IntArray) -> BoolArray:
    """Tell in which steps, `(n_steps,)`, a rank ran prefill attention."""
    total = np.concatenate([[0], np.cumsum(own.prefill)])
    first, stop = (np.searchsorted(own.arrival_ns, edge, side="left") for edge in (start_ns, end_ns))
    return np.asarray(total[stop] > total[first])


def _matched_share(sets: Sequence[MeetingSet], ranks: tuple[int, ...]) -> float:
    """Return the share of a group's calls that found all their partners."""
    mine = [item for item in sets if set(item.ranks) <= set(ranks)]
    return sum(item.matched_calls for item in mine) / max(sum(item.calls for item in mine), 1)


def join_groups(sets: Sequence[MeetingSet]) -> list[tuple[int, ...]]:
    """Join groups that share a rank: what waits for each other, directly or not, is one lockstep group."""
    home: dict[int, set[int]] = {}
    for item in sets:
        joined = set(item.ranks).union(*(home[rank] for rank in item.ranks if rank in home))
        for rank in joined:
            home[rank] = joined
    unique = {tuple(sorted(members)) for members in home.values()}
    return sorted(unique)


def _find_teams(sets: Sequence[MeetingSet], ranks: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Find the ranks that share a DP rank: groups smaller than the whole that cover it on one collective channel.

    Dispatch and combine never tell: they join experts, not the shards of one attention. Of several partitions the one
    with the largest groups is taken; a smaller one only joins what the larger has joined already.
    """
    place = {rank: position for position, rank in enumerate(ranks)}
    best: tuple[tuple[int, ...], ...] = ()
    for channel in sorted({item.channel for item in sets if item.family == "collective"}):
        for size in sorted({len(item.ranks) for item in sets if item.channel == channel}):
            groups = sorted({item.ranks for item in sets if item.channel == channel and len(item.ranks) == size})
            covered = sorted(rank for group in groups for rank in group)
            if size < len(ranks) and covered == list(ranks) and size > len(best[0] if best else ()):
                best = tuple(tuple(place[rank] for rank in group) for group in groups)
    return best


def _row_ratio(keys: Sequence[KeyTimes], own: Sequence[Segments], trace: Trace) -> FloatArray | None:
    return measure_row_ratio(keys, trace.names, eager=not any(member.in_graph.any() for member in own))


def _take_spans(
    trace: Trace, table: str, names: Sequence[str], ranks: tuple[int, ...], alignment: Alignment
) -> NamedSpans | None:
    """Take the members' rows of a table of named spans, on the common axis; None if there are none."""
    rows_of = trace.tables[table]
    parts = []
    for position, rank in enumerate(ranks):
        rows = np.flatnonzero(rows_of["rank"] == rank)
        fit = alignment.fits[rank]
        start, end = rows_of["start_ns"][rows], rows_of["end_ns"][rows]
        where = np.full(len(rows), position)
        parts.append(
            (where, fit.apply(start) if fit else start, fit.apply(end) if fit else end, rows_of["name_id"][rows])
        )
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    if not len(columns[0]):
        return None
    return NamedSpans(columns[0], columns[1], columns[2], np.array(names)[columns[3]])


def _step_marks(trace: Trace, is_step: np.ndarray[Any, np.dtype[np.bool_]]) -> list[IntArray]:
    ranges = trace.tables["ranges"]
    marks = []
    for rank in range(len(trace.ranks)):
        if not is_step.any():
            marks.append(np.empty(0, np.int64))
            continue
        chosen = (ranges["rank"] == rank) & is_step[ranges["name_id"]]
        marks.append(np.unique(ranges["start_ns"][chosen]))
    return marks


def _explain_nothing(
    trace: Trace, has_calls: bool, sets: Sequence[MeetingSet], alignment: Alignment, has_kernels: bool
) -> Iterator[str]:
    if not trace.ranks:
        yield "the recording holds neither GPU kernels nor annotated ranges of any process"
    elif len(trace.missing_ranks) > len(trace.ranks):
        n = len(trace.missing_ranks)
        yield f"{n} of {n + len(trace.ranks)} ranks are not in the input"
    elif len(trace.ranks) == 1:
        yield "only one rank was recorded: lateness shows only between ranks"
    if trace.ranks and not has_calls:
        what = "collective kernels" if has_kernels else "collective ranges"
        yield f"no {what} were found, so the ranks cannot be seen to wait for each other"
    elif len(trace.ranks) > 1 and alignment.unaligned:
        yield "the clocks of the files could not be brought together on their collectives"
    elif len(trace.ranks) > 1 and not sets:
        yield "no collective of one rank could be matched with those of another"
    elif len(trace.ranks) > 1 and sets:
        yield "too few complete steps of one kind to compare, or too many collectives without partners"
