"""Put together calls that are sent and received in halves: two kernels of one name, the first of which waits for none.

DeepEP's low-latency kernels with a receive hook are such: the data are sent, other work runs, and the second kernel
waits until the data of all ranks have come (DESIGN 2.1, rule 6). The rank arrives with the first half and stands still,
if at all, in the second.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from dprankdiag.analysis.calls import Calls, Channel, IntArray, merge_calls
from dprankdiag.analysis.overlap import Halves
from dprankdiag.analysis.partitions import NOISE_FACTOR, TICK_NS, list_partitions
from dprankdiag.analysis.statistics import BoolArray, robust_sd

EXCHANGE = ("dispatch", "combine")
MOST_PLACES = 6
LOST = 0.05
"""Share of the halves that may be without the other: rows get lost, and a recording begins and ends between them."""

SHORTEST, WAITED = 0.05, 2.0
"""A receipt has waited if it lasts so many times as long as the shortest of its rank, all but this share of them."""

FEWEST_WAITED = 8


def pair_halves(parts: Sequence[Channel], is_send: Sequence[bool]) -> Channel | None:
    """Pair the sends of a channel with its receipts, in order; None if the calls do not come in such halves.

    Args:
        parts: the channel by places of the step (see `split_by_place`).
        is_send: which of them wait for nobody.
    """
    if parts[0].family not in EXCHANGE or not 2 <= len(parts) <= MOST_PLACES:
        return None
    candidates = [number for number, sends in enumerate(is_send) if sends]
    for size in range(1, len(parts)):
        for chosen in combinations(candidates, size):
            sends = [part for number, part in enumerate(parts) if number in chosen]
            receipts = [part for number, part in enumerate(parts) if number not in chosen]
            paired = [
                _pair(_calls_of(sends, position), _calls_of(receipts, position))
                for position in range(len(parts[0].calls))
            ]
            whole = [calls for calls in paired if calls is not None]
            if len(whole) == len(paired):
                return replace(parts[0], calls=tuple(whole))
    return None


def _calls_of(parts: Sequence[Channel], position: int) -> Calls:
    return merge_calls([part.calls[position] for part in parts])


def _pair(sends: Calls, receipts: Calls) -> Calls | None:
    """Pair one rank's halves: what was sent first is received first; halves whose other half was lost are left out."""
    if not len(sends) or abs(len(sends) - len(receipts)) > LOST * max(len(sends), len(receipts)) + 2:
        return None
    start = np.concatenate([sends.start_ns, receipts.start_ns])
    order = np.argsort(start, kind="stable")
    under_way = np.cumsum(np.where(order < len(sends), 1, -1))
    depths = Counter(under_way[order < len(sends)].tolist())
    deepest = max(depth for depth, count in depths.items() if count > LOST * len(sends))
    sent: deque[int] = deque()
    pairs = []
    for number in order.tolist():
        if number < len(sends):
            sent.append(number)
            if len(sent) > max(deepest, 1):
                sent.popleft()
        elif sent:
            pairs.append((sent.popleft(), number - len(sends)))
    if len(pairs) < (1 - LOST) * max(len(sends), len(receipts)) - 2:
        return None
    first, second = (np.array(column) for column in zip(*pairs, strict=True))
    before, after = sends.take(first), receipts.take(second)
    if (after.start_ns < before.end_ns).any():
        return None
    return replace(before, end_ns=after.end_ns, halves=Halves(before.end_ns, after.arrival_ns, after.end_ns))


def meet_as_one(members: Sequence[Calls]) -> bool:
    """Tell whether receipts that had to wait end as the sends of all callers let them, and not of smaller groups.

    Where nobody is ever late, or no receipt waits, all groupings explain the ends alike: then all are taken to meet.

    Args:
        members: calls in halves, the k-th of each of one exchange.
    """
    if len({len(calls) for calls in members}) != 1 or any(calls.halves is None for calls in members):
        return False
    sent = np.stack([calls.arrival_ns for calls in members], axis=1)
    done = np.stack([calls.end_ns for calls in members], axis=1)
    lasts = done - np.stack([calls.halves.hold_ns for calls in members if calls.halves is not None], axis=1)
    waited = lasts > WAITED * np.quantile(lasts, SHORTEST, axis=0)
    n = len(members)
    smaller = [groups for size in range(2, n) if n % size == 0 for groups in list_partitions(n, size)]
    whole = _measure_scatter(sent, done, waited, [tuple(range(n))])
    return all(whole <= NOISE_FACTOR * _measure_scatter(sent, done, waited, groups) + TICK_NS for groups in smaller)


def _measure_scatter(sent: IntArray, done: IntArray, waited: BoolArray, groups: Sequence[tuple[int, ...]]) -> float:
    """Measure how much the time from a group's last send to the ends scatters, ns, in the mean rank.

    Args:
        sent, done, waited: `(n_calls, n_members)`.
    """
    found = []
    for group in groups:
        last = sent[:, group].max(axis=1)
        held = [(done[:, rank] - last)[waited[:, rank]].astype(np.float64) for rank in group]
        found += [float(robust_sd(values)) for values in held if len(values) >= FEWEST_WAITED]
    return float(np.mean(found)) if found else 0.0
