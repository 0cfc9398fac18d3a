"""Numbers of ledgers are written as people say them."""

from __future__ import annotations

import pytest

from dprankdiag.classifiers.ledgers import show


@pytest.mark.parametrize(
    ("value", "unit", "said"),
    [
        (0.42, "ratio", "42 %"),
        (3.14159, "count", "3.14"),
        (12_345.6, "tokens", "12,346"),
        (2.1e7, "count", "21 M"),
        (9.996e8, "count", "1 G"),
        (2.77865e11, "count", "278 G"),
        (1.5e12, "count", "1.5 T"),
    ],
)
def test_a_number_has_three_digits_and_a_prefix_that_keeps_it_short(value: float, unit: str, said: str) -> None:
    assert show(value, unit) == said
