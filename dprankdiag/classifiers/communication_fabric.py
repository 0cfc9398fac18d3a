"""Transfers that take long for every rank."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dprankdiag.analysis.observations import Observations, order_steps
from dprankdiag.analysis.reference import LongTransfers, compare_transfers
from dprankdiag.analysis.skews import Skews
from dprankdiag.analysis.standouts import find_period
from dprankdiag.analysis.statistics import BoolArray
from dprankdiag.analysis.transfers import FEWEST_STEPS, TransferShift
from dprankdiag.model.claims import Claim, Undo
from dprankdiag.model.diagnosis import Abstention, Alternative, Evidence
from dprankdiag.units import format_ns

SAME_STEPS = 0.7


class CommunicationFabric:
    """Transfers that take long for every rank.

    *What you see*: all ranks have arrived, and still the collective lasts; nobody leaves earlier than the others.

    *Why it happens*: congestion, a link that fell back to a lower speed, a wrong path between NICs and GPUs, other
    traffic on the same fabric, a communication library that chose another algorithm.

    *How we tell it apart*: a transfer is the time from the last arrival to the group's end, so that no waiting is
    in it. It is called long only against a reference of the same operations: other steps of the same recording, else
    an earlier recording (``--baseline``) of the same kinds of step, operations, group sizes and batch sizes. What is
    longer must stand out of the scatter of both. Transfers that are long throughout show no reference of their own;
    without a baseline the cause abstains.

    *What to do*: compare link and congestion counters of the window with a good one, check routes and adaptive
    routing, run a collective benchmark on the same nodes.
    """

    cause = "communication.fabric"

    def judge(self, seen: Observations, skews: Skews) -> Iterator[Claim | Abstention]:
        """Claim runs of steps, or single steps, with long transfers."""
        if not skews.transfer:
            yield from _judge_against_reference(seen, skews, self.cause)
        for shift in skews.transfer:
            if _coincides(skews, shift.steps):
                yield Abstention(
                    self.cause,
                    "transfers are longer in the very steps in which a rank comes late, or experts are hot; long waits "
                    "and more tokens for one rank lengthen them too",
                    ("steps with the same lateness and short transfers",),
                )
            else:
                yield _claim(seen, shift, self.cause)


def _judge_against_reference(seen: Observations, skews: Skews, cause: str) -> Iterator[Claim | Abstention]:
    """Judge transfers that are alike in all steps by another recording, if there is one."""
    reference = seen.reference
    obstacle = None if reference is None else reference.misfit or reference.unlike_sizes
    if reference is None or obstacle is not None or not reference.transfers:
        alike = "transfers are alike in all steps"
        if seen.n_steps < FEWEST_STEPS:
            alike = f"{seen.n_steps} steps are too few to tell long transfers from usual ones"
        reason = f"{alike}, and there is no other recording to compare them with"
        if reference is not None:
            unlike = obstacle or "it has none of the same operation and size"
            reason = f"{alike}, and those of {reference.name} cannot be compared: {unlike}"
        mend = "give an earlier recording of the same load: --baseline FILE.dprank"
        yield Abstention(cause, reason, ("reference transfer times",), mend)
        return
    long = compare_transfers(seen, reference)
    if long is None:
        return
    steps = np.ones(seen.n_steps, bool)
    if _coincides(skews, steps):
        yield Abstention(
            cause,
            f"transfers are longer than in {reference.name}, and so is a rank's lateness; long waits lengthen them too",
            ("the same lateness with short transfers",),
        )
        return
    yield _claim_against(seen, long, reference.name, steps, cause)


def _claim_against(seen: Observations, long: LongTransfers, name: str, steps: BoolArray, cause: str) -> Claim:
    n = seen.n_steps
    operations = ", ".join(long.operations)
    now, then = format_ns(long.now_ns), format_ns(long.then_ns)
    return Claim(
        cause,
        (),
        steps,
        "all",
        "steady",
        f"transfers ({operations}) take {long.ratio:.2f} × as long for every rank as in {name}",
        (
            Evidence("transfer_ratio", long.ratio, "ratio", f"{long.ratio:.2f} × the reference", 1.0, n),
            Evidence(
                "transfer_ns",
                long.now_ns,
                "ns",
                f"{now} of transfer a step, {then} in {long.steps} steps of {name}",
                long.then_ns,
                n,
            ),
        ),
        (Alternative("uniform.slow", "equal work taking longer on every rank as well"),),
        (Undo("transfer", tuple(factor[None, :, None] for factor in long.factors)),),
        spread_ns=long.error_ns,
    )


def _coincides(skews: Skews, steps: BoolArray) -> bool:
    """Tell whether a rank stands out in the same steps; then the transfer cannot be compared like with like."""
    ranks = (*skews.attention, *skews.speed, *skews.host, *skews.stalls, *skews.other, *skews.rest)
    marked = [item.steps for item in ranks] + [item.steps for item in skews.experts]
    return any((own & steps).sum() >= SAME_STEPS * (own | steps).sum() for own in marked)


def _claim(seen: Observations, shift: TransferShift, cause: str) -> Claim:
    calm = ~shift.steps
    factors = []
    for grid_id, grid in enumerate(seen.grids):
        slow, good = seen.select(grid_id, shift.steps), seen.select(grid_id, calm)
        factor = np.ones(grid.transfer.shape)
        if slow.any() and good.any():
            reference = np.median(grid.transfer[good], axis=0)
            level = reference if not slow.any() else grid.transfer[slow].mean(axis=0)
            factor[slow] = np.minimum(reference / np.maximum(level, 1.0), 1.0)
            if shift.is_burst:
                factor[slow] = np.minimum(reference / np.maximum(grid.transfer[slow], 1.0), 1.0)
        factors.append(factor)
    total = order_steps(seen, [grid.transfer.mean(axis=2).sum(axis=1) for grid in seen.grids])
    usual, long = float(np.median(total[calm])), float(np.median(total[shift.steps]))
    period = find_period(np.flatnonzero(shift.steps), seen.start_ns[shift.steps]) if shift.is_burst else None
    n = int(shift.steps.sum())
    return Claim(
        cause,
        (),
        shift.steps,
        "all",
        "periodic" if period else "burst" if shift.is_burst else "onset",
        f"transfers take {long / max(usual, 1.0):.2f} × as long for every rank in {n} of {seen.n_steps} steps",
        (
            Evidence("transfer_ratio", shift.ratio, "ratio", f"{shift.ratio:.2f} × the reference", 1.0, n),
            Evidence(
                "transfer_ns",
                long,
                "ns",
                f"{format_ns(long)} of transfer a step, {format_ns(usual)} in {shift.reference_steps} reference steps",
                usual,
                n,
            ),
        ),
        (Alternative("single_point.link", "one rank leaving later than the others"),),
        (Undo("transfer", tuple(factors)),),
        period_ns=period,
    )
