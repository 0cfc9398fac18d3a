"""Loads that only chance makes uneven name nobody, and other numbers for the ranks change nothing but names."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dprankdiag.model.diagnosis import Diagnosis
from dprankdiag.model.ledgers import FloatArray, Ledger
from dprankdiag.pipelines.ledgers import diagnose_view, view_whole

STEPS = 500
STAY = 0.9
"""Chance that a request is still there at the next moment."""


@dataclass(frozen=True, slots=True)
class World:
    """An engine whose router throws dice.

    Attributes:
        mean: requests a rank runs, on average.
        scatter: of the logarithm of their lengths.
        live: load answers tell the requests, not the gauges of /metrics.
        moments: 2, or so many that requests come and go in between.
    """

    seed: int
    ranks: int
    mean: float
    scatter: float
    moments: int
    pairs: bool
    waits: bool
    prompts: bool
    live: bool


worlds = st.builds(
    World,
    seed=st.integers(0, 2**32 - 1),
    ranks=st.integers(2, 32),
    mean=st.floats(0.3, 100.0),
    scatter=st.floats(0.0, 0.8),
    moments=st.sampled_from([2, 3, 12]),
    pairs=st.booleans(),
    waits=st.booleans(),
    prompts=st.booleans(),
    live=st.booleans(),
)


def draw_lengths(random: np.random.Generator, count: int, scatter: float) -> FloatArray:
    return random.lognormal(7.0, scatter, count)


def follow_requests(world: World, random: np.random.Generator) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return requests and tokens by moment and rank, and how many requests have come to each rank so far."""
    shape = (world.moments, world.ranks)
    requests, tokens, came = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    for rank in range(world.ranks):
        held = draw_lengths(random, random.poisson(world.mean), world.scatter)
        arrived = 0
        for moment in range(world.moments):
            if moment:
                new = random.poisson((1 - STAY) * world.mean)
                stays = held[random.random(len(held)) < STAY]
                held = np.concatenate([stays, draw_lengths(random, new, world.scatter)])
                arrived += new
            requests[moment, rank], tokens[moment, rank] = len(held), held.sum()
            came[moment, rank] = arrived
    return requests, tokens, came


def add_up(rates: FloatArray) -> FloatArray:
    """Turn what is done between moments into counters."""
    steps = STEPS / (len(rates) - 1)
    return np.concatenate([np.zeros((1, rates.shape[1])), np.cumsum(rates[1:] * steps, axis=0)])


def build(world: World) -> Ledger:
    """Make the ledger of a world."""
    random = np.random.default_rng(world.seed)
    requests, tokens, came = follow_requests(world, random)
    where = "load_" if world.live else ""
    values = {
        f"{where}running_requests": requests,
        f"{where}waiting_requests": np.zeros_like(requests),
        f"{where}used_tokens": tokens,
        "decode_tokens": add_up(requests),
    }
    if world.prompts:
        lengths = [draw_lengths(random, int(count), world.scatter) for count in came[-1]]
        ends = [np.concatenate([[0.0], np.cumsum(one)]) for one in lengths]
        computed = np.array([[ends[rank][int(count)] for rank, count in enumerate(row)] for row in came])
        values |= {"admitted_requests": came, "prefill_tokens": computed, "cached_tokens": 0.4 * computed}
    if world.pairs:
        busy = (requests > 0).astype(float)
        values |= {
            "scheduled_tokens": add_up(requests),
            "scheduled_pairs": add_up(tokens),
            "active_steps": add_up(busy),
            "idle_steps": add_up(1.0 - busy),
        }
    if world.waits:
        late = 1.0 + 0.03 * random.standard_normal(world.ranks)
        steps = add_up(np.ones_like(requests))
        values |= {"sync_waits": steps, "sync_wait_s": 5e-4 * late * steps, "control_wait_s": 2e-4 * late * steps}
    return Ledger(
        "default",
        "sglang",
        "m",
        "unified",
        tuple(range(world.ranks)),
        np.linspace(0.0, 15.0, world.moments),
        None,
        {name: np.asarray(table, np.float64) for name, table in values.items()},
        np.zeros((world.moments, world.ranks), bool),
        interfaces=("sglang-metrics",),
    )


def judge(ledger: Ledger) -> Diagnosis:
    return diagnose_view(view_whole(ledger))


def turn(ledger: Ledger, order: FloatArray) -> Ledger:
    """Give the ranks other numbers: the one at place p gets number order[p]."""
    places = np.argsort(order)
    return replace(ledger, values={name: table[:, places] for name, table in ledger.values.items()})


@settings(max_examples=150, derandomize=True)
@given(worlds)
def test_loads_spread_by_chance_name_nobody(world: World) -> None:
    diagnosis = judge(build(world))
    assert [finding.summary for finding in diagnosis.findings if finding.severity != "info"] == []
    assert diagnosis.status == "inconclusive"


@pytest.mark.parametrize("scatter", [0.5, 1.0])
def test_of_hundreds_of_even_engines_at_most_one_is_blamed(scatter: float) -> None:
    choose = np.random.default_rng(11)
    blamed = []
    for seed in range(300):
        pairs, waits, prompts, live = (bool(bit) for bit in choose.integers(0, 2, 4))
        mean = float(np.exp(choose.uniform(np.log(0.3), np.log(100.0))))
        moments = int(choose.choice([2, 12]))
        world = World(seed, int(choose.integers(2, 33)), mean, scatter, moments, pairs, waits, prompts, live)
        blamed += [(world, one.summary) for one in judge(build(world)).findings if one.severity != "info"]
    assert len(blamed) <= 1, blamed


@settings(max_examples=100, derandomize=True)
@given(worlds, st.sampled_from([3.0, 6.0]), st.integers(0, 1000))
def test_other_numbers_for_the_ranks_name_the_same_ones(world: World, factor: float, seed: int) -> None:
    ledger = build(world)
    values = {name: table.copy() for name, table in ledger.values.items()}
    for name, table in values.items():
        if not name.endswith(("_steps", "_waits", "_s")):
            table[:, 0] *= factor
    ledger = replace(ledger, values=values)
    order = np.random.default_rng(seed).permutation(world.ranks)
    plain, turned = judge(ledger), judge(turn(ledger, order))
    assert plain.status == turned.status
    assert {
        (one.cause, tuple(sorted(int(order[rank]) for rank in one.ranks)), one.severity) for one in plain.findings
    } == {(one.cause, one.ranks, one.severity) for one in turned.findings}


@settings(max_examples=60, derandomize=True)
@given(worlds.filter(lambda world: world.mean >= 20), st.integers(0, 31), st.sampled_from([5.0, 10.0]))
def test_a_planted_load_is_named_on_its_rank(world: World, place: int, factor: float) -> None:
    rank = place % world.ranks
    ledger = build(world)
    values = {name: table.copy() for name, table in ledger.values.items()}
    for name, table in values.items():
        if not name.endswith(("_steps", "_waits", "_s")):
            table[:, rank] *= factor
    found = judge(replace(ledger, values=values)).findings
    assert {(one.cause.split(".")[0], one.ranks) for one in found if one.severity != "info"} == {("load", (rank,))}
