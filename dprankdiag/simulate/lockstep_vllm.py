"""Let the ranks of a vLLM lockstep group agree on a step: the all-reduce of batch facts before each forward pass.

Source: vllm 0.33.0, `vllm/v1/worker/dp_utils.py`: the graph mode is the least that any rank can run, ranks in a graph
pad to the largest rank's tokens, and microbatches need every rank's wish, dummy batches included.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from dprankdiag.simulate.lockstep import EXTENDING, Agreement, count_rows
from dprankdiag.simulate.ranks import Batch

EAGER, PIECEWISE, FULL = 0, 1, 2


@dataclass(frozen=True, slots=True)
class VllmMeeting:
    """How a group of ranks agrees.

    Attributes:
        graph_rows: the sizes of captured graphs, ascending; none for no graphs.
        overlap: two microbatches overlap where all ranks wish it.
        decode_split_rows, prompt_split_rows: rows from which a rank wishes it.
        low_latency: the expert exchange made for few rows; a choice of the whole engine.
    """

    graph_rows: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
    overlap: bool = False
    decode_split_rows: int = 32
    prompt_split_rows: int = 512
    low_latency: bool = False

    def agree(self, batches: Sequence[Batch]) -> Agreement:
        """Decide graphs, padding and overlap; a graph is full, attention included, or it is none to `StepWork`."""
        rows = [count_rows(batch) for batch in batches]
        mode = min(self._find_mode(batch) for batch in batches)
        if mode != EAGER:
            captured = self.graph_rows[bisect_left(self.graph_rows, max(rows))]
            rows = [captured] * len(rows)
        split = self.overlap and all(self._wishes_split(batch) for batch in batches)
        return Agreement(rows, mode == FULL, split, mode != EAGER, self.low_latency)

    def _find_mode(self, batch: Batch) -> int:
        """Find what a rank can run at best."""
        if not self.graph_rows or count_rows(batch) > self.graph_rows[-1]:
            return EAGER
        return PIECEWISE if batch.mode in EXTENDING else FULL

    def _wishes_split(self, batch: Batch) -> bool:
        least = self.prompt_split_rows if batch.mode in EXTENDING else self.decode_split_rows
        return count_rows(batch) >= least
