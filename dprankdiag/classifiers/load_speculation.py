"""Drafts that are accepted less often on one rank."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dprankdiag.analysis.ledger_loads import find_poor_drafts
from dprankdiag.analysis.ledger_view import LedgerView
from dprankdiag.classifiers.base import name_numbers
from dprankdiag.classifiers.ledgers import sureness, who_of
from dprankdiag.model.claims import UntimedClaim
from dprankdiag.model.diagnosis import Abstention, Alternative, Evidence
from dprankdiag.model.ledgers import BoolArray


class LoadSpeculation:
    """Drafts that are accepted less often on one rank.

    *What you see*: with speculative decoding, every rank takes as many steps, and one of them gets fewer tokens from
    each; its requests stay longer, so that requests and context collect there.

    *Why it happens*: its requests are of a kind that the draft model foresees badly (another language, sampling with a
    high temperature, a tenant of its own), or its draft model is not the one of the others.

    *How we tell it apart*: tokens per row and step, from counters of each rank, clearly below the others'. Step times
    are equal in lockstep and say nothing. Throughput is only compared against rows.

    *What to do*: mix the kinds of requests over the ranks; check the draft model and its settings on that rank.
    """

    cause = "load.speculation"

    def judge_ledger(self, seen: LedgerView) -> Iterator[UntimedClaim | Abstention]:
        """Claim ranks whose drafts are accepted less often."""
        if seen.accepted is None or seen.reason is not None:
            return
        if int((~np.isnan(seen.accepted)).sum()) < len(seen.ranks):
            yield Abstention(self.cause, "not all ranks tell how many drafted tokens they accept", (), None)
            return
        low = find_poor_drafts(seen)
        if low is None:
            return
        ranks = seen.names_of(low.mask)
        own, usual = float(np.nanmean(seen.accepted[low.mask])), float(np.nanmean(seen.accepted[~low.mask]))
        text = f"{own:.3g} tokens per request and step, the others {usual:.3g}"
        yield UntimedClaim(
            self.cause,
            ranks,
            who_of(low.mask),
            f"{name_numbers(ranks)}: drafts are accepted less often: {text}",
            (Evidence("accepted_tokens", own, "tokens", text, usual),),
            (Alternative("load.requests", "as many tokens per request and step, more requests"),),
            sureness(low.score),
            seen.window.span_ns,
            work_ratio=_collected(seen, low.mask),
        )


def _collected(seen: LedgerView, mask: BoolArray) -> float | None:
    """Return the busiest over the mean requests, if they collect on the ranks of a mask."""
    high = None if seen.rows is None else seen.rows.uneven
    return high.work_ratio if high is not None and not (high.mask & ~mask).any() else None
