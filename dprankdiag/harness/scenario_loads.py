"""Scenarios in which requests are spread unevenly: by length, by count, by prompts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dprankdiag.harness.scenario import Deployment, Figures, Label, Scenario, Window
from dprankdiag.harness.scenario_parts import MS_NS, ask, compare_steps, count_by_rank, make_worker, mean_of_ranks
from dprankdiag.harness.served_costs import ServedCosts
from dprankdiag.simulate.base import Part, Request, Router
from dprankdiag.simulate.routers.ours import RemainingPairs
from dprankdiag.simulate.routers.sglang import REFRESH_EVERY_DISPATCH, SINCE_0_5_13, SglangController
from dprankdiag.simulate.traffic import SECOND_NS
from dprankdiag.simulate.workers import Publishing
from dprankdiag.simulate.world_tables import Outcome

LAYERS_OF_EXAMPLE = 78
LATENT_BYTES = 576
"""Of a token's KV in one layer of multi-head latent attention: 512 latent and 64 rotary values of one byte.

Source: DeepSeek-AI, DeepSeek-V3 technical report, section 4.2 (dimensions); one byte a value as served in FP8.
"""
SPARSE_TOKENS = 2_048
"""Tokens of each request that sparse attention reads (top-k of DeepSeek-V3.2)."""


def place_by_pairs(ranks: int, step_ns: int) -> RemainingPairs:
    """Place by the pairs to come, knowing each request's output."""
    return RemainingPairs(ranks, step_ns=step_ns, guess_output=lambda request: float(request.output_tokens))


def _deploy_long(cured: bool) -> Deployment:
    costs = ServedCosts(layers=LAYERS_OF_EXAMPLE)
    lengths = [8_192] * 16
    lengths[2] = 204_800
    requests = [ask(number, number * MS_NS, length, 1_500) for number, length in enumerate(lengths)]
    router: Router = place_by_pairs(4, 10 * MS_NS) if cured else SglangController(4, "round_robin")
    return Deployment(requests, [make_worker(router, costs, 4)], costs)


_LONG_WINDOW = Window()


def _figure_long(outcome: Outcome, cured: Outcome) -> Figures:
    """Count pairs as the prompts are long, before any token is generated.

    3 × 8,192 + 204,800 = 229,376 pairs against 4 × 8,192 = 32,768: 7 to 1. Each other rank's work is 196,608 short of
    the longest in every layer, 15.3 million over 78 layers. Attention reads 576 bytes a token and layer: 10.3 GB on the
    one rank and 1.47 GB on the others. Sparse attention reads at most 2,048 tokens of each request, so that four
    requests cost the same on either; only its indexer still looks at all tokens.
    """
    tokens = outcome.requests["prompt_tokens"]
    pairs = np.bincount(outcome.requests["rank"], weights=tokens).astype(np.int64)
    most, others = int(pairs.max()), int(np.median(pairs))
    read = ServedCosts(read_tokens=SPARSE_TOKENS).count_read(pairs, count_by_rank(outcome, 4))
    return {
        "busiest_pairs": most,
        "other_pairs": others,
        "pairs_ratio": most / others,
        "missing_pairs_a_layer": most - others,
        "missing_pairs_a_step": (most - others) * LAYERS_OF_EXAMPLE,
        "busiest_read_bytes": most * LATENT_BYTES * LAYERS_OF_EXAMPLE,
        "other_read_bytes": others * LATENT_BYTES * LAYERS_OF_EXAMPLE,
        "sparse_read_ratio": int(read.max()) / int(np.median(read)),
        "indexer_ratio": most / others,
        **compare_steps(outcome, cured, _LONG_WINDOW),
    }


LONG_CONTEXT = Scenario(
    name="long_context",
    title="One long conversation among short ones",
    engine="sglang",
    why=(
        "Round robin deals four requests to each of four ranks. One of them has 200K tokens of context, the others 8K. "
        "Decoding reads the whole context of each request once a layer, so that rank has seven times the attention of "
        "the others, and they wait for it before the experts of every layer."
    ),
    shows={
        "loads": "as many running requests on every rank; used tokens 7 : 1",
        "metrics": "tokens of a step (rows) even, pairs uneven: the imbalance ratio of tokens stays at 1",
        "trace": "attention of one rank is longer in every layer, and everything else is even",
        "ledger": "round robin looks at no ledger",
    },
    cure=(
        "Place by expected pairs: the long request gets a rank to itself. No router makes it shorter than it is; that "
        "takes context parallelism or sparse attention."
    ),
    deploy=_deploy_long,
    window=_LONG_WINDOW,
    trace=Label("load.context", (2,), "one"),
    metrics=None,
    metrics_lack=(
        "they tell of four requests a rank, and no lengths: one long request among sixteen makes such pairs on some "
        "rank whatever a router does"
    ),
    figures=_figure_long,
)

_EVERY = 8
_PATTERN_WINDOW = Window(6 * SECOND_NS)


def _deploy_pattern(cured: bool) -> Deployment:
    """Let every eighth request be long, and round robin deal them to eight ranks."""
    costs = ServedCosts(pair_fs=400)
    lengths = [24_000 if number % _EVERY == 5 else 2_000 for number in range(160)]
    requests = [ask(number, number * 20 * MS_NS, length, 1_200) for number, length in enumerate(lengths)]
    router: Router = place_by_pairs(8, 10 * MS_NS) if cured else SglangController(8, "round_robin")
    return Deployment(requests, [make_worker(router, costs, 8)], costs)


def _figure_pattern(outcome: Outcome, cured: Outcome) -> Figures:
    """Compare the ranks' KV tokens: on one 24,000 a request, on the others 2,000, 12 times as many."""
    now, then = (mean_of_ranks(run, _PATTERN_WINDOW, "kv_tokens") for run in (outcome, cured))
    return {
        "busiest_tokens": max(now),
        "other_tokens": float(np.median(now)),
        "busiest_tokens_cured": max(then),
        **compare_steps(outcome, cured, _PATTERN_WINDOW),
    }


PATTERN = Scenario(
    name="pattern",
    title="Every eighth request is long, and there are eight ranks",
    engine="sglang",
    why=(
        "An agent sends seven short requests and a long one, over and over; round robin deals them to eight ranks in "
        "the same order. All long ones land on one rank, which has as many requests as any other and twelve times the "
        "context."
    ),
    shows={
        "loads": "as many running requests on every rank; used tokens 12 : 1",
        "metrics": "tokens of a step (rows) even, pairs uneven",
        "trace": "attention of one rank is longer in every layer, at as many rows",
        "ledger": "round robin looks at no ledger",
    },
    cure="Any policy that is not in step with the pattern; best one that sees tokens: total_tokens, or expected pairs.",
    deploy=_deploy_pattern,
    window=_PATTERN_WINDOW,
    trace=Label("load.context", (5,), "one"),
    metrics=Label("load.context", (5,), "one"),
    figures=_figure_pattern,
    watch_from_s=5.0,
)

EXAMPLE_COSTS = ServedCosts(
    layers=LAYERS_OF_EXAMPLE,
    attention_ns=0,
    token_ps=0,
    row_ps=0,
    decode_row_ps=35_000_000,
    pair_fs=400,
    expert_ns=248_000,
    shared_row_ps=0,
    transfer_ns=0,
    host_ns=0,
)
"""35 µs of attention a request and layer: 0.14 ms for 4, 0.42 ms for 12; what else a layer takes makes 28 ms a step."""


_TURNS = 5


def _deploy_pinned(cured: bool) -> Deployment:
    """Let 26 clients ask again and again, 12 of one rank, and 2 of each other; or of the rank with the fewest."""
    ranks = [3] * 12 + [rank for rank in range(8) if rank != 3 for _ in range(2)]
    requests = []
    for turn in range(_TURNS):
        for client, rank in enumerate(ranks):
            number = turn * len(ranks) + client
            asked = ask(number, number * MS_NS, 24_000, 150, None if cured else rank)
            parts = (Part(client + 1, 23_900), Part(1_000 + number, 100))
            requests.append(replace(asked, parts=parts, follows=number - len(ranks) if turn else None))
    router = SglangController(8, "total_requests")
    return Deployment(requests, [make_worker(router, EXAMPLE_COSTS, 8)], EXAMPLE_COSTS)


_PINNED_WINDOW = Window(12 * SECOND_NS, steps=50)


def _figure_pinned(outcome: Outcome, cured: Outcome) -> Figures:
    """Derive what the busy rank costs.

    Attention takes 35 µs a request and layer: 12 × 35 = 420 µs on the busy rank, 70 µs on the others. Spread evenly, 26
    requests make 3.25 a rank: 114 µs, so that 306 µs of each layer are lost; over 78 layers 24 ms, and a step of 28 ms
    takes 52 ms. (Whole requests give 4 to some rank, 140 µs: no router wins back more than 22 ms.)

    There is another reading, in which a layer takes 2 ms in all. It is not used: 78 such layers make a step of 156 ms,
    which contradicts the 28 ms; what is lost in a layer would be the same 0.31 ms, but a seventh of the step rather
    than nearly half of it.
    """
    rows = mean_of_ranks(outcome, _PINNED_WINDOW, "decode_rows")
    row_ns = EXAMPLE_COSTS.decode_row_ps / 1_000
    even_ns = sum(rows) / len(rows) * row_ns
    lost = max(rows) * row_ns - even_ns
    rest = EXAMPLE_COSTS.expert_ns
    return {
        "busiest_attention_ns_a_layer": max(rows) * row_ns,
        "other_attention_ns_a_layer": min(rows) * row_ns,
        "even_attention_ns_a_layer": even_ns,
        "lost_ns_a_layer": lost,
        "lost_ns_a_step": lost * LAYERS_OF_EXAMPLE,
        "even_step_ns": (even_ns + rest) * LAYERS_OF_EXAMPLE,
        **compare_steps(outcome, cured, _PINNED_WINDOW),
        "other_reading_step_ns": 2 * MS_NS * LAYERS_OF_EXAMPLE,
        "other_reading_lost_ratio": lost / (2 * MS_NS),
    }


BUSY_RANK = Scenario(
    name="busy_rank",
    title="Twelve of twenty-six requests on one of eight ranks",
    engine="sglang",
    why=(
        "A client pins its sessions to the rank that served them first (`routed_dp_rank`). One rank gets 12 of 26 "
        "requests, each other rank 2. Requests are equally long: the work of attention follows their number."
    ),
    shows={
        "loads": "running requests 12 against 2",
        "metrics": "scheduled tokens uneven, the imbalance ratio at 3.7",
        "trace": "attention of one rank is longer in every layer, as its number of rows says",
        "ledger": "the controller is not asked: a pinned request overrides every policy",
    },
    cure="Pin only where a prefix is worth it, and let the controller place by total_requests otherwise.",
    deploy=_deploy_pinned,
    window=_PINNED_WINDOW,
    trace=Label("load.requests", (3,), "one"),
    metrics=Label("load.requests", (3,), "one"),
    figures=_figure_pinned,
    watch_from_s=12.0,
)

_BURST = 20
_OVERLAP_NS = 15 * MS_NS
"""With overlap scheduling a rank looks at the result of a batch, and publishes, while the next one runs."""


def _ask_cached(number: int, at_ns: int, rank: int | None = None) -> Request:
    return Request(number, at_ns, (Part(1, 4_000), Part(number + 2, 100)), 1_500, pinned_rank=rank)


def _deploy_burst(cured: bool) -> Deployment:
    """Let 8 requests run on each of 8 ranks, but 7 on the last; then 20 come within 20 ms. All begin with 4K tokens."""
    costs = ServedCosts()
    steady = [_ask_cached(number, number * MS_NS, number % 8) for number in range(63)]
    burst = [_ask_cached(63 + place, 3 * SECOND_NS + place * MS_NS) for place in range(_BURST)]
    budget = SINCE_0_5_13 if cured else REFRESH_EVERY_DISPATCH
    router = SglangController(8, "total_requests", budget=budget)
    worker = replace(make_worker(router, costs, 8), publishing=Publishing(delay_ns=_OVERLAP_NS))
    return Deployment(steady + burst, [worker], costs)


_BURST_WINDOW = Window(3 * SECOND_NS)


def _figure_burst(outcome: Outcome, cured: Outcome) -> Figures:
    """Count where the burst went.

    Snapshots are renewed every 15 steps. A router that reads them before each choice and forgets its own picks sees the
    same emptiest rank until then, so that all 20 go there: 27 requests against 8. With what it sent counted, and
    snapshots that it has read before left alone, the emptiest rank gets the first and the rest are dealt in turn: at
    most 3 of 20 to each.
    """
    now, then = (count_by_rank(run, 8, 63) for run in (outcome, cured))
    return {
        "burst_requests": _BURST,
        "most_on_one_rank": int(now.max()),
        "most_on_one_rank_cured": int(then.max()),
        **compare_steps(outcome, cured, _BURST_WINDOW),
    }


BURST = Scenario(
    name="burst",
    title="A burst that lands on one rank",
    engine="sglang",
    why=(
        "Twenty requests come within 20 ms, while the ranks publish their loads every 15 steps. A router that reads "
        "its ledger anew on every dispatch, and so forgets what it has sent, sees one emptiest rank for all twenty."
    ),
    shows={
        "loads": "one rank with 20 more requests than the others, until they end",
        "metrics": "scheduled tokens of that rank four times those of the others",
        "trace": "attention of one rank is longer in every layer, as its number of rows says",
        "ledger": "twenty choices with one and the same belief, wrong by up to 19 requests",
    },
    cure="Count what was sent until the rank has told of it, and read snapshots every 20 ms (SGLang since 0.5.13).",
    deploy=_deploy_burst,
    window=_BURST_WINDOW,
    trace=Label("load.requests", (7,), "one"),
    metrics=Label("load.requests", (7,), "one"),
    figures=_figure_burst,
    watch_from_s=3.0,
)

_PROMPT_TOKENS = 1_048_576


def _deploy_prefill(cured: bool) -> Deployment:
    """Let 8 requests decode on each of 8 ranks, and a prompt of a million tokens come to one; or none."""
    costs = ServedCosts(pair_fs=400)
    requests = [ask(number, number * MS_NS, 2_000, 1_500, number % 8) for number in range(64)]
    if not cured:
        requests.append(ask(64, 2 * SECOND_NS, _PROMPT_TOKENS, 16, 1))
    return Deployment(requests, [make_worker(SglangController(8, "round_robin"), costs, 8)], costs)


_PREFILL_WINDOW = Window(2 * SECOND_NS + 100 * MS_NS, decodes=False)


def _figure_prefill(outcome: Outcome, cured: Outcome) -> Figures:
    """Count the steps that a prompt holds up: 1,048,576 tokens in chunks of 8,192 are 128 steps."""
    rows, steps = outcome.rank_steps, outcome.steps
    later = np.isin(rows["step"], steps["step"][steps["start_ns"] >= 2 * SECOND_NS])
    chunks = rows["prompt_tokens"][later & (rows["rank"] == 1) & (rows["prompt_tokens"] > 0)]
    return {
        "prompt_tokens": _PROMPT_TOKENS,
        "chunk_tokens": int(chunks.max()),
        "held_steps": int((chunks == chunks.max()).sum()),
        "held_ranks": 7,
        **compare_steps(outcome, cured, _PREFILL_WINDOW),
    }


PREFILL = Scenario(
    name="prefill",
    title="A million tokens of prompt hold seven ranks that decode",
    engine="sglang",
    why=(
        "A prompt of 1M tokens is computed in 128 chunks of 8,192 by one rank. In each of these steps the seven other "
        "ranks, which only decode, wait for it before the experts of every layer; and none may replay its graph, as "
        "one rank that computes a prompt takes graphs from all."
    ),
    shows={
        "loads": "one rank with many waiting uncached tokens",
        "metrics": "the imbalance ratio near 8, `num_prefill_ranks` 1, decode passes without a graph on all ranks",
        "trace": "one rank computes prompts, the others wait; all run eagerly",
        "ledger": "not the ledger's fault: some rank has to compute it",
    },
    cure="Prefill elsewhere (PD disaggregation), or smaller chunks, or on all ranks at once (context parallel).",
    deploy=_deploy_prefill,
    window=_PREFILL_WINDOW,
    trace=Label("load.prefill", (1,), "one"),
    metrics=Label("load.prefill", (1,), "one"),
    figures=_figure_prefill,
    watch_from_s=2.0,
)
