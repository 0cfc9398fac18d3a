"""Scenarios of queues, pools and caches: what a ledger of lengths or requests cannot see."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dprankdiag.harness.scenario import Deployment, Figures, Label, Scenario, Window
from dprankdiag.harness.scenario_parts import (
    MS_NS,
    POOL_TOKENS,
    ask,
    compare_steps,
    count_by_rank,
    make_worker,
    mean_first_ns,
    mean_of_ranks,
)
from dprankdiag.harness.served_costs import ServedCosts
from dprankdiag.simulate.base import Part, Request, Router
from dprankdiag.simulate.disaggregation import DecodeRules, PrefillRules
from dprankdiag.simulate.routers.ours import UncachedTokens
from dprankdiag.simulate.routers.sglang import SglangController
from dprankdiag.simulate.scheduler import SglangRules
from dprankdiag.simulate.traffic import SECOND_NS
from dprankdiag.simulate.workers import Worker
from dprankdiag.simulate.world_tables import Outcome

# --- prompts counted whole, of which a tenth is work ---

_SHARED_TOKENS, _OWN_TOKENS = 90_000, 10_000
_LEFT_OVER = 7
_ROUNDS, _ROUND_NS = 12, 2 * SECOND_NS
_DECODING = 32
_FIRST_ROUND = 8 + _DECODING


def _deploy_cached(cured: bool) -> Deployment:
    """Let 7 prompts of 100K tokens, all but 10K of them cached, and 10 of 10K come at once to ranks that decode."""
    costs = ServedCosts(pair_fs=400, read_tokens=2_048, shared_row_ps=2_000)
    router: Router = UncachedTokens(8) if cured else SglangController(8, "total_tokens")
    warming = [Request(rank, rank, (Part(1, _SHARED_TOKENS), Part(2, 16)), 1, pinned_rank=rank) for rank in range(8)]
    decoding = [ask(8 + number, _ROUND_NS + number, 1_000, 9_000, number % 8) for number in range(_DECODING)]
    requests = warming + decoding
    for turn in range(_ROUNDS):
        for place in range(17):
            number, at_ns = len(requests), (turn + 3) * _ROUND_NS
            parts = (Part(number + 3, _OWN_TOKENS),)
            requests.append(Request(number, at_ns, ((Part(1, _SHARED_TOKENS),) if place < 7 else ()) + parts, 4))
    return Deployment(requests, [make_worker(router, costs, 8)], costs)


_CACHED_WINDOW = Window(3 * _ROUND_NS, decodes=False, steps=120)


def _figure_cached(outcome: Outcome, cured: Outcome) -> Figures:
    """Compare what the ledger counts of a prompt with the work that it is, and where the others went.

    A prompt of 90,000 + 10,000 tokens is 10,000 of work where the first part is cached: a tenth of what the ledger
    adds. Seven ranks with one each look as full as a rank with ten prompts of 10,000, which is where all ten go.
    """
    requests = outcome.requests
    later = requests["request"] >= _FIRST_ROUND
    computed = (requests["prompt_tokens"] - requests["cached_tokens"])[later]
    first = count_by_rank(outcome, 8, _FIRST_ROUND, _FIRST_ROUND + 17)
    return {
        "ledger_tokens": int(requests["prompt_tokens"].max()),
        "computed_tokens": int(np.median(computed)),
        "most_on_one_rank": int(first.max()),
        "most_on_one_rank_cured": int(count_by_rank(cured, 8, _FIRST_ROUND, _FIRST_ROUND + 17).max()),
        "first_token_ns": mean_first_ns(outcome, first=_FIRST_ROUND),
        "first_token_cured_ns": mean_first_ns(cured, first=_FIRST_ROUND),
    }


CACHED = Scenario(
    name="cached",
    title="A ledger that counts cached tokens",
    engine="sglang",
    why=(
        "Seven prompts of 100K tokens, of which every rank has 90K cached, and ten of 10K come together: each is 10K "
        "tokens of work, as attention is sparse. The controller places by total_tokens and counts prompts whole. So "
        "seven ranks look full with one each, and all ten short prompts go to the eighth: ten times the work."
    ),
    shows={
        "loads": "waiting uncached tokens on one rank, which tell the truth; total tokens, which do not",
        "metrics": "tokens computed in prompts uneven, `num_prefill_ranks` 1 in most steps with prompts",
        "trace": "one rank computes prompts, step after step, and the others wait",
        "ledger": "100K believed where 10K are to be done",
    },
    cure="Place by the tokens that have to be computed.",
    deploy=_deploy_cached,
    window=_CACHED_WINDOW,
    trace=Label("load.prefill", (_LEFT_OVER,), "one"),
    metrics=None,
    metrics_lack="which rank is left over changes from round to round: over a while, ranks come out even",
    figures=_figure_cached,
)

# --- tokens as the measure where attention does not follow them ---

_SPARSE = ServedCosts(read_tokens=2_048, token_ps=900, pair_fs=400)
_LONG, _SHORT = 160_000, 3_000


def _deploy_starved(cured: bool) -> Deployment:
    """Let three of four ranks hold a long request each; short ones come after."""
    router = SglangController(4, "total_requests" if cured else "total_tokens")
    long = [ask(number, number * MS_NS, _LONG, 3_000, number) for number in range(3)]
    short = [ask(3 + number, 4 * SECOND_NS + number * 40 * MS_NS, _SHORT, 900) for number in range(48)]
    return Deployment(long + short, [make_worker(router, _SPARSE, 4)], _SPARSE)


_STARVED_WINDOW = Window(6 * SECOND_NS)


def _figure_starved(outcome: Outcome, cured: Outcome) -> Figures:
    """Count where short requests went: 48 × 3,000 tokens fit on the rank without a long one before it holds 160K."""
    now, then = (count_by_rank(run, 4, 3) for run in (outcome, cured))
    return {
        "short_requests": int(now.sum()),
        "most_on_one_rank": int(now.max()),
        "most_on_one_rank_cured": int(then.max()),
        **compare_steps(outcome, cured, _STARVED_WINDOW),
    }


STARVED = Scenario(
    name="starved",
    title="Short requests piled on the one rank without a long one",
    engine="sglang",
    why=(
        "Three of four ranks hold one request of 160K tokens each. Placed by total_tokens, every short request goes to "
        "the fourth, until it holds as many tokens; the others starve. With sparse attention, which reads 2,048 tokens "
        "of each request however long it is, work follows the number of requests: all of it lies on one rank."
    ),
    shows={
        "loads": "tokens even, running requests 48 to 1",
        "metrics": "scheduled tokens (rows) uneven while pairs point at the other ranks",
        "trace": "attention of the rank with many rows is longer",
        "ledger": "right about tokens, which are not the work",
    },
    cure="Place by requests, or by the tokens that attention reads, where attention is sparse.",
    deploy=_deploy_starved,
    window=_STARVED_WINDOW,
    trace=Label("load.requests", (3,), "one"),
    metrics=Label("load.requests", (3,), "one"),
    figures=_figure_starved,
    watch_from_s=5.0,
)

# --- rooms as dice ---

_ROOM_REQUESTS = 400


def _deploy_rooms(cured: bool) -> Deployment:
    """Let eight prefill ranks take requests by their room, or by the tokens they have to compute."""
    costs = ServedCosts(pair_fs=2_000)
    router: Router = UncachedTokens(8) if cured else SglangController(8, "auto", role="prefill")
    decoder = Worker((DecodeRules(SglangRules(POOL_TOKENS)),) * 8, SglangController(8, "round_robin"), costs)
    prefill = Worker((PrefillRules(SglangRules(POOL_TOKENS), transfer_ns=2 * MS_NS),) * 8, router, costs)
    generator = np.random.default_rng(5)
    rooms = generator.integers(0, 2**63, _ROOM_REQUESTS)
    times = np.cumsum(generator.exponential(20 * MS_NS, _ROOM_REQUESTS)).astype(np.int64)
    requests = [
        replace(ask(number, at, 8_000, 40), bootstrap_room=room)
        for number, (at, room) in enumerate(zip(times.tolist(), rooms.tolist(), strict=True))
    ]
    return Deployment(requests, [prefill], costs, decoders=[decoder])


_ROOM_WINDOW = Window(SECOND_NS, decodes=False)


def _figure_rooms(outcome: Outcome, cured: Outcome) -> Figures:
    """Compare the busiest rank with the mean: dice, whose spread is that of a binomial, √(n p (1 − p))."""
    counts = np.bincount(outcome.requests["prefill_rank"], minlength=8)
    mean = counts.mean()
    return {
        "requests_a_rank": float(mean),
        "chance_spread": float(np.sqrt(_ROOM_REQUESTS * (1 / 8) * (7 / 8))),
        "most_on_one_rank": int(counts.max()),
        "first_token_ns": mean_first_ns(outcome),
        "first_token_cured_ns": mean_first_ns(cured),
    }


ROOMS = Scenario(
    name="rooms",
    title="Prefill ranks chosen by the room's number",
    engine="sglang",
    why=(
        "A disaggregated prefill engine places by bootstrap room, modulo its ranks. Rooms are random, so ranks are: no "
        "rank is at fault, but in each moment some rank has two prompts and another has none, and all step together."
    ),
    shows={
        "loads": "waiting requests that come and go on changing ranks",
        "metrics": "queues uneven in each scrape, even over minutes",
        "trace": "steps in which some ranks compute prompts while the others wait; which ones changes",
        "ledger": "no ledger is read: follow_bootstrap_room asks nobody how full it is",
    },
    cure="Let the gateway choose the prefill rank by load and send the room after it; or place by uncached tokens.",
    deploy=_deploy_rooms,
    window=_ROOM_WINDOW,
    trace=Label("load.prefill", (), "all"),
    metrics=None,
    metrics_lack="over a scrape interval the ranks are even: each had as many prompts as chance gives it",
    figures=_figure_rooms,
)

# --- a decode rank that looks idle ---

_FULL = 4


def _deploy_prealloc(cured: bool) -> Deployment:
    """Let one decode rank's pool be a tenth of the others': requests wait there for pages."""
    costs = ServedCosts()
    rules = [DecodeRules(SglangRules(400_000))] * 8
    if not cured:
        rules[_FULL] = DecodeRules(SglangRules(40_000))
    prefill = Worker(
        (PrefillRules(SglangRules(POOL_TOKENS), transfer_ns=2 * MS_NS),) * 8, SglangController(8, "round_robin"), costs
    )
    decoder = Worker(tuple(rules), SglangController(8, "round_robin"), costs)
    requests = [ask(number, number * 60 * MS_NS, 12_000, 700) for number in range(160)]
    return Deployment(requests, [prefill], costs, decoders=[decoder])


_PREALLOC_WINDOW = Window(7 * SECOND_NS, steps=40, worker=1)


def _figure_prealloc(outcome: Outcome, cured: Outcome) -> Figures:
    """Compare the rank with a small pool: it runs few requests and holds few tokens, and yet most wait there."""
    running = mean_of_ranks(outcome, _PREALLOC_WINDOW, "running")
    waiting = mean_of_ranks(outcome, _PREALLOC_WINDOW, "waiting")
    return {
        "running": running[_FULL],
        "running_elsewhere": float(np.median(running)),
        "waiting": waiting[_FULL],
        "waiting_elsewhere": float(np.median(waiting)),
        "first_token_ns": mean_first_ns(outcome, _FULL),
        "first_token_elsewhere_ns": mean_first_ns(outcome),
        "first_token_cured_ns": mean_first_ns(cured, _FULL),
    }


PREALLOC = Scenario(
    name="prealloc",
    title="A decode rank that looks idle while requests wait for its pages",
    engine="sglang",
    why=(
        "One decode rank's KV pool is a tenth of the others'. Round robin sends it as many requests; they wait in its "
        "prealloc queue until pages are free. It runs few requests and holds few tokens: by these it looks idle, and a "
        "policy that looks at running requests alone would send it more."
    ),
    shows={
        "loads": "few running, many waiting (prealloc) on one rank; its pool is full at few tokens",
        "metrics": "`num_decode_prealloc_queue_reqs` high on one rank, token usage near 1",
        "trace": "nothing: that rank has less to do than the others, who do not wait for it",
        "ledger": "total_requests counts the queue (0.5.23); running requests alone would not",
    },
    cure="Find out why the pool is small; place by total_requests, which counts the queue.",
    deploy=_deploy_prealloc,
    window=_PREALLOC_WINDOW,
    trace=Label(None),
    metrics=Label("load.kv_pressure", (_FULL,), "one"),
    figures=_figure_prealloc,
    watch_from_s=6.0,
)

# --- retraction that feeds itself ---

_THRASHED = 2


def _deploy_thrash(cured: bool) -> Deployment:
    """Let one rank's pool be too small, and hope that answers are short; what it retracts is the longest."""
    costs = ServedCosts(pair_fs=2_000)
    rules = [SglangRules(600_000, share_prefixes=False, clip_tokens=16)] * 8
    if not cured:
        rules[_THRASHED] = replace(rules[_THRASHED], capacity_tokens=60_000, victim="longest")
    worker = Worker(tuple(rules), SglangController(8, "round_robin"), costs)
    requests = [ask(number, number * 5 * MS_NS, 3_000, 900) for number in range(320)]
    return Deployment(requests, [worker], costs)


_THRASH_WINDOW = Window(4 * SECOND_NS, decodes=False, steps=120)


def _figure_thrash(outcome: Outcome, cured: Outcome) -> Figures:
    """Count what is computed again: each retraction costs the whole of what the request held."""
    requests = outcome.requests
    here = requests["rank"] == _THRASHED
    return {
        "retractions": int(requests["retractions"].sum()),
        "retractions_there": int(requests["retractions"][here].sum()),
        "recomputed_tokens": int(requests["recomputed_tokens"].sum()),
        "prompt_tokens_there": int(requests["prompt_tokens"][here].sum()),
        **compare_steps(outcome, cured, _THRASH_WINDOW),
    }


THRASH = Scenario(
    name="thrash",
    title="A pool that retracts its longest request again and again",
    engine="sglang",
    why=(
        "One rank's KV pool is a tenth of the others'. When it is full in decode, it retracts the request that holds "
        "most, which frees most, and which is computed again from its first token as soon as there is room: then the "
        "pool is full again. A retracted request stays on its rank, and the total of tokens does not fall."
    ),
    shows={
        "loads": "token usage near 1 on one rank, requests that wait there though few run",
        "metrics": "`num_retracted_requests_total` grows on one rank",
        "trace": "prompts are computed on one rank again and again, and all others wait",
        "ledger": "total_tokens says the rank is no fuller than before",
    },
    cure="Retract the newest, admit fewer (`--max-running-requests`, `--schedule-conservativeness`), mend the pool.",
    deploy=_deploy_thrash,
    window=_THRASH_WINDOW,
    trace=Label("load.prefill", (_THRASHED,), "one"),
    metrics=Label("load.kv_pressure", (_THRASHED,), "one"),
    figures=_figure_thrash,
    watch_from_s=3.0,
)
