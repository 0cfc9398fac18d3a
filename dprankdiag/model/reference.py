"""What a lockstep group did in another recording, as far as the recording at hand may be held against it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

FloatArray = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class TransferSamples:
    """The transfers of one operation in one kind of step.

    Attributes:
        grid: position of the kind of step among those of the recording at hand.
        members: ranks that meet.
        transfer_ns: `(n_steps,)` a step of the other recording, the mean of the ranks.
        spread: how far the lockstep groups differ in the ratio of now to then (a standard deviation of its logarithm);
            0 where there is only one.
        groups: how many there are.
    """

    grid: int
    operation: str
    members: int
    transfer_ns: FloatArray
    spread: float = 0.0
    groups: int = 1


@dataclass(frozen=True, slots=True)
class Reference:
    """The other recording, seen from the one at hand.

    Attributes:
        name: of the other recording, for people.
        misfit: why nothing of it may be compared; None if it fits.
        unlike_sizes: why transfers may not be compared; None if their sizes are alike.
        size_margin: share by which sizes may still differ.
        slowness: `(n_ranks,)` time of equal work here over the time there; None where too little of it is common.
        equal_kernels: kernels (name and launch shape) of equal work that both ran.
        work_ns: `(n_steps, n_ranks)` time in equal work a step there.
    """

    name: str
    misfit: str | None
    unlike_sizes: str | None = None
    size_margin: float = 0.0
    transfers: tuple[TransferSamples, ...] = ()
    slowness: FloatArray | None = None
    equal_kernels: int = 0
    work_ns: FloatArray | None = None
