"""Load snapshots that stopped."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dprankdiag.analysis.ledger_view import LedgerView
from dprankdiag.classifiers.base import name_numbers
from dprankdiag.classifiers.ledgers import who_of
from dprankdiag.model.claims import UntimedClaim
from dprankdiag.model.diagnosis import Abstention, Alternative, Evidence
from dprankdiag.model.ledgers import BoolArray, FloatArray

LEAST_AGE_S = 5.0
"""Idle ranks publish at each pass of their loop, blocked ones each 50 ms, busy ones every 15 steps."""

PUBLISH_STEPS = 15.0
"""Source: sglang 0.5.23, default of --load-snapshot-publish-interval."""

LATE_PUBLISHES = 3.0
"""A snapshot is stale when so many are overdue: one may be skipped, and steps are not all equal."""


class LedgerStale:
    """Load snapshots that stopped.

    *What you see*: the load that a rank publishes does not change any more while its counters grow, or while the others
    publish; a router that believes it sends the rank too much or too little.

    *Why it happens*: one rank's publisher failed or its node is not reached; if the snapshots of all ranks stop at
    once, one scheduler hangs and holds the gather that all take part in, or one step takes as long; if their counters
    grow all the same, the publishing alone has stopped.

    *How we tell it apart*: stamps of the ranks are compared with the freshest of them, never with another host's
    clock; a snapshot is stale when five seconds and three publishing intervals have passed since. A
    gauge that stands still on an idle rank is no fault and is only noted. A poll that failed is no data.

    *What to do*: read that rank's log for failed publishes; judge it by its counters until then.
    """

    cause = "ledger.stale"

    def judge_ledger(self, seen: LedgerView) -> Iterator[UntimedClaim | Abstention]:
        """Claim ranks whose snapshots stopped, or that all stopped at once."""
        if seen.ages_s is None:
            if "load_running_requests" in seen.window.ledger.values:
                text = "its load answers carry no stamp of each rank, so that a snapshot that stopped does not show"
                yield Abstention(self.cause, text, ("timestamp of each load",), "SGLang >= 0.5.16, /v1/loads twice")
            return
        held = seen.window.held("load_stamp_s")
        told = ~np.isnan(seen.ages_s)
        limit_s = _limit(seen)
        elapsed = seen.window.elapsed_s
        if told.sum() > 1 and held[told].all() and elapsed is not None and elapsed > limit_s:
            yield _claim_all(self.cause, seen, elapsed)
            return
        old = told & (np.nan_to_num(seen.ages_s) > limit_s)
        if old.any() and 2 * int(old.sum()) <= int(told.sum()):
            yield _claim(self.cause, seen, old, seen.ages_s)


def _limit(seen: LedgerView) -> float:
    """Return the age from which a snapshot is stale: so many steps take so long."""
    told = 0.0 if seen.step_s is None or np.isnan(seen.step_s).all() else float(np.nanmedian(seen.step_s))
    steps, elapsed_s = seen.window.steps, seen.window.elapsed_s
    counted = elapsed_s / steps if steps and elapsed_s else 0.0
    return max(LEAST_AGE_S, LATE_PUBLISHES * PUBLISH_STEPS * max(told, counted))


def _claim(cause: str, seen: LedgerView, old: BoolArray, ages_s: FloatArray) -> UntimedClaim:
    ranks = seen.names_of(old)
    age_s = float(ages_s[old].max())
    text = f"load snapshot {age_s:.1f} s older than the freshest, and it does not move"
    growing = bool((old & seen.moving).any()) and seen.window.has_growth
    works = "; its counters grow, so the rank itself works" if growing and _counts(seen) else ""
    return UntimedClaim(
        cause,
        ranks,
        who_of(old),
        f"{name_numbers(ranks)}: {text}{works}",
        (Evidence("snapshot_age_ns", age_s * 1e9, "ns", text, 0.0),),
        (Alternative("stall.absent", "counters of the rank that stand still while its peers wait in a collective"),),
        0.75,
        seen.window.span_ns,
    )


def _claim_all(cause: str, seen: LedgerView, elapsed_s: float) -> UntimedClaim:
    text = f"no rank has published its load for {elapsed_s:.0f} s"
    return UntimedClaim(
        cause,
        (),
        "all",
        f"{text}: {_explain(seen)}",
        (Evidence("snapshot_age_ns", elapsed_s * 1e9, "ns", text, 0.0),),
        (Alternative("stall.absent", "Flight Recorder dumps of all ranks, which show who is absent"),),
        0.6,
        seen.window.span_ns,
    )


def _explain(seen: LedgerView) -> str:
    """Say what stops the snapshots of all ranks, by whether their work goes on.

    Steps that are counted are more than several snapshots take, by the age from which these are stale. Where only
    tokens are, they may have come before a hang.
    """
    hangs = "one hung scheduler stops the snapshots of all, and so does a single step that takes as long"
    if not _counts(seen):
        return f"{hangs}; counters of work, which /metrics has, are not told"
    if seen.moving.any() and seen.window.steps:
        return f"counters tell {seen.window.steps:.0f} steps meanwhile, so that what publishes the loads has stopped"
    if seen.moving.any():
        return "counters of their work grew meanwhile: what publishes the loads has stopped, or a scheduler hangs since"
    return f"counters of their work stand still as well; {hangs}"


def _counts(seen: LedgerView) -> bool:
    return any(name in seen.window.ledger.values for name in ("scheduled_tokens", "decode_tokens", "prefill_tokens"))
