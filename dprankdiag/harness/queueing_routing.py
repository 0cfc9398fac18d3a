"""Which tokens go to which rank's experts in the queueing physics: Zipf's law with a flat head, which drifts.

Experts are dealt to the ranks to and fro in the order of their popularity, so that every rank has one of each tier; who
of a tier is popular changes as the traffic does. So no rank is hot for long, though every layer and step has a hottest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dprankdiag.harness.activity import fault_activity, level_hot_layers
from dprankdiag.harness.draws import open_stream
from dprankdiag.harness.events import Array
from dprankdiag.harness.world import World

_EXPERTS = (128, 256, 384)
_CHOSEN = (4, 6, 8)
_DRIFT = 0.08
"""Share of the steps in which the popular ones of a tier change places."""
_MOST_UNEVEN = 1.2
_WORK_POWER = 0.95
"""How work grows with an expert's tokens."""
_FILLING_ROUNDS = 12


@dataclass(frozen=True, slots=True)
class Routed:
    """What the experts get: `(steps, layers, ranks)` each.

    A twin's tokens go to the same experts, whose work is spread.

    Attributes:
        tokens: routed tokens; over the ranks they sum to the step's rows times the experts that each token takes.
        asked: experts with any token.
        worked: sum over the experts of the work that their tokens make.
        largest: work of the expert with most tokens.
        chosen: experts that a token takes.
    """

    tokens: Array
    asked: Array
    worked: Array
    largest: Array
    chosen: int


def route_rows(world: World, rows: Array) -> Routed:
    """Route the rows of every step through every layer.

    Args:
        world: how unequal experts are, and which faults there are.
        rows: `(steps,)` rows of all ranks.
    """
    random = open_stream(world.seed, "queueing", "experts")
    experts, chosen = int(random.choice(_EXPERTS)), int(random.choice(_CHOSEN))
    tiers = max(2, experts // world.ranks)
    chosen = min(chosen, tiers * world.ranks // 2)
    tokens, asked, worked, largest = (np.empty((world.run_steps, world.layers, world.ranks)) for _ in range(4))
    for layer in range(world.layers):
        weights = _draw_weights(world, layer, tiers) * _hotness(world, layer)[:, :, None]
        counts = _count(weights, rows, chosen)
        work = counts**_WORK_POWER
        tokens[:, layer], asked[:, layer] = counts.sum(axis=2), (counts > 0).sum(axis=2)
        worked[:, layer], largest[:, layer] = work.sum(axis=2), work.max(axis=2)
    tokens, asked, worked, largest = (level_hot_layers(world, it) for it in (tokens, asked, worked, largest))
    return Routed(tokens, asked, worked, largest, chosen)


def _draw_weights(world: World, layer: int, tiers: int) -> Array:
    """Draw the experts' popularity in every step: `(steps, ranks, tiers)`.

    Source: Mandelbrot's form of Zipf's law, (place + flat head) to the power of minus s; without the flat head its
    Gini coefficient is s / (2 - s) for s below 1.
    """
    random = open_stream(world.seed, "queueing", "popularity", layer)
    place = np.arange(world.ranks * tiers).reshape(tiers, world.ranks)
    place[1::2] = place[1::2, ::-1]
    slope = 2 * world.routing_gini / (1 + world.routing_gini)
    popular = (place + 2.0 * world.ranks) ** -slope
    moves = random.random((world.run_steps, tiers)) < _DRIFT
    moves[0] = True
    turns = np.cumsum(moves * random.integers(1, max(world.ranks, 2), moves.shape), axis=0)
    owner = (np.arange(world.ranks) + turns[:, :, None]) % world.ranks
    drifted = np.take_along_axis(np.broadcast_to(popular, owner.shape), owner, axis=2)
    uneven = min(world.routing_spread * np.sqrt(tiers), _MOST_UNEVEN)
    scatter = random.gamma(1 / uneven**2, uneven**2, owner.shape) if uneven else 1.0
    weights: Array = np.swapaxes(drifted * scatter, 1, 2)
    return weights


def _hotness(world: World, layer: int) -> Array:
    """Multiply the popularity of hot ranks' experts, in a twin as well: `(steps, ranks)`."""
    hot = np.ones((world.run_steps, world.ranks))
    for position, fault in enumerate(world.faults):
        if fault.kind == "hot_expert":
            active = fault_activity(world, position).any(axis=1)
            for at, rank in fault.layers:
                if at == layer:
                    hot[active, rank] *= fault.size
    return hot


def _count(weights: Array, rows: Array, chosen: int) -> Array:
    """Share `rows * chosen` tokens by weight, none to an expert that has all rows already: as `weights`."""
    shares = weights.reshape(len(rows), -1)
    shares = shares / shares.sum(axis=1, keepdims=True)
    most = 1.0 / chosen
    for _ in range(_FILLING_ROUNDS):
        full = shares >= most
        free = np.where(full, 0.0, shares)
        left = 1.0 - most * full.sum(axis=1, keepdims=True)
        shares = np.where(full, most, free * left / np.maximum(free.sum(axis=1, keepdims=True), 1e-12))
    ends = np.rint(np.cumsum(shares, axis=1) * (rows * chosen)[:, None]).astype(np.int64)
    ends[:, -1] = rows * chosen
    counts: Array = np.diff(ends, axis=1, prepend=0).reshape(weights.shape)
    return counts
