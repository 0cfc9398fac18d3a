"""Which lockstep groups of two recordings belong together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dprankdiag.pipelines.matching import CausePair
from dprankdiag.pipelines.pairs import find_pair, pair_groups
from dprankdiag.pipelines.sides import FindingLoss, GroupSide
from tests.analysis.builders import observe_steps
from tests.builders import finding
from tests.pipelines.sides import group

FOUR = group(observe_steps(n_ranks=4))
NOTHING = FindingLoss(FOUR.measured_ns * 0, FOUR.measured_ns * 0, FOUR.measured_ns > 0)


def of(first: int, engine: str = "default") -> GroupSide:
    """Make a group of four ranks."""
    return replace(FOUR, engine=engine, ranks=tuple(range(first, first + 4)))


def paired(before: list[GroupSide], after: list[GroupSide]) -> list[tuple[int, int]]:
    return [(pair.before.ranks[0], pair.after.ranks[0]) for pair in pair_groups(before, after)[0]]


def test_the_only_group_of_each_side_is_a_pair_whatever_it_is_called() -> None:
    assert paired([of(0, "engine-a")], [of(8, "engine-b")]) == [(0, 8)]


def test_groups_of_one_engine_are_paired_by_their_ranks() -> None:
    assert paired([of(0), of(4)], [of(4), of(0)]) == [(4, 4), (0, 0)]


def test_a_group_that_only_one_side_has_is_named() -> None:
    pairs, alone = pair_groups([of(0), of(4, "prefill")], [of(0), of(8, "decode")])
    assert len(pairs) == 1
    assert alone == [
        "the group of ranks 8 to 11 of engine decode is only in the recording after",
        "the group of ranks 4 to 7 of engine prefill is only in the recording before",
    ]
    assert pair_groups([], [of(0)]) == ([], [])


def test_many_groups_without_a_partner_are_counted() -> None:
    before, after = [of(first) for first in (0, 4, 8)], [of(first) for first in (0, 20, 24)]
    pairs, alone = pair_groups(before, after)
    assert len(pairs) == 1
    assert alone == ["3 lockstep groups before, 3 after, of which 1 have the same engine and ranks on both sides"]


def test_the_shares_of_the_common_kinds_add_up_to_one() -> None:
    ((pair,), _) = pair_groups([FOUR], [FOUR])
    assert sum(pair.mix.values()) == pytest.approx(1.0)


def test_a_finding_belongs_to_the_group_whose_steps_it_costs() -> None:
    after = [of(0), replace(of(4), losses={1: NOTHING})]
    pairs, _ = pair_groups([of(0), of(4)], after)
    assert find_pair(pairs, CausePair((), (finding(ranks=(), who="all"),))) is pairs[1]


def test_a_finding_without_a_price_belongs_to_the_group_of_its_ranks() -> None:
    pairs, _ = pair_groups([of(0), of(4)], [of(0), of(4)])
    unpriced = finding(ranks=(5,), lost_ns=None)
    assert find_pair(pairs, CausePair((), (unpriced,))) is pairs[1]
    assert find_pair(pairs, CausePair((unpriced,), ())) is pairs[1]
    assert find_pair(pairs, CausePair((), (replace(unpriced, engine="other"),))) is None
