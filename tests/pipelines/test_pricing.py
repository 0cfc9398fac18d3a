"""What a claim costs, how bad that is, and how sure."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dprankdiag.catalog.causes import load_causes
from dprankdiag.catalog.confidence import load_calibration
from dprankdiag.model.claims import Undo
from dprankdiag.model.diagnosis import Severity, When
from dprankdiag.pipelines.pricing import grade
from tests.analysis.builders import Array, observe_grids, observe_steps, ranks, run_grid
from tests.pipelines.builders import EVEN_NS, RANKS, STEP_NS, TRANSFER_NS, account, claim, late_for, see


@pytest.mark.parametrize(
    "ratio,severity",
    [(0.0, "info"), (0.0299, "info"), (0.03, "warning"), (0.0999, "warning"), (0.10, "critical"), (0.6, "critical")],
)
def test_a_tenth_is_critical_and_three_per_cent_a_warning(ratio: float, severity: Severity) -> None:
    assert grade(ratio) == severity


@pytest.mark.parametrize(
    "ratio,severity", [(0.02, "info"), (0.029, "info"), (0.031, "warning"), (0.099, "warning"), (0.101, "critical")]
)
def test_a_finding_costs_what_it_takes_and_is_graded_by_its_share(ratio: float, severity: Severity) -> None:
    seen = see(late_for(ratio))
    (found,) = account(seen, claim(seen)).findings
    assert found.lost_ns == pytest.approx(40 * late_for(ratio), abs=2)
    assert found.lost_ratio == pytest.approx(ratio, rel=1e-3)
    assert found.severity == severity


def test_what_costs_less_than_half_a_per_cent_is_not_shown_and_stays_unexplained() -> None:
    seen = see(late_for(0.004))
    found = account(seen, claim(seen))
    assert found.findings == ()
    assert found.unexplained_ns == found.total_ns == pytest.approx(40 * late_for(0.004), abs=2)


def late_in(steps: slice, ratio: float, n_steps: int = 100) -> Array:
    late = np.zeros(n_steps, np.int64)
    late[steps] = late_for(ratio)
    return late


@pytest.mark.parametrize("length,severity", [(20, "critical"), (19, "info")])
def test_a_window_of_twenty_steps_is_graded_by_itself_and_a_shorter_one_by_the_whole(
    length: int, severity: Severity
) -> None:
    steps = slice(30, 30 + length)
    seen = see(late_in(steps, 0.12), 100)
    (found,) = account(seen, claim(seen, steps)).findings
    assert found.window_lost_ratio == pytest.approx(0.12, abs=1e-3)
    assert found.lost_ratio is not None
    assert found.lost_ratio < 0.03
    assert found.severity == severity


def test_a_short_window_of_ten_seconds_is_graded_by_itself() -> None:
    seen = see(late_in(slice(30, 45), 0.12), 100)
    grid = seen.grids[0]
    slow = replace(
        grid,
        **{
            name: getattr(grid, name) * 1_000
            for name in ("segment", "wait", "transfer", "own_transfer", "entry", "exit")
        },
        components={name: values * 1_000 for name, values in grid.components.items()},
        start_ns=(grid.start_ns - grid.start_ns[0]) * 1_000,
        end_ns=(grid.end_ns - grid.start_ns[0]) * 1_000,
    )
    long = replace(seen, grids=(slow,), start_ns=slow.start_ns, end_ns=slow.end_ns)
    (found,) = account(long, claim(long, slice(30, 45))).findings
    assert found.severity == "critical"


def test_the_window_spans_the_steps_of_the_claim() -> None:
    seen = see(late_in(slice(30, 60), 0.12), 100)
    (found,) = account(seen, claim(seen, slice(30, 60))).findings
    assert (found.window.start_ns, found.window.end_ns) == (seen.start_ns[30], seen.end_ns[59])


@pytest.mark.parametrize(
    "said,late_steps,when",
    [
        ("steady", range(0, 100), "steady"),
        ("steady", range(40, 48), "burst"),
        ("onset", range(40, 48), "burst"),
        ("burst", range(0, 100), "steady"),
        ("burst", range(40, 60), "steady"),
        ("burst", range(0, 100, 13), "burst"),
        ("periodic", range(0, 100, 13), "periodic"),
        ("onset", range(50, 100), "onset"),
    ],
)
def test_a_burst_is_where_a_tenth_of_the_steps_holds_four_fifths_of_the_loss(
    said: When, late_steps: range, when: When
) -> None:
    late = np.zeros(100, np.int64)
    late[list(late_steps)] = late_for(0.3)
    seen = see(late, 100)
    (found,) = account(seen, claim(seen, when=said)).findings
    assert found.when == when
    assert (found.onset_ns is not None) == (when == "onset")


def test_an_interval_holds_the_ratio_it_stands_beside() -> None:
    random = np.random.default_rng(0)
    seen = see(random.integers(50_000, 250_000, 80), 80)
    (found,) = account(seen, claim(seen)).findings
    assert found.interval is not None
    assert found.lost_ratio is not None
    low, high = found.interval
    assert low < found.lost_ratio < high
    assert high - low < 0.05


def test_findings_and_what_is_unexplained_add_up_to_the_total() -> None:
    seen = see(late_in(slice(0, 100), 0.2), 100)
    claims = [claim(seen, slice(0, 60)), claim(seen, slice(50, 100)), claim(seen, slice(0, 1))]
    found = account(seen, *claims)
    assert found.total_ns is not None
    assert found.unexplained_ns is not None
    told = sum(item.lost_ns or 0 for item in found.findings)
    assert told + found.unexplained_ns == pytest.approx(found.total_ns, abs=len(claims))
    assert found.total_ns == round(float((found.measured_ns - found.balanced_ns).sum()))


def test_the_measured_walls_are_those_of_the_steps() -> None:
    seen = see(late_in(slice(10, 30), 0.2, 40))
    found = account(seen, claim(seen, slice(10, 30)))
    np.testing.assert_array_equal(found.measured_ns, seen.duration_ns)
    np.testing.assert_allclose(found.balanced_ns, np.full(40, STEP_NS), atol=1)


@pytest.mark.parametrize(
    "grade_of_ranks,n_ranks,most", [("sure", 4, 1.0), ("assumed", 4, 0.9), ("sure", 2, 0.8), ("assumed", 2, 0.8)]
)
@pytest.mark.parametrize("support", [0.0, 0.5, 1.0])
def test_confidence_is_calibrated_and_then_capped_by_how_well_ranks_are_known_and_how_many_there_are(
    support: float, grade_of_ranks: str, n_ranks: int, most: float
) -> None:
    seen = see(late_for(0.2), n_ranks=n_ranks, ranks=ranks(n_ranks, grade_of_ranks))
    (found,) = account(seen, claim(seen, support=support)).findings
    assert found.confidence == pytest.approx(min(load_calibration().confide(support), most))


def test_a_replay_that_mispredicts_steps_gives_no_lost_time() -> None:
    seen = see(late_for(0.2))
    grid = seen.grids[0]
    wrong = replace(grid, end_ns=grid.start_ns + (1.1 * grid.duration_ns).astype(np.int64))
    found = account(replace(seen, grids=(wrong,)), claim(seen))
    assert found.replay_error is not None
    assert found.replay_error > 0.03
    assert (found.total_ns, found.unexplained_ns, found.jitter_ns, found.interval) == (None,) * 4
    assert (found.findings[0].lost_ns, found.findings[0].interval, found.findings[0].recoverable_ns) == (None,) * 3


def test_a_claim_without_a_counterfactual_has_no_price_and_the_severity_of_its_cause() -> None:
    seen = see(0)
    (found,) = account(seen, claim(seen, cause="uniform.slow", ranks=(), loss_known=False, undo=())).findings
    assert (found.lost_ns, found.lost_ratio, found.interval) == (None, None, None)
    assert found.severity == "info"


def test_a_remedy_of_the_whole_gains_what_the_cause_costs_and_the_others_say_why_they_promise_nothing() -> None:
    seen = see(late_for(0.2))
    (found,) = account(seen, claim(seen)).findings
    whole = {remedy.key for remedy in load_causes()[found.cause].remedies if remedy.whole}
    assert whole
    for remedy in found.remedies:
        if remedy.key in whole:
            assert (remedy.gain_ratio, remedy.interval) == (found.lost_ratio, found.interval)
            assert (remedy.basis, remedy.why_no_gain) == ("replayed", None)
        else:
            assert (remedy.gain_ratio, remedy.interval, remedy.basis) == (None, None, "documented")
            assert remedy.why_no_gain


def test_an_upper_bound_is_said_to_be_one() -> None:
    seen = see(late_for(0.2))
    (found,) = account(seen, claim(seen, basis="bound")).findings
    assert found.basis == "bound"
    assert "costs up to" in found.summary


def test_a_lower_bound_is_said_to_be_one_and_its_interval_reaches_up_to_the_most() -> None:
    seen = see(late_for(0.2))
    gone = Undo("attention", (np.full((1, 1, 1), 0.5),))
    bare = account(seen, claim(seen)).findings[0]
    (found,) = account(seen, claim(seen, basis="lower bound", most=(gone,))).findings
    assert "costs at least" in found.summary
    assert found.lost_ns == bare.lost_ns
    assert found.interval is not None
    assert bare.interval is not None
    assert found.interval[0] == bare.interval[0]
    most = 1 - (STEP_NS - EVEN_NS + (STEP_NS / 0.8 - TRANSFER_NS) / 2) / (STEP_NS / 0.8)
    assert found.interval[1] - bare.interval[1] == pytest.approx(most - 0.2, abs=1e-3)


def test_steps_behind_a_stall_are_no_fault_of_the_replay() -> None:
    """They hold what the step before ended with, which their neighbours do not."""
    late = np.zeros(60, np.int64)
    late[::3] = late_for(0.5)
    late[1::3] = late_for(0.2)
    seen = see(late, 60)
    found = account(seen, claim(seen, slice(0, 60, 3), when="periodic"))
    assert found.replay_error == pytest.approx(0.0, abs=1e-6)


def test_an_onset_is_proved_by_the_steps_before_it() -> None:
    seen = see(late_in(slice(50, 100), 0.2), 100)
    (found,) = account(seen, claim(seen, slice(50, 100), when="onset")).findings
    (proof,) = [item for item in found.evidence if item.name == "onset_error_ratio"]
    assert proof.value == pytest.approx(0, abs=1e-6)


def test_even_ranks_hide_nothing() -> None:
    assert account(see(0)).hidden_ratio == 0


def test_a_rank_that_is_always_late_and_that_nobody_claims_is_hidden() -> None:
    assert account(see(late_for(0.2))).hidden_ratio > 0.1


def test_a_rank_that_is_late_and_claimed_is_not_hidden() -> None:
    seen = see(late_for(0.2))
    assert account(seen, claim(seen)).hidden_ratio == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("times_work,is_spike", [(1, True), (2, False)])
def test_long_transfers_are_a_spike_unless_every_rank_has_more_rows_in_the_step(
    times_work: int, is_spike: bool
) -> None:
    """Prompts among decode steps: transfers and dense work grow with the rows, what experts read hardly does."""
    long = np.arange(40) % 8 == 7
    probe = np.where(long, times_work, 1)[:, None, None] * np.full((40, 1, RANKS), EVEN_NS // 5)
    expert = np.full((40, 1, RANKS), EVEN_NS)
    transfer = np.where(long, 10, 1)[:, None, None] * TRANSFER_NS
    found = account(observe_grids([run_grid({"expert": expert, "probe": probe}, transfer=transfer)]))
    assert (found.spike_ratio > 0.03) == is_spike


def test_noise_is_jitter_beside_the_total_and_not_in_it() -> None:
    found = account(observe_steps(60, noise=0.1))
    assert found.total_ns == 0
    assert found.jitter_ns is not None
    assert found.jitter_ns > 0
