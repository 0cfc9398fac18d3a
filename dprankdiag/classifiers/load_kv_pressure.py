"""A rank whose KV pool is full."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dprankdiag.analysis.ledger_view import LedgerView
from dprankdiag.analysis.uneven import find_high
from dprankdiag.classifiers.base import name_numbers
from dprankdiag.classifiers.ledgers import sureness, who_of
from dprankdiag.model.claims import UntimedClaim
from dprankdiag.model.diagnosis import Abstention, Alternative, Evidence
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
    the pool is shown beside it. A full pool without retractions, or retractions on all ranks alike, is no finding about
    ranks. vLLM counts a preemption only when the request goes on, so the count lags.

    *What to do*: cap the requests of a rank so that their full contexts fit, balance by tokens, give the pool more
    memory.
    """

    cause = "load.kv_pressure"

    def judge_ledger(self, seen: LedgerView) -> Iterator[UntimedClaim | Abstention]:
        """Claim ranks that retract more than the others."""
        if seen.retracted is None or seen.reason is not None:
            return
        counts = np.nan_to_num(seen.retracted)
        high = find_high(counts, counts)
        if high is None or counts[high.mask].min() < FEWEST_RETRACTED:
            return
        ranks = seen.names_of(high.mask)
        count = round(float(counts[high.mask].sum()))
        rest = round(float(counts[~high.mask].sum()))
        text = f"{count} requests taken out of the batch for lack of KV room, {rest} on all other ranks"
        yield UntimedClaim(
            self.cause,
            ranks,
            who_of(high.mask),
            f"{name_numbers(ranks)}: KV pool is full: {text}",
            (Evidence("retracted_requests", float(count), "count", text, float(rest)), *_usage(seen, high.mask)),
            (Alternative("load.context", "KV tokens above the others' and nothing retracted"),),
            sureness(high.score),
            seen.window.span_ns,
            severity="warning",
        )


def _usage(seen: LedgerView, mask: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Iterator[Evidence]:
    if seen.kv_usage is None or np.isnan(seen.kv_usage[mask]).all():
        return
    own = float(np.nanmax(seen.kv_usage[mask]))
    others = seen.kv_usage[~mask]
    usual = None if np.isnan(others).all() else float(np.nanmedian(others))
    text = f"{format_ratio(own)} of its KV pool in use, the others {format_ratio(usual)}"
    yield Evidence("kv_usage_ratio", own, "ratio", text, usual)
