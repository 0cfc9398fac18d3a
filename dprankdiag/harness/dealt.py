"""Batches that a serving world has dealt, step by step, to be played kernel by kernel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dprankdiag.harness.events import Array


@dataclass(frozen=True, slots=True, eq=False)
class Dealt:
    """What each DP rank works on in every step, and whether its graph is replayed: `(steps, dp_size)` each.

    Attributes:
        decode_requests, decode_tokens: requests that decode, and the sum of their KV lengths.
        read_tokens: of these, what attention reads (less where it is sparse).
        prompt_requests, prompt_tokens: requests of which a part of the prompt is computed, and the tokens of the parts.
        prompt_context: sum of these requests' KV lengths, the parts included.
        prompt_pairs: pairs of a computed token and one before or at it.
        eager: `(steps,)` bool, no graph is replayed.
        eager_if_even: the same were the work spread evenly.
    """

    decode_requests: Array
    decode_tokens: Array
    read_tokens: Array
    prompt_requests: Array
    prompt_tokens: Array
    prompt_context: Array
    prompt_pairs: Array
    eager: Array
    eager_if_even: Array

    def spread(self) -> Dealt:
        """Deal the same work as evenly as whole requests and tokens allow."""
        return Dealt(
            share_evenly(self.decode_requests),
            share_evenly(self.decode_tokens),
            share_evenly(self.read_tokens),
            share_evenly(self.prompt_requests),
            share_evenly(self.prompt_tokens),
            share_evenly(self.prompt_context),
            share_evenly(self.prompt_pairs),
            self.eager_if_even,
            self.eager_if_even,
        )

    def __len__(self) -> int:
        """Count the steps."""
        return len(self.eager)


def share_evenly(amounts: Array) -> Array:
    """Share each step's amount among the ranks, the first ones taking what is left over: `(steps, ranks)`."""
    total, ranks = amounts.sum(axis=1, keepdims=True), amounts.shape[1]
    even: Array = total // ranks + (np.arange(ranks) < total % ranks)
    return even
