"""Tell ranks that leave their meetings late from clocks that are ahead, where clocks were fitted to ends.

The fit takes ranks that leave late for a clock that is ahead, and sets it back: their arrivals come too early by as
much. If they are set forth again, the time from the last arrival to the end scatters less, because the last arrival is
then the one that everybody waited for. Nobody leaves before the last has come, in either direction: that bounds the
shift from both sides, as two-way messages bound the offset of a clock. Where several shifts explain the meetings
alike, what the worst of them would cost is a doubt that the recording leaves.

Source: two-way bounds as in Mills, "Internet time synchronization: the Network Time Protocol" (RFC 1129, 1991).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dprankdiag.analysis.calls import Channel
from dprankdiag.analysis.clocks import AGREE, find_densest_half
from dprankdiag.analysis.collectives import MeetingSet
from dprankdiag.analysis.partners import match_rows

IntArray = np.ndarray[Any, np.dtype[np.int64]]
FloatArray = np.ndarray[Any, np.dtype[np.float64]]

LEAST_SHIFT_NS = 500

MOST_MEETINGS = 3000
"""Meetings looked at, taken evenly: more would not tell the readings better apart."""

FEWEST_MEETINGS = 16

TRIALS, FINE_TRIALS = 33, 17
PIECES = 40
"""Pieces of the recording whose difference tells how sure a reading is."""

ALIKE = 2.0
"""Readings whose scatter differs by less than so many standard errors explain the meetings alike."""

SURE = 3.0
CLEARLY = 0.97
"""A shift is believed if transfers then scatter at most this much of what they did, by `SURE` standard errors."""

TOGETHER = 0.4
"""Ends of a meeting are apart by at most this much of what its arrivals are, each rank's own constant left out."""

OUTERMOST = 0.01
"""Share of the meetings that may break a bound: rows go astray."""

MOST = 0.75
"""Share of the members whose common end is that of all."""

MOST_ROUNDS = 8


@dataclass(frozen=True, slots=True)
class Block:
    """Ranks whose clocks move together.

    Attributes:
        recorded_ns: shift under which they lie to their peers as their own clocks say; None if those say nothing.
        peers: ranks whose clocks agree with theirs.
    """

    ranks: tuple[int, ...]
    recorded_ns: int | None = None
    peers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Doubt:
    """What clocks may hide.

    Attributes:
        late_ns: largest lateness out of every meeting that cannot be told from the clocks.
        cost_ns: what that would cost in the mean meeting.
    """

    ranks: tuple[int, ...]
    late_ns: int
    cost_ns: float


@dataclass(frozen=True, slots=True)
class Seen:
    """Meetings of one group: `(n, n_members)` arrivals and ends, and their common end `(n,)`."""

    ranks: tuple[int, ...]
    arrival_ns: IntArray
    end_ns: IntArray
    common_ns: IntArray


@dataclass(frozen=True, slots=True)
class Part:
    """Meetings of a group as one block and the others see them, `(n,)` each.

    Attributes:
        inside_ns, outside_ns: last arrival of the block and of the others.
        end_inside_ns, end_outside_ns: when they leave.
        least_ns, most_ns: shifts of the block that would let nobody leave before the last has come.
    """

    inside_ns: IntArray
    outside_ns: IntArray
    end_inside_ns: IntArray
    end_outside_ns: IntArray
    least_ns: IntArray
    most_ns: IntArray


@dataclass(frozen=True, slots=True)
class Scan:
    """How well shifts of a block explain the meetings.

    Attributes:
        shift_ns: `(n_trials,)` ascending; causality allows each.
        scatter_ns: `(n_trials,)` mean distance of a transfer from the median one.
        error_ns: `(n_trials,)` standard error of its difference to the best.
        cost_ns: `(n_trials,)` how much later the mean meeting's last arrival is.
    """

    shift_ns: IntArray
    scatter_ns: FloatArray
    error_ns: FloatArray
    cost_ns: FloatArray

    @property
    def alike(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Mark the trials that explain the meetings about as well as the best."""
        return np.asarray(self.scatter_ns - self.scatter_ns.min() <= ALIKE * self.error_ns + 1e-3)

    def at(self, shift_ns: int) -> int:
        """Return the trial next to a shift."""
        return int(np.argmin(np.abs(self.shift_ns - shift_ns)))


@dataclass(frozen=True, slots=True)
class Placing:
    """Where blocks were shifted to: `(n_ranks,)` shifts, the meetings there, and what is left of each block."""

    shift_ns: IntArray
    seen: tuple[Seen, ...]
    scans: tuple[Scan | None, ...]
    recorded_ns: tuple[int | None, ...]


def place_blocks(
    channels: Sequence[Channel],
    found: Sequence[Sequence[MeetingSet]],
    blocks: Sequence[Block],
    n_ranks: int,
    starts_ns: Sequence[int] | None = None,
) -> tuple[list[int], list[Doubt]]:
    """Find how far each rank must be set forth from where the ends of its meetings put it.

    The block whose shift explains most is shifted first, then the next, until none explains anything more.

    Args:
        channels: calls on clocks fitted to ends.
        found: meetings of each channel as they seem on these clocks.
        blocks: what may be shifted; they may lie in each other.
        starts_ns: `n_ranks` shifts under which ranks lie as their own clocks say; taken to begin with if transfers
            then scatter surely less in the end.

    Returns:
        `n_ranks` shifts, ns, positive for a rank whose times were set too early; and what stays open.
    """
    seen = _sample(channels, found)
    fitted = _place_from(seen, blocks, np.zeros(n_ranks, np.int64))
    if starts_ns is None or not seen or max(starts_ns) - min(starts_ns) < LEAST_SHIFT_NS:
        return fitted.shift_ns.tolist(), _list_doubts(blocks, fitted, n_ranks)
    recorded = _place_from(seen, blocks, np.array(starts_ns, np.int64))
    better = _compare(_measure_all(fitted.seen), _measure_all(recorded.seen))
    chosen = recorded if better else fitted
    return chosen.shift_ns.tolist(), _list_doubts(blocks, chosen, n_ranks)


def _place_from(seen: Sequence[Seen], blocks: Sequence[Block], start_ns: IntArray) -> Placing:
    """Shift block after block, each by what explains most, until none explains anything more."""
    shifts = start_ns.copy()
    seen = [_move(item, start_ns) for item in seen]
    recorded = [_record_anew(block, block.recorded_ns, start_ns) for block in blocks]
    scans: list[Scan | None] = []
    for _ in range(MOST_ROUNDS):
        scans = [_scan(seen, block.ranks, near) for block, near in zip(blocks, recorded, strict=True)]
        chosen = [_choose(scan, near) for scan, near in zip(scans, recorded, strict=True)]
        gains = [gain for _, gain in chosen]
        best = int(np.argmax(gains)) if gains else -1
        if best < 0 or gains[best] <= 0:
            break
        moved = np.zeros(len(shifts), np.int64)
        moved[list(blocks[best].ranks)] = chosen[best][0]
        shifts = shifts + moved
        seen = [_move(item, moved) for item in seen]
        recorded = [_record_anew(block, near, moved) for block, near in zip(blocks, recorded, strict=True)]
    return Placing(shifts, tuple(seen), tuple(scans), tuple(recorded))


def _record_anew(block: Block, recorded_ns: int | None, moved_ns: IntArray) -> int | None:
    """Return the shift that brings a block to where its clocks say, after it and its peers were moved."""
    if recorded_ns is None:
        return None
    return recorded_ns - int(np.median(moved_ns[list(block.ranks)]) - np.median(moved_ns[list(block.peers)]))


def _move(item: Seen, moved_ns: IntArray) -> Seen:
    """Shift every rank's times, `moved_ns` being `(n_ranks,)`."""
    mine = moved_ns[list(item.ranks)]
    return replace(item, arrival_ns=item.arrival_ns + mine, end_ns=item.end_ns + mine)


def _list_doubts(blocks: Sequence[Block], placing: Placing, n_ranks: int) -> list[Doubt]:
    found = [
        _doubt(block.ranks, scan, near, n_ranks)
        for block, scan, near in zip(blocks, placing.scans, placing.recorded_ns, strict=True)
    ]
    return [doubt for doubt in found if doubt is not None]


def _measure_all(seen: Sequence[Seen]) -> FloatArray:
    """Measure how far each meeting's transfer lies from the median one of its group, `(n,)`."""
    distances = []
    for item in seen:
        transfer = (item.common_ns - item.arrival_ns.max(axis=1)).astype(np.float64)
        distances.append(np.abs(transfer - np.median(transfer)))
    return np.concatenate(distances)


def _compare(plain: FloatArray, other: FloatArray) -> bool:
    """Tell whether the second placing surely lets transfers scatter less."""
    gain = np.array([piece.mean() for piece in np.array_split(plain - other, min(PIECES, len(plain)))])
    error = float(gain.std(ddof=1)) / np.sqrt(len(gain)) if len(gain) > 1 else np.inf
    return bool(other.mean() <= CLEARLY * plain.mean() and gain.mean() > SURE * error)


def _sample(channels: Sequence[Channel], found: Sequence[Sequence[MeetingSet]]) -> list[Seen]:
    """Take meetings evenly from all channels.

    Which ranks meet is not taken from arrivals, as these are in question: all that call on a channel meet if their
    calls end together far closer than they begin.
    """
    groups = [item for channel, sets in zip(channels, found, strict=True) for item in _list_meetings(channel, sets)]
    stride = max(1, -(-sum(len(end) for _, _, end in groups) // MOST_MEETINGS))
    seen = []
    for ranks, arrival, end in groups:
        if len(end) >= FEWEST_MEETINGS * stride:
            end = end[::stride]
            seen.append(Seen(ranks, arrival[::stride], end, _find_common_end(end)))
    return seen


def _find_common_end(end: IntArray) -> IntArray:
    """Return when a meeting ended for the median of its members, `(n,)`, each one's own constant left out."""
    return np.asarray(np.median(end - _usual_offsets(end), axis=1).astype(np.int64))


def _usual_offsets(times: IntArray) -> IntArray:
    """Return how far each member's times mostly lie from the group's, `(n_members,)`."""
    middle = np.sort(times, axis=1)[:, (times.shape[1] - 1) // 2]
    apart = (times - middle[:, None]).astype(np.float64)
    return np.array([round(find_densest_half(mine)[0]) for mine in apart.T], np.int64)


def _list_meetings(channel: Channel, sets: Sequence[MeetingSet]) -> list[tuple[tuple[int, ...], IntArray, IntArray]]:
    """List ranks, arrivals and ends of the groups that meet on a channel."""
    if any(item.halves is not None for item in sets):
        # Receipts end when each rank looks for them, and tell nothing of its clock.
        return []
    members = [calls for calls in channel.calls if len(calls)]
    if len(members) < 2:
        return []
    index = match_rows(members)
    index = index[(index >= 0).all(axis=1)]
    if 2 * len(index) >= max(len(calls) for calls in members):
        arrival = np.stack([calls.arrival_ns[index[:, k]] for k, calls in enumerate(members)], axis=1)
        end = np.stack([calls.end_ns[index[:, k]] for k, calls in enumerate(members)], axis=1)
        if _end_together(arrival, end):
            return [(tuple(calls.rank for calls in members), arrival, end)]
    return [(item.ranks, item.arrival_ns, item.end_ns) for item in sets if item.waits.all()]


def _end_together(arrival: IntArray, end: IntArray) -> bool:
    """Tell whether ends, each rank's own constant left out, lie much closer than arrivals."""
    return _measure_spread(end) <= TOGETHER * _measure_spread(arrival)


def _measure_spread(times: IntArray) -> float:
    rest = times - _usual_offsets(times)
    apart = np.abs(rest - np.median(rest, axis=1, keepdims=True))
    return float(np.median(np.quantile(apart, AGREE, axis=0)))


def _scan(seen: Sequence[Seen], ranks: Sequence[int], recorded_ns: int | None) -> Scan | None:
    """Try all shifts of a block that causality allows; None if it meets nobody else, or none is allowed."""
    parts: list[Part] = []
    for item in seen:
        mine = np.isin(item.ranks, list(ranks))
        if mine.any() and not mine.all():
            inside, outside = item.arrival_ns[:, mine].max(axis=1), item.arrival_ns[:, ~mine].max(axis=1)
            first_in, first_out = item.end_ns[:, mine].min(axis=1), item.end_ns[:, ~mine].min(axis=1)
            ends = [
                item.common_ns if part.mean() > MOST else _find_common_end(item.end_ns[:, part])
                for part in (mine, ~mine)
            ]
            parts.append(Part(inside, outside, ends[0], ends[1], outside - first_in, first_out - inside))
    if not parts:
        return None
    low = max(float(np.quantile(part.least_ns, 1 - OUTERMOST)) for part in parts)
    high = min(float(np.quantile(part.most_ns, OUTERMOST)) for part in parts)
    gaps = np.concatenate([part.outside_ns - part.inside_ns for part in parts])
    if low >= high:
        # Others are misplaced: what they bound is not to be believed.
        low, high = (float(bound) for bound in np.quantile(gaps, [OUTERMOST, 1 - OUTERMOST]))
    low, high = min(low, 0.0), max(high, 0.0)
    trials = np.concatenate(
        [np.linspace(low, high, TRIALS), np.quantile(gaps, np.linspace(0, 1, TRIALS)), [0, recorded_ns or 0]]
    )
    trials = np.unique(trials[(trials >= low) & (trials <= high)].astype(np.int64))
    rough = _measure(parts, trials)
    best = int(np.argmin(rough.scatter_ns))
    around = np.linspace(trials[max(best - 1, 0)], trials[min(best + 1, len(trials) - 1)], FINE_TRIALS)
    return _measure(parts, np.unique(np.concatenate([trials, around.astype(np.int64)])))


def _measure(parts: Sequence[Part], shift_ns: IntArray) -> Scan:
    """Measure the scatter of transfers under each shift, by the ends of whichever side they scatter less."""
    inside = [_distances(part, part.end_inside_ns, shift_ns) for part in parts]
    outside = [_distances(part, part.end_outside_ns, shift_ns) for part in parts]
    both = np.concatenate(inside), np.concatenate(outside)
    distance = np.where(both[0].mean(axis=0) < both[1].mean(axis=0), *both)
    scatter = distance.mean(axis=0)
    beyond = distance - distance[:, [int(np.argmin(scatter))]]
    by_part = np.stack([piece.mean(axis=0) for piece in np.array_split(beyond, min(PIECES, len(beyond)))])
    error = by_part.std(axis=0, ddof=1) / np.sqrt(len(by_part))
    come, gone = np.maximum(shift_ns, 0), np.maximum(-shift_ns, 0)
    costs = [
        np.maximum(part.outside_ns[:, None] + gone, part.inside_ns[:, None] + come)
        - np.maximum(part.outside_ns, part.inside_ns)[:, None]
        for part in parts
    ]
    return Scan(shift_ns, scatter, error, np.concatenate(costs).mean(axis=0))


def _distances(part: Part, end_ns: IntArray, shift_ns: IntArray) -> FloatArray:
    """Measure how far each transfer lies from the median one, `(n, n_trials)`, the farthest cut off."""
    last = np.maximum(part.outside_ns[:, None], part.inside_ns[:, None] + shift_ns)
    transfer = (end_ns[:, None] - last).astype(np.float64)
    distance = np.abs(transfer - np.median(transfer, axis=0))
    limit = float(np.quantile(distance[:, int(np.argmin(np.abs(shift_ns)))], 1 - OUTERMOST / 2))
    return np.asarray(np.minimum(distance, max(limit, 1.0)))


def _choose(scan: Scan | None, recorded_ns: int | None) -> tuple[int, float]:
    """Choose the shift of a block, and tell by how much it lessens the scatter; 0 where none is sure.

    Among readings that explain the meetings alike, what the clocks themselves say counts, else the smallest shift of
    the best.
    """
    if scan is None:
        return 0, 0.0
    plain = scan.at(0)
    best = float(scan.scatter_ns.min())
    gain = float(scan.scatter_ns[plain]) - best
    if best > CLEARLY * scan.scatter_ns[plain] or gain <= SURE * scan.error_ns[plain]:
        return 0, 0.0
    if recorded_ns is not None and scan.alike[scan.at(recorded_ns)] and _is_allowed(scan, recorded_ns):
        shift = recorded_ns
    else:
        good = scan.shift_ns[scan.scatter_ns <= best + 0.0005 * gain]
        shift = int(good[np.argmin(np.abs(good))])
    return (shift, gain) if abs(shift) >= LEAST_SHIFT_NS else (0, 0.0)


def _is_allowed(scan: Scan, shift_ns: int) -> bool:
    return bool(scan.shift_ns[0] - LEAST_SHIFT_NS <= shift_ns <= scan.shift_ns[-1] + LEAST_SHIFT_NS)


def _doubt(ranks: tuple[int, ...], scan: Scan | None, recorded_ns: int | None, n_ranks: int) -> Doubt | None:
    """Tell what lateness of a block, or of all others, explains the meetings as well as none.

    Most ranks are not taken to be late together, nor is a lateness looked for where the clocks themselves agree.
    """
    if scan is None or (recorded_ns is not None and abs(recorded_ns) <= 2 * LEAST_SHIFT_NS):
        return None
    open_to = scan.alike.copy()
    if 2 * len(ranks) > n_ranks:
        open_to &= scan.shift_ns < 0
    elif 2 * len(ranks) < n_ranks:
        open_to &= scan.shift_ns > 0
    if not open_to.any():
        return None
    worst = int(np.argmax(np.where(open_to, scan.cost_ns, -1.0)))
    return Doubt(ranks, abs(int(scan.shift_ns[worst])), float(scan.cost_ns[worst]))
