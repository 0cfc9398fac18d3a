"""One rank is slow in all its work, but no kernel of equal work shows whether it has more to do."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dprankdiag.analysis.observations import Observations
from dprankdiag.analysis.skews import Skews
from dprankdiag.classifiers.base import members, scale, show_culprits, unseen_member, when_of, who_of
from dprankdiag.model.claims import Claim
from dprankdiag.model.diagnosis import Abstention, Alternative, Evidence


class SinglePointUnknown:
    """One rank is slow before and after the gather, and nothing of equal work was recorded to say why.

    *What you see*: attention and experts of one rank both take longer by a similar ratio; the others wait for it.

    *Why it happens*: most often a slow GPU. More requests and hot experts on the same rank at once would look the
    same.

    *How we tell it apart*: work before the gather follows requests, work after it follows routing; both rising
    together points at the rank itself. A kernel of equal work would prove it, and none was found.

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
                standout.support,
            )
