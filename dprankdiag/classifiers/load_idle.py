"""Ranks without work of their own keep step with the busy ones."""

from __future__ import annotations

from collections.abc import Iterator

from dprankdiag.analysis.idleness import suspect_idle
from dprankdiag.analysis.ledger_view import LedgerView
from dprankdiag.analysis.observations import Observations
from dprankdiag.analysis.skews import Skews
from dprankdiag.catalog.identifiability import load_inputs
from dprankdiag.classifiers.base import members
from dprankdiag.classifiers.ledgers import claim_ledger_load
from dprankdiag.classifiers.loads import claim_loads
from dprankdiag.model.claims import Claim, UntimedClaim
from dprankdiag.model.diagnosis import Abstention


class LoadIdle:
    """Ranks without work of their own keep step with the busy ones.

    *What you see*: some ranks run no attention in most steps and only take part in the collectives; the named ranks
    hold all requests.

    *Why it happens*: too few requests for so many ranks, sticky sessions, or a router that does not know of the
    idle ranks.

    *How we tell it apart*: a rank counts as idle where its batch annotations announce no requests in at least half
    of the steps in which others have some; a dummy batch that nobody announces, by attention far below the busy
    ranks', or as short as over a few short requests and less than half of theirs. Without annotations, by attention
    that takes next to no time; inside a graph a dummy batch takes as long as a short request, and without
    annotations nothing is said. In a ledger: by the steps counted as idle, else by counters that stand while others
    grow. Fewer requests than ranks, or so few that chance alone leaves ranks empty, are no finding.

    *What to do*: spread the requests over all ranks, or serve this load with fewer ranks.
    """

    cause = "load.idle"

    def judge(self, seen: Observations, skews: Skews) -> Iterator[Claim | Abstention]:
        """Claim the attention standouts of this kind, or say whose requests nothing tells."""
        found = list(claim_loads(seen, skews, self.cause, "idle", " while others have none"))
        yield from found
        unsure = suspect_idle(seen)
        if not found and unsure.any() and not unsure.all():
            who = seen.names_of(members(unsure))
            reason = f"{who}: next to no attention in most steps; none or a few short requests, nothing tells which"
            mend = load_inputs()["trace-nvtx"].get_it_with
            yield Abstention(self.cause, reason, ("batch annotations of every rank",), mend)

    def judge_ledger(self, seen: LedgerView) -> Iterator[UntimedClaim | Abstention]:
        """Claim an uneven load of this kind."""
        yield from claim_ledger_load(seen, self.cause, "idle", "all the work, the other ranks only keep step")
