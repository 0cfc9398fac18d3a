"""Tell ranks that leave their meetings late from clocks that are ahead, where clocks were fitted to ends.

The fit takes ranks that leave late for a clock that is ahead, and sets it back: their arrivals come too early by as
much. If they are set forth again, the time from the last arrival to the end scatters less, because the last arrival is
then the one that everybody waited for. Nobody leaves before the last has come, in either direction: that bounds the
shift from both sides, as two-way messages bound the offset of a clock. Where several shifts explain the meetings
alike, what the worst of them would cost is a doubt that the recording leaves.

Source: two-way bounds as in Mills, "Internet time synchronization: the Network Time Protocol", IEEE Transactions on
Communications 39 (1991).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dprankdiag.analysis.calls import Channel
from dprankdiag.analysis.collectives import MeetingSet
from dprankdiag.analysis.shared_ends import Ends, move_ranks, sample_meetings
from dprankdiag.analysis.shift_scans import PIECES, Scan, scan_shifts

IntArray = np.ndarray[Any, np.dtype[np.int64]]
FloatArray = np.ndarray[Any, np.dtype[np.float64]]

LEAST_SHIFT_NS = 500

SURE = 3.0
CLEARLY = 0.97
"""A shift is believed if transfers then scatter at most this much of what they did, by `SURE` standard errors."""

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
class Placing:
    """Where blocks were shifted to: `(n_ranks,)` shifts, the meetings there, and what is left of each block."""

    shift_ns: IntArray
    seen: tuple[Ends, ...]
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
    seen = sample_meetings(channels, found)
    fitted = _place_from(seen, blocks, np.zeros(n_ranks, np.int64))
    if starts_ns is None or not seen or max(starts_ns) - min(starts_ns) < LEAST_SHIFT_NS:
        return fitted.shift_ns.tolist(), _list_doubts(blocks, fitted, n_ranks)
    recorded = _place_from(seen, blocks, np.array(starts_ns, np.int64))
    better = _compare(_measure_all(fitted.seen), _measure_all(recorded.seen))
    chosen = recorded if better else fitted
    return chosen.shift_ns.tolist(), _list_doubts(blocks, chosen, n_ranks)


def _place_from(seen: Sequence[Ends], blocks: Sequence[Block], start_ns: IntArray) -> Placing:
    """Shift block after block, each by what explains most, until none explains anything more."""
    shifts = start_ns.copy()
    seen = [move_ranks(item, start_ns) for item in seen]
    recorded = [_record_anew(block, block.recorded_ns, start_ns) for block in blocks]
    scans: list[Scan | None] = []
    for _ in range(MOST_ROUNDS):
        scans = [scan_shifts(seen, block.ranks, near) for block, near in zip(blocks, recorded, strict=True)]
        chosen = [_choose(scan, near) for scan, near in zip(scans, recorded, strict=True)]
        gains = [gain for _, gain in chosen]
        best = int(np.argmax(gains)) if gains else -1
        if best < 0 or gains[best] <= 0:
            break
        moved = np.zeros(len(shifts), np.int64)
        moved[list(blocks[best].ranks)] = chosen[best][0]
        shifts = shifts + moved
        seen = [move_ranks(item, moved) for item in seen]
        recorded = [_record_anew(block, near, moved) for block, near in zip(blocks, recorded, strict=True)]
    return Placing(shifts, tuple(seen), tuple(scans), tuple(recorded))


def _record_anew(block: Block, recorded_ns: int | None, moved_ns: IntArray) -> int | None:
    """Return the shift that brings a block to where its clocks say, after it and its peers were moved."""
    if recorded_ns is None:
        return None
    return recorded_ns - int(np.median(moved_ns[list(block.ranks)]) - np.median(moved_ns[list(block.peers)]))


def _list_doubts(blocks: Sequence[Block], placing: Placing, n_ranks: int) -> list[Doubt]:
    found = [
        _doubt(block.ranks, scan, near, n_ranks)
        for block, scan, near in zip(blocks, placing.scans, placing.recorded_ns, strict=True)
    ]
    return [doubt for doubt in found if doubt is not None]


def _measure_all(seen: Sequence[Ends]) -> FloatArray:
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
