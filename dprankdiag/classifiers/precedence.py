"""Which claims give way where two causes explain the same ranks in the same steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dprankdiag.analysis.observations import Observations
from dprankdiag.analysis.skews import HOST_PRIOR_SHARE, LEAST_HOST_SHARE
from dprankdiag.analysis.standouts import find_bursts, find_standouts
from dprankdiag.model.claims import Claim

EXPLAIN_OTHERS = ("structural.layout", "structural.graph")
"""Causes for which claims of others give way."""

LAYOUT_EXPLAINS = ("load.context", "load.requests", "load.unknown", "structural.expert", "unclassified.late")

LATE_EXITS = ("structural.dispatch", "single_point.link")
"""Causes that keep a rank in its exchanges; a call whose partners were not matched passes for unexplained idle time."""

MOSTLY = 0.8
"""Share of a claim's steps that the other must cover for it to give way."""


def give_way(seen: Observations, claims: Sequence[Claim]) -> list[Claim]:
    """Leave out the claims that another claim on the same ranks and steps explains (DESIGN 3).

    What is late for no known reason on ranks whose exchanges are late is the same fault seen through other calls: the
    claim of the exchanges takes its undo over.
    """
    left = [claim for claim in claims if not any(_explains(seen, other, claim) for other in claims)]
    owners = [next((claim for claim in left if _is_shadow(claim, other)), None) for other in left]
    return [
        _take_over(claim, [other for other, owner in zip(left, owners, strict=True) if owner is claim])
        for claim, own in zip(left, owners, strict=True)
        if own is None
    ]


def _take_over(claim: Claim, shadows: Sequence[Claim]) -> Claim:
    undo = tuple(undo for shadow in shadows for undo in shadow.undo)
    return replace(claim, undo=(*claim.undo, *undo)) if undo else claim


def _is_shadow(claim: Claim, other: Claim) -> bool:
    """Tell whether a late rank without a class is one that its exchanges explain."""
    if claim.cause not in LATE_EXITS or other.cause != "unclassified.late" or not set(other.ranks) <= set(claim.ranks):
        return False
    return float(claim.steps[other.steps].mean()) >= MOSTLY


def _explains(seen: Observations, other: Claim, claim: Claim) -> bool:
    if float(other.steps[claim.steps].mean()) < MOSTLY:
        return False
    if other.cause == "structural.layout":
        return claim.cause in LAYOUT_EXPLAINS and set(claim.ranks) <= _with_teams(seen, other)
    if other.cause == "structural.graph":
        return claim.cause == "single_point.host" and not _is_late_among(seen, other, claim)
    return False


def _with_teams(seen: Observations, claim: Claim) -> set[int]:
    """Add to a claim's ranks those that share requests with them: load is a matter of all of these."""
    teams = [team for team in seen.teams if set(team) & set(claim.ranks)]
    return set(claim.ranks).union(*teams)


def _is_late_among(seen: Observations, eager: Claim, claim: Claim) -> bool:
    """Tell whether a late host stands out by what eager steps scatter, which is more than replayed ones do."""
    name = "host" if seen.abilities.has_launches else "rest"
    idle, step_ns = np.maximum(seen.sums[name][eager.steps], 0.0), float(np.median(seen.duration_ns[eager.steps]))
    least = LEAST_HOST_SHARE * step_ns
    found = [
        *find_standouts(idle, HOST_PRIOR_SHARE * float(np.median(idle)), least),
        *find_bursts(idle, least, of_host=True),
    ]
    late = np.any([item.mask for item in found], axis=0) if found else np.zeros(seen.n_ranks, bool)
    return bool(claim.ranks) and bool(late[list(claim.ranks)].all())
