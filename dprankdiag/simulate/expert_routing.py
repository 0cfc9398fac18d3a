"""Choose among an expert's copies as SGLang does, and count what arrives at each slot.

Source: sglang 0.5, `eplb/expert_location.py` and `expert_location_dispatch.py` (`--ep-dispatch-algorithm`).
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Literal

import numpy as np

from dprankdiag.simulate.base import IntArray
from dprankdiag.simulate.experts import Placement

Choice = Literal["static", "dynamic", "fake"]
"""`static`: each GPU has a copy of its own choice. `dynamic`: each token draws one. `fake`: each token draws its expert
first, which measures an even load."""


def choose_copies(placement: Placement, seed: int = 42, *, all_to_all: bool = True) -> IntArray:
    """Choose the copy that each GPU sends its tokens to.

    A copy on the same GPU comes first, then the first one on the same node if some are on others; the GPUs that are
    left are dealt the copies as evenly as they go. (Earlier trees asked for the same node alone: on a single node every
    GPU without a copy sent to the first.) Without an all-to-all every GPU sees all tokens and computes those of its
    own slots, so all must agree on one copy, or a token would be computed twice or never.

    Returns:
        `(n_gpus, n_layers, n_logical)` slots.
    """
    random = Random(seed)
    n_layers = len(placement.logical)
    chosen = np.zeros((placement.n_gpus, n_layers, placement.n_logical), np.int64)
    for layer in range(n_layers):
        copies: list[list[int]] = [[] for _ in range(placement.n_logical)]
        for slot, expert in enumerate(placement.logical[layer].tolist()):
            copies[expert].append(slot)
        for expert, slots in enumerate(copies):
            own = _choose_nearest(placement, slots, random) if all_to_all else random.choice(slots)
            chosen[:, layer, expert] = own
    return chosen


def _choose_nearest(placement: Placement, slots: Sequence[int], random: Random) -> list[int]:
    """Choose a copy for each GPU."""
    per_gpu = placement.slots_per_gpu
    per_node = placement.logical.shape[1] // placement.n_nodes
    on_gpu = {slot // per_gpu: slot for slot in reversed(slots)}
    on_node = {slot // per_node: slot for slot in reversed(slots)}
    if len(on_node) == 1 and len(slots) > 1:
        on_node = {}
    gpus_per_node = placement.n_gpus // placement.n_nodes
    near = [on_gpu.get(gpu, on_node.get(gpu // gpus_per_node)) for gpu in range(placement.n_gpus)]
    far = deal_evenly(slots, near.count(None), random)
    return [far.pop() if slot is None else slot for slot in near]


def deal_evenly(slots: Sequence[int], n_turns: int, random: Random) -> list[int]:
    """Deal slots in random order, none more than once more often than another."""
    whole, rest = divmod(n_turns, len(slots))
    turns = list(slots) * whole + random.sample(list(slots), rest)
    random.shuffle(turns)
    return turns


def route_tokens(
    placement: Placement, tokens: IntArray, choice: Choice, *, seed: int = 0, all_to_all: bool = True
) -> IntArray:
    """Count the tokens that arrive at each slot.

    Args:
        tokens: `(n_gpus, n_layers, n_logical)` that each GPU's router sends to each expert.
        choice: among the copies.
        seed: of the draws.
        all_to_all: tokens travel to the GPU of their expert; else all GPUs see all tokens and agree on a copy.

    Returns:
        `(n_layers, n_slots)`; as many as were sent.
    """
    draw = np.random.default_rng(seed)
    if choice == "static":
        return _route_chosen(placement, tokens, choose_copies(placement, all_to_all=all_to_all))
    wanted = tokens.sum(axis=0)
    if choice == "fake":
        even = np.full(placement.n_logical, 1.0 / placement.n_logical)
        wanted = np.array([draw.multinomial(int(total), even) for total in wanted.sum(axis=1)], np.int64)
    return _route_drawn(placement, wanted, draw)


def _route_chosen(placement: Placement, tokens: IntArray, chosen: IntArray) -> IntArray:
    arrived = np.zeros_like(placement.logical)
    for layer in range(len(arrived)):
        np.add.at(arrived[layer], chosen[:, layer], tokens[:, layer])
    return arrived


def _route_drawn(placement: Placement, wanted: IntArray, draw: np.random.Generator) -> IntArray:
    arrived = np.take_along_axis(wanted, placement.logical, axis=1)
    for layer, expert in np.argwhere(placement.count_copies() > 1).tolist():
        slots = placement.list_slots(layer, expert)
        arrived[layer, slots] = draw.multinomial(int(wanted[layer, expert]), np.full(len(slots), 1.0 / len(slots)))
    return arrived
