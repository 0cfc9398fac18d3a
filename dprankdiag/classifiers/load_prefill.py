"""A prefill chunk that holds the decoders of all ranks."""

from __future__ import annotations

from collections.abc import Iterator

from dprankdiag.analysis.ledger_view import LedgerView
from dprankdiag.analysis.observations import Observations
from dprankdiag.analysis.skews import Skews
from dprankdiag.classifiers.ledgers import judge_ledger_load
from dprankdiag.classifiers.loads import claim_loads
from dprankdiag.model.claims import Claim, UntimedClaim
from dprankdiag.model.diagnosis import Abstention


class LoadPrefill:
    """A prefill chunk that holds the decoders of all ranks.

    *What you see*: steps in which one rank runs prefill attention and the others decode; the decoders wait for the
    chunk.

    *Why it happens*: prompts arrive unevenly, or chunks are too long for the decode latency asked for.

    *How we tell it apart*: batch annotations, else the names of attention kernels, tell which steps and ranks hold
    prompts. Those ranks must hold half as much again as the mean rank and work longer before the gather: attention,
    and the projections and norms of the prompt's rows. Where ranks take turns, nobody is named who holds no larger
    part of it. Sums over a recording say nothing here: they can be equal on all ranks while every step waits for
    somebody's prompt. In a ledger: the rank computes more prompt tokens than its requests explain, and either holds no
    more KV tokens than the others, or decoding over what it holds explains less than half of its query-key pairs
    above theirs: a prompt computed in chunks is held as well.

    *What to do*: smaller prefill chunks, prefill and decode in pools of their own, prefill delayed until several
    ranks have some.
    """

    cause = "load.prefill"

    def judge(self, seen: Observations, skews: Skews) -> Iterator[Claim | Abstention]:
        """Claim the attention standouts of this kind."""
        yield from claim_loads(seen, skews, self.cause, "prefill", " with prefill in its batch")

    def judge_ledger(self, seen: LedgerView) -> Iterator[UntimedClaim | Abstention]:
        """Claim an uneven load of this kind, or say that it may be chance."""
        yield from judge_ledger_load(
            seen, self.cause, "prefill", "more prompts computed than on the others, which wait"
        )
