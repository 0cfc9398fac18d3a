"""Heavier load on one rank, of a kind that the recording does not show."""

from __future__ import annotations

from collections.abc import Iterator

from dprankdiag.analysis.ledger_view import LedgerView
from dprankdiag.analysis.observations import Observations
from dprankdiag.analysis.skews import Skews
from dprankdiag.classifiers.ledgers import judge_ledger_load
from dprankdiag.classifiers.loads import claim_loads
from dprankdiag.model.claims import Claim, UntimedClaim
from dprankdiag.model.diagnosis import Abstention


class LoadUnknown:
    """Heavier load on one rank, of a kind that the recording does not show.

    *What you see*: one rank's attention is longer, its work after the gather is not; the others wait for it.

    *Why it happens*: more requests, longer contexts or prefill on that rank: which of them cannot be told here.

    *How we tell it apart*: attention grows while work that does not depend on the rank's own requests stays equal.
    The kind would need launch shapes that follow the rows, batch annotations, or the engine's load ledger. A
    ledger that counts pairs or KV tokens and no requests leaves the kind open as well.

    *What to do*: compare requests and tokens by rank in the engine's ledger (SGLang /v1/loads, vLLM /metrics) at
    the same time; then balance what differs.
    """

    cause = "load.unknown"

    def judge(self, seen: Observations, skews: Skews) -> Iterator[Claim | Abstention]:
        """Claim the attention standouts of this kind."""
        yield from claim_loads(seen, skews, self.cause, "unknown", "")

    def judge_ledger(self, seen: LedgerView) -> Iterator[UntimedClaim | Abstention]:
        """Claim an uneven load of this kind, or say that it may be chance."""
        yield from judge_ledger_load(seen, self.cause, "unknown", "more attention work than the others")
