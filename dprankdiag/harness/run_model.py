"""The described run in the pure model: no process, no GPU, only laws of how long everything takes."""

from __future__ import annotations

from dataclasses import replace

from dprankdiag.harness.cases import Case
from dprankdiag.harness.faults import Fault
from dprankdiag.harness.run_plan import Plan
from dprankdiag.harness.world import World

_MESSAGE_NS = 20_000
"""What a message takes that is sent once more over a slow link; the model is told of links by their delay."""


def model_run(plan: Plan) -> Case:
    """Describe the run as a world of DeepSeek-V3 on H200, launched kernel by kernel as the real ones are.

    What a prompt's part and a slow link are told by differs: the model takes a factor on the context, and a delay.
    """
    fault = plan.fault
    if fault is not None and fault.kind == "load_prefill":
        fault = replace(fault, size=1 + fault.size / plan.context_tokens)
    if fault is not None and fault.kind == "slow_link":
        fault = replace(fault, size=(fault.size - 1) * _MESSAGE_NS)
    faults: tuple[Fault, ...] = () if fault is None else (fault,)
    world = World(
        seed=plan.seed,
        physics="roofline",
        model="deepseek-v3",
        chip="h200",
        ranks=plan.ranks,
        steps=plan.steps,
        layers=plan.layers,
        graph=False,
        requests=plan.requests,
        context_tokens=plan.context_tokens,
        faults=faults,
    )
    return Case(plan.name, world)
