"""Declare what a serving world leaves behind, and write it down row by row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dprankdiag.model.schema import Column, Columns, Table
from dprankdiag.simulate.base import IntArray, Mode

NS = "ns"
MODES: tuple[Mode, ...] = ("idle", "decode", "extend", "mixed", "verify")
"""Modes of a rank by their place in the table of rank steps."""
STEPS = Table(
    "steps",
    "a step of one group of ranks",
    (
        Column("step", "int64", "", "counts steps of the world by their beginning"),
        Column("worker", "int64", "", "the engine"),
        Column("first_rank", "int64", "", "the group's first rank"),
        Column("start_ns", "int64", NS, "when it began"),
        Column("total_ns", "int64", NS, "until the next could begin"),
        Column("common_ns", "int64", NS, "alike for all ranks"),
        Column("graph", "int64", "", "1: all ranks replayed a graph"),
        Column("split", "int64", "", "1: two halves overlapped on all ranks"),
        Column("padded", "int64", "", "1: all ranks computed the busiest one's rows"),
        Column("low_latency", "int64", "", "1: the expert exchange made for few rows"),
    ),
)
QUEUES = (
    Column("bootstrap", "int64", "requests", "of waiting ones, those without pages on the decode rank (prefill rank)"),
    Column("inflight", "int64", "requests", "computed, whose KV is on its way to the decode rank (prefill rank)"),
    Column("prealloc", "int64", "requests", "of waiting ones, those without pages (decode rank)"),
    Column("transfer", "int64", "requests", "of waiting ones, those whose KV has not come (decode rank)"),
    Column("retracted", "int64", "requests", "of waiting ones, those whose KV was put aside (decode rank)"),
)
QUEUE_COLUMNS = tuple(column.name for column in QUEUES)
RANK_STEPS = Table(
    "rank_steps",
    "a rank in a step",
    (
        Column("step", "int64", "", "of the table of steps"),
        Column("worker", "int64", "", "the engine"),
        Column("rank", "int64", "", "within the engine"),
        Column("mode", "int64", "", "place in MODES"),
        Column("decode_rows", "int64", "rows", "rows of requests that decode, drafts included"),
        Column("decode_pairs", "int64", "pairs", "KV tokens these rows attend to"),
        Column("kv_tokens", "int64", "tokens", "KV tokens that decoding requests read"),
        Column("prompt_tokens", "int64", "tokens", "prompt tokens computed"),
        Column("prompt_pairs", "int64", "pairs", "pairs of a computed prompt token and one before or at it"),
        Column("rows", "int64", "rows", "behind the gather, padded"),
        Column("running", "int64", "requests", "that run as the step begins"),
        Column("waiting", "int64", "requests", "queued as the step begins"),
        Column("waiting_uncached_tokens", "int64", "tokens", "of prompts still to compute"),
        Column("used_tokens", "int64", "tokens", "KV tokens held"),
        Column("total_tokens", "int64", "tokens", "held and queued"),
        *QUEUES,
        Column("own_ns", "int64", NS, "work before the gather"),
        Column("shared_ns", "int64", NS, "work behind it"),
        Column("waiting_ns", "int64", NS, "for the slowest rank"),
    ),
)
REQUESTS = Table(
    "requests",
    "a request",
    (
        Column("request", "int64", "", "its number"),
        Column("worker", "int64", "", "that generated its output"),
        Column("rank", "int64", "", "within that engine"),
        Column("prefill_worker", "int64", "", "that computed its prompt, where another"),
        Column("prefill_rank", "int64", "", "within that engine"),
        Column("arrival_ns", "int64", NS, "at the gateway"),
        Column("placed_ns", "int64", NS, "when a rank had it"),
        Column("reserved_ns", "int64", NS, "when a rank that only decodes had pages for it", nullable=True),
        Column("transferred_ns", "int64", NS, "when its KV had come there", nullable=True),
        Column("first_ns", "int64", NS, "its first token", nullable=True),
        Column("end_ns", "int64", NS, "its last token", nullable=True),
        Column("prompt_tokens", "int64", "tokens", "of its prompt"),
        Column("output_tokens", "int64", "tokens", "generated"),
        Column("cached_tokens", "int64", "tokens", "found in the prefix cache", nullable=True),
        Column("recomputed_tokens", "int64", "tokens", "computed beyond the prompt, for retractions"),
        Column("retractions", "int64", "", "how often it lost its place"),
        Column("refused", "int64", "", "1: no pool could hold it"),
    ),
)
DECISIONS = Table(
    "decisions",
    "a router's choice",
    (
        Column("decision", "int64", "", "counts them"),
        Column("time_ns", "int64", NS, "when"),
        Column("request", "int64", "", "its number"),
        Column("worker", "int64", "", "that was chosen, or whose router chose"),
        Column("rank", "int64", "", "that was chosen; absent for the gateway", nullable=True),
        Column("pinned", "int64", "", "1: the request demanded it"),
    ),
)
LOAD_COLUMNS = ("running", "waiting", "waiting_uncached_tokens", "used_tokens", "total_tokens")
BELIEFS = Table(
    "beliefs",
    "a choice at hand, as the router believed it and as it was",
    (
        Column("decision", "int64", "", "of the table of decisions"),
        Column("choice", "int64", "", "a rank, or for the gateway a worker"),
        Column("age_ns", "int64", NS, "of what was believed", nullable=True),
        *(Column(f"believed_{name}", "int64", "", "as believed", nullable=True) for name in LOAD_COLUMNS),
        *(Column(f"true_{name}", "int64", "", "as it was") for name in LOAD_COLUMNS),
    ),
)
PUBLISHES = Table(
    "publishes",
    "a load that a rank published",
    (
        Column("time_ns", "int64", NS, "when it wrote it"),
        Column("worker", "int64", "", "the engine"),
        Column("rank", "int64", "", "within the engine"),
        *(Column(name, "int64", "", "as published") for name in LOAD_COLUMNS),
        *QUEUES,
    ),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a serving world did; tables as declared in this file."""

    steps: Columns
    rank_steps: Columns
    requests: Columns
    decisions: Columns
    beliefs: Columns
    publishes: Columns


class Ledger:
    """Write rows of integers of one table into blocks, one by one or as matrices."""

    _BLOCK_ROWS = 65_536
    _PENDING_ROWS = 4_096

    def __init__(self, table: Table) -> None:
        self.table = table
        self._full: list[IntArray] = []
        self._block = self._new_block()
        self._rows = 0
        self._pending: list[tuple[int, ...]] = []

    def add(self, row: tuple[int, ...]) -> None:
        """Write a row."""
        self._pending.append(row)
        if len(self._pending) == self._PENDING_ROWS:
            self._flush()

    def write(self, rows: IntArray) -> None:
        """Write rows `(columns, n)` after all that were added."""
        if self._pending:
            self._flush()
        count = rows.shape[1]
        if self._rows + count > self._block.shape[1]:
            self._full.append(self._block[:, : self._rows])
            self._block, self._rows = self._new_block(), 0
        self._block[:, self._rows : self._rows + count] = rows
        self._rows += count

    def close(self) -> Columns:
        """Give the table."""
        if self._pending:
            self._flush()
        rows = np.concatenate([*self._full, self._block[:, : self._rows]], axis=1)
        return self.table.check({column.name: rows[place] for place, column in enumerate(self.table.columns)})

    def _flush(self) -> None:
        pending, self._pending = self._pending, []
        self.write(np.array(pending, np.int64).T)

    def _new_block(self) -> IntArray:
        return np.zeros((len(self.table.columns), self._BLOCK_ROWS), np.int64)
