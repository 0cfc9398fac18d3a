"""What a ledger shows of each rank over a window: its load, its waits, its speed, and the age of what it tells."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dprankdiag.analysis.ledger_presence import find_gone, find_missing
from dprankdiag.analysis.ledger_requests import (
    count_all,
    count_arrivals,
    count_independent,
    count_rows,
    count_running,
)
from dprankdiag.analysis.ledger_signals import (
    Waits,
    count_experts,
    divide,
    is_positive,
    measure_ages,
    measure_steps,
    measure_waits,
)
from dprankdiag.analysis.ledger_window import LedgerWindow
from dprankdiag.analysis.uneven import Uneven, find_high
from dprankdiag.model.ledgers import BoolArray, FloatArray

ROWS_EVEN = 0.1
"""Request counts within this of each other are even (DESIGN 3: context goes before requests then)."""

LENGTH_SPREAD = 2.0
"""Spread of a sum over requests whose lengths scatter by up to 1.7 times their mean, number and length both random."""

NARROWEST = float(np.sqrt(0.5))
"""Of that spread, what the other ranks can prove to be enough: lengths that scatter as much as their mean."""

PROMPT_SPREAD = 2.0
"""The same of prompt lengths."""

PROMPT_PAIR_SPREAD = 4.0
"""The same of the query-key pairs of prompts, which grow with the square of their lengths."""

TOKENS_A_PROMPT = 4096.0
"""Where nothing counts prompts, no more than one in so many tokens is taken to be independent of the others."""

IDLE_SHARE = 0.5
"""Share of steps without work of its own from which a rank is idle (DESIGN 3)."""

ALIKE = 1e9
"""Step times are means over so many tokens that chance does not move them; engines' own spread does."""

CHIP_SPREAD = 0.02
LEAST_SLOW = 1.08
"""Healthy chips differ by two to four per cent; engines on their own also by their load, which varies."""

LEAST_COST = 0.03
"""Share of the time from which a late rank matters (DESIGN 3: warning)."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """One number a rank, and whether ranks stand out in it.

    Attributes:
        source: the field it was taken from.
        values: `(n_ranks,)` NaN where not told.
        uneven: ranks that have more than chance gives; None if none.
    """

    source: str
    values: FloatArray
    uneven: Uneven | None


@dataclass(frozen=True, slots=True, eq=False)
class LedgerView:
    """A ledger over a window, judged as far as numbers go.

    Attributes:
        reason: why nothing can be compared; None if something can.
        rows: requests each rank runs (and has queued).
        running: requests in the running batch alone.
        work: what attention costs: query-key pairs, else KV tokens held.
        held: KV tokens held.
        computed: prompt tokens computed.
        hits: `(n_ranks,)` share of prompt tokens found in the prefix cache; None if not told.
        prompts: prompt tokens to be computed or found.
        idle_share: `(n_ranks,)` share of steps without work of the rank's own; None if not told.
        accepted: tokens a verification step gives on each rank; None without speculation.
        retracted: requests taken out of the batch for lack of room.
        kv_usage: share of each rank's KV pool in use.
        waits: None if not told.
        step_s: mean step time as each rank tells it; None if not told.
        experts: `(n_layers, n_gpus)` tokens the experts of each GPU got.
        ages_s: `(n_ranks,)` how much older each load snapshot is than the freshest; None if not told.
        requests: independent requests that the ranks' numbers are made of, together.
        prompt_count: independent prompts of all ranks together.
        arrivals: requests that came to each rank over the window; None if not counted.
        slow: ranks whose own steps take longer; nobody stands out in lockstep.
        has_dp_attention: steps of DP attention are counted.
        missing: ranks that should be there and tell nothing, or nothing any more.
        moving: ranks of which a counter of work has grown.
        frozen: ranks whose gauges are left over from earlier work.
    """

    window: LedgerWindow
    reason: str | None
    moving: BoolArray
    frozen: BoolArray
    rows: Quantity | None = None
    running: Quantity | None = None
    work: Quantity | None = None
    held: Quantity | None = None
    computed: Quantity | None = None
    prompts: FloatArray | None = None
    hits: FloatArray | None = None
    idle_share: FloatArray | None = None
    accepted: FloatArray | None = None
    retracted: FloatArray | None = None
    kv_usage: FloatArray | None = None
    waits: Waits | None = None
    step_s: FloatArray | None = None
    experts: FloatArray | None = None
    ages_s: FloatArray | None = None
    requests: float = 0.0
    prompt_count: float = 0.0
    arrivals: FloatArray | None = None
    slow: Uneven | None = None
    has_dp_attention: bool = False
    missing: tuple[int, ...] = ()

    @property
    def ranks(self) -> tuple[int, ...]:
        """The DP ranks by position."""
        return self.window.ledger.ranks

    def names_of(self, positions: BoolArray) -> tuple[int, ...]:
        """List the rank numbers of a mask."""
        return tuple(rank for rank, named in zip(self.ranks, positions, strict=True) if named)


def view_ledger(window: LedgerWindow, expect_ranks: int | None = None) -> LedgerView:
    """Take the numbers of a window.

    Args:
        expect_ranks: how many DP ranks there should be.
    """
    if not window.ledger.ranks:
        return _view_without_ranks(window)
    moving = _find_moving(window)
    frozen = _find_frozen(window, moving)
    running = count_running(window, frozen)
    admitted = window.growth("admitted_requests")
    samples = count_independent(window, running, admitted)
    rows = count_rows(window, running, frozen)
    in_level = samples if running is None or window.averages else np.nan_to_num(running)
    held = _held(window, in_level, frozen, counted=running is not None)
    computed = window.growth("prefill_tokens")
    for other in ("load_prefill_tokens", "pass_prefill_tokens"):
        computed = window.growth(other) if computed is None else computed
    cached = window.growth("cached_tokens")
    arrivals = count_arrivals(window, admitted)
    prompts = _count_prompts(computed, arrivals)
    step_s = measure_steps(window)
    has_dp_attention = is_positive(window.growth("active_steps", "idle_steps"))
    return LedgerView(
        window,
        _find_reason(window, moving, running),
        moving,
        frozen,
        rows=None if rows is None else Quantity(rows[0], rows[1], find_high(rows[1], np.maximum(rows[1], in_level))),
        running=None if running is None else Quantity("running", running, find_high(running, running)),
        work=_work(window, samples, held, computed, prompts, counted=running is not None) or held,
        held=held,
        computed=_computed(computed, prompts),
        prompts=_prompt_tokens(window, computed, cached),
        prompt_count=float(prompts.sum()),
        hits=_hits(window, computed, cached),
        idle_share=_idle_share(window, has_dp_attention, moving, running),
        accepted=_accepted(window),
        retracted=window.growth("retracted_requests"),
        kv_usage=window.level("load_kv_usage_ratio", "kv_usage_ratio"),
        waits=measure_waits(window),
        step_s=step_s,
        slow=None if step_s is None else find_high(step_s, ALIKE, least_ratio=LEAST_SLOW, usual_spread=CHIP_SPREAD),
        arrivals=arrivals,
        experts=count_experts(window),
        ages_s=measure_ages(window),
        requests=count_all(rows, admitted),
        has_dp_attention=has_dp_attention,
        missing=tuple(sorted({*find_missing(window.ledger, expect_ranks), *find_gone(window)})),
    )


def _view_without_ranks(window: LedgerWindow) -> LedgerView:
    """Take what is told of GPUs only: the tokens of their experts."""
    nobody = np.zeros(0, bool)
    return LedgerView(window, _find_reason(window, nobody, None), nobody, nobody, experts=count_experts(window))


_GATED = ("scheduled_tokens", "scheduled_pairs")
_MOVERS = (
    *_GATED,
    "decode_tokens",
    "prefill_tokens",
    "prompt_tokens",
    "load_decode_steps",
    "load_prefill_tokens",
    "iteration_tokens",
    "pass_count",
)


def _list_work(window: LedgerWindow) -> list[FloatArray]:
    """List what counters of work grew by; those of DP attention stand at zero where they are not enabled."""
    grown = {name: told for name in _MOVERS if (told := window.growth(name)) is not None}
    return [told for name, told in grown.items() if name not in _GATED or np.nansum(told) > 0]


def _find_moving(window: LedgerWindow) -> BoolArray:
    """Find the ranks of which some counter of work has grown; all where no counter is told."""
    grown = _list_work(window)
    if not grown:
        return np.ones(window.n_ranks, bool)
    return np.asarray((np.nan_to_num(np.array(grown)) > 0).any(axis=0) | window.restarted)


def _find_frozen(window: LedgerWindow, moving: BoolArray) -> BoolArray:
    """Find ranks whose gauges are left over from earlier work: they run requests and compute nothing, peers do."""
    if not window.has_growth or not moving.any() or moving.all():
        return np.zeros(window.n_ranks, bool)
    stamps = window.held("load_stamp_s")
    # The counters of a load snapshot that is not published any more stand still on a working rank too.
    return np.asarray(~moving & window.held("running_requests") & ~stamps)


def _work(
    window: LedgerWindow,
    samples: FloatArray,
    held: Quantity | None,
    computed: FloatArray | None,
    prompts: FloatArray,
    *,
    counted: bool,
) -> Quantity | None:
    """Return the query-key pairs of each rank's attention, where they are counted.

    Chance plays differently with pairs of decode steps, a sum over the requests held, and with those of prompts, a few
    of which can outweigh seconds of decoding.
    """
    pairs = window.growth("scheduled_pairs")
    if pairs is None or not is_positive(pairs):
        return None
    decoded = float(np.nanmean(pairs))
    if computed is not None and is_positive(computed) and held is not None and held.source.endswith("tokens"):
        decoded = min(float(np.nanmean(held.values)) * (window.steps or 0.0), decoded)
    prompted = float(np.nanmean(pairs)) - decoded
    chance = np.hypot(
        LENGTH_SPREAD * decoded / np.sqrt(max(float(np.nanmean(samples)), 1.0)),
        PROMPT_PAIR_SPREAD * prompted / np.sqrt(max(float(np.nanmean(prompts)), 1.0)),
    )
    return Quantity("scheduled_pairs", pairs, find_high(pairs, samples, chance_sd=float(chance), counted=counted))


def _count_prompts(computed: FloatArray | None, arrivals: FloatArray | None) -> FloatArray:
    """Return the independent prompts behind each rank's computed tokens."""
    if arrivals is not None:
        return np.nan_to_num(arrivals)
    return np.zeros(1) if computed is None else np.nan_to_num(computed) / TOKENS_A_PROMPT


def _held(window: LedgerWindow, samples: FloatArray, frozen: BoolArray, *, counted: bool) -> Quantity | None:
    """Return the KV tokens, or the share of the pool, that each rank holds."""
    for name in ("load_used_tokens", "used_tokens", "load_kv_usage_ratio", "kv_usage_ratio"):
        level = window.level(name)
        if level is not None:
            if not name.startswith("load_"):
                level = np.where(frozen, 0.0, level)
            capacity = window.level("load_capacity_tokens", "capacity_tokens")
            if name.endswith("_ratio") and capacity is not None and not np.isnan(capacity).any():
                # Pools may differ, and a share of a small one is not much work.
                name, level = "used_tokens", level * capacity
            return Quantity(name, level, find_high(level, samples, LENGTH_SPREAD, counted=counted, narrowest=NARROWEST))
    tokens, passes = window.growth("pass_context_tokens"), window.growth("pass_count")
    if tokens is None or passes is None or not is_positive(tokens):
        return None
    held = np.nan_to_num(divide(tokens, passes))
    return Quantity("used_tokens", held, find_high(held, samples, LENGTH_SPREAD, counted=counted, narrowest=NARROWEST))


def _computed(computed: FloatArray | None, prompts: FloatArray) -> Quantity | None:
    if computed is None or not is_positive(computed):
        return None
    # A rank that never computed a prompt has no series for it.
    values = np.nan_to_num(computed)
    return Quantity("prefill_tokens", values, find_high(values, np.maximum(prompts, 1.0), PROMPT_SPREAD))


def _prompt_tokens(window: LedgerWindow, computed: FloatArray | None, cached: FloatArray | None) -> FloatArray | None:
    """Return the prompt tokens that came to each rank, computed or found."""
    if computed is not None and cached is not None:
        return np.nan_to_num(computed) + np.nan_to_num(cached)
    return window.growth("cache_query_tokens")


def _hits(window: LedgerWindow, computed: FloatArray | None, cached: FloatArray | None) -> FloatArray | None:
    queries, hits = window.growth("cache_query_tokens"), window.growth("cache_hit_tokens")
    if queries is None or hits is None:
        if computed is None or cached is None:
            return None
        queries, hits = np.nan_to_num(computed) + np.nan_to_num(cached), np.nan_to_num(cached)
    if not is_positive(queries):
        return None
    return divide(hits, queries)


def _idle_share(
    window: LedgerWindow, has_dp_attention: bool, moving: BoolArray, running: FloatArray | None
) -> FloatArray | None:
    """Return the share of steps without work: counted, else all or nothing by whether a rank's counters moved."""
    if has_dp_attention:
        active, idle = window.growth("active_steps"), window.growth("idle_steps")
        if active is not None and idle is not None:
            total = active + idle
            return divide(idle, total)
    passes, empty = window.growth("pass_count"), window.growth("pass_idle_count")
    if passes is not None and empty is not None and is_positive(passes + empty):
        return divide(empty, passes + empty)
    if not _list_work(window) or not moving.any():
        return None
    nothing_runs = np.ones(window.n_ranks, bool) if running is None else ~(np.nan_to_num(running) > 0)
    shares = np.where(moving, 0.0, np.where(nothing_runs, 1.0, np.nan))
    return np.where(window.restarted, np.nan, shares)


def _accepted(window: LedgerWindow) -> FloatArray | None:
    """Return tokens per row and step; None where they say that nothing is drafted."""
    drafts, accepted = window.growth("drafts"), window.growth("accepted_tokens")
    rate: FloatArray | None = None
    if drafts is not None and accepted is not None and is_positive(drafts):
        rate = 1.0 + divide(accepted, drafts)
    if rate is None:
        rate = _tokens_per_row(window)
    if rate is None:
        rate = window.level("accept_length", "load_accept_length")
    if rate is None or not np.nanmax(rate, initial=0.0) > 1.05:
        return None
    return np.where(rate > 0, rate, np.nan)


def _tokens_per_row(window: LedgerWindow) -> FloatArray | None:
    rows, tokens = window.growth("load_decode_rows"), window.growth("load_decode_tokens")
    if rows is None or tokens is None or not is_positive(rows):
        rows, tokens = window.growth("scheduled_tokens"), window.growth("decode_tokens")
        prefill = window.growth("prefill_tokens")
        if rows is None or tokens is None or not is_positive(rows):
            return None
        rows = rows if prefill is None else rows - np.nan_to_num(prefill)
    return divide(tokens, rows)


def _find_reason(window: LedgerWindow, moving: BoolArray, running: FloatArray | None) -> str | None:
    """Say why ranks cannot be compared at all."""
    ledger = window.ledger
    if ledger.unlabelled and len(ledger.ranks) < 2:
        return "its series carry no rank label, so that ranks cannot be told apart"
    if not ledger.ranks:
        return "no answer tells a number of any rank"
    if ledger.swinging:
        return "its counters go up and down: several processes answer in turn at one address, ask each of them"
    if len(ledger.ranks) == 1:
        return "only one rank is shown: there is nothing to compare it with"
    works = bool(_list_work(window)) and moving.any()
    holds = running is not None and float(np.nansum(running)) > 0
    if not works and not holds and not is_positive(window.level("load_waiting_requests", "waiting_requests")):
        return "no rank has had any work"
    return None
