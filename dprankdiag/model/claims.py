"""What a classifier says before anything is priced: a cause, its ranks and steps, and what would undo it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dprankdiag.model.diagnosis import Alternative, Evidence, Severity, When, Who

BoolArray = np.ndarray[Any, np.dtype[np.bool_]]
FloatArray = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Undo:
    """Multiply one component of the segments by a factor.

    Attributes:
        component: a name of `model.results.COMPONENTS`, "exit", "transfer", or "launch": there 0 stands for work that
            is launched in time, whenever its GPU is ready.
        factors: one array a grid, broadcastable to `(n_steps, n_positions, n_ranks)`.
    """

    component: str
    factors: tuple[FloatArray, ...]


@dataclass(frozen=True, slots=True)
class Claim:
    """One cause and what would undo it. Prices are not a classifier's business.

    Attributes:
        ranks: positions among the group's members, ascending; empty where all are meant.
        steps: `(n_steps,)` the steps of the recording that the claim covers.
        undo: what removes the fault, total work conserved where work only moves.
        proof: what removes it as if it had never been (for prediction of the steps outside the claim's window);
            empty where that is the same as `undo`.
        most: what may be the fault's as well where that cannot be judged, with the undo: the interval of the loss
            reaches up to it; empty where the undo is all.
        basis: "replayed"; "bound" where the loss is an upper bound, "lower bound" where it is at least that.
        loss_known: False where no counterfactual exists; the price stays null.
        spread_ns: how much the named ranks' time a step might differ from the others' without any fault (a standard
            deviation); nobody knows what a rank would do if it were well.
        support: share of draws of the steps that lead to the same cause and ranks, 0 to 1; 1 as long as none is drawn.
    """

    cause: str
    ranks: tuple[int, ...]
    steps: BoolArray
    who: Who
    when: When
    summary: str
    evidence: tuple[Evidence, ...]
    alternatives: tuple[Alternative, ...]
    undo: tuple[Undo, ...]
    basis: str = "replayed"
    layers: tuple[int, ...] | None = None
    period_ns: int | None = None
    proof: tuple[Undo, ...] = ()
    most: tuple[Undo, ...] = ()
    loss_known: bool = True
    spread_ns: float = 0.0
    support: float = 1.0


@dataclass(frozen=True, slots=True)
class UntimedClaim:
    """A cause claimed from an input without steps: nothing can be replayed, so the price stays null.

    Attributes:
        ranks: rank numbers as the input has them, ascending (a pair: waiting and awaited).
        support: how sure it is, 0 to 1.
        span_ns: first and last moment it covers, UTC; None where the input has no clock.
        work_ratio: busiest over mean work, which makes some causes a warning; None where work is not uneven.
        lost_ratio: at most so much of the time is lost to it; None where that cannot be told.
        layers: as in a finding.
        severity: where it is not the one of the catalogue.
    """

    cause: str
    ranks: tuple[int, ...]
    who: Who
    summary: str
    evidence: tuple[Evidence, ...]
    alternatives: tuple[Alternative, ...]
    support: float
    span_ns: tuple[int, int] | None = None
    work_ratio: float | None = None
    lost_ratio: float | None = None
    layers: tuple[int, ...] | None = None
    severity: Severity | None = None
