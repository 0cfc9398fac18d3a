"""What classifiers say in the same words of ledgers: who has more of what, and how sure that is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from dprankdiag.analysis.ledger_loads import Kind, LoadFound, find_load
from dprankdiag.analysis.ledger_view import LedgerView, Quantity
from dprankdiag.analysis.uneven import find_high
from dprankdiag.classifiers.base import name_numbers, times
from dprankdiag.model.claims import UntimedClaim
from dprankdiag.model.diagnosis import Abstention, Alternative, Evidence, Who
from dprankdiag.model.ledgers import BoolArray

_HALF_SURE = 3.0
"""Score at which a claim is as likely as not; scores that claims need lie well above."""

ALIKE = 1e9
"""Step times are means over so many tokens that chance does not move them; engines' own spread does."""

CHIP_SPREAD = 0.02
LEAST_SLOW = 1.08
"""Healthy chips differ by two to four per cent; engines on their own also by their load, which varies."""

SLOW_WARNING = 1.1
"""Step time over the others' from which a slow engine is a warning: requests on it take a tenth longer."""

_QUANTITIES = {
    "running": ("requests_held", "count", "running requests"),
    "running and waiting": ("requests_held", "count", "requests, running or waiting"),
    "scheduled_pairs": ("attention_pairs", "count", "query-key pairs of attention"),
    "load_used_tokens": ("held_tokens", "tokens", "KV tokens"),
    "used_tokens": ("held_tokens", "tokens", "KV tokens"),
    "load_kv_usage_ratio": ("kv_usage_ratio", "ratio", "of the KV pool in use"),
    "kv_usage_ratio": ("kv_usage_ratio", "ratio", "of the KV pool in use"),
    "prefill_tokens": ("computed_prompt_tokens", "tokens", "prompt tokens computed"),
}
"""Source of a quantity → evidence name, unit and words."""

_INSTEAD = {
    "idle": (Alternative("load.requests", "all ranks with work of their own in most steps"),),
    "requests": (
        Alternative("load.context", "request counts within a tenth of each other"),
        Alternative("single_point.unknown", "even loads: a slow rank keeps its requests longer (take a trace)"),
    ),
    "context": (
        Alternative("load.prefill", "prompt tokens computed on that rank, and its KV tokens not above the others'"),
        Alternative("single_point.gpu", "even loads, and work of equal size that takes longer (take a trace)"),
    ),
    "prefill": (Alternative("load.cache", "prompts as long on all ranks, found in the cache on the others"),),
    "cache": (Alternative("load.prefill", "hit rates alike, more prompt tokens on that rank"),),
    "unknown": (Alternative("load.requests", "request counts of all ranks (/v1/loads, /metrics)"),),
}


class LedgerClassifier(Protocol):
    """Judges one cause by a ledger."""

    @property
    def cause(self) -> str:
        """The cause, as `class.name`."""
        ...

    def judge_ledger(self, seen: LedgerView) -> Iterator[UntimedClaim | Abstention]:
        """Yield a claim, or an abstention that says why this ledger does not show the cause."""
        ...


def claim_ledger_load(seen: LedgerView, cause: str, kind: Kind, says: str) -> Iterator[UntimedClaim]:
    """Claim the uneven load of a ledger if it is of this kind.

    Args:
        says: what the named ranks have.
    """
    load = find_load(seen)
    if load is None or load.kind != kind:
        return
    ranks = seen.names_of(load.mask)
    evidence = tuple(item for quantity in load.shown_by for item in tell_quantity(seen, quantity, load.mask))
    lead = f" ({evidence[0].text})" if evidence else ""
    yield UntimedClaim(
        cause,
        ranks,
        who_of(load.mask),
        f"{name_numbers(ranks)}: {says}{lead}",
        evidence + tuple(tell_waits(seen, load)),
        _INSTEAD[kind],
        sureness(load.score),
        seen.window.span_ns,
        work_ratio=load.work_ratio,
    )


def claim_slow_engine(seen: LedgerView, cause: str) -> Iterator[UntimedClaim]:
    """Claim ranks whose own steps are longer than the others'; in lockstep all are equally long."""
    if seen.step_s is None:
        return
    slow = find_high(seen.step_s, ALIKE, least_ratio=LEAST_SLOW, usual_spread=CHIP_SPREAD)
    if slow is None or slow.ratio < LEAST_SLOW * _more_load(seen, slow.mask):
        return
    ranks = seen.names_of(slow.mask)
    own, usual = float(np.nanmean(seen.step_s[slow.mask])), float(np.nanmedian(seen.step_s[~slow.mask]))
    text = f"{show_s(own)} a step, the others {show_s(usual)}, at even load"
    yield UntimedClaim(
        cause,
        ranks,
        who_of(slow.mask),
        f"{name_numbers(ranks)}: {times(own / usual)} the step time of the others: {text}; the engines do not wait for "
        "each other, so only its own requests are slow",
        (Evidence("step_time_ns", own * 1e9, "ns", text, usual * 1e9),),
        (
            Alternative("single_point.gpu", "kernels of equal work that take longer (a trace of that rank and a peer)"),
            Alternative("single_point.host", "a GPU that stands idle before launches (a trace)"),
        ),
        sureness(slow.score),
        seen.window.span_ns,
        work_ratio=own / usual,
        severity="warning" if own / usual >= SLOW_WARNING else "info",
    )


def _more_load(seen: LedgerView, mask: BoolArray) -> float:
    """Return how much more load the ranks of a mask have, at least 1: longer steps for more of it are no fault."""
    ratios = [1.0]
    for quantity in (seen.running, seen.held):
        if quantity is not None and not np.isnan(quantity.values[mask]).all():
            usual = float(np.nanmean(quantity.values[~mask])) if not np.isnan(quantity.values[~mask]).all() else 0.0
            ratios += [float(np.nanmean(quantity.values[mask])) / usual] if usual > 0 else []
    return max(ratios)


def who_of(mask: BoolArray) -> Who:
    """Say whether one rank or a group is meant."""
    return "one" if int(mask.sum()) == 1 else "group"


def sureness(score: float) -> float:
    """Turn a distance in standard deviations into a support; no table is fitted for ledgers, so it stays modest."""
    return score / (score + _HALF_SURE)


def tell_quantity(seen: LedgerView, quantity: Quantity, mask: BoolArray) -> Iterator[Evidence]:
    """Tell what the ranks of a mask have against the others."""
    name, unit, words = _QUANTITIES[quantity.source]
    mine, others = quantity.values[mask], quantity.values[~mask]
    if np.isnan(mine).all():
        return
    value = float(np.nanmean(mine))
    usual = None if np.isnan(others).all() else float(np.nanmean(others))
    against = "" if usual is None else f", the others {show(usual, unit)}"
    each = " each" if int(mask.sum()) > 1 else ""
    ratio = f" ({times(value / usual)})" if usual else ""
    yield Evidence(name, value, unit, f"{show(value, unit)} {words}{each}{against}{ratio}", usual, _count(seen))


def tell_waits(seen: LedgerView, load: LoadFound) -> Iterator[Evidence]:
    """Tell how long the named ranks wait at step borders: least, if their load holds the others up."""
    if seen.waits is None:
        return
    waits = seen.waits.per_step_s
    mine, others = waits[load.mask], waits[~load.mask]
    if np.isnan(mine).all() or np.isnan(others).all():
        return
    own, usual = float(np.nanmean(mine)), float(np.nanmean(others))
    text = f"waits {show_s(own)} at a step border, the others {show_s(usual)}"
    yield Evidence("border_wait_ns", own * 1e9, "ns", text, usual * 1e9, _count(seen))


def _count(seen: LedgerView) -> int | None:
    steps = seen.window.steps
    return None if steps is None else round(steps)


def show(value: float, unit: str) -> str:
    """Write a value for people."""
    if unit == "ratio":
        return f"{100 * value:.0f} %"
    if abs(value) >= 1e7:
        return f"{value / 1e6:.3g} M"
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.3g}"


def show_s(seconds: float) -> str:
    """Write seconds as milliseconds."""
    return f"{1e3 * seconds:.3g} ms"
