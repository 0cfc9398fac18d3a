"""Requests with longer contexts on one rank."""

from __future__ import annotations

from collections.abc import Iterator

from dprankdiag.analysis.ledger_view import LedgerView
from dprankdiag.analysis.observations import Observations
from dprankdiag.analysis.skews import Skews
from dprankdiag.classifiers.ledgers import judge_ledger_load
from dprankdiag.classifiers.loads import claim_loads
from dprankdiag.model.claims import Claim, UntimedClaim
from dprankdiag.model.diagnosis import Abstention


class LoadContext:
    """Requests with longer contexts on one rank.

    *What you see*: one rank's attention is longer while it has as many rows as the others; after the gather all
    ranks work alike. The others wait in the gather of every layer, once a layer.

    *Why it happens*: the router balances requests, not tokens; a few long conversations stick to one rank; round
    robin meets an uneven mix of lengths.

    *How we tell it apart*: only attention and KV writes grow, kernels of equal work do not. The requests of each
    rank are read from the engine's batch annotations, else from the launch shapes of kernels that run once a row;
    they are equal within a tenth, so that each of them costs more. In a ledger: query-key pairs (SGLang) or KV tokens
    stand out and the requests do not explain it. More requests over equal pairs are no fault.

    *What to do*: balance by tokens held instead of requests; cap the tokens of a rank; send long contexts to a pool
    of their own.
    """

    cause = "load.context"

    def judge(self, seen: Observations, skews: Skews) -> Iterator[Claim | Abstention]:
        """Claim the attention standouts of this kind."""
        yield from claim_loads(seen, skews, self.cause, "context", ", at as many requests (longer contexts)")

    def judge_ledger(self, seen: LedgerView) -> Iterator[UntimedClaim | Abstention]:
        """Claim an uneven load of this kind, or say that it may be chance."""
        yield from judge_ledger_load(
            seen, self.cause, "context", "longer contexts than the others' at as many requests"
        )
