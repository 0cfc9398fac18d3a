"""Confidence grows with how often a verdict comes back, and never leaves what was measured."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprankdiag.catalog.confidence import Knot, load_calibration, make_calibration
from dprankdiag.catalog.rules import read_catalog

SHARES = st.floats(0, 1)
KNOTS = (Knot(0.2, 0.3, 10), Knot(0.6, 0.5, 10), Knot(1.0, 0.9, 10))


@given(SHARES, SHARES)
def test_who_comes_back_more_often_is_never_less_sure(one: float, other: float) -> None:
    low, high = sorted((one, other))
    table = load_calibration()
    assert 0 < table.confide(low) <= table.confide(high) < 1


@pytest.mark.parametrize("same,sure", [(0.0, 0.3), (0.2, 0.3), (0.4, 0.4), (0.6, 0.5), (0.8, 0.7), (1.0, 0.9)])
def test_between_knots_lies_a_line_and_beyond_them_their_end(same: float, sure: float) -> None:
    assert make_calibration(KNOTS, 0.03).confide(same) == pytest.approx(sure)


@pytest.mark.parametrize(
    "knots,error",
    [
        ((), 0.03),
        (KNOTS[::-1], 0.03),
        ((KNOTS[0], Knot(0.6, 0.2, 10)), 0.03),
        ((KNOTS[0], KNOTS[0]), 0.03),
        ((Knot(0.5, 1.0, 10),), 0.03),
        ((Knot(1.5, 0.5, 10),), 0.03),
        ((Knot(0.5, 0.5, 0),), 0.03),
        (KNOTS, 0.0),
    ],
)
def test_a_table_that_does_not_ascend_or_holds_no_shares_is_refused(knots: tuple[Knot, ...], error: float) -> None:
    with pytest.raises(ValueError, match=r"ascend|share|knots"):
        make_calibration(knots, error)


def test_the_table_says_what_it_was_fitted_on() -> None:
    source = read_catalog("confidence.toml")["source"]
    assert "fixed" in source
    assert "roofline" in source
    assert "dprankdiag harness score" in source
