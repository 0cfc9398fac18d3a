"""Join kinds of steps that are told apart by no more than the size of their batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dprankdiag.analysis.collectives import MeetingSet

Signature = tuple[object, ...]
"""What a kind of step holds: each rank's meetings as bytes, then its content, attention kernels and phase."""


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
