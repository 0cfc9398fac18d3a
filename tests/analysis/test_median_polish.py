from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dprankdiag.analysis.median_polish import cell_noise, line_medians, polish, tail_scale

SEEDS = st.integers(0, 10_000)


@settings(max_examples=50, deadline=None)
@given(SEEDS, st.integers(2, 9), st.integers(2, 9))
def test_row_column_and_residual_add_up_to_the_table(seed: int, n_rows: int, n_columns: int) -> None:
    draw = np.random.default_rng(seed)
    table = draw.normal(size=(n_rows, n_columns))
    table[draw.random(table.shape) < 0.2] = np.nan
    fit = polish(table)
    whole = fit.rows[:, None] + fit.columns[None, :] + fit.residuals
    np.testing.assert_allclose(whole[~np.isnan(table)], table[~np.isnan(table)])


def test_an_additive_table_leaves_nothing() -> None:
    table = np.arange(5.0)[:, None] + 10 * np.arange(4.0)[None, :]
    fit = polish(table)
    np.testing.assert_allclose(fit.residuals, 0, atol=1e-12)
    np.testing.assert_allclose(fit.columns, [-15, -5, 5, 15])


def test_fewer_than_half_of_a_line_cannot_move_its_effect() -> None:
    table = np.zeros((7, 7))
    table[:3, 2] = 1e6
    fit = polish(table)
    assert fit.columns[2] == 0
    assert fit.residuals[0, 2] == 1e6


def test_a_column_without_cells_has_no_effect() -> None:
    table = np.ones((3, 3))
    table[:, 1] = np.nan
    assert np.isnan(polish(table).columns[1])


@pytest.mark.parametrize("axis", [0, 1])
def test_medians_of_lines_are_numpys_over_what_is_there(axis: int) -> None:
    draw = np.random.default_rng(4)
    table = draw.normal(size=(6, 9))
    table[draw.random(table.shape) < 0.4] = np.nan
    np.testing.assert_allclose(line_medians(table, axis), np.nanmedian(table, axis=axis))


@pytest.mark.parametrize("side", [6, 12, 40])
def test_the_noise_of_a_cell_is_found_under_any_effects(side: int) -> None:
    found = []
    for seed in range(20):
        draw = np.random.default_rng(seed)
        effects = draw.normal(0, 5, (side, 1)) + draw.normal(0, 5, (1, side))
        found.append(cell_noise(effects + draw.normal(0, 0.3, (side, side))))
    assert np.mean(found) == pytest.approx(0.3, rel=0.1)


def test_the_noise_of_too_few_cells_is_not_known() -> None:
    assert np.isnan(cell_noise(np.ones((2, 2))))


def test_heavy_tails_widen_the_scale_and_few_outliers_do_not() -> None:
    normal = np.random.default_rng(1).normal(size=4000)
    assert tail_scale(normal) == pytest.approx(1, rel=0.1)
    assert tail_scale(np.concatenate([normal, np.full(40, 1e3)])) == pytest.approx(1, rel=0.1)
    heavy = np.random.default_rng(1).laplace(size=4000)
    assert tail_scale(heavy) > 1.25 * tail_scale(normal)
