"""Two diagnoses by their tables: what changed, by how much, and whether that can be told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dprankdiag.errors import InputError
from dprankdiag.model.comparison import Change, Comparison
from dprankdiag.pipelines.compare import Input, compare
from dprankdiag.pipelines.compare_words import summarise_cause
from dprankdiag.pipelines.compared_tables import GroupPart, tabulate_compared
from dprankdiag.pipelines.result_tables import tabulate
from tests.analysis.builders import annotate, observe_grids, run_grid
from tests.builders import abstention
from tests.pipelines.builders import EVEN_NS, RANKS, STEP_NS, TRANSFER_NS, Array, account, claim, see
from tests.pipelines.sides import give

OPPOSITE = {"better": "worse", "worse": "better", "unchanged": "unchanged", "not_comparable": "not_comparable"}


def late(mean_ns: float, seed: int = 0, n_steps: int = 40, scatter: float = 0.1) -> Array:
    """Draw by how much rank 1 is late in each step."""
    return np.asarray((mean_ns * (1 + scatter * np.random.default_rng(seed).standard_normal(n_steps))).round(), int)


def side(late_ns: Any, *, claimed: bool = True, **changes: Any) -> Input:
    """Diagnose steps in which rank 1 is late, and which the diagnosis claims or not."""
    seen = see(late_ns, len(late_ns))
    return give(seen, *([claim(seen, **changes)] if claimed else []))


def test_a_fault_that_is_repaired_is_gone_and_its_gain_is_what_it_cost() -> None:
    found = compare(side(late(200_000)), side(late(0), claimed=False))
    assert found.verdict == "better"
    (cause,) = found.causes
    assert (cause.presence, cause.before_ranks, cause.after_ranks) == ("gone", (1,), ())
    assert cause.direction == "better"
    assert cause.lost_ns.difference == pytest.approx(-200_000, rel=0.05)
    assert cause.lost_ns.interval is not None
    assert cause.lost_ns.interval[0] <= -200_000 <= cause.lost_ns.interval[1]
    assert cause.lost_ratio.before == pytest.approx(200_000 / (STEP_NS + 200_000), rel=0.05)
    assert found.headline.startswith("Better: steps take 0.20 ms (17 %) less; load.context on rank 1 is gone")


def test_a_fault_that_grew_is_worse_and_one_that_did_not_is_unchanged() -> None:
    grown = compare(side(late(200_000)), side(late(300_000, seed=1)))
    assert (grown.verdict, grown.causes[0].presence, grown.causes[0].direction) == ("worse", "stayed", "worse")
    same = compare(side(late(200_000)), side(late(200_000, seed=1)))
    assert (same.verdict, same.causes[0].direction) == ("unchanged", "unchanged")
    assert "no cause of warning or above is new" in same.headline


def test_a_difference_within_the_scatter_of_the_steps_is_no_change() -> None:
    calm = compare(side(late(200_000)), side(late(220_000, seed=1)))
    wild = compare(side(late(200_000, scatter=0.8)), side(late(220_000, seed=1, scatter=0.8)))
    assert (calm.causes[0].direction, wild.causes[0].direction) == ("worse", "unchanged")


def test_causes_name_the_engine_where_it_has_a_name() -> None:
    before, after = side(late(200_000)), side(late(400_000, seed=1))
    (change, *_) = compare(before, after).causes
    assert summarise_cause(change, comparable=True).startswith("load.context on rank 1 stayed")
    decode = replace(change, engine="decode")
    assert summarise_cause(decode, comparable=True).startswith("load.context on rank 1 of decode stayed")
    everywhere = replace(decode, presence="moved", before_ranks=())
    assert "moved from no rank to rank 1 of decode" in summarise_cause(everywhere, comparable=True)


def test_a_fault_of_another_rank_moved() -> None:
    seen = see(0)
    attention = np.full((40, 1, RANKS), EVEN_NS)
    attention[:, 0, 2] += late(200_000)
    other = observe_grids([run_grid({"attention": attention}, transfer=TRANSFER_NS)])
    factor = EVEN_NS / attention
    mine = claim(other, ranks=(2,), undo=(replace(claim(seen).undo[0], factors=(factor,)),))
    found = compare(side(late(200_000)), give(other, mine))
    assert found.causes[0].presence == "moved"
    assert found.causes[0].summary.startswith("load.context moved from rank 1 to rank 2")
    assert (found.verdict, found.notes) == ("unchanged", ())
    assumed = tuple(replace(rank, grade="assumed") for rank in other.ranks)
    after = give(other, mine)
    unsure = compare(side(late(200_000)), replace(after, diagnosis=replace(after.diagnosis, ranks=assumed)))
    assert "may have been numbered otherwise" in unsure.notes[0]


def test_a_fault_in_a_run_of_steps_is_as_sure_as_its_steps_are_alike() -> None:
    window = np.where((np.arange(60) >= 20) & (np.arange(60) < 40), late(200_000, n_steps=60, scatter=0.02), 0)
    seen = see(window, 60)
    found = compare(give(seen, claim(seen, slice(20, 40))), give(see(0, 60)))
    assert found.causes[0].direction == "better"
    low, high = found.causes[0].lost_ns.interval or (0, 0)
    assert high - low < 10_000


def test_two_stalls_may_be_chance_where_twenty_are_not() -> None:
    def stalls(count: int) -> Input:
        steps = np.zeros(60, bool)
        steps[np.linspace(3, 56, count).astype(int)] = True
        seen = see(np.where(steps, 2_000_000, 0), 60)
        return give(seen, claim(seen, np.flatnonzero(steps), cause="single_point.host", when="burst"))

    assert compare(stalls(2), give(see(0, 60))).causes[0].direction == "unchanged"
    assert compare(stalls(20), give(see(0, 60))).causes[0].direction == "better"


def test_what_ranks_differ_among_themselves_is_no_change_of_the_step() -> None:
    def chips(seed: int) -> Input:
        work = EVEN_NS * (1 + 0.02 * np.random.default_rng(seed).standard_normal(8))
        attention = work * (1 + 0.002 * np.random.default_rng([seed, 1]).standard_normal((40, 1, 8)))
        return give(observe_grids([run_grid({"attention": attention.round()}, transfer=TRANSFER_NS)]))

    verdicts = [compare(chips(seed), chips(seed + 100)).verdict for seed in range(12)]
    assert verdicts == ["unchanged"] * 12


def test_a_cause_below_a_warning_does_not_decide() -> None:
    found = compare(side(late(0), claimed=False), side(late(15_000, scatter=0.01)))
    assert (found.causes[0].after_severity, found.causes[0].direction) == ("info", "worse")
    assert found.verdict == "unchanged" or "steps take" in found.headline
    assert "load.context" not in found.headline


def test_a_cause_that_was_not_judged_before_says_so() -> None:
    after = side(late(200_000))
    before = side(late(0), claimed=False)
    silent = replace(before.diagnosis, abstentions=(abstention(cause="load.context", reason="no attention seen"),))
    found = compare(replace(before, diagnosis=silent), after)
    assert found.causes[0].unjudged == "no attention seen"
    assert "could not be judged before: no attention seen" in found.causes[0].summary


def test_a_cause_without_a_price_is_matched_and_not_tested() -> None:
    seen = see(0)
    slow = claim(seen, cause="uniform.slow", ranks=(), who="all", loss_known=False, undo=())
    found = compare(give(see(0)), give(seen, slow))
    assert (found.causes[0].presence, found.causes[0].direction) == ("new", None)
    assert found.causes[0].lost_ns.after is None


def test_nothing_to_compare_says_why() -> None:
    nothing = Input(replace(side(late(0)).diagnosis, headline="Cannot tell: no collectives"), tabulate_compared((), ()))
    found = compare(nothing, side(late(0)))
    assert found.verdict == "not_comparable"
    assert "before: Cannot tell: no collectives" in found.headline
    assert compare(nothing, nothing).verdict == "not_comparable"


def test_a_bundle_of_an_earlier_version_is_an_input_error_with_the_mend() -> None:
    old = side(late(0))
    kept = {name: table for name, table in old.tables.items() if name in ("steps", "rank_steps", "layers")}
    with pytest.raises(InputError, match="lacks the tables compared_kinds, groups") as raised:
        compare(replace(old, tables=kept, name="old.dprank"), old)
    assert "old.dprank" in str(raised.value)
    assert "analyze TRACE -o" in raised.value.mend


def test_other_batches_are_compared_by_share_and_their_times_are_not_judged() -> None:
    def loaded(requests: float, late_ns: Array) -> Input:
        seen = annotate(see(late_ns), requests=np.full(RANKS, requests), held_tokens=np.full(RANKS, 1e4))
        return give(seen, claim(seen))

    found = compare(loaded(16, late(200_000)), loaded(32, late(400_000, seed=1)))
    (engine,) = found.engines
    assert engine.step_ns.direction is None
    assert engine.step_ns.difference is not None
    assert (found.causes[0].lost_ns.direction, found.causes[0].lost_ratio.direction) == (None, "worse")
    assert any("64 requests before, 128 after" in note for note in found.notes)
    assert "step times are not compared" in found.headline


def mixed(decode: int, prefill: int, *, by: float = 1.0, seed: int = 0) -> Input:
    """Make a recording of two kinds of step, the prefill steps ten times as long."""
    random = np.random.default_rng(seed)
    grids = []
    wanted = [item for item in (("decode", decode, 1), ("prefill", prefill, 10)) if item[1]]
    for kind, count, size in wanted:
        noise = 1 + 0.01 * random.standard_normal((count, 1, RANKS))
        start = 10**15 + len(grids) * 10**12
        work = {"attention": (by * size * EVEN_NS * noise).round()}
        grids.append(run_grid(work, transfer=TRANSFER_NS, kind=kind, start_ns=start))
    return give(observe_grids(grids))


def test_more_prefill_steps_are_no_change() -> None:
    found = compare(mixed(40, 5), mixed(20, 25, seed=1))
    assert found.verdict == "unchanged"
    kinds = {kind.kind: kind for kind in found.engines[0].kinds}
    assert (kinds["decode"].before_steps, kinds["decode"].after_steps) == (40, 20)
    assert kinds["prefill"].step_ns.before == pytest.approx(10 * EVEN_NS + TRANSFER_NS, rel=0.05)


def test_a_kind_of_one_side_is_left_out_and_named() -> None:
    found = compare(mixed(40, 5), mixed(40, 0, seed=1))
    assert [kind.kind for kind in found.engines[0].kinds] == ["decode"]
    assert any("prefill steps" in note and "only in the recording before" in note for note in found.notes)


def test_every_kind_that_slows_is_told() -> None:
    found = compare(mixed(40, 8), mixed(40, 8, by=1.2, seed=1))
    assert found.verdict == "worse"
    assert {kind.step_ns.direction for kind in found.engines[0].kinds} == {"worse"}


def test_of_many_groups_the_headline_tells_those_that_changed() -> None:
    def groups(late_ns: int) -> Input:
        one = side(late(0), claimed=False)
        parts = []
        for first in range(0, 16, RANKS):
            seen = see(late(late_ns if first == 4 else 0), 40)
            ranks = tuple(replace(rank, rank=first + rank.rank) for rank in seen.ranks)
            parts.append(GroupPart(replace(seen, ranks=ranks), account(seen)))
        tables = tabulate([item.seen for item in parts]) | tabulate_compared(parts, ())
        return replace(one, tables=tables)

    found = compare(groups(0), groups(300_000))
    assert found.verdict == "worse"
    assert "default 4-7: steps take 0.30 ms" in found.headline
    assert "the step of 1 of 4 lockstep groups changes significantly" in found.headline
    assert "default 0-3" not in found.headline


sides = st.builds(
    lambda mean_ns, seed, claimed, n_steps: side(late(mean_ns, seed, n_steps), claimed=claimed and mean_ns > 0),
    st.sampled_from([0, 20_000, 60_000, 200_000]),
    st.integers(0, 50),
    st.booleans(),
    st.sampled_from([24, 40, 61]),
)
several = settings(max_examples=40, deadline=None)


@several
@given(sides)
def test_a_recording_does_not_differ_from_itself(one: Input) -> None:
    found = compare(one, one)
    assert found.verdict == "unchanged"
    assert all(cause.presence == "stayed" for cause in found.causes)
    for change in list_changes(found):
        assert change.difference in (None, 0.0)
        assert change.direction in (None, "unchanged")


@several
@given(sides, sides)
def test_swapping_the_recordings_swaps_the_answer(one: Input, other: Input) -> None:
    forth, back = compare(one, other), compare(other, one)
    assert back.verdict == OPPOSITE[forth.verdict]
    presences = {"new": "gone", "gone": "new"}
    assert sorted(presences.get(item.presence, item.presence) for item in back.causes) == sorted(
        item.presence for item in forth.causes
    )
    for old, new in zip(list_changes(forth), list_changes(back), strict=True):
        assert (new.before, new.after) == pytest.approx((old.after, old.before))
        assert new.difference == pytest.approx(-(old.difference or 0.0))
        assert new.chance == pytest.approx(old.chance)
        assert new.interval == pytest.approx((-old.interval[1], -old.interval[0]) if old.interval else None)
        assert new.direction == (OPPOSITE[old.direction] if old.direction else None)


@several
@given(sides, sides)
def test_the_parts_of_a_step_add_up_to_it(one: Input, other: Input) -> None:
    (engine,) = compare(one, other).engines
    assert sum(row.before_ns for row in engine.account) == pytest.approx(engine.step_ns.before, abs=1)
    assert sum(row.after_ns for row in engine.account) == pytest.approx(engine.step_ns.after, abs=1)


def list_changes(found: Comparison) -> list[Change]:
    """List every change of times and shares; the speed is a multiple and has no sign to turn."""
    changes = [change for engine in found.engines for change in (engine.step_ns, engine.transfer_ns)]
    changes += [kind.step_ns for engine in found.engines for kind in engine.kinds]
    return changes + [change for cause in found.causes for change in (cause.lost_ns, cause.lost_ratio)]
