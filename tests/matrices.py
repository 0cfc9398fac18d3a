"""Receive-wait matrices: the numbers that public reports give, and healthy ones drawn at random.

Source: github.com/deepseek-ai/DeepEP pull request 311 (two nodes, one late rank); github.com/antgroup/DeepXTrace,
src/deepxtrace/diagnose.py (several slow ranks at once).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dprankdiag.analysis.awaited import WaitView
from dprankdiag.model.sources import Source
from dprankdiag.model.wait_matrix import WaitMatrix
from dprankdiag.readers.base import Array

SIZES = (4, 6, 8, 12, 16, 24, 32)

TWO_NODES = np.array(
    [
        [458, 436, 2089715, 414, 409, 442, 489, 446, 631083, 630701, 600662, 603353, 623662, 601509, 648353, 607069],
        [1824, 428, 2109761, 592, 420, 467, 1334, 445, 645833, 631392, 604618, 613074, 631749, 613036, 661512, 613172],
        [482, 540, 400, 398, 531, 431, 413, 468, 462, 417, 435, 435, 412, 443, 503, 443],
        [496, 593, 2102578, 433, 397, 495, 446, 516, 635600, 620213, 616995, 607728, 607846, 623413, 647436, 622338],
        [454, 504, 2106236, 504, 438, 483, 560, 441, 640223, 616259, 615725, 611239, 626197, 614345, 661815, 625302],
        [464, 493, 2107535, 662, 499, 455, 528, 524, 635921, 624701, 618855, 614211, 621635, 618019, 648553, 625600],
        [575, 488, 2103425, 455, 521, 470, 400, 509, 644805, 615734, 605293, 611079, 632458, 608621, 651734, 611419],
    ],
    float,
)
"""Rows 0 to 6 of 16: everyone waits for rank 2, which waits for nobody; the other node is far."""


def complete_two_nodes(pattern: str) -> Array:
    """Give the second node its rows: "repeated" as they are, "mirrored" with nodes exchanged, or "late" for rank 2."""
    full = np.vstack([TWO_NODES, TWO_NODES[6:7], *(TWO_NODES[[0, 1, 3, 4, 5, 6, 0, 1]][row] for row in range(8))])
    if pattern == "repeated":
        return full
    full[8:, :8], full[8:, 8:] = full[8:, 8:].copy(), full[8:, :8].copy()
    full[8:, 10] = full[8:, 11]
    full[8:, 2] = full[:8, 2].max() + (full[8:, 2] if pattern == "mirrored" else 0)
    return full


def slow_at_once(late: Sequence[int] = (2, 4), receiving: Sequence[int] = (6,), n_ranks: int = 8) -> Array:
    """Make several ranks slow at once: every mean stays under three times the mean of all."""
    draw = np.random.default_rng(1)
    waits = draw.uniform(440, 560, (n_ranks, n_ranks))
    slow = np.zeros_like(waits, bool)
    slow[:, list(late)] = True
    slow[list(receiving)] = True
    np.fill_diagonal(slow, False)
    return np.where(slow, draw.uniform(1.9773e7, 1.9780e7, waits.shape), waits)


def make_matrix(waits: Array, ranks: Sequence[int] | None = None, rows: Sequence[int] | None = None) -> WaitMatrix:
    """Make a matrix; what is not positive is absent, rows and columns come out by rank."""
    columns = list(ranks) if ranks is not None else list(range(waits.shape[1]))
    waiting = list(rows) if rows is not None else columns[: len(waits)]
    waits = np.where(waits > 0, waits, np.nan)[np.argsort(waiting)][:, np.argsort(columns)]
    source = Source("waits.csv", "wait-matrix", "used")
    return WaitMatrix(tuple(sorted(waiting)), tuple(sorted(columns)), waits, "sure", source)


def name_culprits(seen: WaitView) -> dict[str, set[object]]:
    """Name the ranks and pairs that stand out, by how."""
    return {
        "awaited": {seen.ranks[line.rank] for line in seen.awaited},
        "waiting": {seen.ranks[line.rank] for line in seen.waiting},
        "pairs": {(seen.ranks[pair.waiting], seen.ranks[pair.awaited]) for pair in seen.pairs},
    }


def draw_healthy(draw: np.random.Generator) -> tuple[Array, str]:
    """Draw a matrix in which no rank is at fault, and say what it is like.

    Sizes 4 to 32; cells scatter by 3 to 50 % (normal logarithms), up to threefold ("wide"), evenly between 10 and 20,
    with one cell in thirty up to four times the rest ("spiky"), or are small counts; lines differ by up to 10 %; half
    have nodes up to 1,300 times as far as neighbours, some lack pairs or rows.
    """
    n = int(draw.choice(SIZES))
    kind = str(draw.choice(["normal", "wide", "even", "spiky", "count"]))
    scatter = float(draw.choice([0.03, 0.1, 0.2, 0.3, 0.5]))
    logs = draw.normal(0, scatter, (n, n))
    if kind == "wide":
        logs = draw.normal(0, draw.uniform(0.5, 1.2), (n, n))
    elif kind == "even":
        logs = np.log(draw.uniform(10, 20, (n, n)))
    elif kind == "spiky":
        logs += np.where(draw.random((n, n)) < 1 / 30, np.log(draw.uniform(2, 4, (n, n))), 0)
    elif kind == "count":
        logs = np.log(np.maximum(draw.poisson(draw.choice([3, 8, 30]), (n, n)), 1e-9))
    lines = float(draw.choice([0.0, 0.05, 0.1]))
    logs = logs + draw.normal(0, lines, (n, 1)) + draw.normal(0, lines, (1, n))
    if n >= 8 and draw.random() < 0.5:
        node = np.arange(n) // int(draw.choice([size for size in (2, 4, 8) if n % size == 0 and size < n]))
        far = np.log(draw.choice([1.2, 1.5, 3.0, 10.0, 1300.0]))
        logs = logs + np.where(node[:, None] != node[None, :], far, 0)
        kind += ", nodes"
    waits = np.exp(logs) * float(draw.choice([1, 500, 1e6]))
    waits = np.where(logs < -10, 0, waits)
    if draw.random() < 0.3:
        waits = np.where(draw.random((n, n)) < draw.choice([0.05, 0.2, 0.5]), 0, waits)
    return (waits[: max(4, n // 2)] if draw.random() < 0.2 else waits), f"{n} ranks, {kind}"


def write_matrix(
    waits: Array, path: Path, separator: str = ",", label: str = "on_{}", corner: str = "waiting_rank"
) -> Path:
    """Write a matrix as the tool that measures it does."""
    lines = [separator.join([corner, *(label.format(rank) for rank in range(waits.shape[1]))])]
    lines += [separator.join([str(rank), *(f"{cell:g}" for cell in row)]) for rank, row in enumerate(waits)]
    path.write_text("\n".join(lines) + "\n")
    return path
