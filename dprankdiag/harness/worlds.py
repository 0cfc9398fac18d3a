"""Simulate a world, build its twin, and know the truth about it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dprankdiag.harness.activity import fault_activity
from dprankdiag.harness.events import Array, Recording
from dprankdiag.harness.faults import SPREADABLE, Fault
from dprankdiag.harness.recorder import record
from dprankdiag.harness.timeline import Timeline, play
from dprankdiag.harness.world import World

SURELY = 4.0
"""A correlation shows if it is so many times what chance makes of as many pairs, one over the root of their number."""

__all__ = ["Truth", "World", "simulate_world", "truth", "truths", "twin"]


@dataclass(frozen=True, slots=True)
class Truth:
    """What a perfect diagnosis of a world says about one fault.

    Attributes:
        cause: the whole truth; None if nothing is wrong.
        answerable: the highest rung of it that the recording can carry.
        ranks: the culprits, all GPUs of a DP rank for a load fault; empty where nobody is to blame.
        layers: of an expert fault.
        who, when: pattern over ranks and over steps.
        lost_ns: wall time of the fully recorded steps minus that of the twin.
        wall_ns: that wall time.
        slowdown_ratio: growth against the twin.
        healthy: nothing is wrong.
    """

    cause: str | None
    answerable: str | None
    ranks: tuple[int, ...]
    layers: tuple[int, ...] | None
    who: str | None
    when: str | None
    lost_ns: int
    wall_ns: int
    slowdown_ratio: float
    healthy: bool

    @property
    def lost_ratio(self) -> float:
        """Give the lost share of the wall time."""
        return self.lost_ns / self.wall_ns


def simulate_world(world: World) -> Recording:
    """Play a world and record it."""
    return record(play(world))


def twin(world: World) -> World:
    """Build the world with the same draws in which load is spread evenly and other faults are gone."""
    return replace(world, faults=tuple(_undo(fault) for fault in world.faults if fault.kind in SPREADABLE))


def _undo(fault: Fault) -> Fault:
    return replace(fault, spread=True)


def truth(world: World) -> Truth:
    """Tell the truth about a world with at most one fault.

    Raises:
        ValueError: the world has several faults; `truths` tells each.
    """
    if len(world.faults) > 1:
        raise ValueError(f"a world with {len(world.faults)} faults has no single truth")
    if world.faults:
        return truths(world)[0]
    wall_ns = play(world).wall_ns()
    return Truth(None, None, (), None, None, None, 0, wall_ns, 0.0, True)


def truths(world: World) -> tuple[Truth, ...]:
    """Tell the truth about every fault of a world, each priced with the others in place."""
    timeline = play(world)
    return tuple(_tell(timeline, position) for position in range(len(world.faults)))


def _tell(timeline: Timeline, position: int) -> Truth:
    world, wall_ns = timeline.world, timeline.wall_ns()
    fault = world.faults[position]
    undone = (_undo(fault),) if fault.kind in SPREADABLE else ()
    others = replace(world, faults=world.faults[:position] + world.faults[position + 1 :] + undone)
    even_ns = play(others).wall_ns()
    return Truth(
        cause=fault.cause,
        answerable=_answerable(timeline, position),
        ranks=_culprits(world, position),
        layers=tuple(layer for layer, _ in fault.layers) or None,
        who=_pattern_of_ranks(world, fault),
        when=_pattern_of_steps(world, fault),
        lost_ns=wall_ns - even_ns,
        wall_ns=wall_ns,
        slowdown_ratio=wall_ns / even_ns - 1,
        healthy=False,
    )


def _culprits(world: World, position: int) -> tuple[int, ...]:
    """List who is to blame; what takes turns over all ranks, by steps or by layers, is nobody's."""
    fault = world.faults[position]
    takes_turns = fault.rotating or fault.kind == "hot_expert"
    if not fault.ranks or (takes_turns and len(fault.ranks) == world.ranks):
        return ()
    if fault.kind == "hot_expert":
        return fault.ranks
    return tuple(np.flatnonzero(fault_activity(world, position).any(axis=0)).tolist())


def _pattern_of_ranks(world: World, fault: Fault) -> str:
    if not fault.ranks:
        return "all"
    if fault.rotating or (fault.kind in ("hot_expert", "host_burst") and len(fault.ranks) > 1):
        return "rotating"
    return "one" if len(fault.ranks) == 1 else "group"


def _pattern_of_steps(world: World, fault: Fault) -> str:
    if fault.kind == "host_burst":
        return "burst"
    if fault.when.kind == "window":
        return "burst" if fault.when.last - fault.when.first <= 0.1 * world.steps else "window"
    return fault.when.kind


def _answerable(timeline: Timeline, position: int) -> str:
    """Name the rung that the recording carries.

    Whether requests or KV tokens are uneven shows in batch annotations, or in grids where no graph pads them; prompts
    also show in names, if an engine has a kernel of its own for them. Kernels of unknown names are neither attention
    nor experts. Steps that are launched eagerly are seen kernel by kernel, however graphs are recorded. Where all
    collectives are dispatch and combine, late ends are a queue's if they follow the tokens as far as the time of the
    experts shows these; that they follow nothing only a collective of another kind could show.
    """
    world = timeline.world
    fault = world.faults[position]
    if fault.kind == "structural_graph":
        return fault.cause
    if fault.kind == "load_prefill" and world.names != "invented":
        told = world.names == "sglang" or world.annotations == "batch"
        return fault.cause if told else "load.unknown"
    if world.graph and world.graph_mode == "graph":
        return "unclassified.late"
    if world.names == "invented" and fault.kind in (*SPREADABLE, "receiver_queue"):
        return "unclassified.late"
    if fault.kind in ("receiver_queue", "slow_link") and world.communication == "deepep" and world.attention_tp == 1:
        told = fault.kind == "receiver_queue" and _follows_tokens(timeline, position)
        return fault.cause if told else "unclassified.late"
    if fault.kind in ("load_context", "load_requests") and world.graph and world.annotations != "batch":
        return "load.unknown"
    return fault.cause


def _follows_tokens(timeline: Timeline, position: int) -> bool:
    """Tell whether culprits leave dispatch and combine the later, the longer their experts take in that layer."""
    active = fault_activity(timeline.world, position)
    late, work = [np.zeros(0)], [np.zeros(0)]
    for lane in timeline.lanes:
        for layer in range(timeline.world.layers):
            ops = [(at, op) for at, op in enumerate(lane.operations) if op.layer == layer]
            ends = lane.work_ns[:, [at for at, op in ops if op.moves_tokens]].sum(axis=1)
            experts = lane.work_ns[:, [at for at, op in ops if op.scale == "tokens"]].sum(axis=1)
            for rank in np.flatnonzero(active.any(axis=0)):
                on = active[lane.steps, rank]
                late.append(_center(ends[on, rank]))
                work.append(_center(experts[on, rank]))
    pairs = np.concatenate(late), np.concatenate(work)
    if not all(it.any() for it in pairs):
        return False
    return bool(np.corrcoef(*pairs)[0, 1] * np.sqrt(len(pairs[0])) >= SURELY)


def _center(values: Array) -> Array:
    centered: Array = values - values.mean() if len(values) else values.astype(float)
    return centered
