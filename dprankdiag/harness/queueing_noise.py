"""What varies in the queueing physics: chips by family of kernels, heat, noise that lasts, shots, pauses of hosts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dprankdiag.harness.draws import open_stream
from dprankdiag.harness.events import Array
from dprankdiag.harness.program import Operation
from dprankdiag.harness.world import World

FAMILIES = ("dense", "attention", "experts", "light")

_OF_CHIP = 0.5
"""Share of a chip's deviation that all its families have in common; the rest is each family's own."""
_LASTING, _LASTING_KEPT = 0.35, 0.6
_QUIET, _WILD, _WILD_SHARE = 0.7, 2.2, 0.1
_HEAT, _HEAT_OF_CHIP, _HEAT_STEPS = 0.012, 0.25, 35.0
_SHOT_LENGTH, _SHOT_SHAPE, _MOST_SHOT = 3.0, 1.8, 5.0
_BUSY_LINK, _LINK_KEPT, _MOST_BUSY = 0.12, 0.7, 0.5
_PAUSES_A_STEP, _PAUSE_NS, _PAUSE_SPREAD = 0.04, 180_000.0, 0.6


@dataclass(frozen=True, slots=True)
class Weather:
    """What holds for all kernels of a step.

    Attributes:
        speed: by family `(steps, ranks)`, factor on the time of its kernels.
        shot_at: `(steps, ranks)` where in the step a shot begins, 0 to 1.
        shot_length: how many operations it lasts, 0 for none.
        shot: factor while it lasts.
        link_busy: `(steps,)` share of the links' time that others take.
    """

    speed: dict[str, Array]
    shot_at: Array
    shot_length: Array
    shot: Array
    link_busy: Array


def _open(world: World, *name: str | int) -> np.random.Generator:
    return open_stream(world.seed, "queueing", *name)


def _follow(random: np.random.Generator, shape: tuple[int, ...], kept: float) -> Array:
    """Draw series with a standard deviation of one, of which each step keeps a share of the last one."""
    series: Array = random.standard_normal(shape)
    for step in range(1, shape[0]):
        series[step] = kept * series[step - 1] + np.sqrt(1 - kept**2) * series[step]
    return series


def draw_weather(world: World, operations: int) -> Weather:
    """Draw chips, heat, shots and links.

    Args:
        world: how much they vary.
        operations: about how many a step has, so that the wanted share of them is hit.
    """
    shape = (world.run_steps, world.ranks)
    random = _open(world, "shots")
    rate = min(0.5, world.tail_share * operations / _SHOT_LENGTH)
    hit = random.random(shape) < rate
    busy = _BUSY_LINK * np.exp(0.5 * _follow(_open(world, "links"), (world.run_steps, 1), _LINK_KEPT))[:, 0]
    return Weather(
        speed=_draw_speeds(world, shape),
        shot_at=random.random(shape),
        shot_length=np.where(hit, random.geometric(1 / _SHOT_LENGTH, shape), 0),
        shot=1 + np.minimum(random.pareto(_SHOT_SHAPE, shape), _MOST_SHOT),
        link_busy=np.minimum(busy, _MOST_BUSY),
    )


def _draw_speeds(world: World, shape: tuple[int, int]) -> dict[str, Array]:
    """Draw by family how a chip differs from the mean one, how it heats up, and noise that lasts some steps."""
    chip = _open(world, "chip").standard_normal(world.ranks)
    random = _open(world, "heat")
    time = np.arange(world.run_steps)[:, None] + random.uniform(0, 2 * _HEAT_STEPS)
    slower = _HEAT * np.exp(_HEAT_OF_CHIP * random.standard_normal(world.ranks))
    heat = 1 + slower * (1 - np.exp(-time / _HEAT_STEPS))
    speed = {}
    for family in FAMILIES:
        own = _open(world, "chip", family).standard_normal(world.ranks)
        spread = world.chip_spread * (_OF_CHIP * chip + np.sqrt(1 - _OF_CHIP**2) * own)
        lasting = _LASTING * world.noise * _follow(_open(world, "lasting", family), shape, _LASTING_KEPT)
        speed[family] = heat * np.exp(spread + lasting)
    return speed


def draw_scatter(world: World, op: Operation) -> Array:
    """Draw the scatter of an operation, mostly quiet and now and then wild: `(steps, ranks)` factors."""
    random = _open(world, "scatter", op.key, op.layer)
    shape = (world.run_steps, world.ranks)
    size = np.where(random.random(shape) < _WILD_SHARE, _WILD, _QUIET)
    factor: Array = np.exp(world.noise * size * random.standard_normal(shape))
    return factor


def find_shots(weather: Weather, steps: Array, position: int, operations: int) -> Array:
    """Give the factor of the shots on an operation: `(n, ranks)`."""
    begin = np.floor(weather.shot_at[steps] * operations)
    inside = (position >= begin) & (position < begin + weather.shot_length[steps])
    factor: Array = np.where(inside, weather.shot[steps], 1.0)
    return factor


def draw_transfers(world: World, op: Operation, members: int) -> Array:
    """Draw the scatter of a collective, one for all members of each group: `(steps, ranks)` factors."""
    random = _open(world, "transfer", op.key, op.layer)
    drawn = random.gamma(40.0, 1 / 40.0, (world.run_steps, world.ranks // members))
    factor: Array = np.repeat(drawn, members, axis=1)
    return factor


def draw_exits(world: World, op: Operation) -> Array:
    """Draw how much later than the first a member leaves a collective, in ns: `(steps, ranks)`."""
    drawn: Array = 420.0 * _open(world, "exit", op.key, op.layer).weibull(1.3, (world.run_steps, world.ranks))
    return np.minimum(drawn, 3_500.0)


def draw_gaps(world: World, op: Operation) -> Array:
    """Draw the idle time before an operation in ns: `(steps, ranks)`."""
    random = _open(world, "gap", op.key, op.layer)
    median_ns = 620.0 if op.in_graph else 950.0
    gaps: Array = median_ns * np.exp(0.25 * random.standard_normal((world.run_steps, world.ranks)))
    return gaps


def draw_calls(world: World, op: Operation) -> Array:
    """Draw the scatter of a launch call: `(steps, ranks)` factors."""
    random = _open(world, "call", op.key, op.layer)
    factor: Array = 0.8 + random.gamma(1.5, 0.14, (world.run_steps, world.ranks))
    return factor


def draw_hosts(world: World) -> tuple[Array, Array]:
    """Draw what holds hosts up between steps, `(steps, ranks)`: a factor, and pauses in ns, as often on every rank."""
    random = _open(world, "hosts")
    shape = (world.run_steps, world.ranks)
    factor = 0.9 + random.gamma(2.0, 0.05, shape)
    paused = random.random(shape) < _PAUSES_A_STEP / world.ranks
    pause = _PAUSE_NS * np.exp(_PAUSE_SPREAD * random.standard_normal(shape))
    return factor, np.where(paused, pause, 0.0)
