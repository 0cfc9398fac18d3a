"""Tell which load is uneven in a ledger: ranks without work, prompts, contexts, requests, or nothing that costs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, comb, exp, lgamma, log
from typing import Literal

import numpy as np

from dprankdiag.analysis.ledger_requests import count_waiting
from dprankdiag.analysis.ledger_view import IDLE_SHARE, LEAST_SLOW, ROWS_EVEN, LedgerView, Quantity
from dprankdiag.analysis.statistics import OUTLIER_SCORE
from dprankdiag.analysis.thresholds import IDLE_CHANCE
from dprankdiag.analysis.uneven import LEAST_RATIO, Uneven, find_low
from dprankdiag.model.ledgers import BoolArray, FloatArray

Kind = Literal["idle", "cache", "prefill", "context", "requests", "unknown"]

FEWEST_A_RANK = 2.0
"""Independent requests a rank, on average, from which their spread over the ranks tells anything."""

FULL_POOL, NEARLY_FULL, FEWER = 0.9, 0.8, 0.8
"""Share in use from which a KV pool is full; a little less is full where requests queue and the rank runs clearly fewer
than the others: a long prompt does not fit into what is left."""

ROOM = 0.75
"""Share in use up to which the others have room."""

FEWEST_WAITING, BRIMFUL = 3.0, 0.97
"""So many wait, or the pool holds next to nothing more: one request waits anywhere for a moment."""

MORE_IDLE = 0.25
"""Idle ranks have so much more of the steps without work than busy ones: with few requests all are idle at times."""

LEAST_REQUESTS = 1.5
"""Requests on a rank, on average, from which some could be moved away."""

LONGER = 2.0
"""Tokens a request over the others' from which it is contexts that fill a pool, and not its size."""

MUCH_MORE = 1.5
"""Requests over an even share from which ranks without any are worth a word: one request has nobody to be spread to."""

FEWER_HITS = 0.1
"""A rank hits less than its peers if by so much or more; by less, its prompts and not its hits make the work."""

EXPLAINS = 0.5
"""One number explains another's ratio if it has at least this share of its logarithm."""


@dataclass(frozen=True, slots=True)
class LoadFound:
    """An uneven load.

    Attributes:
        mask: `(n_ranks,)` ranks with more of it; of idle ranks, the busy ones.
        shown_by: the numbers that stand out, the one that decides first.
    """

    kind: Kind
    mask: BoolArray
    score: float
    work_ratio: float
    shown_by: tuple[Quantity, ...]


@lru_cache(maxsize=8)
def find_load(seen: LedgerView) -> LoadFound | None:
    """Find the uneven load that explains most; None if all that is told is even, or uneven without cost.

    Each classifier of a load asks, so the answer is kept. Idle ranks go first (DESIGN 3), then what attention costs,
    then prompts. Uneven requests over equal pairs cost nothing: many short ones against few long ones.
    """
    if seen.reason is not None:
        return None
    if (idle := _find_idle(seen)) is not None:
        return idle
    if seen.rows is not None and seen.requests < FEWEST_A_RANK * len(seen.ranks):
        return None
    found = _find_work(seen) or _find_long_crowd(seen) or _find_prompts(seen) or _find_requests(seen)
    return None if found is None or is_outcome(seen, found.mask) else found


def find_excess(seen: LedgerView, mask: BoolArray) -> float | None:
    """Tell how much more load some ranks have than any other, be it by chance; None if not clearly more.

    What chance may explain is no reason to name a load, but a reason not to look for another one. Of attention the
    tokens held count, where they are told: reading them is what it costs to decode; pairs are mostly those of prompts.
    """
    ratios = [1.0]
    for told in (seen.work if seen.held is None else seen.held, seen.computed):
        if told is None or np.isnan(told.values[mask]).any() or np.isnan(told.values[~mask]).all():
            continue
        most = float(np.nanmax(told.values[~mask]))
        if most > 0:
            ratios.append(float(told.values[mask].min()) / most)
    return max(ratios) if max(ratios) >= LEAST_RATIO else None


def is_outcome(seen: LedgerView, mask: BoolArray) -> bool:
    """Tell load that collects because the rank is slow or its pool is full, and not because it was sent there."""
    full = find_full(seen)
    if full is not None and not (mask & ~full).any():
        return True
    if seen.slow is not None and is_slow_itself(seen) and not (mask & ~seen.slow.mask).any():
        return True
    drafts = find_poor_drafts(seen)
    return drafts is not None and not (mask & ~drafts.mask).any() and _came_evenly(seen, mask)


def _came_evenly(seen: LedgerView, mask: BoolArray) -> bool:
    """Tell whether no more requests came to the ranks of a mask than to the others."""
    if seen.arrivals is None:
        return False
    ratio = _ratio(Quantity("arrivals", np.nan_to_num(seen.arrivals), None), mask)
    return ratio is not None and ratio < LEAST_RATIO


def find_poor_drafts(seen: LedgerView) -> Uneven | None:
    """Find ranks whose drafts are accepted less often; such requests stay longer and collect."""
    if seen.accepted is None or np.isnan(seen.accepted).any():
        return None
    rows = max(seen.requests / len(seen.ranks), 1.0)
    chance_sd = float(seen.accepted.mean()) / np.sqrt(rows) / 2.0
    low = find_low(seen.accepted, chance_sd if seen.window.steps is None else chance_sd / 2.0)
    return low if low is not None and low.ratio >= LEAST_RATIO else None


def is_slow_itself(seen: LedgerView) -> bool:
    """Tell whether ranks step more slowly than what they were given explains.

    Ranks kept in step cannot. A slow engine keeps its requests longer, so that they collect; what came to it tells,
    where that is counted.
    """
    if seen.slow is None or is_lockstep(seen):
        return False
    given = [1.0]
    if seen.arrivals is not None:
        given.append(_ratio(Quantity("arrivals", seen.arrivals, None), seen.slow.mask) or 1.0)
    else:
        told = [one for one in (seen.running, seen.held) if one is not None]
        given += [_ratio(one, seen.slow.mask) or 1.0 for one in told if not np.isnan(one.values[seen.slow.mask]).all()]
    return seen.slow.ratio >= LEAST_SLOW * max(given)


def is_lockstep(seen: LedgerView) -> bool:
    """Tell ranks that DP attention keeps in step: SGLang's, unless the engine says that they are replicas."""
    return seen.window.ledger.engine == "sglang" and seen.window.ledger.facts.get("enable_dp_attention") is not False


def find_full(seen: LedgerView) -> BoolArray | None:
    """Find ranks whose KV pool is full, so that requests wait, although they hold and run no more than the others."""
    full = _find_crowded(seen)
    if full is None or _has_longer(seen, full):
        return None
    contexts = None if seen.held is None else seen.held.uneven
    if contexts is not None and seen.held is not None and seen.held.source.endswith("tokens"):
        full = full & ~contexts.mask
    return full if full.any() else None


def _find_crowded(seen: LedgerView) -> BoolArray | None:
    """Find ranks whose KV pool is full and on which alone requests queue, although they run no more than the others."""
    usage, queue = seen.kv_usage, count_queued(seen)
    if usage is None or queue is None or seen.running is None or np.isnan(usage).all():
        return None
    typical = float(np.nanmedian(seen.running.values))
    held_back = (np.nan_to_num(seen.running.values) <= FEWER * typical) & (queue >= FEWEST_WAITING)
    full = (np.nan_to_num(usage) >= np.where(held_back, NEARLY_FULL, FULL_POOL)) & (queue >= 1.0)
    if not full.any() or full.all():
        return None
    surely = float(queue[full].mean()) >= FEWEST_WAITING or float(usage[full].min()) >= BRIMFUL
    others = float(np.nanmean(usage[~full]))
    running = _ratio(seen.running, full)
    alone = float(queue[full].mean()) > 2.0 * float(queue[~full].max())
    evenly = running is None or running <= LEAST_RATIO
    return full if surely and alone and evenly and others <= ROOM else None


def _has_longer(seen: LedgerView, mask: BoolArray) -> bool:
    """Tell whether a request on the ranks of a mask holds several times the tokens of one elsewhere."""
    if seen.held is None or seen.running is None or not seen.held.source.endswith("tokens"):
        return False
    tokens, requests = _ratio(seen.held, mask), _ratio(seen.running, mask)
    more = tokens is not None and tokens >= LEAST_RATIO
    return more and requests is not None and requests > 0 and (tokens or 0.0) / requests >= LONGER


def _find_long_crowd(seen: LedgerView) -> LoadFound | None:
    """Find contexts so long that they fill the pool with fewer requests than the others run."""
    crowded = _find_crowded(seen)
    if crowded is None or seen.held is None or not _has_longer(seen, crowded):
        return None
    values = np.nan_to_num(seen.held.values)
    shown = tuple(one for one in (seen.held, seen.rows) if one is not None)
    return LoadFound("context", crowded, OUTLIER_SCORE, float(values.max() / values.mean()), shown)


def count_queued(seen: LedgerView) -> FloatArray | None:
    """Return the requests of each rank that wait, in whatever queue; None if no queue is told."""
    waiting = count_waiting(seen.window)
    other = [seen.window.level(*names) for names in _OTHER_QUEUES]
    told = [one for one in (waiting, *other) if one is not None]
    return np.max([np.nan_to_num(one) for one in told], axis=0) if told else None


_OTHER_QUEUES = (
    ("load_prealloc_requests", "decode_prealloc_requests"),
    ("load_retracted_requests",),
)


def _find_idle(seen: LedgerView) -> LoadFound | None:
    if seen.idle_share is None:
        return None
    known = ~np.isnan(seen.idle_share)
    idle = np.nan_to_num(seen.idle_share) >= IDLE_SHARE
    count, n_ranks = int(idle.sum()), int(known.sum())
    if not 0 < count < n_ranks or not _could_be_spread(seen):
        return None
    if float(seen.idle_share[idle].min() - seen.idle_share[known & ~idle].max()) < MORE_IDLE:
        return None
    chance = _chance_of_so_few(seen, idle, count / n_ranks) * comb(n_ranks, count)
    if chance > IDLE_CHANCE:
        return None
    shown = tuple(quantity for quantity in (seen.rows, seen.work) if quantity is not None)
    # A rank that never worked may have no gauges at all.
    values = np.nan_to_num(shown[-1].values) if shown else np.where(idle, 0.0, 1.0)
    mean = float(values.mean())
    ratio = float(values.max()) / mean if mean > 0 else n_ranks / (n_ranks - count)
    return LoadFound("idle", known & ~idle, -log(max(chance, 1e-300)), ratio, shown)


def _chance_of_so_few(seen: LedgerView, idle: BoolArray, share: float) -> float:
    """Return the chance that requests spread at random leave the idle ranks no more than they have."""
    if seen.rows is None:
        return 1.0
    admitted = seen.window.growth("admitted_requests")
    # Ranks that have just been left drain: what they hold now counts, not what they held before.
    now = seen.window.now("load_running_requests", "running_requests")
    rows = seen.rows.values if now is None else np.where(seen.frozen, 0.0, now)
    counts = np.nan_to_num(rows) + (0.0 if admitted is None else np.nan_to_num(admitted))
    total, few = round(float(counts.sum())), round(float(counts[idle].sum()))
    logs = [
        lgamma(total + 1) - lgamma(k + 1) - lgamma(total - k + 1) + k * log(share) + (total - k) * log(1.0 - share)
        for k in range(few + 1)
    ]
    return min(sum(map(exp, logs)), 1.0)


def _could_be_spread(seen: LedgerView) -> bool:
    """Tell whether the busiest rank has more requests than an even share, by enough to spread some."""
    if seen.rows is None:
        return True
    share = ceil(float(np.nansum(seen.rows.values)) / len(seen.ranks))
    return float(np.nanmax(seen.rows.values)) >= MUCH_MORE * max(share, 1)


def _find_work(seen: LedgerView) -> LoadFound | None:
    """Find ranks with more attention work: by pairs, else by the KV tokens they hold if their pairs are not even."""
    for quantity in (seen.work, seen.held):
        high = None if quantity is None else quantity.uneven
        if quantity is None or high is None or _is_one_request(seen, high.mask) or is_even(seen.work, high.mask):
            continue
        prompts = _find_prompts(seen)
        if prompts is not None and (prompts.mask & high.mask).any() and is_of_prompts(seen, high.mask):
            return prompts
        kind = tell_kind(seen.running or seen.rows, high)
        if kind == "context" and not _holds_more(seen, high.mask):
            continue
        parts = (seen.rows, quantity) if kind == "requests" else (quantity, seen.rows)
        shown = tuple(one for one in parts if one is not None)
        return LoadFound(kind, high.mask, high.score, high.work_ratio, shown)
    return None


def is_of_prompts(seen: LedgerView, mask: BoolArray) -> bool:
    """Tell whether prompts, and not what decodes over them, make ranks with more prompts work more.

    They do where no more KV tokens are held. A prompt computed in chunks is held as well; then pairs tell.
    """
    if not _stands_out(seen.held, mask):
        return True
    share = _measure_decoded(seen, mask)
    return share is not None and share < EXPLAINS


def _measure_decoded(seen: LedgerView, mask: BoolArray) -> float | None:
    """Return the share of the excess in pairs that decoding over what is held explains; None where nothing tells.

    A row that decodes has as many pairs as its request holds tokens. What chunks of a prompt hold counts as if it were
    decoded over, so that the share is an upper bound.
    """
    pairs, held, running = seen.work, seen.held, seen.running
    rows = _count_decoded_rows(seen)
    if pairs is None or pairs.source != "scheduled_pairs" or rows is None or running is None:
        return None
    if held is None or not held.source.endswith("tokens"):
        return None
    lengths = held.values / np.maximum(running.values, 1.0)
    excess = _exceed(pairs.values, mask)
    return _exceed(rows * lengths, mask) / excess if excess > 0 else None


def _count_decoded_rows(seen: LedgerView) -> FloatArray | None:
    """Return the rows of all steps that belong to requests that decode."""
    scheduled, prompts = seen.window.growth("scheduled_tokens"), seen.window.growth("prefill_tokens")
    if scheduled is None or prompts is None:
        return scheduled
    return np.maximum(scheduled - np.nan_to_num(prompts), 0.0)


def _exceed(values: FloatArray, mask: BoolArray) -> float:
    """Return by how much the mean of the ranks of a mask exceeds that of the others; what is not told is 0."""
    told = np.nan_to_num(values)
    return float(told[mask].mean() - told[~mask].mean())


def _holds_more(seen: LedgerView, mask: BoolArray) -> bool:
    """Tell whether ranks with more attention hold more KV tokens beyond chance; else a few long prompts made it."""
    if seen.held is None:
        return True
    return seen.held.uneven is not None and bool((seen.held.uneven.mask & mask).any())


def _is_one_request(seen: LedgerView, mask: BoolArray) -> bool:
    """Tell whether each rank of a mask has a single request at most: no router can spread that."""
    return seen.rows is not None and bool((seen.rows.values[mask] < LEAST_REQUESTS).all())


def tell_kind(rows: Quantity | None, high: Uneven) -> Kind:
    """Tell longer contexts from more requests by how much of the ratio the requests explain."""
    if rows is None or np.isnan(rows.values[high.mask]).any() or np.isnan(rows.values[~high.mask]).all():
        return "unknown"
    ratio = _ratio(rows, high.mask)
    if ratio is None:
        return "requests" if np.nansum(rows.values[high.mask]) > 0 else "unknown"
    if abs(ratio - 1.0) <= ROWS_EVEN:
        return "context"
    return "requests" if log(max(ratio, 1e-9)) >= EXPLAINS * log(high.ratio) else "context"


def _ratio(quantity: Quantity, mask: BoolArray) -> float | None:
    """Return the mean of the ranks of a mask over the mean of the others."""
    own, rest = quantity.values[mask], quantity.values[~mask]
    if np.isnan(own).all() or np.isnan(rest).all():
        return None
    usual = float(np.nanmean(rest))
    return float(np.nanmean(own)) / usual if usual > 0 else None


def _stands_out(quantity: Quantity | None, mask: BoolArray) -> bool:
    """Tell whether the ranks of a mask have clearly more of something; unknown is no."""
    if quantity is None or np.isnan(quantity.values[mask]).all() or np.isnan(quantity.values[~mask]).all():
        return False
    ratio = _ratio(quantity, mask)
    return float(np.nanmean(quantity.values[mask])) > 0 if ratio is None else ratio >= LEAST_RATIO


def is_even(quantity: Quantity | None, mask: BoolArray) -> bool:
    """Tell whether the ranks of a mask are known to have no more of something."""
    if quantity is None or np.isnan(quantity.values[mask]).any():
        return False
    return not _stands_out(quantity, mask)


def _find_prompts(seen: LedgerView) -> LoadFound | None:
    """Find ranks that compute more prompt tokens, because their cache hits less or because more come to them."""
    if (misses := _find_misses(seen)) is not None:
        return misses
    computed = seen.computed
    if computed is None or computed.uneven is None:
        return None
    high = computed.uneven
    rows = seen.rows
    more_rows = _ratio(rows, high.mask) if rows is not None and rows.uneven is not None else None
    if more_rows is not None and log(max(more_rows, 1e-9)) >= EXPLAINS * log(high.ratio):
        return None
    if rows is not None and rows.uneven is not None and _decodes_more(seen, rows, computed, high.mask):
        return None
    return LoadFound("prefill", high.mask, high.score, high.work_ratio, (computed,))


def _decodes_more(seen: LedgerView, rows: Quantity, computed: Quantity, mask: BoolArray) -> bool:
    """Tell whether requests add more tokens to the steps of some ranks by decoding than by their prompts.

    Requests that all come to one rank bring their prompts to it, of which the others have none.
    """
    if seen.window.steps is None or rows.uneven is None or not (rows.uneven.mask & mask).any():
        return False
    by_rows, by_prompts = (
        float(np.nanmean(one.values[mask]) - np.nan_to_num(one.values[~mask]).mean()) for one in (rows, computed)
    )
    return by_rows * seen.window.steps >= by_prompts


def _find_misses(seen: LedgerView) -> LoadFound | None:
    """Find ranks whose cache hits less, so that they compute more of prompts that are no longer than the others'."""
    if seen.hits is None or seen.prompts is None or seen.computed is None or np.isnan(seen.hits).any():
        return None
    share = float(seen.hits.mean())
    # A prompt is found or not: a share of n of them scatters as that of n tosses does, at most.
    low = find_low(seen.hits, float(np.sqrt(share * (1.0 - share) / max(seen.prompt_count / len(seen.ranks), 1.0))))
    if low is None or float(seen.hits[~low.mask].mean() - seen.hits[low.mask].mean()) < FEWER_HITS:
        return None
    prompts = _ratio(Quantity("prompts", seen.prompts, None), low.mask)
    work = _ratio(seen.computed, low.mask)
    if work is None or work < LEAST_RATIO or (prompts or 1.0) ** 2 > work:
        return None
    values = seen.computed.values
    return LoadFound("cache", low.mask, low.score, float(values.max() / values.mean()), (seen.computed,))


def _find_requests(seen: LedgerView) -> LoadFound | None:
    """Find ranks with more requests where nothing tells what attention costs, or where they queue."""
    rows = seen.rows
    if rows is None or rows.uneven is None or _is_one_request(seen, rows.uneven.mask):
        return None
    queues = seen.running is not None and seen.running.uneven is None
    if not queues and is_even(seen.work, rows.uneven.mask):
        return None
    return LoadFound("requests", rows.uneven.mask, rows.uneven.score, rows.uneven.work_ratio, (rows,))
