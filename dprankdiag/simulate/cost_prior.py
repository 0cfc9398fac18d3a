"""What is known of costs before anything was observed: how models and chips of the last years compare, widely."""

from __future__ import annotations

import numpy as np

from dprankdiag.simulate.base import FloatArray
from dprankdiag.simulate.costs import TERMS

CONTEXT, EAGER = TERMS.index("context_token_ns"), TERMS.index("eager_step_ns")

LAUNCHES_NS = (4_000_000.0, 1.5)
"""What a step takes longer without a graph: the middle, and the factor of one standard deviation. A launch takes a host
3 to 5 us, a layer has about ten, a model 60 to 90 layers; long kernels hide some of it.
"""

LIKELY_TOKENS = {
    "row_ns": (300.0, 3.0),
    "prompt_token_ns": (500.0, 3.0),
    "prompt_pair_ns": (0.1, 5.0),
    "shared_row_ns": (100.0, 10.0),
}
"""What a unit of each term costs, in tokens of context that attention reads: the middle, and the factor of one standard
deviation.

A token of context is read: so many bytes of KV, over the bandwidth of the memory. The others are computed: twice the
weights before the gather for a row or a token of a prompt (less, where reading the weights hides it), the products of
all heads for a pair, the weights of its experts over all GPUs for a row behind the gather. Chips of the last years
compute 200 to 300 products of 16 bits in the time that they read a byte. Models of 100 to 1,000 billion weights hold 35
to 400 kB of KV a token and 6 to 12 billion weights before the gather: 200 to 1,100 tokens for a row, 0.05 to 0.25 for a
pair, 10 to 1,000 for a row behind the gather, by the number of GPUs.

Source: DeepSeek-V3 (arXiv 2412.19437), Qwen3 (2505.09388), GLM-4.5 (2508.06471) and Kimi K2 (2507.20534), tables of
dimensions; data sheets of NVIDIA H100, H200 and B200.
"""

SPARSE_TOKENS, SPARSE_SPREAD, SPARSE_SHARE = 10_000.0, 5.0, 0.25
"""The same of a row where attention reads only some of the context: 2,048 tokens and more for a row, while of each
token of context only the key of an indexer is read; and how likely that is beforehand.

Source: DeepSeek-V3.2-Exp, section 2.
"""

LEAN_SHARE = 0.3
"""Of the time, what contexts are taken to be where a solution leans on what is likely."""


GUESSED_STEP, GUESSED_CONTEXT = (0.05, 0.95), (0.005, 0.7)
"""Of the time, what a step and contexts are guessed to take, between."""


def lean_rows(most: FloatArray, sparse: bool) -> tuple[FloatArray, FloatArray]:
    """Give equations that lean a least-squares solution to what is likely, as much as one observed time does each.

    Args:
        most: `(len(TERMS),)` what each term could be if it took all the time.
        sparse: attention reads only some of the context.

    Returns:
        `(n, len(TERMS))` and `(n,)`.
    """
    unit = LEAN_SHARE * most[CONTEXT]
    rows, target = [], []
    for name in LIKELY_TOKENS:
        place = TERMS.index(name)
        tokens, factor = _tell_likely(name, sparse)
        if most[place] > 0 and unit > 0:
            rows.append(_point({place: 1.0, CONTEXT: -tokens}, tokens * (factor - 1) * unit))
            target.append(0.0)
    rows.append(_point({0: 1.0}, float(most[0])))
    target.append(0.5)
    if most[EAGER] > 0:
        middle, factor = LAUNCHES_NS
        rows.append(_point({EAGER: 1.0}, middle * (factor - 1)))
        target.append(1 / (factor - 1))
    return np.reshape(rows, (-1, len(TERMS))), np.array(target)


def _tell_likely(name: str, sparse: bool) -> tuple[float, float]:
    return (SPARSE_TOKENS, SPARSE_SPREAD) if name == "row_ns" and sparse else LIKELY_TOKENS[name]


def _point(entries: dict[int, float], scale: float) -> FloatArray:
    row = np.zeros(len(TERMS))
    row[list(entries)] = list(entries.values())
    pointed: FloatArray = row / scale
    return pointed


def guess_terms(most: FloatArray, sparse: bool, generator: np.random.Generator) -> FloatArray:
    """Guess terms at random, as far apart as they may be, `(len(TERMS),)`; as `lean_rows` takes its arguments."""
    guess = np.zeros(len(TERMS))
    guess[0] = most[0] * generator.uniform(*GUESSED_STEP)
    guess[EAGER] = LAUNCHES_NS[0] * np.exp(generator.standard_normal() * np.log(LAUNCHES_NS[1]))
    guess[CONTEXT] = most[CONTEXT] * np.exp(generator.uniform(*np.log(GUESSED_CONTEXT)))
    for name in LIKELY_TOKENS:
        tokens, factor = _tell_likely(name, sparse)
        guess[TERMS.index(name)] = guess[CONTEXT] * tokens * np.exp(generator.standard_normal() * np.log(factor))
    return np.where(most > 0, guess, 0.0)
