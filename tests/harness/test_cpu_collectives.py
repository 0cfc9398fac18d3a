"""Collectives between real parties: what each gets, that each waits for all, and what a lost peer does."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import pytest

from dprankdiag.harness.cpu_collectives import MOST_BYTES, Ring, link_ring
from dprankdiag.harness.events import Array

Got = TypeVar("Got")


def meet(ranks: int, act: Callable[[Ring], Got]) -> list[Got]:
    """Let every rank of a ring act in a thread of its own."""
    rings = [Ring(rank, ranks, *links) for rank, links in enumerate(link_ring(ranks))]
    try:
        with ThreadPoolExecutor(ranks) as pool:
            return list(pool.map(act, rings))
    finally:
        for ring in rings:
            ring.close()


@pytest.mark.parametrize("ranks", [2, 3, 4, 7])
def test_a_ring_gathers_what_every_rank_has(ranks: int) -> None:
    def gather(ring: Ring) -> Array:
        return ring.all_gather(np.array([ring.rank, 10.0 * ring.rank]))

    expected = [[rank, 10.0 * rank] for rank in range(ranks)]
    assert all(rows.tolist() == expected for rows in meet(ranks, gather))


@pytest.mark.parametrize("ranks", [2, 3, 4, 7])
def test_a_ring_adds_up_what_all_have_for_each(ranks: int) -> None:
    parts = np.random.default_rng(1).integers(0, 100, (ranks, ranks, 5)).astype(float)
    sums = meet(ranks, lambda ring: ring.reduce_scatter(parts[ring.rank]))
    assert np.array_equal(np.stack(sums), parts.sum(axis=0))


@pytest.mark.parametrize("late", [0, 1, 3])
@pytest.mark.parametrize("operation", ["all_gather", "reduce_scatter"])
def test_no_rank_leaves_before_the_last_has_come(operation: str, late: int) -> None:
    def cross(ring: Ring) -> tuple[int, int]:
        if ring.rank == late:
            time.sleep(0.05)
        came = time.monotonic_ns()
        if operation == "all_gather":
            ring.all_gather(np.zeros(4))
        else:
            ring.reduce_scatter(np.zeros((ring.ranks, 4)))
        return came, time.monotonic_ns()

    moments = np.array(meet(4, cross))
    assert moments[:, 1].min() > moments[:, 0].max() == moments[late, 0]


def test_a_rank_whose_peer_has_gone_says_so() -> None:
    first, second = (Ring(rank, 2, *links) for rank, links in enumerate(link_ring(2)))
    second.close()
    with pytest.raises(OSError, match=r"before rank 0|Broken pipe"):
        first.all_gather(np.zeros(1))
    first.close()


def test_a_message_that_could_block_all_senders_is_refused() -> None:
    ring = Ring(0, 2, *socket.socketpair())
    with pytest.raises(ValueError, match=str(MOST_BYTES)):
        ring.all_gather(np.zeros(MOST_BYTES // 8 + 1))
    ring.close()
