"""The front ends of vLLM: what their own code chose, and what follows from that."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprankdiag.errors import UsageError
from dprankdiag.simulate.routers.vllm import Layout, VllmFrontEnd, VllmRouter, score_kv
from tests.simulate.routers.builders import MS, ask, show


def test_the_score_chooses_what_the_front_ends_own_code_chose(payloads: Path) -> None:
    cases = json.loads((payloads / "vllm-0.33.0" / "lb-score" / "decisions.json").read_text("utf-8"))
    for case in cases:
        counts = [(waiting, running, kv) for waiting, running, kv in case["engines_waiting_running_kv"]]
        front_end = VllmFrontEnd(len(counts), clients=case["client_count"], client=case["client_index"])
        front_end.inflight = list(case["inflight_of_this_client"])
        front_end.take(counts)
        front_end.start = case["eng_start_index_before"]
        rank = case["explicit_rank"]
        chosen = [front_end.choose() if rank is None else front_end.pin(rank) for _ in range(case["requests"])]
        assert chosen == case["chosen"], case["case"]
        assert [list(engine) for engine in front_end.counts] == case["engines_after"], case["case"]
        assert front_end.start == case["eng_start_index_after"], case["case"]
    assert len(cases) == 39


@pytest.mark.parametrize(
    "clients, client, start",
    [(8, 5, 5), (1, 0, 0), (4, 3, 6), (3, 2, 5)],
)
def test_each_client_begins_its_scan_at_its_share_of_the_engines(clients: int, client: int, start: int) -> None:
    assert VllmFrontEnd(8, clients=clients, client=client).start == start


def test_a_waiting_request_weighs_four_where_the_pool_is_full() -> None:
    # 1 + 6 × 0.5
    assert score_kv(1, 0, 1.0, 0) == 4.0
    assert score_kv(0, 1, 1.0, 0) == 1.0
    assert score_kv(1, 0, 0.5, 0) == 1.0


def test_the_older_score_lets_ties_go_to_the_same_engine_until_it_is_counted() -> None:
    fixed = VllmFrontEnd(3, score="four_waiting_fixed")
    assert [fixed.choose() for _ in range(4)] == [0, 1, 2, 0]
    fixed.take([(0, 0, 0.0)] * 3)
    assert fixed.choose() == 0
    rotating = VllmFrontEnd(3, score="four_waiting")
    assert rotating.choose() == 0
    rotating.take([(0, 0, 0.0)] * 3)
    assert rotating.choose() == 1


def test_in_the_older_score_stale_counts_have_no_floor() -> None:
    # The client has nine requests on each engine but the last, and the counts of long ago say nothing of them.
    front_ends = {name: VllmFrontEnd(3, score=name) for name in ("kv", "four_waiting")}
    for front_end in front_ends.values():
        front_end.inflight = [9, 9, 1]
        front_end.take([(0, 0, 0.0)] * 3)
    assert front_ends["kv"].choose() == 2
    assert front_ends["four_waiting"].choose() == 0


def test_dense_engines_that_report_nothing_get_their_requests_in_order_from_the_start_after_each_heartbeat() -> None:
    # One request a second: five between two heartbeats, and then again from engine 0. Engines 5 to 7 get none.
    router = VllmRouter(Layout(8, lockstep=False, score="four_waiting_fixed", silent=True))
    picks = []
    for number in range(25):
        now_ns = number * 1_000 * MS + MS
        router.observe(now_ns, [show(90, 40)] * 8)
        picks.append(router.place(now_ns, ask(number)))
    assert Counter(picks) == dict.fromkeys(range(5), 5)
    assert all(message.counts == ((0, 0, 0.0),) * 8 for message in router.published)


def test_the_pool_use_that_front_ends_know_stands_still_while_counts_do() -> None:
    router = VllmRouter(Layout(2, lockstep=False))
    router.observe(MS, [show(4, 1, used=10_000, stamp=1), show(4, 1, used=10_000, stamp=1)])
    router.observe(200 * MS, [show(4, 1, used=99_000, stamp=2), show(4, 1, used=10_000, stamp=2)])
    router.observe(400 * MS, [show(4, 2, used=99_000, stamp=3), show(4, 1, used=10_000, stamp=3)])
    router.place(150 * MS + 400 * MS, ask())
    counts = [message.counts for message in router.published if message.counts]
    assert ((1, 4, 0.1), (1, 4, 0.1)) in counts
    assert ((1, 4, 0.99), (1, 4, 0.1)) not in counts
    assert counts[-1] == ((2, 4, 0.99), (1, 4, 0.1))


def test_front_ends_that_do_not_know_of_each_other_send_a_burst_the_same_way() -> None:
    # Engine 3 shows nothing, the others two requests each. With one client the third request goes elsewhere; of eight
    # clients each counts its own for eight, and still the first request of each goes to engine 3.
    def first_picks(clients: int) -> list[int]:
        router = VllmRouter(Layout(4, clients=clients))
        router.observe(MS, [show(2, stamp=1)] * 3 + [show(0, 1, stamp=1)])
        router.observe(2 * MS, [show(2, stamp=2)] * 3 + [show(0, stamp=2)])
        now_ns = 300 * MS
        return [router.place(now_ns, ask(number)) for number in range(8)]

    assert first_picks(8) == [3] * 8
    assert Counter(first_picks(1))[3] == 4


def test_a_request_that_comes_within_a_step_does_not_complete_it() -> None:
    # Both engines report step 1; then a request reaches engine 0 before step 2. Its report names step 1, so all wait.
    router = VllmRouter(Layout(2))
    step_1 = [replace(show(3, stamp=10 * MS), step=1), replace(show(4, stamp=10 * MS), step=1)]
    router.observe(10 * MS, step_1)
    router.observe(20 * MS, [replace(show(3, 1, stamp=20 * MS), step=1), step_1[1]])
    assert router.coordinator.due_ns == 70 * MS
    router.observe(40 * MS, [replace(show(4, stamp=40 * MS), step=2), step_1[1]])
    router.place(41 * MS, ask())
    (message,) = router.published
    assert message.counts == ((1, 3, 0.0), (0, 4, 0.0))
    assert message.stamps_ns == (20 * MS, 10 * MS)


def test_a_hybrid_front_end_sees_and_chooses_engines_of_its_node_alone() -> None:
    router = VllmRouter(Layout(8, nodes=2, clients=2), door=lambda request: 3)
    router.observe(MS, [show(0, 1, stamp=1)] * 4 + [show(50, 9, stamp=1)] * 4)
    picks = [router.place(300 * MS, ask(number)) for number in range(4)]
    assert set(picks) <= {4, 5, 6, 7}
    assert [load is None for load in router.believed()] == [True] * 4 + [False] * 4
    assert router.place(300 * MS, ask(9, pin=1)) == 5
    with pytest.raises(UsageError, match="demanded"):
        router.place(300 * MS, ask(10, pin=4))


def test_behind_a_balancer_outside_the_coordinator_sends_no_counts() -> None:
    router = VllmRouter(Layout(4, nodes=4))
    router.observe(MS, [show(1)] * 4)
    assert [router.place(20_000 * MS, ask(number)) for number in range(5)] == [0, 1, 2, 3, 0]
    assert router.published == []


def test_an_ended_request_is_no_longer_in_flight_at_the_front_end_that_took_it() -> None:
    router = VllmRouter(Layout(2, clients=2))
    request = ask(1)
    rank = router.place(0, request)
    assert router.front_ends[1].inflight[rank] == 1
    router.release(5, request, rank)
    router.release(6, request, rank)
    assert [front_end.inflight for front_end in router.front_ends] == [[0, 0], [0, 0]]


@given(
    moves=st.lists(
        st.one_of(
            st.tuples(st.just("choose"), st.just(0)),
            st.tuples(st.just("pin"), st.integers(0, 3)),
            st.tuples(st.just("finish"), st.integers(0, 3)),
            st.tuples(st.just("take"), st.integers(0, 9)),
        ),
        max_size=40,
    )
)
def test_the_choice_is_the_first_lowest_score_from_the_start_whatever_happened_before(
    moves: list[tuple[str, int]],
) -> None:
    front_end = VllmFrontEnd(4, clients=2)
    for what, value in moves:
        if what == "pin":
            front_end.pin(value)
        elif what == "finish" and front_end.inflight[value]:
            front_end.finish(value)
        elif what == "take":
            front_end.take([(value * engine % 5, engine, 0.2 * engine) for engine in range(4)])
        elif what == "choose":
            scan = [(front_end.start + place) % 4 for place in range(4)]
            scores = [
                score_kv(*counts, 2 * own) for counts, own in zip(front_end.counts, front_end.inflight, strict=True)
            ]
            assert front_end.choose() == min(scan, key=scores.__getitem__)
