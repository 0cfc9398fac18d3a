"""Find who never came: ranks behind the others in their process group, and whom those wait for in turn."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dprankdiag.model.flight_dumps import COMPLETED, STARTED, FlightDump, Group
from dprankdiag.model.schema import ABSENT_NS

GroupKey = tuple[str, tuple[int, ...]]
"""A process group by name and members: ranks may use one name for different groups."""

_EQUAL_SIZES = ("all_gather", "allgather", "reduce_scatter", "all_reduce", "allreduce")
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a rank got in a group.

    Attributes:
        entered: last collective that its process entered; None where its dump does not say.
        pending: first one that has not completed; None if all have.
        is_started: the pending one runs on its GPU; None where only the count that the rank keeps tells of it.
        timed_out: the pending one was given up.
        since_ns: when it entered the pending one; None where not said.
        name: name of the pending operation.
    """

    entered: int | None
    pending: int | None
    is_started: bool | None = None
    timed_out: bool = False
    since_ns: int | None = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class Stall:
    """A collective that some ranks of a group wait in.

    Attributes:
        waiting: ranks in it; `behind`: ranks that have not come to it; `unseen`: members without a dump, or whose dump
            does not reach back that far.
        calls_behind: by how many collectives the last of `behind` is behind; 0 where it is in it but not on its GPU.
    """

    group: str
    sequence: int
    name: str
    waiting: tuple[int, ...]
    behind: tuple[int, ...]
    unseen: tuple[int, ...]
    calls_behind: int
    timed_out: int
    since_ns: int | None


@dataclass(frozen=True, slots=True)
class FlightView:
    """What the dumps show together.

    Attributes:
        ranks: ranks with a dump.
        missing: members of any group without one.
        stalls: one a group that waits, the one with most waiting first.
        absent: ranks behind in a group that wait nowhere themselves.
        inherited: ranks behind in one group because they wait in another.
        mismatches: collectives entered with different operations or sizes, in words.
        last_ns: last moment seen in any dump; None where no dump has times.
        collectives: distinct collectives seen.
    """

    ranks: tuple[int, ...]
    missing: tuple[int, ...]
    stalls: tuple[Stall, ...]
    absent: tuple[int, ...]
    inherited: tuple[int, ...]
    mismatches: tuple[str, ...]
    first_ns: int | None
    last_ns: int | None
    collectives: int


def find_absences(dumps: Mapping[int, FlightDump], expected: int | None = None) -> FlightView:
    """Compare the dumps of all ranks, group by group.

    The farthest collective that somebody waits in is the front of a group; whoever has not come to it is behind (being
    ahead is no fault). A rank that is behind in one group because it waits in another passes the blame on.

    Args:
        dumps: by rank.
        expected: ranks 0 to `expected` - 1 should have one.
    """
    standings = _collect_standings(dumps)
    stalls = [stall for key, members in standings.items() if (stall := _find_stall(key, members)) is not None]
    stalls.sort(key=lambda stall: (-len(stall.waiting), stall.group, stall.waiting))
    behind = {rank for stall in stalls for rank in stall.behind}
    waiting = {rank for stall in stalls for rank in stall.waiting}
    members = {rank for _, ranks in standings for rank in ranks} | set(range(expected or 0))
    times = np.concatenate([dump.entries[name] for dump in dumps.values() for name in ("created_ns", "last_ns")])
    times = times[times != ABSENT_NS]
    return FlightView(
        tuple(sorted(dumps)),
        tuple(sorted(members - set(dumps))),
        tuple(stalls),
        tuple(sorted(behind - waiting)),
        tuple(sorted(behind & waiting)),
        tuple(_list_mismatches(dumps)),
        int(times.min()) if len(times) else None,
        int(times.max()) if len(times) else None,
        len({key for rank, dump in dumps.items() for key in _entered_by(rank, dump)}),
    )


def _entered_by(rank: int, dump: FlightDump) -> Iterator[tuple[GroupKey, int]]:
    for group, sequence in zip(dump.entries["group_id"].tolist(), dump.entries["sequence"].tolist(), strict=True):
        yield _key(dump.groups[group]), sequence


def _key(group: Group) -> GroupKey:
    return group.name, group.ranks


def _collect_standings(dumps: Mapping[int, FlightDump]) -> dict[GroupKey, dict[int, Standing | None]]:
    """Lay out, for every group that somebody entered, the standing of each member; None without a dump."""
    found: dict[GroupKey, dict[int, Standing | None]] = defaultdict(dict)
    for rank, dump in dumps.items():
        for group_id, group in enumerate(dump.groups):
            if not group.ranks or rank in group.ranks:
                found[_key(group)][rank] = _stand(dump, group_id, group)
    for (_, ranks), members in found.items():
        for rank in ranks:
            members.setdefault(rank, None)
    return found


def _stand(dump: FlightDump, group_id: int, group: Group) -> Standing:
    mine = np.flatnonzero(dump.entries["group_id"] == group_id)
    sequence = dump.entries["sequence"][mine]
    known = [int(sequence.max())] if len(mine) else [0] if dump.is_whole else []
    known += [group.last_entered] if group.last_entered is not None else []
    entered = max(known, default=None)
    open_ = mine[dump.entries["state"][mine] != COMPLETED]
    if len(open_):
        first = open_[np.argmin(dump.entries["sequence"][open_])]
        created = int(dump.entries["created_ns"][first])
        return Standing(
            entered,
            int(dump.entries["sequence"][first]),
            bool(dump.entries["state"][first] == STARTED),
            bool(dump.entries["is_retired"][first]),
            None if created == ABSENT_NS else created,
            dump.names[int(dump.entries["name_id"][first])],
        )
    if not len(mine) and group.last_entered and group.last_completed is not None:
        behind = group.last_completed < group.last_entered
        return Standing(entered, group.last_completed + 1 if behind else None)
    return Standing(entered, None)


def _find_stall(key: GroupKey, members: Mapping[int, Standing | None]) -> Stall | None:
    seen = {
        rank: standing for rank, standing in members.items() if standing is not None and standing.entered is not None
    }
    front = max((standing.pending for standing in seen.values() if standing.pending is not None), default=None)
    if front is None:
        return None
    there = {rank: standing for rank, standing in seen.items() if standing.pending == front}
    # Only runs with timing know "started"; where one has, those merely scheduled have not come to it on the GPU.
    scheduled = {rank for rank, standing in there.items() if standing.is_started is False}
    started = any(standing.is_started for standing in there.values())
    waiting = set(there) - scheduled if started else set(there)
    behind = {rank for rank, standing in seen.items() if _is_behind(standing, front)} | (set(there) - waiting)
    gaps = [front - min(standing.entered or 0, standing.pending or front) for standing in map(seen.__getitem__, behind)]
    since = [standing.since_ns for rank, standing in there.items() if rank in waiting and standing.since_ns is not None]
    names = Counter(standing.name for rank, standing in there.items() if rank in waiting and standing.name)
    return Stall(
        key[0],
        front,
        min(names, key=lambda name: (-names[name], name)) if names else "",
        tuple(sorted(waiting)),
        tuple(sorted(behind)),
        tuple(sorted(set(members) - set(seen))),
        max(gaps, default=0),
        sum(there[rank].timed_out for rank in waiting),
        min(since, default=None),
    )


def _is_behind(standing: Standing, front: int) -> bool:
    if standing.pending is not None:
        return standing.pending < front
    return standing.entered is not None and standing.entered < front


def _list_mismatches(dumps: Mapping[int, FlightDump]) -> Iterator[str]:
    """Say where members of a group entered the same collective with another operation, or another size."""
    operations: dict[tuple[GroupKey, int], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    sizes: dict[tuple[GroupKey, int], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank, dump in sorted(dumps.items()):
        columns = (dump.entries[name].tolist() for name in ("name_id", "size_id"))
        for place, name_id, size_id in zip(_entered_by(rank, dump), *columns, strict=True):
            operations[place][dump.names[name_id]].append(rank)
            if _sizes_must_agree(dump.names[name_id]):
                sizes[place][dump.sizes[size_id]].append(rank)
    for what, table in (("operations", operations), ("sizes", sizes)):
        odd = [(place, by_value) for place, by_value in table.items() if len(by_value) > 1]
        for (key, sequence), by_value in sorted(odd, key=lambda item: (item[0][0], item[0][1]))[:_SHOWN]:
            told = "; ".join(
                f"{value} on {_count(ranks)}" for value, ranks in sorted(by_value.items(), key=_fewest)[:_SHOWN]
            )
            yield f"call {sequence} of group {key[0]} was entered with different {what}: {told}"
        if len(odd) > _SHOWN:
            yield f"{len(odd) - _SHOWN} more calls were entered with different {what}"


def _fewest(item: tuple[str, Sequence[int]]) -> tuple[int, str]:
    return len(item[1]), item[0]


def _sizes_must_agree(name: str) -> bool:
    lowered = name.lower()
    return any(part in lowered for part in _EQUAL_SIZES) and "coalesced" not in lowered


def _count(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks ({ranks[0]} first)"
