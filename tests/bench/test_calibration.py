"""The table is fitted as it is said to be."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprankdiag.catalog.confidence import Knot, make_calibration
from dprankdiag.harness.answers import Outcome
from dprankdiag.harness.faults import slow_gpu
from dprankdiag.harness.scoreboard import Scoreboard
from tests.bench.calibration import fit, fit_knots, fit_model_error, list_scored, list_source, read_all, write_toml
from tests.harness.outcomes import judge, know, tell

FACTS = know(slow_gpu(1, 1.5))
(TRUE,) = FACTS.truths


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.3, 0.7, 0.9, 0.99, 1.0]), st.booleans()), min_size=10, max_size=200))
def test_the_table_ascends_and_each_knot_rests_on_enough_findings(pairs: list[tuple[float, bool]]) -> None:
    knots = fit_knots(pairs, 10)
    make_calibration(knots, 0.03)
    assert all(knot.findings >= 10 for knot in knots)
    assert sum(knot.findings for knot in knots) == len(pairs)
    assert fit_knots(pairs[::-1], 10) == knots


def test_a_share_that_is_never_right_lies_below_one_that_always_is() -> None:
    low, high = fit_knots([(0.5, False)] * 30 + [(1.0, True)] * 98)
    assert (low.same_ratio, low.right_ratio) == (0.5, pytest.approx(1 / 32, abs=1e-4))
    assert (high.same_ratio, high.right_ratio) == (1.0, 0.99)


def test_shares_that_say_nothing_give_one_knot() -> None:
    (knot,) = fit_knots([(share, number % 2 == 0) for share in (0.5, 1.0) for number in range(30)])
    assert knot == Knot(0.75, 0.5, 60)


def test_too_few_findings_give_no_table() -> None:
    with pytest.raises(ValueError, match="findings"):
        fit_knots([(1.0, True)] * 3)


def price(off: float, half: float) -> Outcome:
    said = (1 + off) * TRUE.lost_ratio
    return judge(FACTS, tell(TRUE, lost_ratio=said, interval=((1 - half) * said, (1 + half) * said)))


def test_the_model_error_is_what_makes_nine_of_ten_intervals_hold() -> None:
    used = 0.03
    board = Scoreboard(tuple(price(off, 1.645 * used) for off in np.linspace(-0.2, 0.2, 41)))
    error = fit_model_error(board, used)
    wide = Scoreboard(tuple(price(off, 1.645 * error) for off in np.linspace(-0.2, 0.2, 41)))
    held = [true.lost_ratio <= said.interval[1] and said.interval[0] <= true.lost_ratio
            for _, true, said in wide.priced() if said.interval]  # fmt: skip
    assert np.mean(held) == pytest.approx(0.9, abs=0.03)


def test_the_source_names_what_was_scored_and_where(tmp_path: Path) -> None:
    (tmp_path / "S-2-1-9-nsys-fixed.jsonl").write_bytes(msgspec.json.encode(judge(FACTS)) + b"\n")
    paths = list_scored([tmp_path])
    assert len(read_all(paths)) == 1
    assert list_source(paths, "abc").splitlines()[1:] == ["S-2-1-9-nsys-fixed: 1 recordings"]
    assert " abc;" in list_source(paths, "abc")


def test_what_is_written_is_what_was_fitted() -> None:
    outcomes = [judge(FACTS, tell(TRUE, same_ratio=1.0)) for _ in range(40)]
    outcomes += [judge(FACTS, tell(TRUE, ranks=(2,), same_ratio=0.4)) for _ in range(40)]
    fitted = fit(outcomes, 0.03)
    written = tomllib.loads(write_toml(fitted, "S-40-1: 80 recordings\n"))
    assert make_calibration([Knot(**row) for row in written["knots"]], written["model_error_ratio"]) == fitted
    assert written["source"] == "S-40-1: 80 recordings\n"
