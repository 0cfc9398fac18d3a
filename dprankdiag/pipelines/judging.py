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

MOST_DRAWS, FIRST_DRAWS, FEWEST_DRAWS = 200, 12, 3
"""How often the steps are drawn anew: 200 times (DESIGN 3) where that is cheap, 12 times if all these agree.

A verdict that 12 draws repeat comes back in 78 % of all draws or more (95 %). Of what takes long to judge 3 do.
"""

MOST_EFFORT = 5_000_000
RANK_EFFORT = 4_000
"""What all draws together may cost, counted in positions of steps by rank, and what a rank costs beyond its positions.

That is about a second; a recording so long that few draws are left has steps enough that they differ little.
"""

FEWEST_DRAWN = 250
"""Steps of a draw where even one of all steps would cost more than that: with fewer of them a verdict is repeated less
often, never more.

Source: P. J. Bickel, F. Götze, W. R. van Zwet, Resampling fewer than n observations, Statistica Sinica 7 (1997).
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
    effort = sum(grid.segment.size for grid in seen.grids) + RANK_EFFORT * seen.n_ranks
    most = min(most, max(FEWEST_DRAWS, MOST_EFFORT // effort))
    enough = max(FEWEST_DRAWS, min(FIRST_DRAWS, most // 3))
    draws = 0
    drawn = min(seen.n_steps, max(FEWEST_DRAWN, seen.n_steps * MOST_EFFORT // effort))
    for index in draw_in_order(seen.n_steps, most, drawn):
        if draws >= enough and min(same.values()) == draws:
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
