"""What no roofline knows: chips differ and drift with their temperature, kernels scatter, some take far longer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dprankdiag.harness.draws import open_stream
from dprankdiag.harness.events import Array
from dprankdiag.harness.program import Operation
from dprankdiag.harness.world import World

_WANDER = 0.006
_WANDER_KEPT = 0.95
_MEMORY_WANDER = 0.3
_WARM_UP, _WARM_UP_STEPS = 0.2, 1.2
_HICCUP_SHARE = 0.001


@dataclass(frozen=True, slots=True)
class ChipNoise:
    """Factors on time, `(steps, ranks)`: on arithmetic, which follows the clock, and on memory."""

    compute: Array
    memory: Array


def wander(random: np.random.Generator, steps: int, count: int, kept: float) -> Array:
    """Draw standard normal series, each step keeping a share of the last one's value: `(steps, count)`."""
    values: Array = random.standard_normal((steps, count))
    for step in range(1, steps):
        values[step] = kept * values[step - 1] + np.sqrt(1 - kept**2) * values[step]
    return values


def draw_chips(world: World) -> ChipNoise:
    """Draw how the chips differ, how their clocks drift from step to step, and how they warm up."""
    steps, ranks = world.run_steps, world.ranks

    def spread(name: str) -> Array:
        drawn: Array = world.chip_spread * open_stream(world.seed, "roofline", name).standard_normal(ranks)
        return drawn

    drift = _WANDER * wander(open_stream(world.seed, "roofline", "wander"), steps, ranks, _WANDER_KEPT)
    warm = _WARM_UP * np.exp(-np.arange(steps) / _WARM_UP_STEPS)[:, None]
    return ChipNoise(
        compute=np.exp(spread("compute") + drift) * (1 + warm),
        memory=np.exp(spread("memory") + _MEMORY_WANDER * drift) * (1 + warm),
    )


def _open(world: World, name: str, op: Operation) -> np.random.Generator:
    return open_stream(world.seed, "roofline", name, op.key, op.layer)


def draw_kernel(world: World, op: Operation) -> Array:
    """Draw the scatter of an operation: `(steps, ranks)` factors on its time.

    The stream is keyed by operation and layer, so that it is the same in steps of whatever kind.
    """
    shape = (world.run_steps, world.ranks)
    factor: Array = np.exp(world.noise * _open(world, "work", op).standard_normal(shape))
    if world.tail_share:
        tails = _open(world, "tails", op)
        hit = tails.random(shape) < world.tail_share
        factor = factor * np.where(hit, 1 + tails.pareto(2.5, shape), 1.0)
    return factor


def draw_transfer(world: World, op: Operation, size: int) -> Array:
    """Draw the scatter of a collective, one for all members of each group of a size: `(steps, ranks)` factors."""
    random = _open(world, "transfer", op)
    shape = (world.run_steps, world.ranks // size)
    factor = np.exp(0.5 * world.noise * random.standard_normal(shape))
    jitter = np.where(random.random(shape) < 0.01, random.pareto(3.0, shape), 0.0)
    return np.repeat(factor + np.minimum(jitter, 4.0), size, axis=1)


def draw_exit(world: World, op: Operation) -> Array:
    """Draw how much later than the first a member leaves a collective, in ns: `(steps, ranks)`."""
    return np.minimum(_open(world, "exit", op).gamma(0.8, 350.0, (world.run_steps, world.ranks)), 4_000.0)


def draw_gap(world: World, op: Operation) -> Array:
    """Draw the idle time before a kernel in ns: `(steps, ranks)`."""
    mean_ns = 700.0 if op.in_graph else 1_100.0
    return _open(world, "gap", op).gamma(9.0, mean_ns / 9.0, (world.run_steps, world.ranks))


def draw_call(world: World, op: Operation) -> Array:
    """Draw the scatter of a launch call: `(steps, ranks)` factors."""
    random = _open(world, "call", op)
    shape = (world.run_steps, world.ranks)
    late = np.where(random.random(shape) < _HICCUP_SHARE, random.pareto(1.5, shape), 0.0)
    return np.exp(0.12 * random.standard_normal(shape)) + np.minimum(late, 20.0)


def draw_host(world: World) -> tuple[Array, Array]:
    """Draw what slows the hosts down between steps, `(steps, ranks)`: a factor, and stalls such as of a collector."""
    shape = (world.run_steps, world.ranks)
    random = open_stream(world.seed, "roofline", "host")
    factor = np.exp(0.08 * wander(random, *shape, 0.8) + 0.05 * random.standard_normal(shape))
    stalls = np.where(random.random(shape) < _HICCUP_SHARE, random.uniform(200_000, 900_000, shape), 0.0)
    return factor, stalls
