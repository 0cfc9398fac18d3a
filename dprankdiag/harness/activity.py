"""When and where the faults of a world act, whatever the physics."""

from __future__ import annotations

import numpy as np

from dprankdiag.harness.draws import open_stream
from dprankdiag.harness.events import Array
from dprankdiag.harness.faults import GROUP_WIDE, Fault
from dprankdiag.harness.world import World

_FITTING_ROUNDS = 20


def fault_activity(world: World, position: int) -> Array:
    """Mark the steps and ranks in which a fault acts: `(steps, ranks)` bool over all steps that run."""
    fault = world.faults[position]
    random = open_stream(world.seed, "fault", position)
    if fault.kind == "host_burst":
        active = np.zeros((world.run_steps, world.ranks), bool)
        first, last = world.full_steps.start, world.full_steps.stop
        chosen = random.choice(np.arange(first, last), size=min(fault.stalls, last - first), replace=False)
        for turn, step in enumerate(np.sort(chosen)):
            active[step, fault.ranks[turn % len(fault.ranks)]] = True
        return active
    active = fault.activity(world.run_steps, world.ranks, random)
    if fault.kind in GROUP_WIDE:
        groups = active.reshape(world.run_steps, world.dp_size, world.attention_tp).any(axis=2)
        active = np.repeat(groups, world.attention_tp, axis=1)
    return active


def multiply_factors(world: World, kinds: tuple[str, ...], spread: bool) -> Array:
    """Multiply the factors of some kinds of fault: `(steps, ranks)`."""
    factors = np.ones((world.run_steps, world.ranks))
    for position, fault in enumerate(world.faults):
        if fault.kind in kinds and fault.spread == spread:
            factors = factors * np.where(fault_activity(world, position), fault.size, 1.0)
    return factors


def host_delays(world: World) -> tuple[Array, Array, Array]:
    """Compute by how much the host is held up, `(steps, ranks)` each: before the gather, after it, and in a burst."""
    before = np.zeros((world.run_steps, world.ranks), np.int64)
    after, burst = before.copy(), before.copy()
    for position, fault in enumerate(world.faults):
        if fault.kind in ("host_late", "host_burst"):
            target = _target(fault, before, after, burst)
            target += np.where(fault_activity(world, position), round(fault.size), 0)
    return before, after, burst


def _target(fault: Fault, before: Array, after: Array, burst: Array) -> Array:
    if fault.kind == "host_burst":
        return burst
    return before if fault.before_gather else after


def level_hot_layers(world: World, work: Array) -> Array:
    """Spread the work of hot experts evenly over the ranks where a twin does so: `(steps, layers, ranks)`.

    In the steps in which the fault acts every rank's work is scaled so that all have the same over these steps and each
    step keeps its sum. So the same work is done, by nobody more than by another on the mean, while what chance does
    from step to step stays.

    Source: iterative proportional fitting (Deming, Stephan, Annals of Mathematical Statistics 11, 1940).
    """
    level = work.astype(float)
    for position, fault in enumerate(world.faults):
        if fault.kind == "hot_expert" and fault.spread:
            active = np.flatnonzero(fault_activity(world, position).any(axis=1))
            for layer, _ in fault.layers if len(active) else ():
                level[active, layer] = _fit_even(level[active, layer])
    return level


def _fit_even(own: Array) -> Array:
    """Scale `(steps, ranks)` until ranks have equal means and steps their sums."""
    sums = own.sum(axis=1, keepdims=True)
    even: Array = own
    for _ in range(_FITTING_ROUNDS):
        even = even * even.mean() / np.maximum(even.mean(axis=0), 1e-9)
        even = even * sums / np.maximum(even.sum(axis=1, keepdims=True), 1e-9)
    return even


def measure_slowness(world: World, steps: Array) -> tuple[Array, Array]:
    """Give the factor on compute-bound and on memory-bound kernels: `(n, ranks)` each."""
    compute = multiply_factors(world, ("uniform",), False)
    memory = compute.copy()
    for position, fault in enumerate(world.faults):
        if fault.kind == "slow_gpu":
            factor = np.where(fault_activity(world, position), fault.size, 1.0)
            memory *= factor
            if not fault.memory_only:
                compute *= factor
    return compute[steps], memory[steps]
