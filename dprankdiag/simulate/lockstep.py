"""Let the ranks of a lockstep group agree on a step: what SGLang's metadata gather decides.

Source: sgl-project/sglang@01ac0074, `python/sglang/srt/managers/scheduler_dp_attn_mixin.py` (votes; a rank without a
batch votes for graphs), `batch_overlap/two_batch_overlap.py` (ranks without work are left out of the forward modes),
`layers/dp_attention.py` (padding); columns as in release 0.5.23.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from dprankdiag.simulate.base import Mode
from dprankdiag.simulate.ranks import Batch

FORWARD_MODES: dict[Mode, int] = {"extend": 1, "decode": 2, "mixed": 3, "idle": 4, "verify": 5}
EXTENDING = ("extend", "mixed")
PADDED_RATIO = 2
"""Rows are padded to the busiest rank's where that computes at most twice as many as there are."""

Dispatch = Literal["auto", "normal", "low_latency"]


class Agreement(NamedTuple):
    """What the ranks do together; `rows` as each computes them behind the gather."""

    rows: list[int]
    graph: bool
    split: bool
    padded: bool
    low_latency: bool


class Meeting(Protocol):
    """How the ranks of a group agree on a step; a rank on its own agrees with itself."""

    def agree(self, batches: Sequence[Batch]) -> Agreement:
        """Decide what the ranks do together."""


@dataclass(frozen=True, slots=True)
class LockstepRules:
    """How a group of ranks agrees.

    Attributes:
        graph_rows: the sizes of captured graphs, ascending; none for no graphs.
        idle_in_graph: a rank without work joins a captured graph.
        overlap: two halves of a batch overlap where all ranks can split.
        split_tokens: what a rank needs at least to split its batch.
        reduce_rows: padded rows up to which the ranks' own all-reduce is used, with unpadded rows.
        dispatch: how tokens go to the experts; auto: by low latency unless a rank extends.
    """

    graph_rows: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    idle_in_graph: bool = True
    overlap: bool = False
    split_tokens: int = 2
    reduce_rows: int = 0
    dispatch: Dispatch = "auto"

    def agree(self, batches: Sequence[Batch]) -> Agreement:
        """Decide graphs, overlap, padding and the way to the experts from what the ranks say of their batches."""
        return agree(batches, self)


@dataclass(frozen=True, slots=True)
class Gathered:
    """A column of the gather: what each rank says, and how it is reduced."""

    name: str
    reduction: Literal["sum", "max", "min", "agree"]
    tell: Callable[[Batch, LockstepRules], int]


def _vote_graph(batch: Batch, rules: LockstepRules) -> int:
    if batch.mode == "idle":
        return int(rules.idle_in_graph)
    return int(batch.mode not in EXTENDING)


def _vote_split(batch: Batch, rules: LockstepRules) -> int:
    return int(batch.mode == "idle" or count_rows(batch) >= rules.split_tokens)


def count_rows(batch: Batch) -> int:
    """Count the rows that a rank brings to the gather of tokens."""
    return batch.decode_rows + batch.prompt_tokens


GATHERED: tuple[Gathered, ...] = (
    Gathered("tokens", "sum", lambda batch, _: count_rows(batch)),
    Gathered("sampled_tokens", "sum", lambda batch, _: max(batch.requests, batch.decode_rows)),
    Gathered("decode_graph", "min", _vote_graph),
    Gathered("extends", "max", lambda batch, _: int(batch.mode in EXTENDING)),
    Gathered("splits", "min", _vote_split),
    Gathered("forward_mode", "agree", lambda batch, _: FORWARD_MODES[batch.mode]),
    Gathered("prefill_graph", "min", lambda batch, _: int(batch.mode in ("extend", "idle"))),
    Gathered("longest_prefix", "max", lambda batch, _: batch.longest_prefix),
    Gathered("draft_graph", "min", _vote_graph),
    Gathered("probe", "max", lambda batch, _: int(batch.probe)),
    Gathered("pairs", "max", lambda batch, _: batch.kv_tokens + batch.prompt_pairs),
)
"""What the ranks tell each other before a step (release 0.5.23)."""


def gather(batches: Sequence[Batch], rules: LockstepRules) -> dict[str, int]:
    """Reduce every column; a forward mode that the ranks with work do not share is 0."""
    return {column.name: _reduce(column, batches, rules) for column in GATHERED}


def _reduce(column: Gathered, batches: Sequence[Batch], rules: LockstepRules) -> int:
    told = [column.tell(batch, rules) for batch in batches]
    if column.reduction == "sum":
        return sum(told)
    if column.reduction == "max":
        return max(told)
    if column.reduction == "min":
        return min(told)
    modes = {mode for mode in told if mode != FORWARD_MODES["idle"]}
    return modes.pop() if len(modes) == 1 else 0


def agree(batches: Sequence[Batch], rules: LockstepRules) -> Agreement:
    """Decide graphs, overlap, padding and the way to the experts from what the ranks say of their batches."""
    rows = [count_rows(batch) for batch in batches]
    most = max(rows)
    extends = any(batch.mode in EXTENDING for batch in batches)
    captured = _find_graph(most, rules) if min(_vote_graph(batch, rules) for batch in batches) else None
    padded = captured is not None or _pads(rows, extends, rules)
    if padded:
        rows = [captured or most] * len(rows)
    split = rules.overlap and _splits(batches, rules)
    low_latency = rules.dispatch == "low_latency" or (rules.dispatch == "auto" and not extends)
    return Agreement(rows, captured is not None, split, padded, low_latency)


def _find_graph(rows: int, rules: LockstepRules) -> int | None:
    """Find the smallest captured graph that so many rows fit."""
    place = bisect_left(rules.graph_rows, rows)
    return rules.graph_rows[place] if place < len(rules.graph_rows) else None


def _pads(rows: Sequence[int], extends: bool, rules: LockstepRules) -> bool:
    most = max(rows)
    if extends or most * len(rows) <= rules.reduce_rows:
        return False
    return most * len(rows) <= PADDED_RATIO * sum(rows)


def _splits(batches: Sequence[Batch], rules: LockstepRules) -> bool:
    modes = {batch.mode for batch in batches if batch.mode != "idle"}
    return len(modes) == 1 and all(_vote_split(batch, rules) for batch in batches)
