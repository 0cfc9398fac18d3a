"""A what-if predicts what the same requests really take under another policy, in physics that it has never seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from dprankdiag.harness.scenarios import SCENARIOS
from tests.bench.whatif import hold, log_scenario

MOST_ERROR = 0.03


@pytest.mark.slow
@pytest.mark.parametrize("name", ["busy_rank", "long_context"])
def test_the_first_choice_is_right_and_its_gain_within_three_points(name: str, tmp_path: Path) -> None:
    held = hold(SCENARIOS[name], [log_scenario(SCENARIOS[name], tmp_path)])
    assert held.result.verdict in ("better", "tied")
    assert held.is_right
    assert held.first_error <= MOST_ERROR
