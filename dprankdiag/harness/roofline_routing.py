"""Which experts the tokens go to, and on which rank these lie.

Experts are placed as a balancer does that knows how popular they are: one copy more a rank, spent on the most popular,
and every rank as heavy as the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from dprankdiag.harness.activity import fault_activity, level_hot_layers
from dprankdiag.harness.draws import open_stream
from dprankdiag.harness.events import Array
from dprankdiag.harness.roofline_kernels import TILE_ROWS
from dprankdiag.harness.roofline_presets import Model
from dprankdiag.harness.world import World


@dataclass(frozen=True, slots=True)
class Routing:
    """What each rank's experts get: `(steps, layers, ranks)` each.

    A copy counts as an expert. A twin's tokens go to the same experts, whose work is spread: no whole numbers then.

    Attributes:
        tokens: routed tokens; their sum over the ranks is the step's tokens times the experts that each takes.
        touched: experts with any token.
        tiles: rows of tiles, each expert's tokens rounded up.
    """

    tokens: Array
    touched: Array
    tiles: Array


def route_tokens(world: World, model: Model, rows: Array) -> Routing:
    """Route the tokens of every step through every layer.

    Args:
        world: how unequal experts are, and which faults there are.
        model: how many experts.
        rows: `(steps,)` tokens of all ranks.
    """
    shape = (len(rows), world.layers, world.ranks)
    tokens, touched, tiles = (np.zeros(shape, np.int64) for _ in range(3))
    for layer in range(world.layers):
        if world.expert_slots:
            counts, owner = _serve_slots(world, model, layer, rows)
            on_rank = owner[:, None] == np.arange(world.ranks)
            tokens[:, layer], touched[:, layer] = counts @ on_rank, (counts > 0) @ on_rank.astype(np.int64)
            tiles[:, layer] = -(-counts // TILE_ROWS) @ on_rank
            continue
        weights = copy_popular(draw_popularity(world, model, layer), world.ranks)
        order = open_stream(world.seed, "roofline", "placement", layer).permutation(world.ranks)
        owner = order[place_experts(weights, world.ranks)]
        on_rank = owner[:, None] == np.arange(world.ranks)
        counts = _count_tokens(world, model, layer, _weigh(world, layer, weights, owner), rows)
        tokens[:, layer] = counts @ on_rank
        touched[:, layer] = (counts > 0) @ on_rank.astype(np.int64)
        tiles[:, layer] = -(-counts // TILE_ROWS) @ on_rank
    return Routing(*(level_hot_layers(world, it) for it in (tokens, touched, tiles)))


def count_experts(world: World, model: Model, rows: Array) -> Array:
    """Count the tokens of each expert, wherever it lies: `(steps, layers, experts)`; no rank is hot."""
    counts = [_count_layer(world, model, layer, rows) for layer in range(world.layers)]
    return np.stack(counts, axis=1)


def _count_layer(world: World, model: Model, layer: int, rows: Array) -> Array:
    weights = np.tile(draw_popularity(world, model, layer), (world.run_steps, 1))
    return _count_tokens(world, model, layer, weights, rows)


def _serve_slots(world: World, model: Model, layer: int, rows: Array) -> tuple[Array, Array]:
    """Share each expert's tokens among its slots, what is left over to another one each step.

    Returns:
        `(steps, slots)` tokens, and `(slots,)` the rank of each slot.
    """
    expert = np.asarray(world.expert_slots[layer])
    counts = _count_layer(world, model, layer, rows)
    served = np.zeros((len(counts), len(expert)), np.int64)
    step = np.arange(len(counts))[:, None]
    for number in range(model.experts):
        (slots,) = np.nonzero(expert == number)
        whole, left = np.divmod(counts[:, number], len(slots))
        turn = (np.arange(len(slots)) + step) % len(slots)
        served[:, slots] = whole[:, None] + (turn < left[:, None])
    return served, np.arange(len(expert)) // (len(expert) // world.ranks)


def draw_popularity(world: World, model: Model, layer: int) -> Array:
    """Draw the experts' shares of the tokens of a layer: `(experts,)`, log-normal with the world's Gini coefficient.

    Source: the Gini coefficient of a log-normal distribution is 2 F(s / sqrt 2) - 1, F being the normal one's.
    """
    spread = np.sqrt(2) * NormalDist().inv_cdf((1 + world.routing_gini) / 2)
    drawn = np.exp(spread * open_stream(world.seed, "roofline", "popularity", layer).standard_normal(model.experts))
    shares: Array = drawn / drawn.sum()
    return shares


def copy_popular(popular: Array, copies: int) -> Array:
    """Give the most popular experts copies that share their tokens: `(experts + copies,)` shares."""
    times = np.ones(len(popular), np.int64)
    for _ in range(copies):
        times[np.argmax(popular / times)] += 1
    return np.repeat(popular / times, times)


def place_experts(weights: Array, ranks: int) -> Array:
    """Place experts, the heaviest first, on the lightest rank that has room: `(experts,)` rank of each."""
    room = np.bincount(np.arange(len(weights)) % ranks, minlength=ranks)
    load = np.zeros(ranks)
    owner = np.empty(len(weights), np.int64)
    for expert in np.argsort(-weights, kind="stable"):
        rank = np.argmin(np.where(room > 0, load, np.inf))
        owner[expert] = rank
        load[rank] += weights[expert]
        room[rank] -= 1
    return owner


def _weigh(world: World, layer: int, even: Array, owner: Array) -> Array:
    """Multiply the popularity of hot ranks' experts, in a twin as well: `(steps, experts)`."""
    weights = np.tile(even, (world.run_steps, 1))
    for position, fault in enumerate(world.faults):
        if fault.kind == "hot_expert":
            active = fault_activity(world, position).any(axis=1)
            for at, rank in fault.layers:
                if at == layer:
                    weights[np.ix_(active, owner == rank)] *= fault.size
    return weights


def _count_tokens(world: World, model: Model, layer: int, weights: Array, rows: Array) -> Array:
    """Count each expert's tokens: `(steps, experts)`, in all `rows * top_k`, and none gets a token twice.

    The root of a Poisson number is nearly normal with a spread of one half, so that the same draws serve any mean.

    Source: Anscombe, The transformation of Poisson, binomial and negative-binomial data, Biometrika 35 (1948).
    """
    random = open_stream(world.seed, "roofline", "routing", layer)
    shape = weights.shape
    weights = weights * np.exp(world.routing_spread * random.standard_normal(shape))
    scatter = random.standard_normal(shape)
    total = rows * model.top_k
    mean = weights * (total / weights.sum(axis=1))[:, None]
    drawn = np.maximum(np.sqrt(mean) + scatter / 2, 0) ** 2
    return _round_to(drawn, total, rows)


def _round_to(drawn: Array, total: Array, most: Array) -> Array:
    """Scale and round each row to its total, none above the most."""
    counts = np.zeros(drawn.shape, np.int64)
    for step in range(len(drawn)):
        exact = _fill(drawn[step], int(total[step]), int(most[step]))
        whole = np.floor(exact).astype(np.int64)
        missing = int(total[step]) - int(whole.sum())
        room = np.where(whole < most[step], exact - whole, -1.0)
        whole[np.argsort(-room, kind="stable")[:missing]] += 1
        counts[step] = whole
    return counts


def _fill(drawn: Array, total: int, most: int) -> Array:
    """Share a total in proportion, and what exceeds the most among the others."""
    full = np.zeros(len(drawn), bool)
    exact: Array = np.zeros(len(drawn))
    while True:
        free = drawn * ~full
        exact = np.where(full, most, free * (total - most * full.sum()) / max(free.sum(), 1e-9))
        if not (exact[~full] > most).any():
            return exact
        full |= exact >= most
