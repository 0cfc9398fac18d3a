"""What classifiers say in the same words of ledgers: who has more of what, and how sure that is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

import numpy as np

from dprankdiag.analysis.ledger_chance import find_chance
from dprankdiag.analysis.ledger_loads import Kind, LoadFound, find_load, is_slow_itself
from dprankdiag.analysis.ledger_view import LedgerView, Quantity
from dprankdiag.classifiers.base import name_numbers, times
from dprankdiag.model.claims import UntimedClaim
from dprankdiag.model.diagnosis import Abstention, Alternative, Evidence, Who
from dprankdiag.model.ledgers import BoolArray

_HALF_SURE = 3.0
"""Score at which a claim is as likely as not; scores that claims need lie well above."""

SLOW_WARNING = 1.1
"""Step time over the others' from which a slow engine is a warning: requests on it take a tenth longer."""

_REQUESTS = Evidence("requests_held", None, "count", "requests, running or waiting")
_TOKENS = Evidence("held_tokens", None, "tokens", "KV tokens")
_USAGE = Evidence("kv_usage_ratio", None, "ratio", "of the KV pool in use")

_QUANTITIES = {
    "running": replace(_REQUESTS, text="running requests"),
    "running and waiting": _REQUESTS,
    "scheduled_pairs": Evidence("attention_pairs", None, "count", "query-key pairs of attention"),
    "load_used_tokens": _TOKENS,
    "used_tokens": _TOKENS,
    "load_kv_usage_ratio": _USAGE,
    "kv_usage_ratio": _USAGE,
    "prefill_tokens": Evidence("computed_prompt_tokens", None, "tokens", "prompt tokens computed"),
}
"""Source of a quantity → evidence without its numbers; the text is what it counts."""

LESS = 0.8
"""Share of the others' wait up to which a shorter one speaks for holding them up."""

_PREFIXES = (("T", 1e12), ("G", 1e9), ("M", 1e6))

COUNTED = ("scheduled_pairs", "prefill_tokens")
"""Sources that steps add to; all others are looked at once a moment."""

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


_ENOUGH = {
    "context": "a long request can make as much, and no router could have avoided that",
    "prefill": "a long prompt can make as much, and no router could have avoided that",
}
_LENGTHS = ("more requests a rank", "lengths of single requests")
_LENGTHS_WITH = "dprankdiag record TARGET -o FILE, until every rank has had many more requests"


class LedgerClassifier(Protocol):
    """Judges one cause by a ledger."""

    @property
    def cause(self) -> str:
        """The cause, as `class.name`."""
        ...

    def judge_ledger(self, seen: LedgerView) -> Iterator[UntimedClaim | Abstention]:
        """Yield a claim, or an abstention that says why this ledger does not show the cause."""
        ...


def judge_ledger_load(seen: LedgerView, cause: str, kind: Kind, says: str) -> Iterator[UntimedClaim | Abstention]:
    """Claim the uneven load of a ledger if it is of this kind, or say that it may be chance.

    Args:
        says: what the named ranks have.
    """
    yield from claim_ledger_load(seen, cause, kind, says)
    chance, reason = find_chance(seen), tell_chance(seen)
    if chance is not None and reason is not None and chance.kind == kind:
        yield Abstention(cause, reason, _LENGTHS, _LENGTHS_WITH)


def tell_chance(seen: LedgerView) -> str | None:
    """Say who has more, of so few requests that no router need be to blame; None if nobody has."""
    chance = find_chance(seen)
    if chance is None:
        return None
    more = "; ".join(item.text for item in tell_quantity(seen, chance.shown_by, chance.mask))
    few = "of how many requests, nothing tells"
    if chance.requests is not None:
        few = f"with {chance.requests:.2g} requests a rank"
    enough = _ENOUGH.get(chance.kind, "chance deals a few as unevenly")
    return f"{name_numbers(seen.names_of(chance.mask))}: {more}, {few}: {enough}"


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
    slow = seen.slow
    if seen.step_s is None or slow is None or not is_slow_itself(seen):
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


def who_of(mask: BoolArray) -> Who:
    """Say whether one rank or a group is meant."""
    return "one" if int(mask.sum()) == 1 else "group"


def sureness(score: float) -> float:
    """Turn a distance in standard deviations into a support; no table is fitted for ledgers, so it stays modest."""
    return score / (score + _HALF_SURE)


def tell_quantity(seen: LedgerView, quantity: Quantity, mask: BoolArray) -> Iterator[Evidence]:
    """Tell what the ranks of a mask have against the others."""
    kind = _QUANTITIES[quantity.source]
    mine, others = quantity.values[mask], quantity.values[~mask]
    if np.isnan(mine).all():
        return
    value = float(np.nanmean(mine))
    usual = None if np.isnan(others).all() else float(np.nanmean(others))
    against = "" if usual is None else f", the others {show(usual, kind.unit)}"
    each = " each" if int(mask.sum()) > 1 else ""
    ratio = f" ({times(value / usual)})" if usual else ""
    text = f"{show(value, kind.unit)} {kind.text}{each}{against}{ratio}"
    moments = seen.window.last - seen.window.first + 1
    samples = _count(seen) if quantity.source in COUNTED else moments
    yield replace(kind, value=value, text=text, expected=usual, samples=samples)


def tell_waits(seen: LedgerView, load: LoadFound) -> Iterator[Evidence]:
    """Tell how long the named ranks wait at step borders: least, if their load holds the others up."""
    if seen.waits is None:
        return
    waits = seen.waits.per_step_s
    mine, others = waits[load.mask], waits[~load.mask]
    if np.isnan(mine).all() or np.isnan(others).all():
        return
    own, usual = float(np.nanmean(mine)), float(np.nanmean(others))
    if own > LESS * usual:
        return
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
        prefix, size = next((name, size) for name, size in _PREFIXES if abs(value) >= 0.9995 * size)
        return f"{value / size:.3g} {prefix}"
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.3g}"


def show_s(seconds: float) -> str:
    """Write seconds as milliseconds."""
    return f"{1e3 * seconds:.3g} ms"
