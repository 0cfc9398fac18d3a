"""A rank whose KV pool is full."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dprankdiag.analysis.ledger_loads import count_queued, find_full
from dprankdiag.analysis.ledger_view import LedgerView
from dprankdiag.analysis.uneven import find_high
from dprankdiag.classifiers.base import name_numbers
from dprankdiag.classifiers.ledgers import sureness, who_of
from dprankdiag.model.claims import UntimedClaim
from dprankdiag.model.diagnosis import Abstention, Alternative, Evidence
from dprankdiag.model.ledgers import BoolArray, FloatArray
from dprankdiag.units import format_ratio

FEWEST_RETRACTED = 3
"""One or two requests taken out on a rank are an accident of lengths."""


class LoadKvPressure:
    """A rank whose KV pool is full.

    *What you see*: one rank takes requests out of its batch again (SGLang retraction, vLLM preemption) and computes
    their tokens a second time; its pool is full while the others have room.

    *Why it happens*: long contexts collected on that rank, a cap on requests that does not fit their lengths, or a
    router that does not look at tokens.

    *How we tell it apart*: retractions are counted on each rank: the rank has more than chance gives the others. Use of
    the pool is shown beside it. Without retractions a full pool counts if requests queue on that rank alone although
    it runs no more than the others, who have room. Retractions on all ranks alike are no finding about ranks. vLLM
    counts a preemption only when the request goes on, so the count lags.

    *What to do*: cap the requests of a rank so that their full contexts fit, balance by tokens, give the pool more
    memory.
    """

    cause = "load.kv_pressure"

    def judge_ledger(self, seen: LedgerView) -> Iterator[UntimedClaim | Abstention]:
        """Claim ranks that retract more than the others."""
        if seen.reason is not None:
            return
        full = find_full(seen)
        counts = None if seen.retracted is None else np.nan_to_num(seen.retracted)
        high = None if counts is None else find_high(counts, counts)
        if counts is not None and high is not None and counts[high.mask].min() >= FEWEST_RETRACTED:
            yield _claim(self.cause, seen, high.mask, sureness(high.score), _retractions(counts, high.mask))
        elif full is not None:
            yield _claim(self.cause, seen, full, 0.75, _queue(seen, full))
        elif counts is None:
            text = "no counter tells how many requests each rank took out of its batch for lack of room"
            yield Abstention(self.cause, text, ("retractions by rank",), None)


def _claim(cause: str, seen: LedgerView, mask: BoolArray, support: float, lead: Evidence) -> UntimedClaim:
    ranks = seen.names_of(mask)
    return UntimedClaim(
        cause,
        ranks,
        who_of(mask),
        f"{name_numbers(ranks)}: KV pool is full: {lead.text}",
        (lead, *_usage(seen, mask)),
        (Alternative("load.context", "KV tokens above the others', room in the pool and nothing retracted"),),
        support,
        seen.window.span_ns,
        severity="warning",
    )


def _retractions(counts: FloatArray, mask: BoolArray) -> Evidence:
    count, rest = round(float(counts[mask].sum())), round(float(counts[~mask].sum()))
    text = f"{count} requests taken out of the batch for lack of KV room, {rest} on all other ranks"
    return Evidence("retracted_requests", float(count), "count", text, float(rest))


def _queue(seen: LedgerView, mask: BoolArray) -> Evidence:
    waiting = count_queued(seen)
    assert waiting is not None
    own, usual = float(np.nanmean(waiting[mask])), float(np.nanmean(waiting[~mask]))
    text = f"{own:.3g} requests wait, the others' {usual:.3g}, although it runs no more than they do"
    return Evidence("waiting_requests", own, "count", text, usual)


def _usage(seen: LedgerView, mask: BoolArray) -> Iterator[Evidence]:
    if seen.kv_usage is None or np.isnan(seen.kv_usage[mask]).all():
        return
    own = float(np.nanmax(seen.kv_usage[mask]))
    others = seen.kv_usage[~mask]
    usual = None if np.isnan(others).all() else float(np.nanmedian(others))
    text = f"{format_ratio(own)} of its KV pool in use, the others {format_ratio(usual)}"
    yield Evidence("kv_usage_ratio", own, "ratio", text, usual)
