"""Measure how evenly experts' tokens weigh on GPUs, each way an engine logs it, and say when a rearrangement is due."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dprankdiag.simulate.base import FloatArray, IntArray
from dprankdiag.simulate.experts import Placement

WINDOWS = (10, 100, 1_000)
"""Forward passes over which SGLang averages in its log line; the longest decides about a rearrangement."""

SGLANG_EPSILON = 1e-5


def share_tokens(placement: Placement, tokens: FloatArray | IntArray) -> FloatArray:
    """Share each expert's tokens evenly among its copies.

    Args:
        tokens: `(n_layers, n_logical)`.

    Returns:
        `(n_layers, n_slots)`; what a choice at random among copies comes to on average.
    """
    share = tokens / placement.count_copies()
    return np.take_along_axis(share, placement.logical, axis=1)


def sum_by_gpu(placement: Placement, slot_tokens: FloatArray | IntArray) -> FloatArray:
    """Sum the tokens of each GPU's slots, `(n_layers, n_slots)` to `(n_layers, n_gpus)`."""
    n_layers = len(slot_tokens)
    return np.asarray(slot_tokens.reshape(n_layers, placement.n_gpus, -1).sum(axis=2), np.float64)


def sum_by_expert(placement: Placement, slot_tokens: IntArray) -> IntArray:
    """Sum the tokens of each expert's copies, `(n_layers, n_slots)` to `(n_layers, n_logical)`."""
    sums = np.zeros((len(slot_tokens), placement.n_logical), slot_tokens.dtype)
    for layer, row in enumerate(slot_tokens):
        np.add.at(sums[layer], placement.logical[layer], row)
    return sums


def measure_excess(gpu_tokens: FloatArray) -> FloatArray:
    """Give the busiest GPU's tokens over the mean, `(n_layers,)`; NaN where a layer has none."""
    mean = gpu_tokens.mean(axis=1)
    excess = np.full(len(mean), np.nan)
    np.divide(gpu_tokens.max(axis=1), mean, out=excess, where=mean > 0)
    return excess


def balance_sglang(gpu_tokens: FloatArray) -> float:
    """Give SGLang's balancedness of a pass: mean over max of the GPUs, averaged over layers; 1 is even.

    A layer without tokens counts as even.

    Source: sglang 0.5.23, `eplb/expert_distribution.py`, as run: 0.635 for one GPU at twice the tokens in five of six
    layers.
    """
    ratio = (gpu_tokens.mean(axis=1) + SGLANG_EPSILON) / (gpu_tokens.max(axis=1) + SGLANG_EPSILON)
    return float(ratio.mean())


def average_windows(passes: Sequence[float]) -> dict[int, float | None]:
    """Average the balancedness of the last 10, 100 and 1,000 passes, or of what there is of them; none before any."""
    return {window: float(np.mean(passes[-window:])) if passes else None for window in WINDOWS}


def balance_vllm(gpu_tokens: FloatArray) -> float | None:
    """Give vLLM's balancedness of a step: means over maxima, each summed over layers; none without tokens.

    A layer weighs by its tokens: layers with few hide behind layers with many.

    Source: vllm 0.33.0, EPLB log line.
    """
    return _divide(gpu_tokens.mean(axis=1).sum(), gpu_tokens.max(axis=1).sum())


def balance_vllm_by_layers(gpu_tokens: FloatArray) -> float | None:
    """Give what 0.11.2 and 0.22.1 logged under that name: how layers differ on a GPU, which says nothing of GPUs."""
    return _divide(gpu_tokens.mean(axis=0).sum(), gpu_tokens.max(axis=0).sum())


def _divide(part: float, whole: float) -> float | None:
    return float(part / whole) if whole > 0 else None


def needs_rearrangement(average: float | None, threshold: float = 1.0) -> bool:
    """Say whether SGLang rearranges when its interval is over.

    It passes only if the average is above the threshold, so at the default of 1 it never passes; and where nobody
    asked for the balancedness to be reported there is no average, and the threshold is ignored.

    Args:
        average: over the longest window; none where it is not collected.
        threshold: `--eplb-min-rebalancing-utilization-threshold`.

    Source: sglang 0.5, `eplb/eplb_manager.py`.
    """
    return average is None or not average > threshold
