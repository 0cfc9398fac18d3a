"""Status, headline and account of what was found in one trace."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dprankdiag.analysis.alignment import Alignment
from dprankdiag.analysis.left_out import LeftOut
from dprankdiag.model.diagnosis import Abstention
from dprankdiag.pipelines.verdict import NAME_THEM, conclude
from tests.analysis.builders import observe_steps
from tests.builders import source
from tests.pipelines.builders import RANKS, claim, late_for, part, see


def test_even_ranks_are_healthy() -> None:
    found = conclude(part(see(0)))
    assert found.status == "healthy"
    assert "40 steps compared on 4 ranks" in found.headline
    assert found.findings == ()


@pytest.mark.parametrize("ratio,status", [(0.2, "findings"), (0.04, "findings"), (0.01, "healthy")])
def test_a_warning_makes_findings_and_an_info_may_stand_beside_health(ratio: float, status: str) -> None:
    seen = see(late_for(ratio))
    found = conclude(part(seen, [claim(seen)]))
    assert found.status == status
    assert len(found.findings) == 1


def test_a_loss_near_the_threshold_is_not_called_healthy() -> None:
    late = np.random.default_rng(0).exponential(1.0, 40)
    seen = see((late / late.mean() * late_for(0.0293)).round().astype(int))
    found = conclude(part(seen, [claim(seen)]))
    assert found.findings[0].severity == "info"
    assert found.status == "inconclusive"


def test_slow_alike_is_uniform_and_blames_nobody() -> None:
    seen = see(0)
    slow = claim(seen, cause="uniform.slow", ranks=(), who="all", loss_known=False, undo=())
    found = conclude(part(seen, [slow]))
    assert found.status == "uniform"
    assert found.findings[0].ranks == ()
    assert "all ranks alike" in found.headline


def test_a_rank_that_is_late_and_unclaimed_is_not_healthy() -> None:
    found = conclude(part(see(late_for(0.1))))
    assert found.status == "inconclusive"
    assert "differ systematically" in found.headline


def test_no_group_at_all_is_inconclusive_with_the_reason_and_an_abstention_a_class() -> None:
    found = conclude(part(None, reasons=["only one rank was recorded"]))
    assert found.status == "inconclusive"
    assert "only one rank was recorded" in found.headline
    assert {"single_point.unknown", "load.unknown"} <= {item.cause for item in found.abstentions}
    assert (found.lost.total_ns, found.lost.interval, found.step.median_ns) == (None, None, None)


@pytest.mark.parametrize(
    "changes,reason",
    [
        ({"sources": [source(path="x.sqlite", status="partial")]}, "x.sqlite could be read only in part"),
        ({"missing_ranks": (7,)}, "rank 7 was not recorded"),
        ({"missing_ranks": (4, 5, 6, 7, 9)}, "ranks 4-7, 9 were not recorded"),
        ({"matched": 0.7}, "70 % of the collective calls"),
    ],
)
def test_what_may_hide_a_skew_forbids_health(changes: dict[str, Any], reason: str) -> None:
    found = conclude(part(see(0), **changes))
    assert found.status == "inconclusive"
    assert any(reason in note for note in found.notes)


@pytest.mark.parametrize("hidden_ns,status", [(400_000, "healthy"), (4_000_000, "inconclusive")])
def test_long_steps_that_are_not_compared_forbid_health_if_ranks_stand_still_in_them(
    hidden_ns: int, status: str
) -> None:
    seen = see(0)
    later = np.where(np.arange(seen.n_steps) < 20, 0, 30_000_000)
    seen = replace(seen, start_ns=seen.start_ns + later, end_ns=seen.end_ns + later)
    found = conclude(part(seen, left_out=LeftOut(2, float(hidden_ns))))
    assert found.status == status
    assert any("may hide skew" in note for note in found.notes) == (status == "inconclusive")


@pytest.mark.parametrize(
    "field,value,reason",
    [("whole_graphs", True, "CUDA graphs were recorded whole"), ("uneven", "overhead differs", "overhead differs")],
)
def test_recordings_that_show_too_little_forbid_health(field: str, value: Any, reason: str) -> None:
    seen, changed = see(0), {field: value}
    found = conclude(part(replace(seen, abilities=replace(seen.abilities, **changed))))
    assert found.status == "inconclusive"
    assert any(reason in note for note in found.notes)


@pytest.mark.parametrize(
    "clock,unaligned,apart,status",
    [
        ("session", (), True, "healthy"),
        ("collectives", (), True, "inconclusive"),
        ("unaligned", (2, 3), True, "inconclusive"),
        ("unaligned", (2, 3), False, "healthy"),
        ("collectives", (), False, "healthy"),
    ],
)
def test_groups_whose_clocks_may_only_seem_apart_are_not_healthy(
    clock: str, unaligned: tuple[int, ...], apart: bool, status: str
) -> None:
    whole = part(see(0))
    observed = replace(whole.observed, alignment=Alignment((None,) * RANKS, clock, None, unaligned))
    if apart:
        observed = replace(observed, groups=observed.groups * 2)
    found = conclude(replace(whole, observed=observed, accounts=whole.accounts * (1 + apart)))
    assert found.status == status
    assert any("lateness between them would not be seen" in note for note in found.notes) == (status != "healthy")


def test_a_rank_compared_with_nobody_because_of_its_clock_forbids_health() -> None:
    whole = part(see(0))
    trace = replace(whole.trace, ranks=(*whole.trace.ranks, replace(whole.trace.ranks[0], rank=RANKS)))
    alignment = Alignment((None,) * (RANKS + 1), "unaligned", None, (RANKS,))
    found = conclude(replace(whole, trace=trace, observed=replace(whole.observed, alignment=alignment)))
    assert found.status == "inconclusive"
    assert "rank 4: compared with nobody" in found.headline


def test_where_no_kernel_is_known_as_a_collective_the_help_is_to_name_them() -> None:
    strange = part(None, reasons=["no collective kernels were found"], sources=(source(),))
    strange = replace(strange, observed=replace(strange.observed, calls=0))
    assert {item.get_it_with for item in conclude(strange).abstentions} == {NAME_THEM}
    without = part(None, reasons=["no collective kernels were found"], sources=(source(kernels=0),))
    without = replace(without, observed=replace(without.observed, calls=0))
    assert all("nsys profile" in (item.get_it_with or "") for item in conclude(without).abstentions)


def test_seven_steps_are_too_few_for_health() -> None:
    found = conclude(part(see(0, n_steps=7)))
    assert found.status == "inconclusive"
    assert "only 7 comparable steps" in found.headline


def test_a_warning_outranks_what_may_hide_more() -> None:
    seen = see(late_for(0.2))
    assert conclude(part(seen, [claim(seen)], missing_ranks=(7,))).status == "findings"


def test_findings_are_numbered_by_what_they_cost() -> None:
    late = np.where(np.arange(40) < 10, late_for(0.2), late_for(0.3))
    seen = see(late)
    found = conclude(part(seen, [claim(seen, slice(0, 10)), claim(seen, slice(10, 40))]))
    assert [item.id for item in found.findings] == ["f1", "f2"]
    costs = [item.lost_ns or 0 for item in found.findings]
    assert costs == sorted(costs, reverse=True)
    assert found.headline.endswith("(and 1 more)")


def test_causes_and_what_is_unexplained_add_up_to_the_total() -> None:
    seen = see(np.random.default_rng(0).integers(100_000, 300_000, 40))
    found = conclude(part(seen, [claim(seen, slice(0, 30)), claim(seen, slice(20, 40), cause="load.requests")]))
    assert found.lost.total_ns is not None
    assert found.lost.unexplained_ns is not None
    told = sum(item.lost_ns or 0 for item in found.lost.by_cause)
    assert told + found.lost.unexplained_ns == found.lost.total_ns
    assert found.lost.gpu_ns == RANKS * found.lost.total_ns


def test_the_times_of_a_rank_add_up_to_the_analysed_steps() -> None:
    seen = observe_steps(n_ranks=RANKS)
    found = conclude(part(seen))
    wall = int(seen.duration_ns.sum())
    for rank in found.ranks:
        spent = [rank.work_ns, rank.wait_ns, rank.transfer_ns, rank.idle_ns]
        assert sum(time or 0 for time in spent) == wall


def test_the_account_of_time_tells_what_was_analysed() -> None:
    found = conclude(part(see(0), matched=0.95))
    assert (found.time.clock, found.time.steps, found.time.step_kinds) == ("session", 40, {"decode": 40})
    assert found.time.matched_ratio == 0.95
    assert found.step.median_ns == found.step.balanced_median_ns


def test_a_cause_that_was_found_does_not_abstain_as_well() -> None:
    seen = see(late_for(0.2))
    said = [Abstention("load.context", "x"), Abstention("uniform.slow", "y"), Abstention("uniform.slow", "z")]
    found = conclude(part(seen, [claim(seen)], abstentions=said))
    assert [(item.cause, item.reason) for item in found.abstentions] == [("uniform.slow", "y")]


def test_two_ranks_are_said_to_have_no_spread() -> None:
    notes = conclude(part(see(0, n_ranks=2))).notes
    assert any("no spread of their own" in note for note in notes)
