"""One deployment to score: the world, what it should be sized to, and what is true of its recording."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import get_args

from dprankdiag.harness.baselines import name_by_simple_rules
from dprankdiag.harness.faults import Fault
from dprankdiag.harness.sampling import fit_slowdown
from dprankdiag.harness.timeline import play
from dprankdiag.harness.world import Physics, World
from dprankdiag.harness.worlds import Truth, truths, twin

HEALTHY = "healthy"
NOTHING = "nothing"
UNIFORM = "uniform.slow"
LEAST_LOSS = 0.001
"""A fault that costs less of the time is not there: hidden in slack, or outside of what counts."""


@dataclass(frozen=True, slots=True)
class Case:
    """A world to record and to ask about.

    Attributes:
        suite: letter of the suite; "" for a named world.
        slowdowns: what each fault, taken alone, is to lengthen the step by; empty to leave the sizes as they are.
        changes: what is done to copies of the recording, one at a time, by name.
        silent: the recording cannot carry the fault: no warning is the right answer.
        rule: the rule of evidence that the world is about; 0 for none.
    """

    name: str
    world: World
    suite: str = ""
    slowdowns: tuple[float, ...] = ()
    changes: tuple[str, ...] = ()
    silent: bool = False
    rule: int = 0

    def sized_world(self) -> World:
        """Size every fault, taken alone, to its slowdown."""
        if not self.slowdowns:
            return self.world
        pairs = zip(self.world.faults, self.slowdowns, strict=True)
        return replace(self.world, faults=tuple(_size(self.world, fault, slowdown) for fault, slowdown in pairs))


@dataclass(frozen=True, slots=True)
class Facts:
    """What is true of a recording, as kept beside it.

    Attributes:
        truths: a truth for each cause that costs time, the costliest first; faults of one cause that act in the same
            steps are one.
        lost_ns: what all faults together cost: wall time minus that of the world with all of them undone.
        simple_rules: the ranks that simple rules would name (see `baselines`), by rule; empty for real processes.
    """

    name: str
    suite: str
    ranks: int
    steps: int
    truths: tuple[Truth, ...]
    lost_ns: int
    wall_ns: int
    simple_rules: dict[str, tuple[int, ...]]
    changes: tuple[str, ...] = ()
    silent: bool = False
    rule: int = 0

    @property
    def is_calm(self) -> bool:
        """Tell whether any warning would be a false one."""
        return self.silent or all(true.cause == UNIFORM for true in self.truths)

    @property
    def expected(self) -> str:
        """Name what a perfect diagnosis says first: a cause, health, or nothing because it cannot be told."""
        if self.silent:
            return NOTHING
        return str(self.truths[0].answerable) if self.truths else HEALTHY

    @property
    def slowdown_ratio(self) -> float:
        """Give the growth of the wall time by all faults together."""
        return self.wall_ns / (self.wall_ns - self.lost_ns) - 1

    @property
    def culprits(self) -> frozenset[int]:
        """Collect all ranks that are to blame."""
        return frozenset(rank for true in self.truths for rank in true.ranks)


def learn_facts(case: Case, world: World) -> Facts:
    """Find what is true of a case, given its sized world."""
    timeline = play(world)
    wall_ns = timeline.wall_ns()
    costly = (true for true in _tell_truths(world, wall_ns) if true.lost_ns >= LEAST_LOSS * wall_ns)
    told = sorted(costly, key=lambda true: -true.lost_ns)
    lost_ns = wall_ns - play(twin(world)).wall_ns() if world.faults else 0
    rules = name_by_simple_rules(timeline)
    return Facts(
        case.name, case.suite, world.ranks, world.steps, tuple(told), lost_ns, wall_ns, rules, case.changes,
        case.silent, case.rule,
    )  # fmt: skip


def check_physics(physics: str) -> Physics:
    """Find a physics by its name.

    Raises:
        ValueError: no such physics.
    """
    known: tuple[Physics, ...] = get_args(Physics)
    found = next((it for it in known if it == physics), None)
    if found is None:
        raise ValueError(f"no physics '{physics}'; there are {', '.join(known)}")
    return found


def set_physics(world: World, physics: str) -> World:
    """Let a world follow another physics; what it cannot overlap runs one after the other.

    Raises:
        ValueError: no such physics.
    """
    overlaps = world.two_batch_overlap and physics == "fixed"
    return replace(world, physics=check_physics(physics), two_batch_overlap=overlaps)


def _size(world: World, fault: Fault, slowdown: float) -> Fault:
    (sized,) = fit_slowdown(replace(world, faults=(fault,)), slowdown).faults
    return sized


def _tell_truths(world: World, wall_ns: int) -> list[Truth]:
    """Tell one truth for all faults of a cause that act in the same steps, priced with the others in place."""
    groups: dict[tuple[str, object], list[int]] = {}
    each = truths(world)
    for position, fault in enumerate(world.faults):
        groups.setdefault((str(each[position].answerable), fault.when), []).append(position)
    return [
        each[members[0]] if len(members) == 1 else _join(world, [each[it] for it in members], members, wall_ns)
        for members in groups.values()
    ]


def _join(world: World, joined: list[Truth], members: list[int], wall_ns: int) -> Truth:
    chosen = tuple(world.faults[position] for position in members)
    others = tuple(fault for position, fault in enumerate(world.faults) if position not in members)
    without = replace(world, faults=others + twin(replace(world, faults=chosen)).faults)
    even_ns = play(without).wall_ns()
    ranks = sorted({rank for true in joined for rank in true.ranks})
    return replace(
        joined[0],
        ranks=tuple(ranks),
        who="group" if len(ranks) > 1 else joined[0].who,
        lost_ns=wall_ns - even_ns,
        slowdown_ratio=wall_ns / even_ns - 1,
    )
