"""Sort steps by kind: what all ranks meet in them, in which order, and what attention ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dprankdiag.analysis.collectives import MeetingSet
from dprankdiag.analysis.participations import Participation
from dprankdiag.analysis.segments import Segments

IntArray = np.ndarray[Any, np.dtype[np.int64]]

Signature = tuple[object, ...]
"""What a kind of step holds: each rank's meetings as bytes, then its content, attention kernels and phase."""

BROKEN: Signature = ("broken",)
"""Of steps in which the ranks do not meet equally often."""


def sort_steps(
    participations: Sequence[Participation], segments: Sequence[Segments], begin: IntArray, stop: IntArray, basis: str
) -> dict[Signature, list[int]]:
    """Sort steps by their kind; those by one meeting each also by what its segment holds.

    Args:
        begin, stop: `(n_steps, n_members)` where each step's events lie in each member's list.
        basis: what steps are cut by.
    """
    length = stop - begin
    whole = (length == length[:, :1]).all(axis=1) & (length[:, 0] > 0)
    phases = _name_phases(segments, begin, stop)
    names = _name_attention(segments, begin, stop)
    meetings: dict[int, tuple[bytes, ...]] = {}
    for size in np.unique(length[whole, 0]).tolist():
        steps = np.flatnonzero(whole & (length[:, 0] == size))
        meetings |= dict(zip(steps.tolist(), _list_meetings(participations, begin[steps], size), strict=True))
    kinds: dict[Signature, list[int]] = {}
    for step in range(len(begin)):
        signature = BROKEN
        if step in meetings:
            content = segments[0].content[begin[step, 0]].tobytes() if basis == "meeting" else b""
            signature = (*meetings[step], content, names[step], phases[step])
        kinds.setdefault(signature, []).append(step)
    return kinds


def _list_meetings(participations: Sequence[Participation], begin: IntArray, size: int) -> list[tuple[bytes, ...]]:
    """List what each rank meets in steps of one size, as bytes.

    Args:
        begin: `(n_steps, n_members)`, at least one step.
    """
    alike = np.zeros(len(begin), np.int64)
    for part, first in zip(participations, begin.T, strict=True):
        held = part.set_id[first[:, None] + np.arange(size)]
        if (held != held[0]).any():
            codes: dict[tuple[int, bytes], int] = {}
            pairs = zip(alike.tolist(), held, strict=True)
            alike = np.array([codes.setdefault((old, row.tobytes()), len(codes)) for old, row in pairs])
    _, shown, number = np.unique(alike, return_index=True, return_inverse=True)
    told = [
        tuple(
            part.set_id[first[step] : first[step] + size].tobytes()
            for part, first in zip(participations, begin.T, strict=True)
        )
        for step in shown.tolist()
    ]
    return [told[kind] for kind in number.tolist()]


def _name_phases(segments: Sequence[Segments], begin: IntArray, stop: IntArray) -> list[str]:
    """Name every step after the attention kernels in it.

    The first segment also holds the tail of the step before, so that it is left out where there are others.
    """
    begin = begin + (stop - begin > 1)
    totals = []
    for name in ("prefill", "decode", "in_graph"):
        total = np.zeros(len(begin), np.int64)
        for rank, member in enumerate(segments):
            total += _count_within(getattr(member, name), begin[:, rank], stop[:, rank])
        totals.append(total.tolist())
    return [_phase(*counts) for counts in zip(*totals, strict=True)]


def _name_attention(segments: Sequence[Segments], begin: IntArray, stop: IntArray) -> list[int]:
    """Collect, for every step, which attention kernels ran on any rank (see `Segments.attention_names`)."""
    begin = begin + (stop - begin > 1)
    bits = np.zeros(len(begin), np.int64)
    known = int(np.bitwise_or.reduce([np.bitwise_or.reduce(member.attention_names, initial=0) for member in segments]))
    for value in range(3, 63):
        if not (known >> value) & 1:
            continue
        counts = [((member.attention_names >> value) & 1).astype(np.int32) for member in segments]
        within = [_count_within(c, begin[:, rank], stop[:, rank]) > 0 for rank, c in enumerate(counts)]
        bits |= np.any(within, axis=0).astype(np.int64) << value
    return [int(value) for value in bits]


def _count_within(counts: np.ndarray[Any, np.dtype[np.int32]], begin: IntArray, stop: IntArray) -> IntArray:
    total = np.concatenate([[0], np.cumsum(counts)])
    return np.asarray(total[np.maximum(stop, begin)] - total[begin])


def _phase(prefill: int, decode: int, graph: int) -> str:
    if prefill and (decode or graph):
        return "mixed"
    if prefill:
        return "prefill"
    if graph:
        return "decode graph"
    return "decode" if decode else "step"


def join_rare(
    kinds: Mapping[Signature, list[int]], sets: Sequence[MeetingSet], fewest: int
) -> dict[Signature, list[int]]:
    """Join decode kinds too rare to compare that meet on the same channels in the same order.

    Without graphs each batch size launches other shapes, which tell the calls of one channel apart.

    Args:
        kinds: steps by signature.
        fewest: steps a kind needs.
    """
    alike = {(item.channel, item.operation, item.ranks): number for number, item in reversed(list(enumerate(sets)))}
    first = np.array([alike[item.channel, item.operation, item.ranks] for item in sets], np.int32)
    joined: dict[Signature, list[int]] = {}
    for signature, steps in kinds.items():
        if len(steps) < fewest and signature[-1] in ("decode", "decode graph", "mixed", "step"):
            orders = [np.frombuffer(own, np.int32) for own in signature if isinstance(own, bytes) and own]
            same = [(first[order % len(sets)] + order - order % len(sets)).tobytes() for order in orders]
            signature = ("rare", *same, *signature[-2:])
        joined.setdefault(signature, []).extend(steps)
    return {signature: sorted(steps) for signature, steps in joined.items()}
