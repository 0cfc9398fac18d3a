"""The policies that could choose ranks and engines, each with what has to be set for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

from dprankdiag.model.ledgers import EngineName
from dprankdiag.simulate.base import Router
from dprankdiag.simulate.replay import Choosers, MakeRouter
from dprankdiag.simulate.routers.gateway import Gateway, GatewayPolicy
from dprankdiag.simulate.routers.ours import RemainingPairs, UncachedTokens
from dprankdiag.simulate.routers.sglang import (
    SINCE_0_5_8,
    SINCE_0_5_11,
    SINCE_0_5_13,
    Budget,
    Policy,
    SglangController,
)
from dprankdiag.simulate.routers.sglang_older import MinimumTokens, ShortestQueue
from dprankdiag.simulate.routers.vllm import Layout, Score, VllmRouter

Version = tuple[int, ...]

_METHOD = "--load-balance-method {name}"
_SGLANG_RULE = "send each request with routed_dp_rank = {rule}"
_VLLM_RULE = "send each request with the header X-data-parallel-rank: {rule}"
_UNCACHED = "the rank with the fewest prompt tokens to compute, with those of this prompt that it has not seen"
_PAIRS = (
    "the rank with the least sum over its requests of left * context + left * left / 2, where left is how many tokens "
    "a request is expected to generate still, and context how many it has"
)
_BLIND = ("round_robin", "follow_bootstrap_room", "remaining_pairs")
"""Policies that choose by what they have sent themselves, if by anything."""

_UNPIN = {
    "sglang": "send no routed_dp_rank (nor data_parallel_rank)",
    "vllm": "send no header X-data-parallel-rank",
}


@dataclass(frozen=True, slots=True)
class PolicyOption:
    """A policy that can be asked for.

    Attributes:
        key: `policy.NAME` of ranks, `gateway.NAME` of engines; `+unpinned` where demanded ranks are not heeded.
        command: what to set.
        choosers: who chooses then; several where they throw dice.
        reads_loads: ranks are chosen by what they publish of their loads.
    """

    key: str
    title: str
    command: str
    choosers: tuple[Choosers, ...]
    reads_loads: bool = True


@dataclass(frozen=True, slots=True)
class Situation:
    """What decides which policies there are.

    Attributes:
        version: of the engine; None if unknown, which is taken for the newest.
        lockstep: the ranks of an engine step together.
        role: `prefill` where the engines only compute prompts.
        has_prefixes: it is known which prompts begin alike.
        has_rooms: requests have a room.
        pins: some requests demanded their rank.
        step_ns: a typical step.
        output_tokens: that a request generates on the mean.
        policy: of the ranks, as it is in use; None if unknown, which is taken for the default.
    """

    engine: EngineName
    version: Version | None
    workers: int
    lockstep: bool
    role: Literal["unified", "prefill"]
    has_prefixes: bool
    has_rooms: bool
    pins: bool
    step_ns: int
    output_tokens: float
    policy: str | None = None


def list_policies(situation: Situation) -> list[PolicyOption]:
    """List the policies of the engine found, our own, and those of gateways where there are several engines."""
    ranks = [*_list_engine(situation), *_list_own(situation)]
    options = [
        PolicyOption(f"policy.{name}", title, command, (Choosers(make),), name not in _BLIND)
        for name, title, command, make in ranks
    ]
    if situation.pins:
        unpin = _UNPIN[situation.engine]
        options += [
            PolicyOption(
                f"policy.{name}+unpinned",
                f"{title}, for requests that demand a rank as well",
                command if command.startswith("send each") else f"{unpin}; {command}" if command else unpin,
                (Choosers(make, lifts_pins=True),),
                name not in _BLIND,
            )
            for name, title, command, make in ranks
        ]
    if situation.workers > 1:
        options += _list_gateways(situation)
    return options


_Row = tuple[str, str, str, MakeRouter]


def _list_engine(situation: Situation) -> Iterator[_Row]:
    if situation.engine == "vllm":
        yield from _list_vllm(situation)
        return
    version = situation.version
    yield (
        "round_robin",
        "each rank in turn",
        _METHOD.format(name="round_robin"),
        partial(_control, "round_robin", situation),
    )
    if version is not None and version < (0, 5, 8):
        yield from _list_older(version)
    for name, title in (
        ("total_requests", "the rank with the fewest requests"),
        ("total_tokens", "the rank with the fewest tokens"),
    ):
        command = _METHOD.format(name=name)
        if version is not None and version < (0, 5, 8):
            command = f"SGLang 0.5.8 or newer, and {command}"
        policy: Policy = "total_requests" if name == "total_requests" else "total_tokens"
        yield name, title, command, partial(_control, policy, situation)
        if version is not None and version < (0, 5, 13):
            yield (
                f"{name}@0.5.13",
                f"{title}, as SGLang counts since 0.5.13",
                f"SGLang 0.5.13 or newer, and {_METHOD.format(name=name)}",
                partial(_control, policy, None),
            )
    if situation.role == "prefill" and situation.has_rooms:
        yield (
            "follow_bootstrap_room",
            "the rank of the room's number",
            _METHOD.format(name="follow_bootstrap_room"),
            partial(_control, "follow_bootstrap_room", situation),
        )


def _list_older(version: Version) -> Iterator[_Row]:
    if version >= (0, 5, 3):
        command = _METHOD.format(name="shortest_queue")
        yield (
            "shortest_queue",
            "shorter queues filled up first",
            command,
            lambda ranks: ShortestQueue(ranks, keep=False),
        )
    elif version >= (0, 4, 10):
        command = _METHOD.format(name="minimum_tokens")
        yield (
            "minimum_tokens",
            "the rank that told the fewest tokens",
            command,
            lambda ranks: MinimumTokens(ranks, counts_sent=False, keep=False),
        )


def _control(policy: Policy, situation: Situation | None, ranks: int) -> Router:
    budget = SINCE_0_5_13 if situation is None else find_budget(situation.version)
    role = "unified" if situation is None else situation.role
    return SglangController(ranks, policy, role=role, budget=budget, keep=False)


def find_budget(version: Version | None) -> Budget:
    """Find how a release keeps its ledger; an unknown one is taken for the newest."""
    if version is None or version >= (0, 5, 13):
        return SINCE_0_5_13
    return SINCE_0_5_11 if version >= (0, 5, 11) else SINCE_0_5_8


def _list_vllm(situation: Situation) -> Iterator[_Row]:
    score, since = find_score(situation.version)
    yield "score", f"the front end's score{since}", "", partial(_score, score, situation.lockstep)
    if score != "kv":
        yield (
            "score@0.33",
            "the front end's score of 0.33, which floors stale counts",
            "vLLM 0.33 or newer",
            partial(_score, "kv", situation.lockstep),
        )


def _score(score: Score, lockstep: bool, ranks: int) -> Router:
    return VllmRouter(Layout(ranks, lockstep=lockstep, score=score), keep=False)


def find_score(version: Version | None) -> tuple[Score, str]:
    """Find a release's score, and how it is called; an unknown one is taken for the newest.

    Source: vllm 0.11.2, 0.22.1 and 0.33.0; PR 49204 came with 0.26 or 0.27.
    """
    if version is None or version >= (0, 27):
        return "kv", ""
    return "four_waiting_fixed", " (four for a waiting request)"


def _list_own(situation: Situation) -> Iterator[_Row]:
    rule = _SGLANG_RULE if situation.engine == "sglang" else _VLLM_RULE
    if situation.has_prefixes:
        yield (
            "uncached_tokens",
            "the rank with the fewest prompt tokens to compute",
            rule.format(rule=_UNCACHED),
            lambda ranks: UncachedTokens(ranks, keep=False),
        )
    if situation.role == "unified":
        yield (
            "remaining_pairs",
            "the rank with the least attention to come",
            rule.format(rule=_PAIRS),
            partial(_pair, situation),
        )


def _pair(situation: Situation, ranks: int) -> Router:
    return RemainingPairs(
        ranks, step_ns=situation.step_ns, guess_output=lambda request: situation.output_tokens, keep=False
    )


DICE = 3
"""Runs of a policy that throws dice."""


def _list_gateways(situation: Situation) -> Iterator[PolicyOption]:
    """List what gateways offer in front of several engines; inside them ranks are chosen as they are now."""
    names: list[tuple[GatewayPolicy, str, int]] = [
        ("round_robin", "each engine in turn", 1),
        ("power_of_two", "the emptier of two random engines, by requests sent and not come back", DICE),
    ]
    if situation.has_prefixes:
        names += [
            ("cache_aware", "the engine that has seen the prompt's beginning, unless it is too full", 1),
            ("prefix_hash", "the engine of the prompt's beginning, unless it is too full", 1),
        ]
    inside = {name: make for name, _, _, make in _list_engine(situation)}
    inner = inside.get(situation.policy or "", next(iter(inside.values())))
    for name, title, seeds in names:
        yield PolicyOption(
            f"gateway.{name}",
            title,
            f"gateway: --policy {name}",
            tuple(Choosers(inner, partial(_front, name, seed)) for seed in range(seeds)),
        )


def _front(name: GatewayPolicy, seed: int, workers: int) -> Router:
    return Gateway(workers, name, seed=seed, keep=False)
