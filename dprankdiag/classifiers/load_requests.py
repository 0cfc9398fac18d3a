"""More requests on one rank."""

from __future__ import annotations

from collections.abc import Iterator

from dprankdiag.analysis.ledger_view import LedgerView
from dprankdiag.analysis.observations import Observations
from dprankdiag.analysis.skews import Skews
from dprankdiag.classifiers.ledgers import judge_ledger_load
from dprankdiag.classifiers.loads import claim_loads
from dprankdiag.model.claims import Claim, UntimedClaim
from dprankdiag.model.diagnosis import Abstention


class LoadRequests:
    """More requests on one rank.

    *What you see*: one rank's attention is longer and its row-wise kernels are launched with larger grids; after
    the gather all ranks work alike.

    *Why it happens*: the router counts wrongly or late: stale ledgers, bursts between two updates, session
    affinity, a tie always broken for the same rank.

    *How we tell it apart*: attention grows with the requests that batch annotations, or else launch shapes, show;
    kernels of equal work do not grow. Where batches are padded to the longest, work after the gather grows on every
    rank as the busiest rank's rows do, and no wait shows it; in a replayed graph so does work before it. Its price is
    added where the rows change between steps and annotations tell them, else the loss is called a lower bound. So is
    what the rank's host takes longer for its requests, where ranges show when hosts meet. In a ledger: requests stand
    out beyond what random routing gives, and explain at least half of the excess in attention; those that wait for
    another engine's pages, or for KV that it computes, are not counted.

    *What to do*: look at the router's policy and the age of the numbers it believes; prefer the shortest queue by
    tokens; loosen session affinity.
    """

    cause = "load.requests"

    def judge(self, seen: Observations, skews: Skews) -> Iterator[Claim | Abstention]:
        """Claim the attention standouts of this kind."""
        yield from claim_loads(seen, skews, self.cause, "requests", ", and more requests")

    def judge_ledger(self, seen: LedgerView) -> Iterator[UntimedClaim | Abstention]:
        """Claim an uneven load of this kind, or say that it may be chance."""
        yield from judge_ledger_load(seen, self.cause, "requests", "more requests than the others")
