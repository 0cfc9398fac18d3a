"""Every rank alike is slower than in the rest of the recording, or than in another one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dprankdiag.analysis.observations import Observations
from dprankdiag.analysis.reference import compare_speed
from dprankdiag.analysis.skews import Skews
from dprankdiag.model.claims import Claim
from dprankdiag.model.diagnosis import Abstention, Evidence
from dprankdiag.units import format_ratio


class UniformSlow:
    """Every rank alike is slower than in the rest of the recording, or than in another one.

    *What you see*: steps are longer, and no rank waits more than before.

    *Why it happens*: a power cap or clock limit for the whole node, another engine version or kernel choice, a
    larger batch, a different model: not a problem of one rank.

    *How we tell it apart*: kernels of equal work (same name, same launch shape) take longer on every rank by about
    the same ratio, in a run of steps against the rest of the same recording, else against an earlier recording
    (``--baseline``), beyond what ranks and steps scatter. Graphs of a larger batch, and kernels that fill the chip
    whatever their rows, have equal launches and more work: within a recording only steps with as many rows are
    compared, by batch annotations; without them attention and experts must be longer by as much. A recording that is
    slow throughout looks healthy without a baseline: there is nothing to compare it with.

    *What to do*: look for what changed on all ranks at that time; compare with a recording of a good day.
    """

    cause = "uniform.slow"

    def judge(self, seen: Observations, skews: Skews) -> Iterator[Claim | Abstention]:
        """Claim runs of steps in which equal work takes longer everywhere."""
        if skews.common is None:
            yield from _judge_against_reference(seen, self.cause)
            return
        steps, ratio = skews.common
        n = int(steps.sum())
        yield Claim(
            self.cause,
            (),
            steps,
            "all",
            "onset",
            f"every rank takes {format_ratio(ratio - 1)} longer for equal work in {n} of {seen.n_steps} steps",
            (Evidence("probe_slowness_ratio", ratio, "ratio", f"equal work takes {ratio:.3f} × as long", 1.0, n),),
            (),
            (),
            loss_known=False,
        )


def _judge_against_reference(seen: Observations, cause: str) -> Iterator[Claim | Abstention]:
    """Judge a recording whose steps are alike by another one, if there is one."""
    reference = seen.reference
    if reference is None or reference.misfit is not None or reference.slowness is None:
        reason = "this recording alone cannot show whether all ranks are slower than they should be"
        if reference is not None:
            unlike = reference.misfit or "they have too little equal work in common"
            reason = f"{reason}, and it cannot be compared with {reference.name}: {unlike}"
        mend = "record the same load on a good day and give it: --baseline FILE.dprank"
        yield Abstention(cause, reason, ("a reference recording",), mend)
        return
    slow = compare_speed(seen, reference)
    if slow is None:
        return
    text = f"equal work takes {slow.ratio:.3f} × as long, on the least slow rank {slow.lowest:.3f} ×"
    yield Claim(
        cause,
        (),
        np.ones(seen.n_steps, bool),
        "all",
        "steady",
        f"every rank takes {format_ratio(slow.ratio - 1)} longer for equal work than in {reference.name}",
        (Evidence("probe_slowness_ratio", slow.ratio, "ratio", text, 1.0, slow.kernels),),
        (),
        (),
        loss_known=False,
    )
