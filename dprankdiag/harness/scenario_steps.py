"""Scenarios of what ranks share in a step: graphs, waves, experts; and one in which nothing is wrong."""

from __future__ import annotations

import numpy as np

from dprankdiag.harness.faults import hot_expert
from dprankdiag.harness.scenario import Deployment, Figures, Label, Scenario, Window
from dprankdiag.harness.scenario_parts import MS_NS, POOL_TOKENS, ask, compare_steps, make_worker
from dprankdiag.harness.served_costs import ServedCosts
from dprankdiag.simulate.base import FloatArray, Request
from dprankdiag.simulate.expert_balance import measure_excess, share_tokens, sum_by_gpu
from dprankdiag.simulate.experts import Placement, place_experts, place_in_order
from dprankdiag.simulate.lockstep import LockstepRules
from dprankdiag.simulate.routers.sglang import SglangController
from dprankdiag.simulate.routers.vllm import Layout, VllmRouter
from dprankdiag.simulate.scheduler import SglangRules
from dprankdiag.simulate.traffic import SECOND_NS
from dprankdiag.simulate.vllm_scheduler import VllmRules
from dprankdiag.simulate.waves import CHECK_STEPS, WaveRules
from dprankdiag.simulate.workers import Publishing, Worker
from dprankdiag.simulate.world_tables import Outcome

# --- one rank without work takes graphs from all ---

_LAZY = 6


def _deploy_graphs(cured: bool) -> Deployment:
    """Let all ranks get as many requests in rounds; those of one rank are shorter and end before the next come."""
    costs = ServedCosts()
    requests: list[Request] = []
    for turn in range(30):
        for place in range(48):
            rank = place % 8
            output = 42 if rank == _LAZY else 90
            requests.append(ask(len(requests), turn * 400 * MS_NS, 64, output, rank))
    meeting = LockstepRules(idle_in_graph=cured)
    worker = Worker((SglangRules(POOL_TOKENS),) * 8, SglangController(8, "round_robin"), costs, meeting)
    return Deployment(requests, [worker], costs)


_GRAPH_WINDOW = Window(2 * SECOND_NS, decodes=False, steps=150)


def _figure_graphs(outcome: Outcome, cured: Outcome) -> Figures:
    """Count the steps without a graph: those in which a rank computes a prompt, and those in which one is idle."""
    chosen = np.isin(outcome.steps["step"], _GRAPH_WINDOW.find(outcome))
    then = np.isin(cured.steps["step"], _GRAPH_WINDOW.find(cured))
    return {
        "eager_ratio": float(1 - outcome.steps["graph"][chosen].mean()),
        "eager_ratio_cured": float(1 - cured.steps["graph"][then].mean()),
        **compare_steps(outcome, cured, _GRAPH_WINDOW),
    }


GRAPHS = Scenario(
    name="graphs",
    title="One rank without work takes graphs from all",
    engine="sglang",
    why=(
        "Ranks vote on graphs in every step, and the least vote counts. A rank whose requests have ended votes no, so "
        "that all others launch their kernels one by one, until it has work again."
    ),
    shows={
        "loads": "one rank with no running requests now and then",
        "metrics": "decode passes without a graph on all ranks, while no rank computes prompts",
        "trace": "decode steps of two kinds, replayed and eager; the eager ones are those in which a rank has no work",
        "ledger": "not the ledger's fault",
    },
    cure="Let idle ranks join the graph; keep a little work on every rank.",
    deploy=_deploy_graphs,
    window=_GRAPH_WINDOW,
    trace=Label("structural.graph", (_LAZY,), "one"),
    metrics=None,
    metrics_lack="counters tell passes without graphs, but not which rank's vote they are owed to",
    figures=_figure_graphs,
    model="qwen3-30b",
)

# --- the tail of a wave ---

_TAIL = 5


def _deploy_tail(cured: bool) -> Deployment:
    """Let eight vLLM engines serve a batch of requests, of which one is long: the others keep step with dummies."""
    costs = ServedCosts()
    requests = [ask(number, number * MS_NS, 2_000, 120) for number in range(64)]
    long = [ask(64 + place, 64 * MS_NS, 24_000, 2_400, None if cured else _TAIL) for place in range(8)]
    worker = Worker(
        (VllmRules(POOL_TOKENS),) * 8,
        VllmRouter(Layout(8)),
        costs,
        publishing=Publishing(every_batches=None, prompts=False, changes=True),
        waves=WaveRules(),
    )
    return Deployment(requests + long, [worker], costs)


_TAIL_WINDOW = Window(8 * SECOND_NS)


def _figure_tail(outcome: Outcome, cured: Outcome) -> Figures:
    """Count dummy batches; after the last token the wave runs on to the next check, at most 15 steps."""
    rows, steps = outcome.rank_steps, outcome.steps
    last_ns = int(outcome.requests["end_ns"].max())
    return {
        "dummy_batches": int((rows["running"] == 0).sum()),
        "steps": len(steps["step"]),
        "check_steps": CHECK_STEPS,
        "steps_after_the_last_token": int((steps["start_ns"] >= last_ns).sum()),
        "wave_ns": int((steps["start_ns"] + steps["total_ns"]).max()),
        "wave_cured_ns": int((cured.steps["start_ns"] + cured.steps["total_ns"]).max()),
    }


TAIL = Scenario(
    name="tail",
    title="One engine's last requests keep eight in step",
    engine="vllm",
    why=(
        "A client pins eight long requests to one engine of a lockstep group. When the others have finished theirs, "
        "they still run a forward pass with a dummy token in every step, until a check every 16 steps finds no work."
    ),
    shows={
        "loads": "vLLM has no load endpoint of its own",
        "metrics": "running requests on one engine only; the others' gauges stand at 0 and their counters still",
        "trace": "one rank with requests; the others take part in every collective with a dummy batch",
        "ledger": "the header `X-data-parallel-rank` bypasses the score",
    },
    cure="Do not pin; let the front end's score spread long requests.",
    deploy=_deploy_tail,
    window=_TAIL_WINDOW,
    trace=Label("load.idle", (_TAIL,), "one"),
    metrics=Label("load.idle", (_TAIL,), "one"),
    figures=_figure_tail,
    watch_from_s=9.0,
)

# --- a hot group of experts in each layer ---

LOGICAL, SLOTS, GPUS = 256, 288, 8
_HOT_LAYERS = (3, 6, 0, 5)
"""The GPU that holds the hot group, layer by layer."""
_HOT_FACTOR = 2.5


def route_hot_groups() -> FloatArray:
    """Give the tokens of each expert by layer: those that start out on one GPU draw 2.5 times the others'."""
    tokens = np.full((len(_HOT_LAYERS), LOGICAL), 100.0)
    first = place_in_order(len(_HOT_LAYERS), LOGICAL, SLOTS, GPUS)
    per_gpu = first.slots_per_gpu
    for layer, gpu in enumerate(_HOT_LAYERS):
        tokens[layer, first.logical[layer, gpu * per_gpu : (gpu + 1) * per_gpu]] *= _HOT_FACTOR
    return tokens


def _excess(placement: Placement, tokens: FloatArray) -> float:
    return float(measure_excess(sum_by_gpu(placement, share_tokens(placement, tokens))).mean())


def _place(cured: bool, tokens: FloatArray) -> Placement:
    if cured:
        return place_experts(tokens, SLOTS, GPUS)
    return place_in_order(len(tokens), LOGICAL, SLOTS, GPUS)


def _deploy_experts(cured: bool) -> Deployment:
    tokens = route_hot_groups()
    costs = ServedCosts(shared_row_ps=200_000, hottest_ratio=_excess(_place(cured, tokens), tokens))
    requests = [ask(number, number * MS_NS, 600, 400) for number in range(1_536)]
    return Deployment(requests, [make_worker(SglangController(8, "round_robin"), costs, 8)], costs)


_EXPERT_WINDOW = Window()


def _figure_experts(outcome: Outcome, cured: Outcome) -> Figures:
    """Compare the busiest GPU with the mean before and after a rearrangement.

    288 slots on 8 GPUs are 36 each; 256 experts in order fill them with 32 of a first round and copies of the first 32.
    """
    tokens = route_hot_groups()
    return {
        "slots": SLOTS,
        "slots_a_gpu": SLOTS // GPUS,
        "busiest_ratio": _excess(_place(False, tokens), tokens),
        "busiest_ratio_cured": _excess(_place(True, tokens), tokens),
        **compare_steps(outcome, cured, _EXPERT_WINDOW),
    }


EXPERTS = Scenario(
    name="experts",
    title="A hot group of experts, on another GPU in each layer",
    engine="sglang",
    why=(
        "256 experts and 32 copies lie on 8 GPUs in the order of their numbers. In each layer a group that is used 2.5 "
        "times as much happens to lie on one GPU, another one in every layer. All wait for that GPU before the tokens "
        "go back, layer by layer; over the whole step no GPU does much more than another. It costs where tokens, not "
        "weights, take the time: large batches, or a chip with little arithmetic."
    ),
    shows={
        "loads": "nothing: requests and tokens are even",
        "metrics": "`eplb_gpu_physical_count` by layer, where it is switched on; balancedness",
        "trace": "grouped GEMMs longer on one rank in each layer, always the same one in the same layer",
        "ledger": "not the ledger's fault",
    },
    cure="Rearrange experts by recorded counts, with copies of the hottest (EPLB).",
    deploy=_deploy_experts,
    window=_EXPERT_WINDOW,
    trace=Label("structural.expert", tuple(sorted(_HOT_LAYERS)), "rotating"),
    metrics=None,
    metrics_lack="this deployment records no expert counts",
    figures=_figure_experts,
    chip="h20",
    faults=(hot_expert(dict(enumerate(_HOT_LAYERS)), _HOT_FACTOR),),
)

# --- nothing wrong ---


def _deploy_even(cured: bool) -> Deployment:
    costs = ServedCosts()
    requests = [ask(number, number * MS_NS, 4_000, 2_000) for number in range(96)]
    return Deployment(requests, [make_worker(SglangController(8, "total_tokens"), costs, 8)], costs)


_EVEN_WINDOW = Window()


def _figure_even(outcome: Outcome, cured: Outcome) -> Figures:
    return compare_steps(outcome, cured, _EVEN_WINDOW)


EVEN = Scenario(
    name="even",
    title="Nothing is wrong",
    engine="sglang",
    why="Equal requests, as many on every rank.",
    shows={
        "loads": "even",
        "metrics": "even",
        "trace": "even",
        "ledger": "never far from the truth",
    },
    cure="None is needed.",
    deploy=_deploy_even,
    window=_EVEN_WINDOW,
    trace=Label(None),
    metrics=Label(None),
    figures=_figure_even,
    watch_from_s=1.0,
)
