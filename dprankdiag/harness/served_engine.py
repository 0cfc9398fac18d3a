"""What an engine's pages say of itself, for engines that a serving world has run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from dprankdiag.harness.events import Array
from dprankdiag.simulate.disaggregation import DecodeRules, PrefillRules
from dprankdiag.simulate.lockstep import LockstepRules
from dprankdiag.simulate.ranks import RankRules
from dprankdiag.simulate.routers.sglang import SglangController
from dprankdiag.simulate.scheduler import SglangRules
from dprankdiag.simulate.vllm_scheduler import VllmRules
from dprankdiag.simulate.workers import Worker

EngineName = Literal["sglang", "vllm"]
Role = Literal["unified", "prefill", "decode"]

RELEASES: dict[EngineName, str] = {"sglang": "0.5.23", "vllm": "0.33.0"}


@dataclass(frozen=True, slots=True)
class ServedEngine:
    """An engine as it shows itself.

    Attributes:
        capacity_tokens: KV tokens of each rank's pool, `(ranks,)`.
        accept_by_rank: tokens that a request gains a step, `(ranks,)`; 1 without speculative decoding.
        verify_width: rows that a step verifies of each request.
        name, version: release whose shape the pages have.
        number: of the engine, in the tables of its world.
        lockstep: all ranks step together.
        running_limit: requests of a rank that run at once at most.
        dp_attention: SGLang's switch that counts steps, pairs and waits is on.
        attention_tp: SGLang's schedulers of one DP rank.
        api_servers: vLLM's front ends, each of which counts every iteration.
        settings: of an SGLang server, by its own keys, as far as the world has them.
        first_engine, shown_engines: the vLLM engines of one port; all by default.
    """

    capacity_tokens: tuple[int, ...]
    accept_by_rank: tuple[float, ...]
    verify_width: int = 1
    name: EngineName = "sglang"
    version: str = RELEASES["sglang"]
    number: int = 0
    lockstep: bool = True
    running_limit: int = 128
    role: Role = "unified"
    dp_attention: bool = True
    attention_tp: int = 1
    api_servers: int = 1
    settings: Mapping[str, str | bool] = field(default_factory=dict)
    first_engine: int = 0
    shown_engines: int | None = None

    @property
    def ranks(self) -> int:
        """Count the ranks."""
        return len(self.capacity_tokens)

    @property
    def accept_tokens(self) -> float:
        """Tell the most tokens that any rank's requests gain a step."""
        return max(self.accept_by_rank)

    @property
    def expert_counts(self) -> bool:
        """Tell that no experts are counted: a serving world knows none."""
        return False

    @property
    def capacity(self) -> Array:
        """Give the pools as an array `(ranks,)`."""
        return np.array(self.capacity_tokens, float)

    @property
    def accept(self) -> Array:
        """Give the gains as an array `(ranks,)`."""
        return np.array(self.accept_by_rank)

    @property
    def engines(self) -> range:
        """List the engines that a vLLM port shows."""
        last = self.ranks if self.shown_engines is None else self.first_engine + self.shown_engines
        return range(self.first_engine, last)


def describe_worker(worker: Worker, number: int = 0, version: str | None = None) -> ServedEngine:
    """Describe a worker of a serving world; without a release, the newest one whose pages are known."""
    rules = [_find_base(each) for each in worker.ranks]
    name: EngineName = "vllm" if isinstance(rules[0], VllmRules) else "sglang"
    return ServedEngine(
        capacity_tokens=tuple(each.capacity_tokens for each in rules),
        accept_by_rank=tuple(each.acceptance.mean_tokens for each in rules),
        verify_width=max(each.acceptance.width for each in rules),
        name=name,
        version=version or RELEASES[name],
        number=number,
        lockstep=worker.lockstep,
        running_limit=max(each.max_running for each in rules),
        role=_find_role(worker.ranks[0]),
        settings=_list_settings(worker, rules[0]),
    )


def _list_settings(worker: Worker, rules: SglangRules | VllmRules) -> dict[str, str | bool]:
    settings: dict[str, str | bool] = {}
    if isinstance(worker.router, SglangController):
        settings["load_balance_method"] = worker.router.policy
    if isinstance(worker.meeting, LockstepRules):
        meeting = worker.meeting
        settings |= {"deepep_mode": meeting.dispatch, "enable_two_batch_overlap": meeting.overlap}
        settings["disable_cuda_graph"] = not meeting.graph_rows
    if isinstance(rules, SglangRules):
        settings |= {"disable_radix_cache": not rules.share_prefixes, "enable_mixed_chunk": rules.mixed}
    return settings


def _find_base(rules: RankRules) -> SglangRules | VllmRules:
    if isinstance(rules, PrefillRules | DecodeRules):
        return rules.base
    if isinstance(rules, SglangRules | VllmRules):
        return rules
    raise TypeError(f"no engine is known whose ranks schedule by {type(rules).__name__}")


def _find_role(rules: RankRules) -> Role:
    if isinstance(rules, PrefillRules):
        return "prefill"
    return "decode" if isinstance(rules, DecodeRules) else "unified"
