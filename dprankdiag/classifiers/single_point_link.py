"""A link that is slow in every operation."""

from __future__ import annotations

from collections.abc import Iterator

from dprankdiag.analysis.exits import judge_exits
from dprankdiag.analysis.observations import Observations
from dprankdiag.analysis.skews import Skews
from dprankdiag.classifiers.base import claim_exit, unseen_member
from dprankdiag.model.claims import Claim
from dprankdiag.model.diagnosis import Abstention


class SinglePointLink:
    """A link that is slow in every operation.

    *What you see*: one rank leaves collectives later than its peers, in every operation and whatever the size, and
    therefore comes late to the next meeting; its kernels and launches are like everybody's.

    *Why it happens*: a degraded NVLink, PCIe or network link, a NIC in a wrong slot, a cable, or a rail shared with
    other traffic.

    *How we tell it apart*: lateness is measured on the way out of a meeting, against the group's median end. It
    must exceed the uncertainty of the clocks, or show on the rank's own clock alone, and occur in all operations of
    that rank.

    *What to do*: read the link's error and speed counters, run a point-to-point bandwidth test of that rank, swap
    cable or NIC.
    """

    cause = "single_point.link"

    def judge(self, seen: Observations, skews: Skews) -> Iterator[Claim | Abstention]:
        """Claim the late exits of this kind."""
        if seen.abilities.uneven is not None:
            yield Abstention(self.cause, seen.abilities.uneven)
            return
        for late in judge_exits(seen, skews):
            if late.verdict != "link":
                continue
            if (reason := unseen_member(seen)) is not None:
                yield Abstention(self.cause, reason)
                continue
            yield claim_exit(seen, late, self.cause, "transfers of every kind end late")
