"""The suites that recordings are scored on, by letter; the same count and seed draw the same cases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations

from dprankdiag.harness.cases import Case, check_physics, set_physics
from dprankdiag.harness.draws import open_stream
from dprankdiag.harness.faults import STEADY, Kind, When, onset, periodic, uniform
from dprankdiag.harness.rule_worlds import RULE_WORLDS
from dprankdiag.harness.sampling import KINDS, build_fault, draw_culprits, draw_faulty, sample_healthy
from dprankdiag.harness.suites import WORLDS
from dprankdiag.harness.transforms import CAREFUL, INVARIANT
from dprankdiag.harness.world import Communication, Files, Physics, World

_UNIFORM_EVERY = 10
_SHORT_CONTEXT = 50
"""Tokens a request, so few that the work grows much within a recording."""
_PAIRED: tuple[Kind, ...] = ("slow_gpu", "load_context", "load_requests", "host_late", "hot_expert", "slow_link")
_PAIRED_BATCHES: tuple[Kind, ...] = ("load_prefill",)
"""Of the faults that only some physics know, those that another fault does not undo."""
_SIZES = (0.1, 0.2, 0.4)
_LIMITS = (0.01, 0.02, 0.03, 0.05, 0.1)
_FILES: tuple[Files, ...] = ("one", "node", "rank")
_LIMIT_KINDS: tuple[Kind, ...] = (
    "slow_gpu", "load_context", "load_requests", "host_late", "hot_expert", "slow_link", "receiver_queue",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Suite:
    """A suite that can be drawn.

    Attributes:
        content: what it holds, in a few words.
        count: how many cases are drawn unless another number is asked for; None where there is a fixed list.
        draw: count, seed, kernels a world and physics to cases; those that do not heed the physics are moved to it.
    """

    content: str
    count: int | None
    draw: Callable[[int, int, int, Physics], list[Case]]


def draw_suite(
    letter: str, count: int | None, seed: int, *, kernels: int = 150_000, physics: str = "fixed"
) -> list[Case]:
    """Draw the cases of a suite.

    Raises:
        KeyError: no such suite.
        ValueError: no such physics.
    """
    suite = SUITES[letter]
    cases = suite.draw(count or suite.count or 0, seed, kernels, check_physics(physics))
    return [replace(case, world=set_physics(case.world, physics)) for case in cases]


def list_named(physics: str = "fixed") -> list[Case]:
    """List the named worlds as cases."""
    return [Case(name, set_physics(world, physics)) for name, world in WORLDS.items()]


def _draw_healthy(count: int, seed: int, kernels: int, physics: Physics) -> list[Case]:
    """Draw healthy worlds in which much varies; one in ten is slow on all ranks alike."""
    cases = []
    for position, (name, world) in enumerate(sample_healthy(count, seed, kernels=kernels).items()):
        random = open_stream(seed, "H", position)
        changes: dict[str, object] = {"gpu_skew_ns": int(random.choice([0, 0, 2_000]))}
        if world.files == "one" and random.random() < 0.25:
            changes |= {"files": "rank", "host_clock_ns": 0, "drift_ppm": float(random.uniform(0, 20))}
        elif world.files == "node":
            changes |= {"host_clock_ns": int(random.integers(10**5, 10**9)), "drift_ppm": float(random.uniform(0, 50))}
        if world.communication == "nccl" and not world.prefill_every and random.random() < 0.2:
            changes |= {"two_batch_overlap": True, "dependent_launch": False}
        if random.random() < 0.2:
            changes |= {"context_tokens": _SHORT_CONTEXT}
        if position % _UNIFORM_EVERY == _UNIFORM_EVERY - 1:
            when = onset(world.steps // 2) if random.random() < 0.5 else STEADY
            changes |= {"faults": (uniform(float(random.uniform(1.1, 1.5)), when=when),)}
        cases.append(Case(name, replace(world, **changes), "H"))  # type: ignore[arg-type]
    return cases


def _draw_single(count: int, seed: int, kernels: int, physics: Physics) -> list[Case]:
    drawn = draw_faulty(count, seed, kernels=kernels, physics=physics)
    return [Case(name, world, "S", (slowdown,)) for name, (world, slowdown) in drawn.items()]


def _draw_compound(count: int, seed: int, kernels: int, physics: Physics) -> list[Case]:
    """Draw by turns pairs of causes, one cause on several ranks in different sizes, and three slow of eight."""
    pairs = list(combinations(_PAIRED if physics == "fixed" else (*_PAIRED, *_PAIRED_BATCHES), 2))
    order = open_stream(seed, "pairs").permutation(len(pairs)).tolist()
    cases = []
    for position in range(count):
        random = open_stream(seed, "C", position)
        steps = max(24, min(200, kernels // (8 * 5 * 14)))
        communication: Communication = "deepep" if random.random() < 0.3 else "nccl"
        world = World(
            seed=int(random.integers(2**31)), steps=steps, layers=5, communication=communication,
            graph=bool(random.random() < 0.6), names=random.choice(["sglang", "vllm"]), physics=physics,
        )  # fmt: skip
        kinds: tuple[Kind, ...]
        if position % 2 == 0:
            kinds, ranks = pairs[order[position // 2 % len(pairs)]], draw_culprits(world, 2, random)
            if random.random() < 0.25:
                ranks = (ranks[0], ranks[0])
        else:
            members = 2 if position % 4 == 1 else 3
            kinds = (_PAIRED[int(random.integers(4))],) * members
            ranks = draw_culprits(world, members, random)
        times: list[When] = [STEADY, onset(steps // 2), periodic(max(2, steps // 10))]
        when = [times[int(random.choice(3, p=[0.6, 0.2, 0.2]))] for _ in kinds]
        if len(set(kinds)) == 1:
            when = when[:1] * len(kinds)
        faults = tuple(
            build_fault(world, *it, random) for it in zip(kinds, [(rank,) for rank in ranks], when, strict=True)
        )
        sizes = tuple(float(random.choice(_SIZES)) for _ in kinds)
        name = f"{position:04d}-" + "+".join(kinds if len(set(kinds)) > 1 else (f"{len(kinds)}x{kinds[0]}",))
        cases.append(Case(name, replace(world, faults=faults), "C", sizes))
    return cases


def _draw_limits(count: int, seed: int, kernels: int, physics: Physics) -> list[Case]:
    """Draw small slowdowns of one steady culprit among eight ranks over two hundred steps."""
    cases = []
    for position in range(count):
        random = open_stream(seed, "L", position)
        kind, size = _LIMIT_KINDS[position % len(_LIMIT_KINDS)], _LIMITS[position // len(_LIMIT_KINDS) % len(_LIMITS)]
        world = World(
            seed=int(random.integers(2**31)), steps=200, layers=4, graph=bool(random.random() < 0.7),
            communication="deepep" if kind == "receiver_queue" else "nccl", names=random.choice(["sglang", "vllm"]),
        )  # fmt: skip
        fault = build_fault(world, kind, draw_culprits(world, 1, random), STEADY, random)
        cases.append(Case(f"{position:04d}-{kind}-{size:g}", replace(world, faults=(fault,)), "L", (size,)))
    return cases


def _draw_invariances(count: int, seed: int, kernels: int, physics: Physics) -> list[Case]:
    return [replace(case, suite="T1", changes=tuple(INVARIANT)) for case in _draw_changeable(count, seed, kernels)]


def _draw_careful(count: int, seed: int, kernels: int, physics: Physics) -> list[Case]:
    cases = []
    for case in _draw_changeable(count, seed, kernels):
        world = replace(case.world, files="rank")
        cases.append(replace(case, world=world, suite="T2", changes=tuple(CAREFUL)))
    return cases


def _draw_changeable(count: int, seed: int, kernels: int) -> list[Case]:
    """Draw plain worlds with a clear fault, in one file, a file a node or a file a rank by turns."""
    cases = []
    for position in range(count):
        random = open_stream(seed, "T", position)
        kind = KINDS[position % len(KINDS)]
        steps = max(30, min(120, kernels // (8 * 5 * 14)))
        world = World(
            seed=int(random.integers(2**31)), steps=steps, layers=5, graph=bool(random.random() < 0.6),
            communication="deepep" if kind == "receiver_queue" else "nccl", names=random.choice(["sglang", "vllm"]),
            attention_tp=int(random.choice([1, 1, 2])), files=_FILES[position // 2 % 3], ranks_per_node=8,
        )  # fmt: skip
        if world.files != "one":
            world = replace(world, ranks_per_node=4, host_clock_ns=1_000_000, drift_ppm=10.0)
        fault = build_fault(world, kind, draw_culprits(world, 1, random), STEADY, random)
        slowdown = float(random.choice([0.1, 0.2, 0.5]))
        cases.append(Case(f"{position:04d}-{kind}", replace(world, faults=(fault,)), "T", (slowdown,)))
    return cases


def _list_rules(count: int, seed: int, kernels: int, physics: Physics) -> list[Case]:
    return list(RULE_WORLDS)


SUITES: dict[str, Suite] = {
    "H": Suite(
        "nothing is wrong, but noise, chips, routing, load, clocks and edges of recordings vary", 2000, _draw_healthy
    ),
    "S": Suite("one fault: cause, size, who, when, ranks, communication and recording vary", 1000, _draw_single),
    "C": Suite("pairs of causes, one cause on two or three ranks", 200, _draw_compound),
    "L": Suite("small slowdowns of one rank of eight over 200 steps", 140, _draw_limits),
    "T1": Suite("a clear fault, its recording changed in seven ways that must not matter", 50, _draw_invariances),
    "T2": Suite(
        "a clear fault, its recording damaged in five ways that may only make a verdict careful", 50, _draw_careful
    ),
    "R": Suite("a world for each rule of evidence that recordings can show", None, _list_rules),
}
"""Suites by letter."""
