"""Say what it costs to rearrange experts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dprankdiag.errors import UsageError
from dprankdiag.simulate.base import IntArray
from dprankdiag.simulate.experts import Placement

NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Moves:
    """Weights that travel when one placement follows another.

    Attributes:
        received: `(n_layers, n_gpus)` experts that a GPU needs and did not hold; a second copy on it is free.
        total_bytes: of all of them.
        least_ns: until the GPU that receives most has received them, at its link's full speed: a lower bound, since
            senders may be busier and layers may be moved apart.
    """

    received: IntArray
    total_bytes: int
    least_ns: int


def count_moves(before: Placement, after: Placement, expert_bytes: int, link_bytes_s: int) -> Moves:
    """Count the experts that change GPU, their bytes, and the time that they need at least.

    Args:
        expert_bytes: weights of one expert of one layer.
        link_bytes_s: into one GPU.

    Raises:
        UsageError: the placements are of different experts, layers or GPUs.
    """
    if _shape(before) != _shape(after):
        raise UsageError(f"placements of {_shape(before)} and {_shape(after)} layers, experts and GPUs differ")
    received = np.asarray((_hold(after) & ~_hold(before)).sum(axis=2), np.int64)
    busiest = int(received.sum(axis=0).max(initial=0))
    least_ns = -(-busiest * expert_bytes * NS // link_bytes_s)
    return Moves(received, int(received.sum()) * expert_bytes, least_ns)


def _shape(placement: Placement) -> tuple[int, int, int]:
    return len(placement.logical), placement.n_logical, placement.n_gpus


def _hold(placement: Placement) -> np.ndarray[tuple[int, int, int], np.dtype[np.bool_]]:
    """Say which GPU holds which expert, `(n_layers, n_gpus, n_logical)`."""
    n_layers, n_logical, n_gpus = _shape(placement)
    held = np.zeros((n_layers, n_gpus, n_logical), np.bool_)
    by_gpu = placement.logical.reshape(n_layers, n_gpus, -1)
    held[np.arange(n_layers)[:, None, None], np.arange(n_gpus)[None, :, None], by_gpu] = True
    return held
