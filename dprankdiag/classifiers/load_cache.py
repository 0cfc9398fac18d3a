"""Prompts that one rank computes and the others find in their prefix cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from dprankdiag.analysis.ledger_loads import find_load
from dprankdiag.analysis.ledger_view import LedgerView
from dprankdiag.classifiers.ledgers import claim_ledger_load
from dprankdiag.model.claims import UntimedClaim
from dprankdiag.model.diagnosis import Abstention, Evidence
from dprankdiag.units import format_ratio


class LoadCache:
    """Prompts that one rank computes and the others find in their prefix cache.

    *What you see*: a rank computes more prompt tokens than its peers although the prompts sent to it are no longer; the
    others wait for its prefill chunks.

    *Why it happens*: requests that share a prefix are spread over ranks whose caches do not; a rank started later, or
    its cache was flushed or overrun; a router pins some sessions elsewhere.

    *How we tell it apart*: computed and cached prompt tokens are counted on each rank: their sum is even, the computed
    part is not, and the share found in the cache is lower by a tenth or more. If the sum is uneven too, it is a matter
    of prompts (load.prefill) or of requests (load.requests). Gauges of the last report say nothing here.

    *What to do*: route by prefix, or warm every rank with the shared prefixes, and watch that the load stays even.
    """

    cause = "load.cache"

    def judge_ledger(self, seen: LedgerView) -> Iterator[UntimedClaim | Abstention]:
        """Claim uneven hits, with the hit rates; abstain where nothing counts them."""
        for claim in claim_ledger_load(
            seen, self.cause, "cache", "computes prompts that the others find in their caches"
        ):
            yield _with_hits(seen, claim)
        if seen.hits is None and seen.reason is None:
            text = "no counter tells which prompt tokens each rank found in its cache over this time"
            yield Abstention(self.cause, text, ("computed and cached prompt tokens by rank",), None)


def _with_hits(seen: LedgerView, claim: UntimedClaim) -> UntimedClaim:
    load = find_load(seen)
    if load is None or seen.hits is None:
        return claim
    own, usual = float(np.nanmean(seen.hits[load.mask])), float(np.nanmean(seen.hits[~load.mask]))
    text = f"{format_ratio(own)} of its prompt tokens found in the cache, the others {format_ratio(usual)}"
    hits = Evidence("cache_hit_ratio", own, "ratio", text, usual)
    return replace(claim, evidence=(*claim.evidence, hits))
