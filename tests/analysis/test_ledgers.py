"""Answers join to ledgers: which target, which moment, which rank; what was not told stays absent."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprankdiag.analysis.ledgers import Sighting, join_sightings
from dprankdiag.errors import UsageError
from dprankdiag.model.ledgers import Ledger
from tests.analysis.ledger_answers import answer, counting, join, join_said, loads

SECOND = 10**9
NOW_NS = 1_764_000_000 * SECOND


def seconds_of(ledger: Ledger) -> list[float]:
    assert ledger.seconds is not None
    return [float(one) for one in ledger.seconds]


def test_two_pages_are_two_moments_without_seconds() -> None:
    (ledger,) = join(counting(9.0, "b"), counting(1.0, "a"))
    assert (ledger.n_moments, ledger.seconds, ledger.start_ns, ledger.name) == (2, None, None, "here")
    assert ledger.values["decode_tokens"].tolist() == [[1.0] * 4, [9.0] * 4]
    assert not ledger.restarted.any()


def test_the_interval_gives_seconds_where_nothing_else_does() -> None:
    (ledger,) = join(counting(1.0), counting(2.0, "b"), counting(3.0, "c"), interval_s=15.0)
    assert seconds_of(ledger) == [0.0, 15.0, 30.0]
    (stamped,) = join(loads(100.0), loads(104.0, "b"), interval_s=15.0)
    assert seconds_of(stamped) == [0.0, 4.0]


def test_the_users_seconds_are_the_axis() -> None:
    (ledger,) = join_said((counting(9.0, "a"), 40.0), (counting(1.0, "b"), 10.0))
    assert (seconds_of(ledger), ledger.start_ns, ledger.name) == ([0.0, 30.0], None, "x")
    assert ledger.values["decode_tokens"][0, 0] == 1.0


def test_the_users_seconds_and_stamps_are_not_mixed_on_one_axis() -> None:
    (ledger,) = join_said(
        (counting(1.0, "a"), 0.0), (counting(9.0, "b"), 15.0), (loads(1.7e9), None), (loads(1.7e9 + 15), None)
    )
    assert seconds_of(ledger) == [0.0, 15.0]
    assert ledger.values["load_running_requests"].tolist() == [[20.0] * 4] * 2


def test_places_are_targets() -> None:
    sightings = [Sighting(counting(1.0), "one"), Sighting(counting(1.0), "two"), Sighting(counting(9.0, "b"), "one")]
    assert [(one.name, one.n_moments) for one in join_sightings(sightings)] == [("one", 2), ("two", 1)]


def test_a_name_wins_over_the_place() -> None:
    sightings = [Sighting(counting(1.0), "one", "x"), Sighting(counting(9.0, "b"), "two", "x")]
    assert [(one.name, one.n_moments) for one in join_sightings(sightings)] == [("x", 2)]


def test_two_targets_with_equal_labels_in_one_place_are_refused_unless_named() -> None:
    one = [counting([100.0, 1.0], "a0", ranks=2), counting([150.0, 2.0], "a1", ranks=2)]
    other = [counting([7.0, 300.0], "b0", ranks=2), counting([8.0, 400.0], "b1", ranks=2)]
    with pytest.raises(UsageError, match="A=PATH B=PATH"):
        join(*one, *other)
    named = [Sighting(it, "here", "A") for it in one] + [Sighting(it, "here", "B") for it in other]
    assert [(ledger.name, ledger.n_moments) for ledger in join_sightings(named)] == [("A", 2), ("B", 2)]


def test_roles_and_models_of_one_place_are_targets_named_by_what_differs() -> None:
    roles = join(counting(1.0, role="prefill"), counting(1.0, "b", role="decode"), place="pd")
    assert [ledger.name for ledger in roles] == ["pd:prefill", "pd:decode"]
    models = join(counting(1.0, model="org/one"), counting(1.0, "b", model="org/two"), place="m")
    assert [ledger.name for ledger in models] == ["m:one", "m:two"]
    both = join(counting(1.0, model="one", role="prefill"), counting(1.0, model="two", role="decode"), place="pd")
    assert [ledger.name for ledger in both] == ["pd:prefill:one", "pd:decode:two"]


def test_engines_of_one_place_are_apart() -> None:
    ledgers = join(counting(1.0), counting(1.0, "b", engine="vllm", interface="vllm-metrics", model="v", role=None))
    assert {ledger.engine for ledger in ledgers} == {"sglang", "vllm"}


def test_load_answers_join_the_metrics_of_their_place() -> None:
    (ledger,) = join(counting(1.0), counting(9.0, "b"), loads(100.0), loads(115.0, "d"))
    assert ledger.interfaces == ("sglang-metrics", "sglang-loads")
    assert seconds_of(ledger) == [0.0, 15.0]
    assert (ledger.model, ledger.role) == ("m", "unified")
    assert set(ledger.values) == {"decode_tokens", "running_requests", "load_running_requests", "load_stamp_s"}


def test_a_single_load_answer_beside_two_pages_is_of_the_last_moment() -> None:
    (ledger,) = join(
        counting(1.0), counting(9.0, "b"), answer({"load_running_requests": 3.0}, interface="sglang-loads")
    )
    assert np.isnan(ledger.values["load_running_requests"][0]).all()
    assert ledger.values["load_running_requests"][1].tolist() == [3.0] * 4


@given(st.floats(-0.3, 0.3), st.floats(-0.3, 0.3), st.integers(2, 12))
def test_interfaces_asked_one_after_the_other_are_of_one_moment(early: float, late: float, ticks: int) -> None:
    told = [counting(float(tick + 1), f"m{tick}", taken_ns=NOW_NS + tick * SECOND) for tick in range(ticks)]
    shift_ns = round((early + late) / 2 * SECOND)
    told += [
        answer(
            {"load_running_requests": tick},
            where=f"l{tick}",
            interface="sglang-loads",
            model=None,
            taken_ns=NOW_NS + tick * SECOND + shift_ns,
        )
        for tick in range(ticks)
    ]
    (ledger,) = join(*told)
    assert ledger.n_moments == ticks
    assert not any(np.isnan(table).any() for table in ledger.values.values())
    assert ledger.values["load_running_requests"][:, 0].tolist() == list(range(ticks))


def test_the_clock_gives_the_start() -> None:
    (ledger,) = join(*(counting(float(tick + 1), f"{tick}", taken_ns=NOW_NS + tick * SECOND) for tick in range(3)))
    assert ledger.start_ns == NOW_NS
    assert seconds_of(ledger) == [0.0, 1.0, 2.0]


def test_pages_of_several_nodes_join_to_one_target() -> None:
    pages = [
        answer({"decode_tokens": count}, ranks=ranks, where=f"{ranks[0]}-{count}")
        for count in (1.0, 9.0)
        for ranks in ((0, 1), (2, 3))
    ]
    (ledger,) = join(*pages)
    assert ledger.ranks == (0, 1, 2, 3)
    assert ledger.values["decode_tokens"].tolist() == [[1.0] * 4, [9.0] * 4]


def test_ranks_come_and_go() -> None:
    few = answer({"decode_tokens": 1.0}, ranks=2, where="a")
    all_of_them = answer({"decode_tokens": 5.0}, ranks=4, where="b")
    (ledger,) = join(few, all_of_them)
    assert ledger.ranks == (0, 1, 2, 3)
    assert np.isnan(ledger.values["decode_tokens"][0, 2:]).all()
    assert ledger.values["decode_tokens"][1].tolist() == [5.0] * 4
    (shrunk,) = join(all_of_them, answer({"decode_tokens": 9.0}, ranks=2, where="c"))
    assert np.isnan(shrunk.values["decode_tokens"][1, 2:]).all()


def test_an_answer_about_one_rank_of_the_same_moment_repeats_the_whole() -> None:
    whole = answer({"load_running_requests": [1.0, 2.0], "load_stamp_s": 100.0}, ranks=2, interface="sglang-loads")
    one = answer({"load_running_requests": 2.0, "load_stamp_s": 100.0}, ranks=(1,), interface="sglang-loads")
    (ledger,) = join(whole, one)
    assert ledger.n_moments == 1
    assert ledger.values["load_running_requests"].tolist() == [[1.0, 2.0]]


def test_answers_about_no_rank_only_give_facts() -> None:
    told = answer({}, ranks=0, interface="sglang-server-info", model=None, role=None, facts={"dp_size": 4})
    (ledger,) = join(counting(1.0), counting(9.0, "b"), told)
    assert ledger.n_moments == 2
    assert ledger.facts == {"dp_size": 4}
    assert "sglang-server-info" in ledger.interfaces


def test_series_without_rank_labels_leave_a_ledger_without_ranks() -> None:
    (ledger,) = join(*(answer({}, ranks=0, where=where, unlabelled=True) for where in "ab"))
    assert (ledger.unlabelled, ledger.ranks, ledger.n_moments) == (True, (), 0)


def test_the_first_interface_tells_and_the_others_fill_gaps() -> None:
    metrics = answer({"running_requests": [1.0, np.nan]}, ranks=2)
    other = answer({"running_requests": [8.0, 9.0]}, ranks=2, interface="sglang-load-stat", model=None)
    (ledger,) = join(other, metrics)
    assert ledger.values["running_requests"].tolist() == [[1.0, 9.0]]


def test_a_log_is_left_out_beside_what_tells_the_same_exactly() -> None:
    log = [
        answer({"prefill_tokens": count}, interface="sglang-log", model=None, role=None, where="x.log", taken_ns=at)
        for count, at in ((0.0, NOW_NS), (50.0, NOW_NS + SECOND))
    ]
    (ledger,) = join(answer({"prefill_tokens": 900.0}), answer({"prefill_tokens": 950.0}, where="b"), *log)
    assert ledger.values["prefill_tokens"][:, 0].tolist() == [900.0, 950.0]
    assert not ledger.restarted.any()


def test_restarts_are_marked_on_their_rank_and_moment() -> None:
    counts = ([1.0, 1.0], [5.0, 5.0], [9.0, 2.0], [12.0, 4.0])
    (ledger,) = join_said(*((counting(count, f"{at}", ranks=2), float(at)) for at, count in enumerate(counts)))
    assert ledger.restarted.tolist() == [[False, False], [False, False], [False, True], [False, False]]
    assert not ledger.swinging


def test_a_counter_that_fell_over_a_gap_has_restarted() -> None:
    counts = ([5.0, 5.0], [6.0, np.nan], [7.0, 1.0])
    (ledger,) = join_said(*((counting(count, f"{at}", ranks=2), float(at)) for at, count in enumerate(counts)))
    assert ledger.restarted[2].tolist() == [False, True]


def test_a_gauge_may_fall() -> None:
    gauges = (answer({"running_requests": 9.0}), answer({"running_requests": 2.0}, where="b"))
    assert not join(*gauges)[0].restarted.any()


def test_counters_of_several_processes_in_turn_swing() -> None:
    counts = (100.0, 40.0, 110.0, 45.0, 120.0, 50.0)
    (ledger,) = join_said(*((counting(count, f"{at}"), float(at)) for at, count in enumerate(counts)))
    assert ledger.swinging


@pytest.mark.parametrize("counts", [(100.0, 110.0, 3.0, 13.0, 23.0), (100.0, 3.0, 60.0, 2.0, 50.0, 55.0)])
def test_restarts_do_not_swing(counts: tuple[float, ...]) -> None:
    (ledger,) = join_said(*((counting(count, f"{at}"), float(at)) for at, count in enumerate(counts)))
    assert ledger.restarted.any()
    assert not ledger.swinging


@given(st.permutations(range(4)))
def test_other_numbers_for_the_ranks_only_move_columns(turn: list[int]) -> None:
    plain = join(counting([1.0, 2.0, 3.0, 4.0]), counting([5.0, 6.0, 7.0, 8.0], "b"))[0]
    turned = join(
        *(counting([float(count + place) for place in turn], where) for count, where in ((1, "a.prom"), (5, "b")))
    )[0]
    assert turned.values["decode_tokens"].tolist() == plain.values["decode_tokens"][:, turn].tolist()


def test_expert_counts_of_the_latest_shape_are_kept() -> None:
    told = [
        counting(count, f"{count}", expert_tokens=np.full(shape, count))
        for count, shape in ((1.0, (2, 4)), (5.0, (2, 8)), (9.0, (2, 8)))
    ]
    (ledger,) = join(*told)
    assert ledger.expert_tokens is not None
    assert ledger.expert_tokens.shape == (3, 2, 8)
    assert np.isnan(ledger.expert_tokens[0]).all()
    assert (ledger.expert_tokens[2] == 9.0).all()
