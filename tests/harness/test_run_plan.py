"""The description of a run: what a fault changes of the orders, what a twin leaves, and what others read of them."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from dprankdiag.catalog.batches import parse_batch
from dprankdiag.harness.events import Array
from dprankdiag.harness.faults import SPREADABLE, receiver_queue
from dprankdiag.harness.run_faults import (
    EXECUTORS,
    FAULTS,
    Executor,
    list_possible,
    plan_run,
    size_run,
    tell_obstacle,
)
from dprankdiag.harness.run_plan import Orders, Plan, give_orders, unpack_orders

FAULTY = [name for name in FAULTS if name != "healthy"]
COLUMNS = ("requests", "held_tokens", "prompt_tokens", "slowness", "late_ns", "messages", "contended")


def stack(orders: list[Orders], column: str) -> Array:
    return np.stack([getattr(own, column) for own in orders], axis=1)


@pytest.mark.parametrize("name", FAULTY)
def test_a_fault_changes_what_its_ranks_do_and_nothing_else(name: str) -> None:
    plan = plan_run(name, 4)
    assert plan.fault is not None
    even, faulty = give_orders(replace(plan, fault=None)), give_orders(plan)
    more = np.zeros((plan.steps, plan.ranks), bool)
    for column in COLUMNS:
        assert (stack(faulty, column) >= stack(even, column)).all()
        more |= stack(faulty, column) > stack(even, column)
    if plan.fault.kind == "hot_expert":
        share = np.stack([own.routed_share for own in faulty], axis=2)
        assert share.sum(axis=2) == pytest.approx(1)
        assert set(share[0].argmax(axis=1)) == set(plan.fault.ranks)
        assert not more.any()
    else:
        assert np.array_equal(more, plan.active())


@pytest.mark.parametrize("name", FAULTY)
def test_a_twin_does_the_same_work_evenly_or_goes_without_the_fault(name: str) -> None:
    plan = plan_run(name, 4)
    assert plan.fault is not None
    faulty, twin = give_orders(plan), give_orders(plan.twin())
    if plan.fault.kind not in SPREADABLE:
        assert plan.twin() == replace(plan, fault=None, contended=False)
        return
    for column in ("requests", "held_tokens", "prompt_tokens"):
        whole = stack(faulty, column).sum(axis=1)
        assert stack(twin, column).sum(axis=1) == pytest.approx(whole, abs=plan.ranks)
    if plan.fault.kind == "hot_expert":
        assert np.stack([own.routed_share for own in twin]) == pytest.approx(1 / plan.ranks)
    else:
        changed = stack(twin, "held_tokens" if plan.fault.kind != "load_prefill" else "prompt_tokens")
        assert np.ptp(changed, axis=1).max() <= 1


def test_orders_are_the_same_after_a_way_through_json() -> None:
    for own in give_orders(plan_run("prefill_chunk", 4)):
        read = unpack_orders(json.loads(json.dumps(own.pack())))
        assert (read.rank, read.ranks, read.steps, read.layers) == (own.rank, own.ranks, own.steps, own.layers)
        for column in (*COLUMNS, "routed_share"):
            assert np.array_equal(getattr(read, column), getattr(own, column))


@pytest.mark.parametrize("name", ["healthy", "prefill_chunk", "more_requests"])
def test_a_step_tells_its_batch_so_that_it_can_be_read(name: str) -> None:
    for own in give_orders(plan_run(name, 4)):
        batch = parse_batch(own.say_step(30))
        assert batch is not None
        requests, held, prompt = own.own_work(30)
        assert batch.requests == requests + (prompt > 0)
        assert batch.held_tokens == held + prompt
        assert batch.prefill_tokens == (prompt + requests if prompt else 0)


def test_a_rank_without_work_tells_so() -> None:
    nothing = np.zeros(1, np.int64)
    own = Orders(0, 2, nothing, nothing, nothing, np.ones((1, 1)), np.ones(1), nothing, nothing + 1, nothing > 0)
    assert own.say_step(0) == "step[IDLE bs=0]"


def test_a_fault_that_no_real_run_can_have_is_refused() -> None:
    with pytest.raises(ValueError, match="receiver_queue"):
        give_orders(Plan("queue", receiver_queue(1, 1000)))


def test_what_cannot_be_planned_is_said() -> None:
    with pytest.raises(ValueError, match="no fault 'nonsense'"):
        plan_run("nonsense", 4)
    with pytest.raises(ValueError, match="need 4"):
        plan_run("slow_gpu", 2)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_every_fault_is_run_by_an_executor_or_told_why_not(executor: Executor) -> None:
    possible = list_possible(executor, "nsys")
    assert "healthy" in possible
    for name in FAULTS:
        assert (name in possible) != bool(tell_obstacle(executor, "nsys", name))
        assert give_orders(plan_run(name, 4, executor))[0].layers == size_run(executor).layers


def test_each_fault_can_be_run_for_real_by_someone() -> None:
    for name in FAULTS:
        assert any(not tell_obstacle(executor, "torch", name) for executor in ("nccl", "single-gpu"))
