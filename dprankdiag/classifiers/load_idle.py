"""Ranks without work of their own keep step with the busy ones."""

from __future__ import annotations

from collections.abc import Iterator

from dprankdiag.analysis.observations import Observations
from dprankdiag.analysis.skews import Skews
from dprankdiag.classifiers.base import claim_loads
from dprankdiag.model.claims import Claim
from dprankdiag.model.diagnosis import Abstention


class LoadIdle:
    """Ranks without work of their own keep step with the busy ones.

    *What you see*: some ranks run no attention in most steps and only take part in the collectives; the named ranks
    hold all requests.

    *Why it happens*: too few requests for so many ranks, sticky sessions, or a router that does not know of the
    idle ranks.

    *How we tell it apart*: a rank counts as idle where its attention is below a twentieth of the busy ranks' in at
    least half of the steps.

    *What to do*: spread the requests over all ranks, or serve this load with fewer ranks.
    """

    cause = "load.idle"

    def judge(self, seen: Observations, skews: Skews) -> Iterator[Claim | Abstention]:
        """Claim the attention standouts of this kind."""
        yield from claim_loads(seen, skews, self.cause, "idle", " while others have none")
