"""How long the steps of a serving world take, by laws of the harness's own: straight lines over tokens and rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dprankdiag.simulate.base import IntArray, StepTime, StepWork

PS_PER_NS = 1_000


@dataclass(frozen=True, slots=True)
class ServedCosts:
    """What each layer of a step costs, in ps for each unit and in ns for each layer.

    The defaults are those of a model with a latent KV cache in 8 bits (576 bytes a token and layer) on a GPU that reads
    4 TB/s: 144 ps a token. Prompts are computed at 20 fs a pair, and 3 ns a token in dense parts.

    Attributes:
        layers: gather and scatter pairs of a step.
        attention_ns: that attention takes at least, where a rank has any work.
        token_ps: for each KV token that decoding reads.
        read_tokens: tokens at most that attention reads for each row or prompt token (top-k sparse attention); none
            for all.
        index_ps: for each KV token that the indexer of sparse attention looks at.
        row_ps, decode_row_ps: for each row before the gather, and for one that decodes besides.
        pair_fs: for each pair of a prompt, in fs.
        expert_ns: work behind the gather at no rows.
        shared_row_ps: for each row of all ranks behind it.
        hottest_ratio: rows of the busiest GPU's experts over the mean; each layer lasts as long as on that GPU.
        transfer_ns: gather and scatter.
        eager_ns: launches that no graph saves.
        host_ns: of the whole step.
        slow: factor on the work of each rank; one for all that are not named.
    """

    layers: int = 61
    attention_ns: int = 12_000
    token_ps: int = 144
    read_tokens: int | None = None
    index_ps: int = 0
    row_ps: int = 30_000
    decode_row_ps: int = 0
    pair_fs: int = 20_000
    expert_ns: int = 60_000
    shared_row_ps: int = 20_000
    hottest_ratio: float = 1.0
    transfer_ns: int = 20_000
    eager_ns: int = 60_000
    host_ns: int = 300_000
    slow: tuple[tuple[int, float], ...] = ()

    def time_step(self, work: StepWork) -> StepTime:
        """Give the time of each part, for `(ranks,)` arrays of work."""
        rows = work.decode_rows + work.prompt_tokens
        read = self.count_read(work.kv_tokens, work.decode_rows)
        own_ps = (
            read * self.token_ps
            + work.kv_tokens * self.index_ps
            + rows * self.row_ps
            + work.decode_rows * self.decode_row_ps
            + self.count_pairs(work.prompt_pairs, work.prompt_tokens) * self.pair_fs // PS_PER_NS
        )
        own_ns = np.where(rows > 0, self.attention_ns, 0) + own_ps // PS_PER_NS
        shared_rows = round(int(work.rows.sum()) * self.hottest_ratio)
        shared_ns = self.expert_ns + shared_rows * self.shared_row_ps // PS_PER_NS
        for rank, factor in self.slow:
            own_ns[rank] = round(int(own_ns[rank]) * factor)
        common_ns = self.layers * (self.transfer_ns + (0 if work.graph else self.eager_ns)) + self.host_ns
        return StepTime(own_ns * self.layers, np.full(len(rows), shared_ns * self.layers, np.int64), common_ns)

    def count_read(self, kv_tokens: IntArray, decode_rows: IntArray) -> IntArray:
        """Count the KV tokens that attention reads, of the same shape as the tokens held."""
        if self.read_tokens is None:
            return kv_tokens
        read: IntArray = np.minimum(kv_tokens, decode_rows * self.read_tokens)
        return read

    def count_pairs(self, prompt_pairs: IntArray, prompt_tokens: IntArray) -> IntArray:
        """Count the pairs that attention over prompts computes, of the same shape as all pairs."""
        if self.read_tokens is None:
            return prompt_pairs
        computed: IntArray = np.minimum(prompt_pairs, prompt_tokens * self.read_tokens)
        return computed
