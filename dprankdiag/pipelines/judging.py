"""From observations to claims, and how often the same claims come back when the steps are drawn anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dprankdiag.analysis.observations import Observations
from dprankdiag.analysis.resampling import draw_in_order, take_steps
from dprankdiag.analysis.skews import measure_skews
from dprankdiag.classifiers import ALL
from dprankdiag.classifiers.base import Classifier
from dprankdiag.classifiers.precedence import EXPLAIN_OTHERS, give_way
from dprankdiag.model.claims import Claim
from dprankdiag.model.diagnosis import Abstention, Evidence

MOST_DRAWS, FIRST_DRAWS, FEWEST_DRAWS = 200, 20, 4
"""How often the steps are drawn anew: 200 times (DESIGN 3), unless the first 20 all agree.

A verdict that 20 draws repeat comes back in 86 % of all draws or more (95 %); where sure ends is read off the table.
"""

MOST_CELLS = 2_500_000
"""Positions of steps by rank that all draws together may hold, so that they take about half a second.

A recording so long that this leaves few draws has steps enough that they differ little.
"""


def judge(seen: Observations, classifiers: Sequence[Classifier] = ALL) -> tuple[list[Claim], list[Abstention]]:
    """Ask every classifier."""
    skews = measure_skews(seen)
    claims: list[Claim] = []
    abstentions: list[Abstention] = []
    for classifier in classifiers:
        for item in classifier.judge(seen, skews):
            if isinstance(item, Claim):
                claims.append(item)
            else:
                abstentions.append(item)
    return give_way(seen, claims), abstentions


def weigh(seen: Observations, claims: Sequence[Claim], most: int = MOST_DRAWS) -> list[Claim]:
    """Give every claim the share of draws of the steps that lead to the same cause and ranks.

    Each draw is judged as the recording was, from skews to precedence; what is known of the whole recording only
    (groups, clocks, layout, equal work) stays as it was found. Nothing is drawn where nothing is claimed.
    """
    if not claims:
        return []
    same = dict.fromkeys(map(_name, claims), 0)
    asked = [item for item in ALL if item.cause in {claim.cause for claim in claims}.union(EXPLAIN_OTHERS)]
    cells = sum(grid.segment.size for grid in seen.grids)
    most = min(most, max(FEWEST_DRAWS, MOST_CELLS // max(cells, 1)))
    draws = 0
    for index in draw_in_order(seen.n_steps, most):
        if draws == FIRST_DRAWS and min(same.values()) == draws:
            break
        for name in same.keys() & {_name(claim) for claim in judge(take_steps(seen, index), asked)[0]}:
            same[name] += 1
        draws += 1
    return [_tell(claim, same[_name(claim)], draws) for claim in claims]


def _tell(claim: Claim, same: int, draws: int) -> Claim:
    """Note in how many draws a claim comes back."""
    text = f"the same cause and ranks in {same} of {draws} draws of the steps"
    told = Evidence("same_verdict_ratio", same / draws, "ratio", text, None, draws)
    return replace(claim, support=same / draws, evidence=(*claim.evidence, told))


def _name(claim: Claim) -> tuple[str, tuple[int, ...]]:
    return claim.cause, claim.ranks
