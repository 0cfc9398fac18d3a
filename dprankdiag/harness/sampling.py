"""Draw many worlds: faulty ones spread evenly over all that may vary, and healthy ones that invite false alarms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dprankdiag.harness.draws import open_stream
from dprankdiag.harness.faults import (
    NEEDS_BATCHES,
    STEADY,
    Fault,
    Kind,
    When,
    burst,
    fabric,
    host_burst,
    host_late,
    hot_expert,
    load_context,
    load_idle,
    load_prefill,
    load_requests,
    onset,
    periodic,
    receiver_queue,
    slow_gpu,
    slow_link,
    structural_graph,
    structural_layout,
    window,
)
from dprankdiag.harness.timeline import play
from dprankdiag.harness.world import Files, Physics, World
from dprankdiag.harness.worlds import twin

KINDS: tuple[Kind, ...] = (
    "slow_gpu",
    "load_context",
    "load_requests",
    "host_late",
    "host_burst",
    "hot_expert",
    "receiver_queue",
    "slow_link",
    "fabric",
)
"""Kinds of fault that every physics knows."""
SLOWDOWNS = (0.03, 0.05, 0.1, 0.2, 0.5, 1.0)

_AXES: dict[str, tuple[Any, ...]] = {
    "kind": KINDS,
    "slowdown": SLOWDOWNS,
    "when": ("steady", "steady", "onset", "window", "periodic", "burst"),
    "who": ("one", "one", "one", "one", "two", "three", "rotating", "host"),
    "ranks": (2, 4, 8, 8, 16, 32, 64),
    "communication": ("nccl", "nccl", "custom_all_reduce", "deepep", "deepep_normal"),
    "graph": (True, True, False),
    "attention_tp": (1, 1, 2, 4),
    "files": ("one", "one", "node"),
    "names": ("sglang", "vllm"),
    "noise": (0.01, 0.02, 0.04),
    "dependent_launch": (False, False, True),
}
_KERNELS_A_LAYER = 14
_MOST_FACTOR = 30.0
_LEVELS = (1.0, 2.5)
"""How load changes within a world where only that shows what is wrong."""
_MOST_IDLE = 0.7
_LOST_GRAPHS = 0.3
_ROTATING: tuple[Kind, ...] = ("slow_gpu", "load_context", "load_requests", "host_late", "load_prefill")
_OF_A_HOST: tuple[Kind, ...] = ("slow_gpu", "host_late", "slow_link")


def sample_faulty(count: int, seed: int, *, kernels: int = 150_000) -> dict[str, World]:
    """Draw worlds with one fault each, sized so that the step grows by the drawn slowdown against the twin."""
    drawn = draw_faulty(count, seed, kernels=kernels)
    return {name: fit_slowdown(world, slowdown) for name, (world, slowdown) in drawn.items()}


def list_kinds(physics: Physics) -> tuple[Kind, ...]:
    """List the kinds of fault that a physics knows and that cost something."""
    return KINDS if physics == "fixed" else (*KINDS, *NEEDS_BATCHES)


def draw_faulty(
    count: int, seed: int, *, kernels: int = 150_000, physics: Physics = "fixed"
) -> dict[str, tuple[World, float]]:
    """Draw worlds with one fault each by a Latin hypercube over cause, slowdown, pattern, size and recording.

    Args:
        count: number of worlds.
        seed: the same seed draws the same worlds.
        kernels: about how many kernels a world holds at most.
        physics: that the worlds follow, and that says which kinds there are.

    Returns:
        By name a world and the slowdown that its fault is to be sized to.
    """
    axes = _AXES | {"kind": list_kinds(physics)}
    strata = {axis: _spread_axis(seed, axis, values, count) for axis, values in axes.items()}
    worlds = {}
    for position in range(count):
        choice = {axis: values[position] for axis, values in strata.items()} | {"physics": physics}
        world = _build_world(seed, position, choice, kernels)
        worlds[f"{position:04d}-{choice['kind']}"] = (world, choice["slowdown"])
    return worlds


def sample_healthy(count: int, seed: int, *, kernels: int = 150_000) -> dict[str, World]:
    """Draw worlds in which nothing is wrong, with more noise, spread, tails and clock errors than usual."""
    axes = {axis: values for axis, values in _AXES.items() if axis not in ("kind", "slowdown", "when", "who")}
    strata = {axis: _spread_axis(seed, axis, values, count) for axis, values in axes.items()}
    worlds = {}
    for position in range(count):
        choice = {axis: values[position] for axis, values in strata.items()}
        random = open_stream(seed, "healthy", position)
        worlds[f"{position:04d}-healthy"] = replace(
            _shape_world(seed, position, choice, kernels),
            noise=float(random.uniform(0.01, 0.1)),
            tail_share=float(random.choice([0.0, 0.001, 0.004])),
            chip_spread=float(random.uniform(0.0, 0.015)),
            load_spread=float(random.uniform(0.0, 0.06)),
            routing_spread=float(random.uniform(0.05, 0.2)),
            prefill_every=int(random.choice([0, 0, 7])),
            cut_edges=bool(random.random() < 0.5),
        )
    return worlds


def fit_slowdown(world: World, slowdown: float, *, tolerance: float = 0.05, rounds: int = 14) -> World:
    """Resize a world's only fault until the step grows by `slowdown` against the twin, as near as it can get.

    Load and routing that rest on few steps may not reach a large slowdown with a factor of reason, ranks that idle none
    below what that costs; steps that lose their graph cost what they do.
    """
    (fault,) = world.faults
    if fault.kind == "structural_graph":
        return world
    is_factor = fault.kind not in ("host_late", "host_burst", "receiver_queue", "slow_link")
    excess = fault.size - 1 if is_factor else fault.size
    low, high = 0.0, _MOST_FACTOR if is_factor else np.inf
    best, best_error = world, np.inf
    for _ in range(rounds):
        sized = replace(world, faults=(replace(fault, size=1 + excess if is_factor else round(excess)),))
        grown = play(sized).wall_ns() / play(twin(sized)).wall_ns() - 1
        error = abs(grown / slowdown - 1)
        if error < best_error:
            best, best_error = sized, error
        if error < tolerance:
            break
        low, high = (excess, high) if grown < slowdown else (low, excess)
        excess *= float(np.clip(slowdown / max(grown, 1e-4), 0.4, 2.5))
        if not low < excess < high:
            excess = (low + high) / 2
    return best


def _spread_axis(seed: int, axis: str, values: Sequence[Any], count: int) -> list[Any]:
    """Give every value of an axis its even share of the worlds, in random order."""
    order = open_stream(seed, "axis", axis).permutation(count)
    return [values[int(place) * len(values) // count] for place in order]


def _shape_world(seed: int, position: int, choice: dict[str, Any], kernels: int) -> World:
    """Build a world without a fault, mending what cannot be combined."""
    random = open_stream(seed, "world", position)
    ranks, communication = choice["ranks"], choice["communication"]
    if communication == "custom_all_reduce":
        ranks = min(ranks, 8)
    layers = int(random.integers(3, 9))
    steps = int(np.clip(kernels // (ranks * layers * _KERNELS_A_LAYER), 12, 200))
    files: Files = choice["files"] if ranks > 8 else "one"
    return World(
        seed=int(random.integers(2**31)),
        physics=choice.get("physics", "fixed"),
        ranks=ranks,
        steps=steps,
        layers=layers,
        attention_tp=min(choice["attention_tp"], ranks // 2),
        communication=communication,
        receive_hook=communication == "deepep" and bool(random.random() < 0.5),
        graph=choice["graph"] and communication != "deepep_normal",
        dependent_launch=choice["dependent_launch"],
        names=choice["names"],
        noise=choice["noise"],
        files=files,
        ranks_per_node=8 if files == "node" else 0,
        host_clock_ns=1_000_000 if files == "node" else 0,
        drift_ppm=10.0 if files == "node" else 0.0,
    )


def _build_world(seed: int, position: int, choice: dict[str, Any], kernels: int) -> World:
    if choice["kind"] == "receiver_queue" and not choice["communication"].startswith("deepep"):
        choice = choice | {"communication": "deepep"}
    if choice["kind"] == "structural_graph":
        mended = "deepep" if choice["communication"] == "deepep_normal" else choice["communication"]
        choice = choice | {"communication": mended, "graph": True}
    world = _shape_world(seed, position, choice, kernels)
    if choice["kind"] == "structural_layout":
        world = replace(world, load_levels=_LEVELS)
    random = open_stream(seed, "culprits", position)
    kind, who, when = choice["kind"], choice["who"], _choose_when(world, choice)
    if who == "host" and kind in _OF_A_HOST and world.ranks > 2:
        world = world if world.files == "node" else _split_nodes(world)
        ranks = _draw_host(world, random)
        return replace(world, faults=(build_fault(world, kind, ranks, when, random),))
    rotates = who == "rotating" and kind in _ROTATING and world.dp_size > 2
    count = min(3, world.dp_size - 1) if rotates else {"two": 2, "three": 3}.get(who, 1)
    ranks = draw_culprits(world, count if rotates else min(count, max(1, world.dp_size // 3)), random)
    return replace(world, faults=(replace(build_fault(world, kind, ranks, when, random), rotating=rotates),))


def draw_culprits(world: World, count: int, random: np.random.Generator) -> tuple[int, ...]:
    """Draw a rank out of each of so many DP ranks."""
    groups = random.choice(world.dp_size, count, replace=False) * world.attention_tp
    return tuple(sorted(int(first + random.integers(world.attention_tp)) for first in groups))


def _split_nodes(world: World) -> World:
    """Spread a world over two nodes with a recording and a clock each."""
    return replace(world, files="node", ranks_per_node=world.ranks // 2, host_clock_ns=1_000_000, drift_ppm=10.0)


def _draw_host(world: World, random: np.random.Generator) -> tuple[int, ...]:
    first = int(random.integers(world.ranks // world.node_size)) * world.node_size
    return tuple(range(first, first + world.node_size))


def _choose_when(world: World, choice: dict[str, Any]) -> When:
    """Choose the steps; ranks that idle do so in most, layouts never change, some steps keep their graph."""
    kind = choice["kind"]
    if kind == "load_idle":
        return burst(_MOST_IDLE) if choice["when"] == "burst" else STEADY
    if kind == "structural_layout":
        return STEADY
    if kind == "structural_graph" and choice["when"] == "steady":
        return burst(_LOST_GRAPHS)
    return {
        "steady": STEADY,
        "onset": onset(world.steps // 2),
        "window": window(world.steps // 4, world.steps // 2),
        "periodic": periodic(max(2, world.steps // 8)),
        "burst": burst(0.08),
    }[choice["when"]]


def build_fault(world: World, kind: Kind, ranks: tuple[int, ...], when: When, random: np.random.Generator) -> Fault:
    """Make a fault of a kind and of ordinary size; bursts of hosts and fabrics keep their own time."""
    if kind == "host_burst":
        return host_burst(ranks, stalls=max(1, world.steps // 20), stall_ns=3_000_000)
    if kind == "hot_expert":
        hot = {layer: int(random.integers(world.ranks)) for layer in range(world.layers)}
        return hot_expert(hot, 2.0, when=when)
    if kind == "fabric":
        return fabric(2.0, when=window(world.steps // 3, 2 * world.steps // 3))
    if kind == "structural_layout":
        return structural_layout(ranks, 1.5, side="before" if random.random() < 0.5 else "after")
    return {
        "slow_gpu": lambda: slow_gpu(ranks, 1.2, when=when),
        "load_context": lambda: load_context(ranks, 2.0, when=when),
        "load_requests": lambda: load_requests(ranks, 1.6, when=when),
        "host_late": lambda: host_late(ranks, 400_000, when=when),
        "receiver_queue": lambda: receiver_queue(ranks, 20_000, when=when),
        "slow_link": lambda: slow_link(ranks, 20_000, when=when),
        "load_prefill": lambda: load_prefill(ranks, 1.3, when=when),
        "load_idle": lambda: load_idle(ranks, 1.2, when=when),
        "structural_graph": lambda: structural_graph(ranks, when=when),
    }[kind]()
