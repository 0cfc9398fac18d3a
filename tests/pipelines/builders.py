"""Steps whose loss is known to the nanosecond, the claims that undo it, and what a trace's analysis hands on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dprankdiag.analysis.alignment import Alignment
from dprankdiag.analysis.left_out import LeftOut
from dprankdiag.analysis.observations import Observations
from dprankdiag.analysis.observe import Observed
from dprankdiag.catalog.causes import load_causes
from dprankdiag.model.claims import Claim, Undo
from dprankdiag.model.diagnosis import Abstention
from dprankdiag.model.sources import Source
from dprankdiag.pipelines.pricing import Account, price
from dprankdiag.pipelines.verdict import Part
from tests.analysis.builders import Array, observe_grids, run_grid, trace

NONE_LEFT_OUT = LeftOut(0, 0.0)
RANKS = 4
EVEN_NS = 900_000
TRANSFER_NS = 100_000
STEP_NS = EVEN_NS + TRANSFER_NS
"""Wall time of a step in which nobody is late."""


def see(late_ns: Array | int, n_steps: int = 40, n_ranks: int = RANKS, **changes: Any) -> Observations:
    """Make steps in which rank 1 has `late_ns` more attention: so much longer is the step."""
    attention = np.full((n_steps, 1, n_ranks), EVEN_NS)
    attention[:, 0, 1] += np.broadcast_to(late_ns, n_steps)
    return observe_grids([run_grid({"attention": attention}, transfer=TRANSFER_NS)], **changes)


def late_for(ratio: float) -> int:
    """Give the lateness that is this share of the step it lengthens."""
    return round(STEP_NS * ratio / (1 - ratio))


def undo_attention(seen: Observations, steps: Array) -> Undo:
    attention = seen.grids[0].components["attention"]
    factor = np.where(steps[:, None, None], EVEN_NS / attention, 1.0)
    return Undo("attention", (factor,))


def claim(seen: Observations, steps: Array | slice = slice(None), **changes: Any) -> Claim:
    """Claim rank 1's attention in some steps."""
    mask = np.zeros(seen.n_steps, bool)
    mask[steps] = True
    known = Claim(
        "load.context",
        (1,),
        mask,
        "one",
        "steady",
        "rank 1: more attention",
        (),
        (),
        (undo_attention(seen, mask),),
    )
    return replace(known, **changes)


def account(seen: Observations, *claims: Claim) -> Account:
    return price(seen, claims, load_causes())


def part(
    seen: Observations | None,
    claims: Sequence[Claim] = (),
    *,
    abstentions: Sequence[Abstention] = (),
    reasons: Sequence[str] = (),
    matched: float = 1.0,
    local: float = 0.0,
    left_out: LeftOut = NONE_LEFT_OUT,
    sources: Sequence[Source] = (),
    **of_trace: Any,
) -> Part:
    """Make what was found in one trace; without steps there is no group."""
    groups = () if seen is None else (seen,)
    calls = 1_000
    observed = Observed(
        groups,
        Alignment((None,) * RANKS, "session", None, ()),
        (),
        250,
        calls,
        round(matched * calls),
        round(local * calls / (1 - local)),
        left_out,
        tuple(reasons),
    )
    accounts = () if seen is None else (account(seen, *claims),)
    return Part(trace(RANKS, sources=tuple(sources), **of_trace), observed, accounts, tuple(abstentions))
