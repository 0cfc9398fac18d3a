"""Keep computed prompts of one rank so that later ones skip their leading parts.

The tree has a node for each part after the same parts. Only whole pages are shared: a node owns the pages that end
within it.

Source: sgl-project/sglang@01ac0074, `python/sglang/srt/mem_cache/radix_cache.py` (locks, least recently used leaves).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from dprankdiag.simulate.base import Part


class Node:
    """A part after all the parts above it."""

    __slots__ = ("children", "end", "key", "locks", "pages", "parent", "stamp")

    def __init__(self, key: int, parent: Node | None, end: int, pages: int) -> None:
        self.key = key
        self.parent = parent
        self.end = end
        self.pages = pages
        self.children: dict[int, Node] = {}
        self.locks = 0
        self.stamp = 0


class PrefixCache:
    """Hold nodes until their pages are needed, least recently used leaves first.

    Attributes:
        pages: all that nodes own.
        locked_pages: those that running requests hold.
    """

    def __init__(self, page_tokens: int) -> None:
        self.page_tokens = page_tokens
        self.pages = 0
        self.locked_pages = 0
        self.root = Node(0, None, 0, 0)
        self._clock = 0
        self._offers = 0
        self._leaves: list[tuple[int, int, Node]] = []

    def match(self, parts: Iterable[Part]) -> Node:
        """Find the deepest node that leading parts reach."""
        node = self.root
        for part in parts:
            child = node.children.get(part.key)
            if child is None:
                break
            node = child
        return node

    def insert(self, parts: Iterable[Part]) -> Node:
        """Add what is missing of the parts; returns the last node, which the caller locks."""
        node = self.root
        for part in parts:
            child = node.children.get(part.key)
            if child is None:
                end = node.end + part.tokens
                child = Node(part.key, node, end, end // self.page_tokens - node.end // self.page_tokens)
                node.children[part.key] = child
                self.pages += child.pages
            node = child
        return node

    def lock(self, node: Node) -> None:
        """Hold a node and all above it."""
        step: Node | None = node
        while step is not None:
            if step.locks == 0:
                self.locked_pages += step.pages
            step.locks += 1
            step = step.parent

    def unlock(self, node: Node) -> None:
        """Let go of a node and all above it, which are thereby the most recently used."""
        self._clock += 1
        step: Node | None = node
        while step is not None:
            step.locks -= 1
            step.stamp = self._clock
            if step.locks == 0:
                self.locked_pages -= step.pages
                if not step.children and step.parent is not None:
                    self._offer(step)
            step = step.parent

    def evict(self, pages: int) -> int:
        """Drop leaves that no running request holds until so many pages are free; returns how many became free."""
        freed = 0
        while freed < pages and self._leaves:
            stamp, _, node = heapq.heappop(self._leaves)
            parent = node.parent
            if parent is None or node.locks or node.children or stamp != node.stamp:
                continue
            del parent.children[node.key]
            node.parent = None
            freed += node.pages
            if not parent.children and parent.locks == 0 and parent.parent is not None:
                self._offer(parent)
        self.pages -= freed
        return freed

    def _offer(self, leaf: Node) -> None:
        self._offers += 1
        heapq.heappush(self._leaves, (leaf.stamp, self._offers, leaf))
