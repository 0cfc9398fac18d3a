"""Every random number of a world, drawn before any fault acts, so that a world and its twin share them.

Each array has a stream of its own, keyed by the seed and the array's name: adding one changes no other.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

from dprankdiag.harness.events import Array
from dprankdiag.harness.world import World


def open_stream(seed: int, *key: str | int) -> np.random.Generator:
    """Open the random stream of a name."""
    return np.random.default_rng([seed, zlib.crc32("/".join(map(str, key)).encode())])


@dataclass(frozen=True, slots=True)
class KernelDraws:
    """Noise of the kernels of one kind of step: steps × operations × ranks.

    Attributes:
        work: factor on a duration.
        transfer: `(steps, operations)`, factor on a transfer, one for all members.
        exit_ns: how much later than the first a member leaves a meeting.
        gap_ns: idle between two kernels of a stream.
        launch: factor on a launch call's duration.
    """

    work: Array
    transfer: Array
    exit_ns: Array
    gap_ns: Array
    launch: Array


@dataclass(frozen=True, slots=True)
class WorldDraws:
    """What is drawn once a world, once a rank, or once a step.

    Attributes:
        chip: `(ranks,)`, duration of a GPU's kernels against the mean GPU's.
        load: `(dp_size,)`, KV tokens of a DP rank against the mean.
        routing: `(steps, layers, ranks)`, tokens routed to a rank against the mean.
        host_gap: `(steps, ranks)`, factor on the host's work between steps.
        metadata_ns: `(steps, ranks)`, how much later than the first a host leaves the metadata gather.
    """

    chip: Array
    load: Array
    routing: Array
    host_gap: Array
    metadata_ns: Array


def draw_world(world: World) -> WorldDraws:
    """Draw what does not depend on the operations."""
    steps, ranks = world.run_steps, world.ranks

    def normal(name: str, spread: float, *shape: int) -> Array:
        return np.exp(spread * open_stream(world.seed, name).standard_normal(shape))

    return WorldDraws(
        chip=normal("chip", world.chip_spread, ranks),
        load=normal("load", world.load_spread, world.dp_size),
        routing=normal("routing", world.routing_spread, steps, world.layers, ranks),
        host_gap=normal("host-gap", max(world.noise, 0.01) * 2, steps, ranks),
        metadata_ns=open_stream(world.seed, "metadata").integers(2_000, 9_000, (steps, ranks)),
    )


def draw_kernels(world: World, kind: str, steps: int, operations: int) -> KernelDraws:
    """Draw the noise of all kernels of one kind of step."""
    shape = (steps, operations, world.ranks)

    def normal(name: str, *size: int) -> Array:
        return np.exp(world.noise * open_stream(world.seed, kind, name).standard_normal(size))

    work = normal("work", *shape)
    if world.tail_share:
        tails = open_stream(world.seed, kind, "tails")
        work *= np.where(tails.random(shape) < world.tail_share, 1 + tails.exponential(1.0, shape), 1.0)
    exits = open_stream(world.seed, kind, "exit").exponential(400.0, shape)
    return KernelDraws(
        work=work,
        transfer=normal("transfer", *shape[:2]),
        exit_ns=np.minimum(exits, 3_000).astype(np.int64),
        gap_ns=open_stream(world.seed, kind, "gap").integers(600, 1_100, shape),
        launch=normal("launch", *shape),
    )
