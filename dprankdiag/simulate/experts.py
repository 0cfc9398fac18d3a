"""Place copies of experts on GPUs so that the tokens routed to them weigh evenly.

Three steps, layer by layer: groups of experts are packed to nodes; in each node the hottest experts get copies until
its slots are used up; the copies are packed to the node's GPUs. Where groups do not divide by nodes, all experts are
one group on one node, which spreads better and keeps no token on its node.

Source: DeepSeek EPLB (deepseek-ai/EPLB, README), whose example is a test here; SGLang 0.5.23 `eplb_algorithm` "auto"
takes the three steps where groups divide by nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dprankdiag.errors import UsageError
from dprankdiag.simulate.base import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class Placement:
    """Which expert each slot holds.

    Attributes:
        logical: `(n_layers, n_slots)` the logical expert of each slot; a GPU's slots are neighbours.
        n_logical: experts of a layer.
        n_gpus: each holds as many slots.
        n_nodes: each has as many GPUs.
    """

    logical: IntArray
    n_logical: int
    n_gpus: int
    n_nodes: int = 1

    @property
    def slots_per_gpu(self) -> int:
        """Give the slots of a GPU."""
        return int(self.logical.shape[1]) // self.n_gpus

    def count_copies(self) -> IntArray:
        """Count the slots of each expert, `(n_layers, n_logical)`."""
        return count_rows(self.logical, self.n_logical)

    def list_slots(self, layer: int, expert: int) -> IntArray:
        """List the slots of an expert in a layer, `(n_copies,)`."""
        return np.asarray(np.flatnonzero(self.logical[layer] == expert), np.int64)


def place_in_order(n_layers: int, n_logical: int, n_slots: int, n_gpus: int, n_nodes: int = 1) -> Placement:
    """Place experts by their number, redundant slots beginning again at the first: where an engine starts.

    Raises:
        UsageError: the numbers do not divide as they must.
    """
    _check_sizes(n_logical, n_slots, n_gpus, n_nodes)
    row = np.arange(n_slots, dtype=np.int64) % n_logical
    return Placement(np.tile(row, (n_layers, 1)), n_logical, n_gpus, n_nodes)


def place_experts(
    tokens: FloatArray | IntArray, n_slots: int, n_gpus: int, n_nodes: int = 1, n_groups: int = 1
) -> Placement:
    """Place the copies of each layer's experts by the tokens routed to them.

    Args:
        tokens: `(n_layers, n_logical)` routed to each expert over a window.
        n_slots: experts of a layer with their copies, over all GPUs.
        n_gpus: of the expert-parallel group.
        n_nodes: that hold them.
        n_groups: in which the model routes (`n_group`); 1 where it does not.

    Raises:
        UsageError: the numbers do not divide as they must, or a node has fewer slots than experts.
    """
    n_logical = tokens.shape[1]
    _check_sizes(n_logical, n_slots, n_gpus, n_nodes)
    if n_logical % n_groups:
        raise UsageError(f"{n_logical} experts do not divide by {n_groups} groups")
    nodes = n_nodes if n_groups % n_nodes == 0 else 1
    groups = n_groups if nodes > 1 else 1
    rows = [_place_layer(np.asarray(row, np.float64), n_slots, n_gpus, nodes, groups) for row in tokens]
    return Placement(np.array(rows, np.int64).reshape(len(rows), n_slots), n_logical, n_gpus, n_nodes)


def _place_layer(tokens: FloatArray, n_slots: int, n_gpus: int, n_nodes: int, n_groups: int) -> list[int]:
    members = np.arange(len(tokens)).reshape(n_groups, -1)
    slots: list[int] = []
    for groups in pack_evenly(tokens[members].sum(axis=1), n_nodes):
        experts = members[groups].ravel()
        copies = replicate(tokens[experts], n_slots // n_nodes)
        share = (tokens[experts] / np.bincount(copies, minlength=len(experts)))[copies]
        for pack in pack_evenly(share, n_gpus // n_nodes):
            slots += experts[copies[pack]].tolist()
    return slots


def pack_evenly(weights: FloatArray, n_packs: int) -> list[list[int]]:
    """Pack items, as many to each pack, heaviest first and always to the lightest pack that has room.

    Args:
        weights: `(n_items,)`, a multiple of `n_packs`.

    Returns:
        The items of each pack, in the order in which they came; one item a pack stays where it is.
    """
    room = len(weights) // n_packs
    if room == 1:
        return [[item] for item in range(n_packs)]
    packs: list[list[int]] = [[] for _ in range(n_packs)]
    sums = np.zeros(n_packs)
    for item in np.argsort(-weights, kind="stable").tolist():
        lightest = int(sums.argmin())
        packs[lightest].append(item)
        sums[lightest] += weights[item]
        if len(packs[lightest]) == room:
            sums[lightest] = np.inf
    return packs


def replicate(tokens: FloatArray, n_slots: int) -> IntArray:
    """Give each expert a slot and each slot that is left to the expert whose copies are hottest then.

    Args:
        tokens: `(n_experts,)`.

    Returns:
        `(n_slots,)` the expert of each slot: all once, then the additional copies.
    """
    copies = np.ones(len(tokens), np.int64)
    slots = list(range(len(tokens)))
    for _ in range(n_slots - len(tokens)):
        hottest = int((tokens / copies).argmax())
        copies[hottest] += 1
        slots.append(hottest)
    return np.array(slots, np.int64)


def count_rows(rows: IntArray, n_values: int) -> IntArray:
    """Count the values 0 to `n_values` - 1 in each row, `(n_rows, n_values)`."""
    return np.array([np.bincount(row, minlength=n_values) for row in rows], np.int64).reshape(len(rows), n_values)


def _check_sizes(n_logical: int, n_slots: int, n_gpus: int, n_nodes: int) -> None:
    checks: Sequence[tuple[bool, str]] = (
        (n_slots >= n_logical, f"{n_slots} slots do not hold {n_logical} experts"),
        (n_slots % n_gpus == 0, f"{n_slots} slots do not divide by {n_gpus} GPUs"),
        (n_gpus % n_nodes == 0, f"{n_gpus} GPUs do not divide by {n_nodes} nodes"),
    )
    for holds, what in checks:
        if not holds:
            raise UsageError(what)
