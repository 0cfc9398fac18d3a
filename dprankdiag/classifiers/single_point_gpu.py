"""A GPU that is slow at equal work."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dprankdiag.analysis.chips import SLOW_CHIP_MARGIN, measure_slowness
from dprankdiag.analysis.observations import Observations
from dprankdiag.analysis.skews import Skews
from dprankdiag.analysis.standouts import Standout
from dprankdiag.analysis.statistics import FloatArray
from dprankdiag.classifiers.base import (
    members,
    period_of,
    ranks_of,
    scale,
    show_culprits,
    unseen_member,
    when_of,
    who_of,
)
from dprankdiag.model.claims import Claim
from dprankdiag.model.diagnosis import Abstention, Alternative, Evidence
from dprankdiag.units import format_ratio


class SinglePointGpu:
    """A GPU that is slow at equal work.

    *What you see*: every rank's step is longer, and all but one wait in each collective. One rank hardly waits; its
    kernels take longer than the same kernels elsewhere, before the gather and after it, whatever requests it holds.

    *Why it happens*: the chip runs at a lower clock (heat, power cap, a stuck application clock), shares its SMs or
    memory with another process, runs on a damaged or retired memory bank, or sits behind a degraded link.

    *How we tell it apart*: probes are kernels of one name and launch shape that every rank ran equally often,
    outside attention and experts: their work is equal by construction. A rank is slow only if its probe time lies
    outside what the other ranks scatter among themselves and costs at least two per cent of the step. Heavier
    requests lengthen attention and leave the probes alone; a hot expert lengthens the experts and leaves them alone
    too. Two ranks have no scatter, so that only a clear excess over what healthy chips differ by is believed.

    *What to do*: read clocks, throttle reasons, temperature and ECC counters of that GPU; look for a second process
    on it; drain the rank, reset or swap the GPU.
    """

    cause = "single_point.gpu"

    def judge(self, seen: Observations, skews: Skews) -> Iterator[Claim | Abstention]:
        """Claim every run of steps in which ranks are slow at equal work."""
        if skews.speed_basis not in ("probes", "after the gather"):
            yield _no_probes(seen, skews)
            return
        if (reason := seen.abilities.uneven or (unseen_member(seen) if skews.speed else None)) is not None:
            yield Abstention(self.cause, reason)
            return
        if seen.n_ranks == 2:
            yield Abstention(
                self.cause,
                "two ranks have no spread of their own: a GPU slower by less than healthy chips differ would not show",
                ("more ranks",),
                "record all ranks of the deployment",
            )
        for standout in skews.speed:
            ranks = members(standout.mask)
            factor = np.where(standout.marks, standout.centre / skews.slowness, 1.0)
            slow = float(np.mean(standout.levels[standout.mask])) / standout.centre
            steps = standout.steps
            probes = len(seen.probes.family)
            evidence = [
                Evidence(
                    "probe_slowness_ratio",
                    slow,
                    "ratio",
                    f"equal work takes {format_ratio(slow - 1)} longer than on the other ranks",
                    1.0,
                    int(steps.sum()),
                ),
                Evidence(
                    "probe_kernels", float(probes), "count", f"{probes} kinds of kernel do equal work on every rank"
                ),
                *_by_family(seen, ranks),
                *show_culprits(seen, ranks, steps),
            ]
            yield Claim(
                self.cause,
                ranks_of(standout),
                steps,
                who_of(standout),
                when_of(seen, standout),
                f"{seen.names_of(ranks)}: the GPU is {format_ratio(slow - 1)} slower at equal work",
                tuple(evidence),
                (
                    Alternative("load.unknown", "attention longer on that rank while kernels of equal work are not"),
                    Alternative("single_point.host", "idle gaps before its launches instead of longer kernels"),
                ),
                tuple(
                    scale(seen, name, _family_factor(seen, skews, standout, name, factor))
                    for name in ("attention", "expert", "probe", "other")
                ),
                period_ns=period_of(seen, standout),
                spread_ns=standout.spread * _median_work_ns(seen),
            )


def _median_work_ns(seen: Observations) -> float:
    """Return the work of the median rank in the median step."""
    work = sum((seen.sums[name] for name in ("attention", "expert", "probe", "other")), np.zeros(1))
    return float(np.median(work))


def _family_factor(
    seen: Observations, skews: Skews, standout: Standout, component: str, factor: FloatArray
) -> FloatArray:
    """Undo a component by its own slowness where that is what the worst family of equal work suffers, or less.

    A memory fault slows attention and weight reads more than the probes on average; more than the worst probe family
    does is the rank's own work. In single steps all that exceeds the rank's habit is the chip's.
    """
    if standout.is_burst:
        slow = measure_slowness(seen, component, skews.slowness, [standout], skews.worst_family)
        return np.where(standout.marks, standout.centre / np.maximum(slow, 1.0), 1.0)
    if component == "probe":
        return factor
    level = np.median(seen.sums[component][standout.steps], axis=0)
    rest = float(np.median(level[~standout.mask]))
    if rest <= 0:
        return factor
    own = level / rest
    speed = np.median(1.0 / factor[standout.steps], axis=0)
    fits = standout.mask & (own > speed) & (own <= SLOW_CHIP_MARGIN * skews.worst_family)
    return np.where(standout.marks & fits, 1.0 / np.maximum(own, 1e-9), factor)


def _no_probes(seen: Observations, skews: Skews) -> Abstention:
    if skews.speed_basis == "one side":
        return Abstention(
            "single_point.gpu",
            "what looks like equal work is longer on one side of the gather only, so it is no measure of speed",
            ("kernels of equal work on both sides of the gather",),
            "dprankdiag kernels TRACE shows the names nobody knows; name them with --patterns",
        )
    if not seen.abilities.has_kernels:
        return Abstention(
            "single_point.gpu",
            "no GPU kernels were recorded, so no kernel of equal work can be compared",
            ("CUPTI_ACTIVITY_KIND_KERNEL",),
            "nsys profile -t cuda,nvtx,osrt -o trace COMMAND",
        )
    return Abstention(
        "single_point.gpu",
        "no kernel outside attention and experts has equal name, launch shape and count on all ranks",
        ("kernels of equal work",),
        "dprankdiag kernels TRACE shows the names nobody knows; name them with --patterns",
    )


def _by_family(seen: Observations, ranks: tuple[int, ...]) -> Iterator[Evidence]:
    """Say which families of equal work are slower: a clock slows compute, a memory fault slows what reads memory."""
    probes = seen.probes
    others = [position for position in range(seen.n_ranks) if position not in ranks]
    if not others or not len(probes.family):
        return
    for family in sorted(set(probes.family)):
        rows = [row for row, name in enumerate(probes.family) if name == family]
        weight = probes.weight_ns[rows]
        own = probes.mean_ns[rows][:, list(ranks)].mean(axis=1)
        rest = np.median(probes.mean_ns[rows][:, others], axis=1)
        ratio = float(np.average(own / np.maximum(rest, 1.0), weights=np.maximum(weight, 1.0)))
        yield Evidence(
            "probe_slowness_ratio", ratio, "ratio", f"{family}: {ratio:.3f} × the other ranks' time", 1.0, len(rows)
        )
