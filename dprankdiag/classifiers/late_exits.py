"""What the classifiers of late exits have in common: how a late exit is claimed, and why its kind may stay open."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dprankdiag.analysis.exits import LateExit, part_groups
from dprankdiag.analysis.observations import Observations
from dprankdiag.analysis.standouts import Standout
from dprankdiag.classifiers.base import (
    members,
    period_of,
    ranks_of,
    scale,
    show_culprits,
    when_of,
    who_of,
)
from dprankdiag.model.claims import Claim, Undo
from dprankdiag.model.diagnosis import Abstention, Alternative, Evidence
from dprankdiag.units import format_ns


def claim_exit(seen: Observations, late: LateExit, cause: str, what: str) -> Claim:
    """Claim a late exit; the undo brings the named ranks out with the median of the group."""
    standout = late.standout
    ranks = members(standout.mask)
    steps = standout.steps
    factor = np.where(standout.marks, 0.0, 1.0)
    evidence = [
        Evidence(
            "exit_lateness_ns",
            late.lateness_ns,
            "ns",
            f"leaves {', '.join(late.operations)} {format_ns(late.lateness_ns)} after the others",
            0.0,
            int(steps.sum()),
        ),
        Evidence(
            "exit_lateness_operations",
            float(len(late.operations)),
            "count",
            f"in {len(late.operations)} of {len(seen.grids[0].operations)} operations",
        ),
        Evidence(
            "clock_bound_ns",
            float(seen.abilities.clock_bound_ns),
            "ns",
            f"clocks are good to {format_ns(seen.abilities.clock_bound_ns)}",
        ),
    ]
    if late.correlation is not None:
        text = f"lateness goes with the rank's own expert work (correlation {late.correlation:.2f})"
        evidence.append(Evidence("received_correlation", late.correlation, "ratio", text, 0.0))
    return Claim(
        cause,
        ranks_of(standout),
        steps,
        who_of(standout),
        when_of(seen, standout),
        f"{seen.names_of(ranks)}: {what}, {format_ns(late.lateness_ns)} a meeting",
        (*evidence, *show_culprits(seen, ranks, steps)),
        (Alternative("communication.fabric", "transfers long for every rank, not for this one"),),
        (scale(seen, "exit", factor), *_undo_groups(seen, late.standout)),
        period_ns=period_of(seen, standout),
        spread_ns=standout.spread,
    )


def _undo_groups(seen: Observations, standout: Standout) -> list[Undo]:
    """Make the undo that brings groups late as a whole to the transfers of the other groups, if there are such."""
    factors = []
    for grid_id, grid in enumerate(seen.grids):
        factor = np.ones(grid.transfer.shape)
        steps = seen.select(grid_id, standout.steps)
        for leave in grid.leaves if steps.any() else ():
            whole, others = part_groups(grid, leave, standout.mask)
            if whole.any() and others.any():
                lasts = np.median(grid.transfer[steps, leave.call], axis=0)
                shorter = np.median(lasts[others]) / np.maximum(lasts, 1.0)
                by_rank = np.where(whole, np.minimum(shorter, 1.0), 1.0)
                factor[:, leave.call] = np.where(steps[:, None], by_rank, 1.0)
        factors.append(factor)
    return [Undo("transfer", tuple(factors))] if any((factor < 1).any() for factor in factors) else []


def explain_untold(seen: Observations, exits: Sequence[LateExit], cause: str) -> Iterator[Abstention]:
    """Say of late exits of an unknown kind why they may be of this cause, or not."""
    for late in exits:
        if late.verdict != "late":
            continue
        named, where = seen.names_of(members(late.standout.mask)), ", ".join(late.operations)
        if set(late.operations) == seen.grids[0].operations:
            tokens = "no expert work shows how many tokens come"
            if late.correlation is not None:
                tokens = f"lateness hardly follows the own expert work (correlation {late.correlation:.2f})"
            reason = (
                f"{named}: late out of {where}, and the ranks meet in nothing else: a slow link would be late in every "
                f"collective, a receiver queue only there; {tokens}"
            )
            lacked = ("a collective that moves no tokens",)
            mend = "test that rank's link; a trace with attention shared by several GPUs, or of normal mode, would tell"
        else:
            reason = (
                f"{named}: late out of {where} and in time out of the others: no link is late in some, no queue there"
            )
            lacked, mend = ("lateness in all collectives, or in dispatch and combine alone",), None
        yield Abstention(cause, reason, lacked, mend)
