"""Turn steps of a serving world into a recording: kernel by kernel, with the physics of kernel-level worlds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dprankdiag.harness.baselines import name_by_simple_rules
from dprankdiag.harness.cases import Case, Facts, learn_facts
from dprankdiag.harness.dealt import Dealt
from dprankdiag.harness.scenario import Label, Scenario, Window
from dprankdiag.harness.served_costs import ServedCosts
from dprankdiag.harness.timeline import play
from dprankdiag.harness.world import World
from dprankdiag.harness.worlds import Truth
from dprankdiag.model.schema import Columns
from dprankdiag.simulate.world_tables import Outcome

LAYERS = 4
"""Of a traced model; the worlds behind have more, which would only repeat these."""
CHUNK_TOKENS = 8_192


def take_ranks(outcome: Outcome, window: Window) -> Columns:
    """Take the columns of the ranks in the steps of a window, `(steps, ranks)` each.

    Raises:
        ValueError: the worker ran no such steps, or its ranks do not step together.
    """
    numbers, rows = window.find(outcome), outcome.rank_steps
    here = np.isin(rows["step"], numbers)
    ranks = int(rows["rank"][here].max()) + 1
    if here.sum() != ranks * len(numbers):
        raise ValueError(f"the ranks of worker {window.worker} do not step together")
    order = np.lexsort((rows["rank"][here], rows["step"][here]))
    return {name: column[here][order].reshape(len(numbers), ranks) for name, column in rows.items()}


def deal_steps(outcome: Outcome, window: Window, costs: ServedCosts) -> Dealt:
    """Take what the ranks worked on: no request in a dummy batch; prompts of a rank and step are chunks of one."""
    ranks = take_ranks(outcome, window)
    graph = outcome.steps["graph"][np.isin(outcome.steps["step"], ranks["step"])] == 1
    tokens = ranks["prompt_tokens"]
    before = np.maximum(ranks["prompt_pairs"] - tokens * (tokens + 1) // 2, 0) // np.maximum(tokens, 1)
    return Dealt(
        decode_requests=np.where(ranks["running"] > 0, ranks["decode_rows"], 0),
        decode_tokens=ranks["kv_tokens"],
        read_tokens=costs.count_read(ranks["kv_tokens"], ranks["decode_rows"]),
        prompt_requests=-(-tokens // CHUNK_TOKENS),
        prompt_tokens=tokens,
        prompt_context=before + tokens,
        prompt_pairs=costs.count_pairs(ranks["prompt_pairs"], tokens),
        eager=~graph,
        eager_if_even=np.asarray((tokens > 0).any(axis=1)),
    )


def build_world(scenario: Scenario, dealt: Dealt) -> World:
    """Build the kernel-level world that plays these batches."""
    steps, ranks = dealt.decode_requests.shape
    return World(
        seed=1,
        physics="roofline",
        model=scenario.model,
        chip=scenario.chip,
        ranks=ranks,
        steps=steps,
        layers=LAYERS,
        names=scenario.engine,
        lean=True,
        dealt=dealt,
        faults=scenario.faults,
    )


def trace_scenario(scenario: Scenario, outcome: Outcome | None = None) -> tuple[World, Facts]:
    """Take the world of a scenario's trace, and what is true of that.

    Args:
        scenario: as it is.
        outcome: what serving it gave; served anew where none is at hand.

    Raises:
        ValueError: it runs no steps that fit its window.
    """
    deployment = scenario.deploy(False)
    dealt = deal_steps(outcome or deployment.serve(), scenario.window, deployment.costs)
    world = build_world(scenario, dealt)
    if scenario.faults:
        return world, learn_facts(Case(scenario.name, world), world)
    return world, tell_facts(scenario.name, world, scenario.trace)


def tell_facts(name: str, world: World, label: Label) -> Facts:
    """Tell what is true of a trace: its label, and what it costs against the same work spread evenly."""
    timeline = play(world)
    wall_ns = timeline.wall_ns()
    dealt = None if world.dealt is None else world.dealt.spread()
    even_ns = play(replace(world, dealt=dealt)).wall_ns()
    truths = () if label.cause is None else (_tell(label, label.cause, wall_ns, even_ns),)
    rules = name_by_simple_rules(timeline)
    return Facts(name, "", world.ranks, world.steps, truths, wall_ns - even_ns, wall_ns, rules)


def _tell(label: Label, cause: str, wall_ns: int, even_ns: int) -> Truth:
    return Truth(
        cause=cause,
        answerable=cause,
        ranks=label.ranks,
        layers=None,
        who=label.who,
        when="steady",
        lost_ns=wall_ns - even_ns,
        wall_ns=wall_ns,
        slowdown_ratio=wall_ns / even_ns - 1,
        healthy=False,
    )
