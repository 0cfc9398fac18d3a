from __future__ import annotations

from dataclasses import replace

from dprankdiag.simulate.lockstep_vllm import VllmMeeting
from dprankdiag.simulate.ranks import Batch

MEETING = VllmMeeting(graph_rows=(1, 2, 4, 8, 16, 512))
DUMMY = Batch("idle", 0, 1, 1, 1, 0, 0)


def _decode(rows: int) -> Batch:
    return Batch("decode", rows, rows, 100 * rows, 100 * rows, 0, 0)


def _prompt(tokens: int) -> Batch:
    return Batch("extend", 1, 0, 0, 0, tokens, tokens * (tokens + 1) // 2)


def test_decoding_ranks_and_dummies_replay_a_full_graph_of_the_largest_ranks_size() -> None:
    assert MEETING.agree([_decode(5), _decode(3), DUMMY])[:2] == ([8, 8, 8], True)


def test_one_rank_with_a_prompt_takes_the_full_graph_from_all_but_pads_them() -> None:
    agreed = MEETING.agree([_decode(5), _prompt(200)])
    assert (agreed.graph, agreed.padded, agreed.rows) == (False, True, [512, 512])


def test_one_batch_above_the_largest_graph_makes_all_ranks_run_without() -> None:
    agreed = MEETING.agree([_decode(5), _prompt(600)])
    assert (agreed.graph, agreed.padded, agreed.rows) == (False, False, [5, 600])


def test_a_dummy_batch_keeps_all_ranks_from_overlapping() -> None:
    overlapping = replace(MEETING, overlap=True)
    assert overlapping.agree([_decode(40), _prompt(512)]).split
    assert not overlapping.agree([_decode(40), DUMMY]).split
    assert not overlapping.agree([_decode(31), _decode(40)]).split
