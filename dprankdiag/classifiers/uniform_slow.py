"""Every rank alike is slower than in the rest of the recording."""

from __future__ import annotations

from collections.abc import Iterator

from dprankdiag.analysis.observations import Observations
from dprankdiag.analysis.skews import Skews
from dprankdiag.model.claims import Claim
from dprankdiag.model.diagnosis import Abstention, Evidence
from dprankdiag.units import format_ratio


class UniformSlow:
    """Every rank alike is slower than in the rest of the recording.

    *What you see*: steps are longer, and no rank waits more than before.

    *Why it happens*: a power cap or clock limit for the whole node, another engine version or kernel choice, a
    larger batch, a different model: not a problem of one rank.

    *How we tell it apart*: kernels of equal work (same name, same launch shape) take longer on every rank by about
    the same ratio, in a run of steps against the rest of the same recording. A recording that is slow throughout
    looks healthy here: there is nothing to compare it with.

    *What to do*: look for what changed on all ranks at that time; compare with a recording of a good day.
    """

    cause = "uniform.slow"

    def judge(self, seen: Observations, skews: Skews) -> Iterator[Claim | Abstention]:
        """Claim runs of steps in which equal work takes longer everywhere."""
        if skews.common is None:
            yield Abstention(
                self.cause,
                "this recording alone cannot show whether all ranks are slower than they should be",
                ("a reference recording",),
                "record the same load on a good day and compare",
            )
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
            0.9,
            loss_known=False,
        )
