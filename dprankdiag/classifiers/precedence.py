"""Which claims give way where two causes explain the same ranks in the same steps."""

from __future__ import annotations

from collections.abc import Sequence

from dprankdiag.model.claims import Claim

EXPLAINED_BY: dict[str, tuple[str, ...]] = {
    "structural.layout": ("load.context", "load.requests", "load.unknown", "structural.expert", "unclassified.late"),
}
"""By a cause that asks for more before it is claimed, those that it stands in for (DESIGN 3)."""

MOSTLY = 0.5
"""Share of a claim's steps that the other must cover for it to give way."""


def give_way(claims: Sequence[Claim]) -> list[Claim]:
    """Leave out the claims that another claim on the same ranks and steps explains."""
    return [claim for claim in claims if not any(_explains(other, claim) for other in claims)]


def _explains(other: Claim, claim: Claim) -> bool:
    if claim.cause not in EXPLAINED_BY.get(other.cause, ()):
        return False
    return set(claim.ranks) <= set(other.ranks) and float(other.steps[claim.steps].mean()) >= MOSTLY
