"""Cut the meetings of a lockstep group into steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dprankdiag.analysis.segments import Segments

IntArray = np.ndarray[Any, np.dtype[np.int64]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]

REGULAR = 0.6
"""Share of step lengths (in meetings) that must be about the commonest one for a mark to count as a step border."""

FEWEST_ALIKE = 0.25
SHORTENED = 0.75


@dataclass(frozen=True, slots=True)
class Cut:
    """Where steps begin.

    Attributes:
        first: `(n_steps + 1,)` index of each step's first world meeting; the last entry closes the last step.
        basis: "marker" (annotated ranges), "sampling", "structure" (a rare recurring segment), "gap", or "meeting"
            where no border shows and every meeting stands for itself.
    """

    first: IntArray
    basis: str


def cut_steps(
    segments: Sequence[Segments],
    position: Sequence[IntArray],
    world_start_ns: IntArray,
    world_end_ns: IntArray,
    marks_ns: Sequence[IntArray],
) -> Cut:
    """Find the step borders of a lockstep group.

    Args:
        segments: each member's segments.
        position: for each member `(n_world,)` index of every world meeting among its segments.
        world_start_ns, world_end_ns: `(n_world,)` first arrival and end of the world meetings, in order.
        marks_ns: for each member the starts of ranges that announce a step; empty arrays where there are none.
    """
    n = len(world_end_ns)
    ways: tuple[tuple[str, Callable[[], BoolArray]], ...] = (
        ("marker", lambda: _marked(segments, position, marks_ns)),
        ("sampling", lambda: _sampled(segments, position)),
        ("structure", lambda: _recurring(segments, position)),
        ("gap", lambda: _gaps(world_start_ns, world_end_ns)),
    )
    for basis, mark_borders in ways:
        first = np.flatnonzero(mark_borders())
        if _is_regular(first, basis):
            return Cut(_close_last(first[first > 0], n), basis)
    return Cut(np.arange(1, n + 1), "meeting")


def _close_last(first: IntArray, n_world: int) -> IntArray:
    """Close the last step too if it has as many meetings as most: the recording ends with it, or cuts only its tail."""
    commonest, _ = Counter(np.diff(first).tolist()).most_common(1)[0]
    return np.append(first, n_world) if n_world - first[-1] == commonest else first


def _is_regular(first: IntArray, basis: str) -> bool:
    if len(first) < 4:
        return False
    lengths = np.diff(first)
    commonest, count = Counter(lengths.tolist()).most_common(1)[0]
    if basis in ("structure", "gap") and commonest < 3:
        return False
    if basis == "sampling" and commonest < 2:
        return False
    # A lost row makes a step one meeting shorter, never longer.
    near = (lengths >= SHORTENED * commonest) & (lengths <= commonest)
    return bool(count >= FEWEST_ALIKE * len(lengths) and near.sum() >= REGULAR * len(lengths))


def _marked(segments: Sequence[Segments], position: Sequence[IntArray], marks_ns: Sequence[IntArray]) -> BoolArray:
    """Mark meetings that are the first after the start of an announced step, on most members."""
    votes = np.zeros(len(position[0]), np.int64)
    voters = 0
    for member, where, marks in zip(segments, position, marks_ns, strict=True):
        if not len(marks):
            continue
        voters += 1
        step = np.searchsorted(marks, member.arrival_ns[where], side="right")
        votes[1:] += np.diff(step) > 0
        votes[0] += 1
    return np.asarray((voters > 0) & (2 * votes > voters))


def _sampled(segments: Sequence[Segments], position: Sequence[IntArray]) -> BoolArray:
    """Mark meetings before which most members sampled: the previous step's tail lies there."""
    votes = np.zeros(len(position[0]), np.int64)
    for member, where in zip(segments, position, strict=True):
        total = np.concatenate([[0], np.cumsum(member.sampled)])
        votes += np.diff(total[where + 1], prepend=0) > 0
    border = 2 * votes > len(segments)
    # A sampler in every layer is a router by another name, no step border.
    return np.asarray(border & (border.mean() < 0.5))


def _recurring(segments: Sequence[Segments], position: Sequence[IntArray]) -> BoolArray:
    """Mark the rarest kind of segment that comes back at regular distance: what is done once a step."""
    total = np.concatenate([[0], np.cumsum(segments[0].content)])
    _, kind = np.unique(np.diff(total[position[0] + 1], prepend=0), return_inverse=True)
    best = np.zeros(len(kind), bool)
    longest = 2.0
    for value, count in Counter(kind.tolist()).items():
        if count < 4 or len(kind) / count <= longest:
            continue
        border = kind == value
        if _is_regular(np.flatnonzero(border), "structure"):
            best, longest = border, len(kind) / count
    return best


def _gaps(world_start_ns: IntArray, world_end_ns: IntArray) -> BoolArray:
    """Mark the longest gaps between meetings, if they come back at regular distance."""
    border = np.zeros(len(world_end_ns), bool)
    if len(world_end_ns) < 8:
        return border
    gap = np.maximum(world_start_ns[1:] - world_end_ns[:-1], 1)
    order = np.argsort(-gap, kind="stable")
    ordered = np.log(gap[order].astype(np.float64))
    drop = ordered[3 : len(ordered) // 3] - ordered[4 : len(ordered) // 3 + 1]
    if not len(drop) or drop.max() < np.log(1.5):
        return border
    border[order[: int(np.argmax(drop)) + 4] + 1] = True
    return border
