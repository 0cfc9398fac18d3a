"""How right what-ifs are: a right first choice, and a gain within three points, on scenarios of the harness."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from dprankdiag.harness.scenarios import SCENARIOS
from tests.bench.whatif import (
    COUNTED_SCENARIOS,
    POLICY_SCENARIOS,
    RECORDED_SCENARIOS,
    Held,
    hold,
    log_scenario,
    record_scenario,
    tabulate,
    write_page,
)

pytestmark = pytest.mark.bench

LOG, RECORDING, BOTH = "log", "recording", "log and recording"
RIGHT_SHARE, MOST_ERROR = 0.95, 0.03
HELD_SHARE = 0.75
"""Of nine tenths that hold what came, so few may be seen among ten."""


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, list[Held]]]:
    """Hold all predictions against what came of them; writes the page at the end."""
    folder = tmp_path_factory.mktemp("whatif")
    runs: dict[str, list[Held]] = {LOG: [], BOTH: [], RECORDING: []}
    for name in POLICY_SCENARIOS:
        log = log_scenario(SCENARIOS[name], folder)
        runs[LOG].append(hold(SCENARIOS[name], [log]))
        if name in RECORDED_SCENARIOS:
            recording = record_scenario(SCENARIOS[name], folder)
            runs[RECORDING].append(hold(SCENARIOS[name], [recording]))
            if name in COUNTED_SCENARIOS:
                runs[BOTH].append(hold(SCENARIOS[name], [log, recording]))
    yield runs
    write_page(tabulate(runs))


def test_the_first_choice_of_a_log_is_right(held: dict[str, list[Held]]) -> None:
    told = [one for one in held[LOG] if one.result.verdict != "cannot_tell"]
    assert sum(one.is_right for one in told) >= RIGHT_SHARE * len(told)


@pytest.mark.parametrize("kind", [LOG, BOTH])
def test_gains_are_within_three_points(held: dict[str, list[Held]], kind: str) -> None:
    told = [one for one in held[kind] if one.result.verdict != "cannot_tell"]
    assert float(np.median([one.first_error for one in told])) <= MOST_ERROR


@pytest.mark.parametrize("kind", [LOG, BOTH])
def test_intervals_hold_what_came(held: dict[str, list[Held]], kind: str) -> None:
    told = [one for one in held[kind] if one.result.verdict != "cannot_tell"]
    assert sum(one.holds for one in told) >= HELD_SHARE * len(told)


def test_where_counters_do_not_tell_nothing_wrong_is_said(held: dict[str, list[Held]]) -> None:
    wrong = [one.name for one in held[RECORDING] if one.result.verdict != "cannot_tell" and not one.is_right]
    assert wrong == []
