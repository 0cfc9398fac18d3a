"""How many tokens went to which expert, as an engine dumped it or a user gave it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

IntArray = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True, eq=False)
class ExpertCounts:
    """Tokens routed to experts.

    Attributes:
        paths: files that they were read from.
        tokens: `(n_passes, n_layers, n_logical)` of each forward pass; one pass where only sums are told.
        is_summed: the passes are sums over a time, so that how the load varies from pass to pass does not show.
        slots: `(n_layers, n_slots)` expert of each physical slot as it was served; None where the input does not say.
        notes: what the user should know about them.
    """

    paths: tuple[str, ...]
    tokens: IntArray
    is_summed: bool
    slots: IntArray | None = None
    notes: tuple[str, ...] = ()
