"""One description of a run with a planted fault, and the orders that it gives every rank, whoever carries them out.

Work is told in requests, tokens and messages, never in time: how long a token takes is the business of what computes
it. So the same description runs on processes that sleep, on GPUs, and in the pure model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from dprankdiag.harness.draws import open_stream
from dprankdiag.harness.events import Array
from dprankdiag.harness.faults import SPREADABLE, Fault

HALT_EDGE = 2
"""No stall is in so many steps at either end, which a recording may lack."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A deployment in lockstep, and what is wrong with it.

    Attributes:
        name: of the fault.
        requests, context_tokens: per rank, and KV tokens per request.
        load_spread: standard deviation of a step's KV tokens about the mean, relative; as a router leaves it.
        fault: None for a healthy run. The size of a slow link or fabric is how often its messages are sent, that of a
            prompt's part how many tokens of it are computed in a step.
        contended: a late host does not sleep, but another thread of its process keeps the interpreter busy.
    """

    name: str
    fault: Fault | None = None
    ranks: int = 4
    steps: int = 60
    layers: int = 2
    requests: int = 16
    context_tokens: int = 2000
    load_spread: float = 0.03
    contended: bool = False
    seed: int = 1

    def twin(self) -> Plan:
        """Describe the same run without its fault; where it is work, with the same work spread evenly."""
        fault = self.fault
        undone = replace(fault, spread=True) if fault and fault.kind in SPREADABLE else None
        return replace(self, fault=undone, contended=False)

    def active(self) -> Array:
        """Mark the steps and ranks in which the fault acts: `(steps, ranks)` bool."""
        fault, random = self.fault, open_stream(self.seed, "run-fault", self.ranks)
        if fault is None:
            return np.zeros((self.steps, self.ranks), bool)
        if fault.kind != "host_burst":
            return fault.activity(self.steps, self.ranks, random)
        marked = np.zeros((self.steps, self.ranks), bool)
        inside = np.arange(HALT_EDGE, self.steps - HALT_EDGE)
        marked[random.choice(inside, fault.stalls, replace=False), fault.ranks[0]] = True
        return marked


@dataclass(frozen=True, slots=True)
class Orders:
    """What a rank is to do.

    Attributes:
        requests: `(steps,)`, that decode.
        held_tokens: `(steps,)`, the sum of their KV lengths.
        prompt_tokens: `(steps,)`, of a part of a prompt computed beside them.
        routed_share: `(steps, layers)`, the share of all ranks' rows that this one's experts draw.
        slowness: `(steps,)`, how often all work is done.
        late_ns: `(steps,)`, how long the host dallies between the hosts' meeting and its first launch.
        messages: `(steps,)`, how often what it gets in a collective is sent.
        contended: `(steps,)` bool, whether another thread keeps the interpreter busy.
    """

    rank: int
    ranks: int
    requests: Array
    held_tokens: Array
    prompt_tokens: Array
    routed_share: Array
    slowness: Array
    late_ns: Array
    messages: Array
    contended: Array

    @property
    def steps(self) -> int:
        """Count the steps."""
        return len(self.requests)

    @property
    def layers(self) -> int:
        """Count the layers."""
        return int(self.routed_share.shape[1])

    @property
    def rows(self) -> Array:
        """Count the rows that each step brings to the experts: one a request, one a token of a prompt: `(steps,)`."""
        rows: Array = self.requests + self.prompt_tokens
        return rows

    def own_work(self, step: int) -> tuple[int, int, int]:
        """Give a step's requests, the tokens they hold, and those of a prompt."""
        return int(self.requests[step]), int(self.held_tokens[step]), int(self.prompt_tokens[step])

    def say_step(self, step: int) -> str:
        """Tell a step's batch in the words of an engine.

        Source: SGLang 0.5.19, spans `step[MODE bs=N …]` with the sums of KV lengths of detailed annotations.
        """
        requests, held, prompt = self.own_work(step)
        if prompt:
            return f"step[MIXED bs={requests + 1} toks={prompt + requests} c=1 g={requests} c_sk={prompt} g_sk={held}]"
        return f"step[DECODE bs={requests} g_sk={held}]" if requests else "step[IDLE bs=0]"

    def pack(self) -> dict[str, Any]:
        """Give plain values, for a process that only has this to read."""
        values = {it.name: getattr(self, it.name) for it in fields(self)}
        return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()}


def unpack_orders(packed: Mapping[str, Any]) -> Orders:
    """Read what `Orders.pack` gave."""
    values: dict[str, Any] = {name: np.array(it) if isinstance(it, list) else it for name, it in packed.items()}
    return Orders(**values)


def give_orders(plan: Plan) -> list[Orders]:
    """Draw the work of all ranks: the same with and without a fault, but for what the fault changes.

    Raises:
        ValueError: a fault that no real run can have.
    """
    shape = (plan.steps, plan.ranks)
    random = open_stream(plan.seed, "run", plan.ranks)
    spread = 1 + plan.load_spread * random.standard_normal(shape).clip(-3, 3)
    found = {
        "requests": np.full(shape, float(plan.requests)),
        "held_tokens": plan.requests * plan.context_tokens * spread,
        "prompt_tokens": np.zeros(shape),
        "slowness": np.ones(shape),
        "late_ns": np.zeros(shape),
        "messages": np.ones(shape),
        "contended": plan.active() & plan.contended,
    }
    routed = np.full((plan.steps, plan.layers, plan.ranks), 1 / plan.ranks)
    if plan.fault is not None:
        _plant(plan, plan.fault, found, routed)
    return [_give(plan, rank, found, routed) for rank in range(plan.ranks)]


def _plant(plan: Plan, fault: Fault, found: dict[str, Array], routed: Array) -> None:
    active = plan.active()
    if fault.kind == "hot_expert":
        routed *= _draw_share(plan, fault)
        if fault.spread:
            routed[:] = routed.mean(axis=2, keepdims=True)
        return
    changed = _CHANGES.get(fault.kind)
    if changed is None:
        raise ValueError(f"no real run can have a fault of the kind {fault.kind}")
    for name in changed:
        if name in _ADDED:
            found[name] += np.where(active, fault.size - (name == "messages"), 0.0)
        else:
            found[name] *= np.where(active, fault.size, 1.0)
        if fault.spread:
            found[name][:] = found[name].mean(axis=1, keepdims=True)


_CHANGES: Mapping[str, Sequence[str]] = {
    "load_context": ("held_tokens",),
    "load_requests": ("requests", "held_tokens"),
    "load_prefill": ("prompt_tokens",),
    "slow_gpu": ("slowness",),
    "host_late": ("late_ns",),
    "host_burst": ("late_ns",),
    "slow_link": ("messages",),
    "fabric": ("messages",),
}
"""What a fault of each kind changes."""

_ADDED = ("prompt_tokens", "late_ns", "messages")
"""What is added where a fault acts; anything else grows by a factor."""


def _draw_share(plan: Plan, fault: Fault) -> Array:
    """Share the rows of each layer, `(layers, ranks)`: what its hot rank draws beyond its part the others lack."""
    share = np.ones((plan.layers, plan.ranks))
    for layer, rank in fault.layers:
        share[layer] = (plan.ranks - fault.size) / (plan.ranks - 1)
        share[layer, rank] = fault.size
    return share


def _give(plan: Plan, rank: int, found: Mapping[str, Array], routed: Array) -> Orders:
    own = {name: values[:, rank] for name, values in found.items()}
    whole = {name: np.rint(own[name]).astype(np.int64) for name in own if name != "slowness"}
    return Orders(rank, plan.ranks, routed_share=routed[:, :, rank], slowness=own["slowness"], **whole)
