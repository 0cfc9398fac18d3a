"""A link that is slow in every operation."""

from __future__ import annotations

from collections.abc import Iterator

from dprankdiag.analysis.awaited import WaitView
from dprankdiag.analysis.exits import judge_exits
from dprankdiag.analysis.observations import Observations
from dprankdiag.analysis.skews import Skews
from dprankdiag.classifiers.base import line_evidence, times, unseen_member
from dprankdiag.classifiers.late_exits import claim_exit, explain_untold
from dprankdiag.model.claims import Claim, UntimedClaim
from dprankdiag.model.diagnosis import Abstention, Alternative, Evidence


class SinglePointLink:
    """A link that is slow in every operation.

    *What you see*: one rank leaves collectives later than its peers, in every operation and whatever the size, and
    therefore comes late to the next meeting; its kernels and launches are like everybody's.

    *Why it happens*: a degraded NVLink, PCIe or network link, a NIC in a wrong slot, a cable, or a rail shared with
    other traffic.

    *How we tell it apart*: lateness is measured on the way out of a meeting, against the group's median end. It
    must exceed the uncertainty of the clocks, or show on the rank's own clock alone, and occur in all operations of
    that rank. Where ranks that are late together meet among themselves, they are late by how much longer that takes
    than in other groups. Ranks that meet to exchange tokens alone leave the cause open: a receiver queue would look the
    same. In a receive-wait matrix it is a single pair far above its row and column, a rank for which only the
    ranks of other nodes wait, or one whose row and column both stand out.

    *What to do*: read the link's error and speed counters, run a point-to-point bandwidth test of that rank, swap
    cable or NIC.
    """

    cause = "single_point.link"

    def judge(self, seen: Observations, skews: Skews) -> Iterator[Claim | Abstention]:
        """Claim the late exits of this kind."""
        if seen.abilities.uneven is not None:
            yield Abstention(self.cause, seen.abilities.uneven)
            return
        exits = judge_exits(seen, skews)
        yield from explain_untold(seen, exits, self.cause)
        for late in exits:
            if late.verdict != "link":
                continue
            if (reason := unseen_member(seen)) is not None:
                yield Abstention(self.cause, reason)
                continue
            yield claim_exit(seen, late, self.cause, "transfers of every kind end late")

    def judge_waits(self, seen: WaitView) -> Iterator[UntimedClaim]:
        """Claim slow pairs, ranks slow towards other nodes, and ranks slow both ways."""
        for line in seen.awaited:
            rank = seen.ranks[line.rank]
            if line.own_high:
                what = "waits long for the others and they for it: slow both ways"
            elif line.scope == "far":
                what = f"ranks of other nodes wait {times(line.ratio)} as long for it, those of its node do not"
            else:
                continue
            evidence = tuple(line_evidence(line, len(seen.ranks)))
            yield UntimedClaim(self.cause, (rank,), "one", f"rank {rank}: {what}", evidence, _LATE, line.support)
        for pair in seen.pairs:
            waiting, awaited = seen.ranks[pair.waiting], seen.ranks[pair.awaited]
            text = f"{times(pair.ratio)} what its row and column let expect"
            yield UntimedClaim(
                self.cause,
                tuple(sorted((waiting, awaited))),
                "group",
                f"ranks {waiting} and {awaited}: rank {waiting} waits {times(pair.ratio)} as long for rank {awaited} "
                "as their other waits let expect: the link between them",
                (Evidence("pair_wait_ratio", pair.ratio, "ratio", text, 1.0, 1),),
                (Alternative("structural.dispatch", "many more tokens sent from one to the other"),),
                pair.support,
            )


_LATE = (Alternative("single_point.unknown", "every other rank waiting for it while its own waits are even"),)
