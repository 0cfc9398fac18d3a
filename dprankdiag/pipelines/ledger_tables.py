"""From views of ledgers to the table that views of the diagnosis and bundles show."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dprankdiag.analysis.ledger_view import LedgerView, Quantity
from dprankdiag.model.ledger_results import LEDGER_RANKS
from dprankdiag.model.ledgers import FloatArray
from dprankdiag.model.schema import Columns, join_rows
from dprankdiag.units import NS_PER_S


def tabulate_ledgers(views: Sequence[LedgerView]) -> dict[str, Columns]:
    """Make the table of all ranks of all ledgers; none where no ledger was given."""
    parts = [_tabulate(view) for view in views if view.ranks]
    return {LEDGER_RANKS.name: join_rows(LEDGER_RANKS, parts)} if parts else {}


def _tabulate(seen: LedgerView) -> Columns:
    n_ranks = len(seen.ranks)
    absent = np.full(n_ranks, np.nan)

    def show(values: FloatArray | None, scale: float = 1.0) -> FloatArray:
        return absent if values is None else np.asarray(values, np.float64) * scale

    held = seen.held
    window = seen.window
    waits = None if seen.waits is None else seen.waits.per_step_s
    return LEDGER_RANKS.check(
        {
            "engine": np.array([window.ledger.name] * n_ranks, object),
            "rank": np.array(seen.ranks, np.int32),
            "running_requests": show(_values(seen.running)),
            "waiting_requests": show(window.level("load_waiting_requests", "waiting_requests")),
            "held_tokens": show(held.values) if held is not None and held.source.endswith("tokens") else absent,
            "kv_usage_ratio": show(seen.kv_usage),
            "attention_pairs": show(window.growth("scheduled_pairs") if seen.has_dp_attention else None),
            "computed_prompt_tokens": show(_values(seen.computed)),
            "cache_hit_ratio": show(seen.hits),
            "accepted_tokens": show(seen.accepted),
            "idle_share_ratio": show(seen.idle_share),
            "border_wait_ns": show(waits, NS_PER_S),
            "step_time_ns": show(seen.step_s, NS_PER_S),
            "retracted_requests": show(seen.retracted),
            "snapshot_age_ns": show(seen.ages_s, NS_PER_S),
        }
    )


def _values(quantity: Quantity | None) -> FloatArray | None:
    return None if quantity is None else quantity.values
