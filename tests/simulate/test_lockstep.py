from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from dprankdiag.simulate.lockstep import GATHERED, LockstepRules, agree, gather
from dprankdiag.simulate.ranks import IDLE, Batch

RULES = LockstepRules(graph_rows=(1, 2, 4, 8, 16))
EXTEND = Batch("extend", 1, 0, 0, 0, 100, 5_050, 40)


def _decode(rows: int) -> Batch:
    return Batch("decode", rows, rows, 100 * rows, 100 * rows, 0, 0)


def test_the_gather_has_the_columns_of_the_release_with_their_reductions() -> None:
    assert [column.reduction for column in GATHERED] == [
        "sum", "sum", "min", "max", "min", "agree", "min", "max", "min", "max", "max",
    ]  # fmt: skip
    gathered = gather([_decode(3), EXTEND, IDLE], RULES)
    assert (gathered["tokens"], gathered["decode_graph"], gathered["extends"]) == (103, 0, 1)
    assert (gathered["forward_mode"], gathered["longest_prefix"], gathered["pairs"]) == (0, 40, 5_050)


def test_one_rank_that_computes_prompts_takes_graphs_from_all() -> None:
    assert agree([_decode(3)] * 7 + [_decode(5)], RULES).graph
    assert not agree([_decode(3)] * 7 + [EXTEND], RULES).graph


def test_an_idle_rank_takes_graphs_from_all_only_where_it_cannot_join_them() -> None:
    batches = [_decode(3)] * 7 + [IDLE]
    assert agree(batches, RULES).graph
    assert not agree(batches, replace(RULES, idle_in_graph=False)).graph


def test_a_captured_graph_pads_all_ranks_to_the_next_size() -> None:
    agreed = agree([_decode(3), _decode(5)], RULES)
    assert (agreed.rows, agreed.padded) == ([8, 8], True)


def test_a_batch_above_the_largest_graph_makes_all_ranks_run_without() -> None:
    assert not agree([_decode(3), _decode(17)], RULES).graph


def test_rows_are_padded_up_to_twice_the_work_and_no_further() -> None:
    eager = replace(RULES, graph_rows=())
    assert agree([_decode(20), _decode(0), _decode(20), _decode(0)], eager).rows == [20] * 4
    assert agree([_decode(20), _decode(0), _decode(19), _decode(0)], eager).rows == [20, 0, 19, 0]
    assert agree([EXTEND, _decode(100)], eager).rows == [100, 100]
    assert not agree([EXTEND, _decode(100)], eager).padded


def test_small_decode_batches_of_the_own_all_reduce_are_not_padded() -> None:
    assert not agree([_decode(2), _decode(1)], replace(RULES, graph_rows=(), reduce_rows=8)).padded


def test_two_halves_overlap_only_where_all_working_ranks_do_alike_and_can_split() -> None:
    rules = replace(RULES, overlap=True, split_tokens=4)
    assert agree([_decode(4), _decode(9), IDLE], rules).split
    assert not agree([_decode(4), EXTEND], rules).split
    assert not agree([_decode(3), _decode(9)], rules).split
    assert not agree([_decode(4), _decode(9)], replace(rules, overlap=False)).split


def test_the_way_to_the_experts_follows_whether_any_rank_extends() -> None:
    assert agree([_decode(4), IDLE], RULES).low_latency
    assert not agree([_decode(4), EXTEND], RULES).low_latency
    assert agree([_decode(4), EXTEND], replace(RULES, dispatch="low_latency")).low_latency


@given(st.permutations([_decode(3), _decode(9), EXTEND, IDLE]))
def test_the_order_of_ranks_changes_no_decision(batches: list[Batch]) -> None:
    told, expected = agree(batches, RULES), agree([_decode(3), _decode(9), EXTEND, IDLE], RULES)
    assert sorted(told.rows) == sorted(expected.rows)
    assert told[1:] == expected[1:]
