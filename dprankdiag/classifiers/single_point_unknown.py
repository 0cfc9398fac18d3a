"""One rank is slow in all its work, but no kernel of equal work shows whether it has more to do."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dprankdiag.analysis.awaited import WaitView
from dprankdiag.analysis.ledger_loads import find_load
from dprankdiag.analysis.ledger_view import LedgerView
from dprankdiag.analysis.observations import Observations
from dprankdiag.analysis.skews import Skews
from dprankdiag.classifiers.base import (
    line_evidence,
    members,
    scale,
    show_culprits,
    times,
    unseen_member,
    when_of,
    who_of,
)
from dprankdiag.classifiers.ledgers import claim_slow_engine
from dprankdiag.model.claims import Claim, UntimedClaim
from dprankdiag.model.diagnosis import Abstention, Alternative, Evidence


class SinglePointUnknown:
    """One rank is slow before and after the gather, and nothing of equal work was recorded to say why.

    *What you see*: attention and experts of one rank both take longer by a similar ratio; the others wait for it.

    *Why it happens*: most often a slow GPU. More requests and hot experts on the same rank at once would look the
    same.

    *How we tell it apart*: work before the gather follows requests, work after it follows routing; both rising
    together points at the rank itself. A kernel of equal work would prove it, and none was found.

    In a receive-wait matrix a rank that everyone waits for, and whose own waits are even, is late and not badly
    connected; a rank that itself waits long for everyone receives slowly, or comes early. Which of these, and why, no
    matrix tells.

    *What to do*: check clocks, throttle reasons and a second process on that GPU; name the unknown kernels with a
    pattern file so that equal work can be compared.
    """

    cause = "single_point.unknown"

    def judge(self, seen: Observations, skews: Skews) -> Iterator[Claim | Abstention]:
        """Claim ranks slow on both sides of the gather where no probe exists."""
        if skews.speed_basis != "expert" or seen.abilities.uneven is not None:
            return
        if skews.speed and (reason := unseen_member(seen)) is not None:
            yield Abstention(self.cause, reason)
            return
        for standout in skews.speed:
            ranks = members(standout.mask)
            steps = standout.steps
            factor = np.where(standout.marks, standout.centre / skews.slowness, 1.0)
            slow = float(np.mean(standout.levels[standout.mask])) / standout.centre
            yield Claim(
                self.cause,
                ranks,
                steps,
                who_of(standout),
                when_of(seen, standout),
                f"{seen.names_of(ranks)}: attention and experts both take {slow:.2f} × the other ranks' time",
                (
                    Evidence(
                        "busy_ratio",
                        slow,
                        "ratio",
                        f"experts take {slow:.2f} × as long, attention too",
                        1.0,
                        int(steps.sum()),
                    ),
                    *show_culprits(seen, ranks, steps),
                ),
                (
                    Alternative("single_point.gpu", "kernels of equal work that take longer"),
                    Alternative("load.unknown", "only attention longer"),
                ),
                tuple(scale(seen, name, factor) for name in ("attention", "expert", "other")),
            )

    def judge_waits(self, seen: WaitView) -> Iterator[UntimedClaim]:
        """Claim ranks that everyone waits for, and ranks that wait for everyone."""
        for line in seen.awaited:
            if line.scope == "far" or line.own_high:
                continue
            rank = seen.ranks[line.rank]
            others = "the ranks of its node wait" if line.scope == "near" else "every other rank waits"
            yield UntimedClaim(
                self.cause,
                (rank,),
                "one",
                f"rank {rank}: {others} {times(line.ratio)} as long for it as for the others: it comes late",
                tuple(line_evidence(line, len(seen.ranks))),
                (
                    Alternative("load.unknown", "more work before the exchange on that rank (counters or a trace)"),
                    Alternative("single_point.link", "its own waits long as well, or only other nodes waiting for it"),
                ),
                line.support,
            )
        for line in seen.waiting:
            rank = seen.ranks[line.rank]
            yield UntimedClaim(
                self.cause,
                (rank,),
                "one",
                f"rank {rank}: waits {times(line.ratio)} as long for the others as they do for each other: it receives "
                "slowly, or comes early",
                tuple(line_evidence(line, len(seen.ranks))),
                (
                    Alternative("structural.dispatch", "waits that grow with the tokens it receives"),
                    Alternative("single_point.link", "slow transfers of that rank in every operation"),
                    Alternative("load.idle", "little or no work on that rank, so that it comes first"),
                ),
                line.support,
            )

    def judge_ledger(self, seen: LedgerView) -> Iterator[UntimedClaim | Abstention]:
        """Claim engines that step more slowly than the others at even load, where each steps on its own."""
        if seen.reason is None and find_load(seen) is None:
            yield from claim_slow_engine(seen, self.cause)
