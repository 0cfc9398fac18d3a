"""A receiver queue: one rank receives more than its link can take at once."""

from __future__ import annotations

from collections.abc import Iterator

from dprankdiag.analysis.exits import judge_exits
from dprankdiag.analysis.observations import Observations
from dprankdiag.analysis.skews import Skews
from dprankdiag.classifiers.base import unseen_member
from dprankdiag.classifiers.late_exits import claim_exit, explain_untold
from dprankdiag.model.claims import Claim
from dprankdiag.model.diagnosis import Abstention


class StructuralDispatch:
    """A receiver queue: one rank receives more than its link can take at once.

    *What you see*: one rank leaves dispatch or combine later than its peers, most where it receives most tokens;
    other collectives end together.

    *Why it happens*: many senders address the same receiver: hot experts, padding tokens routed to one rank, or a
    layout that sends most traffic over one link.

    *How we tell it apart*: the lateness occurs in dispatch or combine only, or follows the rank's own expert work
    from layer to layer of a step, by four times what chance makes of as many pairs. A link that is ill is late in
    everything; where ranks meet in nothing else, and lateness does not follow the work, both stay possible.

    *What to do*: spread the hot experts (EPLB, redundant experts), look at where dummy tokens go, limit tokens a
    rank dispatches at once.
    """

    cause = "structural.dispatch"

    def judge(self, seen: Observations, skews: Skews) -> Iterator[Claim | Abstention]:
        """Claim the late exits of this kind."""
        exits = judge_exits(seen, skews)
        yield from explain_untold(seen, exits, self.cause)
        for late in exits:
            if late.verdict != "dispatch":
                continue
            if (reason := unseen_member(seen)) is not None:
                yield Abstention(self.cause, reason)
                continue
            yield claim_exit(seen, late, self.cause, "leaves dispatch or combine late")
