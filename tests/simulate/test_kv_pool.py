from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from dprankdiag.simulate.base import Part
from dprankdiag.simulate.jobs import Job
from dprankdiag.simulate.kv_pool import KvPool
from dprankdiag.simulate.prefix_cache import Node
from tests.simulate.worlds import ask


def _job(number: int, parts: tuple[Part, ...]) -> Job:
    request = ask(number, 0, 5, parts=parts)
    return Job(request, request.prompt_tokens)


def _serve(pool: KvPool, job: Job) -> None:
    pool.open(job)
    pool.extend(job, job.target - job.computed)
    pool.keep(job, job.request.parts, job.computed)
    pool.close(job, job.computed)


def test_the_least_recently_used_prompt_makes_room() -> None:
    pool = KvPool(300, 1)
    jobs = [_job(n, (Part(n + 1, 100),)) for n in range(3)]
    for job in jobs:
        _serve(pool, job)
    _serve(pool, _job(9, (Part(1, 100), Part(50, 1))))
    # The second is the oldest now: the first was read again, and one token of it made room.
    assert [pool.find_cached(job) for job in jobs] == [99, 0, 99]


def test_what_a_running_request_holds_is_never_evicted() -> None:
    pool = KvPool(200, 1)
    holder = _job(0, (Part(1, 100),))
    pool.open(holder)
    pool.extend(holder, 100)
    pool.keep(holder, holder.request.parts, 100)
    for number in range(2, 6):
        _serve(pool, _job(number, (Part(number, 90),)))
    assert pool.find_cached(holder) == 99
    assert pool.used_tokens == 100


def test_only_whole_pages_are_shared() -> None:
    pool = KvPool(1_600, 16)
    _serve(pool, _job(0, (Part(1, 100),)))
    assert pool.find_cached(_job(1, (Part(1, 100), Part(2, 50)))) == 96
    assert pool.cache.pages == 6


def test_two_that_computed_the_same_at_once_keep_it_once() -> None:
    pool = KvPool(1_000, 1)
    twins = [_job(n, (Part(1, 100),)) for n in range(2)]
    for job in twins:
        pool.open(job)
        pool.extend(job, 100)
    assert pool.used_tokens == 200
    for job in twins:
        pool.keep(job, job.request.parts, 100)
    assert pool.used_tokens == 100


def _sum_nodes(node: Node) -> tuple[int, int]:
    """Sum pages and locked pages from the nodes themselves."""
    pages, locked = node.pages, node.pages if node.locks else 0
    for child in node.children.values():
        below = _sum_nodes(child)
        pages, locked = pages + below[0], locked + below[1]
    return pages, locked


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from([1, 4, 16]),
    st.lists(st.tuples(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.booleans()), min_size=1, max_size=30),
)
def test_the_counts_are_those_of_the_nodes_and_never_above_capacity(
    page: int, drawn: list[tuple[list[int], bool]]
) -> None:
    pool, running = KvPool(640, page), []
    for number, (keys, stays) in enumerate(drawn):
        job = _job(number, tuple(Part(key, 20 + key) for key in keys))
        if pool.count_pages(job.target) > pool.available_pages:
            while running:
                old = running.pop()
                pool.close(old, old.computed)
        pool.open(job)
        pool.extend(job, job.target - job.computed)
        assert pool.private_pages + pool.cache.pages <= pool.capacity_pages
        pool.keep(job, job.request.parts, job.computed)
        if stays:
            running.append(job)
        else:
            pool.close(job, job.computed)
        assert (pool.cache.pages, pool.cache.locked_pages) == _sum_nodes(pool.cache.root)
        assert pool.private_pages + pool.cache.pages <= pool.capacity_pages
        assert pool.private_pages >= 0
    for job in running:
        pool.close(job, job.computed)
    assert pool.used_tokens == 0
