"""Share the KV pages of a rank among running requests and the prefix cache."""

from __future__ import annotations

from dprankdiag.simulate.base import Part
from dprankdiag.simulate.jobs import Job
from dprankdiag.simulate.prefix_cache import PrefixCache


class KvPool:
    """Count pages: private ones of running requests, and those of the prefix cache.

    Attributes:
        capacity_pages: what there is.
        private_pages: held by one request each.
    """

    def __init__(self, capacity_tokens: int, page_tokens: int, share: bool = True) -> None:
        self.page_tokens = page_tokens
        self.capacity_pages = capacity_tokens // page_tokens
        self.private_pages = 0
        self.cache = PrefixCache(page_tokens)
        self.share = share

    @property
    def available_pages(self) -> int:
        """Count the pages that can be had, by eviction if need be."""
        return self.capacity_pages - self.private_pages - self.cache.locked_pages

    @property
    def used_tokens(self) -> int:
        """Count the tokens of pages that running requests hold."""
        return (self.private_pages + self.cache.locked_pages) * self.page_tokens

    def count_pages(self, tokens: int) -> int:
        """Count the pages that so many tokens of one request take."""
        return -(-tokens // self.page_tokens)

    def take(self, pages: int) -> None:
        """Give private pages; the caller has seen that they are available."""
        short = pages - (self.capacity_pages - self.private_pages - self.cache.pages)
        if short > 0:
            self.cache.evict(short)
        self.private_pages += pages

    def find_cached(self, job: Job) -> int:
        """Count the leading tokens of a job whose KV is cached; at least one is left to compute."""
        if not self.share:
            return 0
        return self._limit(self.cache.match(job.request.parts).end, job.target)

    def open(self, job: Job) -> None:
        """Let a job that begins hold what is cached of its prompt."""
        job.node = self.cache.match(job.request.parts) if self.share else self.cache.root
        self.cache.lock(job.node)
        job.computed = self._limit(job.node.end, job.target)
        job.shared_pages = job.computed // self.page_tokens

    def extend(self, job: Job, tokens: int) -> None:
        """Give a job the pages for more computed tokens."""
        self.take(self.count_pages(job.computed + tokens) - self.count_pages(job.computed))
        job.computed += tokens
        job.computed_tokens += tokens

    def keep(self, job: Job, parts: tuple[Part, ...], held: int) -> None:
        """Leave a job's computed parts to the cache and let the job read them there."""
        if not self.share or job.node is None:
            return
        private = self.count_pages(held) - job.shared_pages
        node = self.cache.insert(parts)
        self.cache.lock(node)
        self.cache.unlock(job.node)
        job.node = node
        job.shared_pages = node.end // self.page_tokens
        self.private_pages += self.count_pages(held) - job.shared_pages - private

    def close(self, job: Job, held: int) -> None:
        """Take back a job's pages."""
        self.private_pages -= self.count_pages(held) - job.shared_pages
        if job.node is not None:
            self.cache.unlock(job.node)
        job.node, job.shared_pages = None, 0

    def _limit(self, end: int, target: int) -> int:
        return min(end, target - 1) // self.page_tokens * self.page_tokens
