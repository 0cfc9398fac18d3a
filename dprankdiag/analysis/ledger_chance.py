"""Find load that is clearly uneven over a window, and made of so few requests that chance gives as much."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dprankdiag.analysis.ledger_loads import (
    FEWEST_A_RANK,
    Kind,
    find_load,
    is_even,
    is_of_prompts,
    is_outcome,
    tell_kind,
)
from dprankdiag.analysis.ledger_view import ALIKE, LedgerView, Quantity
from dprankdiag.analysis.uneven import find_high
from dprankdiag.model.ledgers import BoolArray


@dataclass(frozen=True, slots=True)
class ChanceLoad:
    """A load that is uneven, and that no router need have caused.

    Attributes:
        kind: what it would be if it lasted over many requests.
        mask: `(n_ranks,)` ranks with more of it.
        shown_by: the number that they stand out in.
        requests: of each rank on average; None where nothing counts them.
    """

    kind: Kind
    mask: BoolArray
    shown_by: Quantity
    requests: float | None


@lru_cache(maxsize=8)
def find_chance(seen: LedgerView) -> ChanceLoad | None:
    """Find ranks that only the fewness of requests keeps from being named; None if a load is found, or all is even.

    They stand out from the others by the least ratio that a named rank needs and by these ranks' own spread.
    """
    if seen.reason is not None or find_load(seen) is not None:
        return None
    if seen.rows is not None and seen.requests < FEWEST_A_RANK * len(seen.ranks):
        return None
    for quantity in (seen.work, seen.held):
        high = None if quantity is None else find_high(quantity.values, ALIKE)
        if quantity is None or high is None or is_even(seen.work, high.mask):
            continue
        if is_outcome(seen, high.mask):
            return None
        kind = tell_kind(seen.running or seen.rows, high)
        if seen.computed is not None and is_of_prompts(seen, high.mask):
            kind = "prefill"
        requests = None if seen.rows is None else float(np.nanmean(seen.rows.values))
        return ChanceLoad(kind, high.mask, quantity, requests)
    return None
