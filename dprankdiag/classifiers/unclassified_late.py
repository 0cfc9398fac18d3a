"""A rank that is late for a reason that the recording does not show."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dprankdiag.analysis.chips import SLOW_CHIP_MARGIN
from dprankdiag.analysis.exits import judge_exits
from dprankdiag.analysis.loads import classify_loads
from dprankdiag.analysis.observations import Observations
from dprankdiag.analysis.skews import Skews, rest_of_work
from dprankdiag.analysis.standouts import Standout
from dprankdiag.classifiers.base import (
    lift_off,
    members,
    scale,
    show_culprits,
    unseen_member,
    when_of,
    who_of,
)
from dprankdiag.classifiers.late_exits import claim_exit
from dprankdiag.model.claims import Claim
from dprankdiag.model.diagnosis import Abstention, Alternative, Evidence
from dprankdiag.units import format_ns


class UnclassifiedLate:
    """A rank that is late for a reason that the recording does not show.

    *What you see*: the others wait for this rank in meeting after meeting.

    *Why it happens*: work of a name that nobody knows, idle time that no launch explains, or a late way out of a
    collective whose kind cannot be told.

    *How we tell it apart*: the rank's excess lies outside what its peers scatter, and none of the better known
    causes covers it.

    *What to do*: look at the named evidence on the timeline; name unknown kernels with a pattern file, record
    launch calls and annotations, and run again.
    """

    cause = "unclassified.late"

    def judge(self, seen: Observations, skews: Skews) -> Iterator[Claim | Abstention]:
        """Claim excess work and idle time that no other cause covers."""
        covered = [load.standout for load in classify_loads(seen, skews)]
        candidates: list[tuple[str, Standout, str]] = [
            (rest_of_work(skews.speed_basis), item, "work of other kinds")
            for item in skews.other
            if not _is_covered(item, covered)
        ]
        candidates += [
            ("rest", item, "idle time that no launch explains")
            for item in skews.rest
            if not _goes_with_speed(item, skews)
        ]
        late = [item for item in judge_exits(seen, skews) if item.verdict == "late"]
        if (candidates or late) and (reason := unseen_member(seen)) is not None:
            yield Abstention(self.cause, reason)
            return
        for component, standout, what in candidates:
            yield _claim(seen, skews, self.cause, component, standout, what)
        for exit_skew in late:
            yield claim_exit(seen, exit_skew, self.cause, "leaves meetings late")


def _is_covered(item: Standout, covered: list[Standout]) -> bool:
    return any(other.mask[item.mask].all() and (other.steps & item.steps).any() for other in covered)


def _goes_with_speed(item: Standout, skews: Skews) -> bool:
    """Tell whether gaps are longer by no more than the chip is slower: rows that the profiler lost leave such gaps."""
    for slow in skews.speed:
        if slow.mask[item.mask].all() and (slow.steps & item.steps).any():
            speed = float(np.mean(slow.levels[item.mask])) / slow.centre
            return float(np.mean(item.levels[item.mask])) <= SLOW_CHIP_MARGIN * speed * max(item.centre, 1.0)
    return False


def _claim(seen: Observations, skews: Skews, cause: str, component: str, standout: Standout, what: str) -> Claim:
    ranks = members(standout.mask)
    steps = standout.steps
    values = seen.sums[component]
    values = np.maximum(values, 0.0) if component == "rest" else values / skews.slowness
    part = np.median(values[steps], axis=0)
    others = [position for position in range(seen.n_ranks) if position not in ranks]
    excess = float(part[list(ranks)].mean() - np.median(part[others])) if others else 0.0
    return Claim(
        cause,
        ranks,
        steps,
        who_of(standout),
        when_of(seen, standout),
        f"{seen.names_of(ranks)}: {format_ns(excess)} more {what} a step than the others",
        (
            Evidence(
                "excess_ns_per_step", excess, "ns", f"{format_ns(excess)} more {what} a step", 0.0, int(steps.sum())
            ),
            *show_culprits(seen, ranks, steps),
        ),
        (
            Alternative("load.unknown", "attention kernels among the work"),
            Alternative("single_point.host", "launch calls that return after the GPU went idle"),
        ),
        (scale(seen, component, lift_off(values, standout)),),
    )
