"""Fit how sure a verdict is to how often such verdicts were right, from scored folders.

    python -m tests.bench.calibration DIR... --at COMMIT [--prices DIR...] -o dprankdiag/catalog/confidence.toml

Each DIR was filled by `dprankdiag harness score SUITE ... -o DIR`. The folders should hold several physics, and none
that is kept to test the table on.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np

from dprankdiag.catalog.confidence import Calibration, Knot, load_calibration, make_calibration
from dprankdiag.harness.answers import Outcome, read_outcomes
from dprankdiag.harness.scoreboard import Scoreboard

FEWEST = 12
"""Findings a knot: with as many a share of 0.9 is known to ± 0.17 (95 %), and verdicts that often change are few."""

LEVEL = 0.9
NORMAL_90 = 1.645
LEAST_ERROR = 0.005


@dataclass(frozen=True, slots=True)
class Block:
    """Findings whose verdicts come back in about the same share of the draws."""

    same_sum: float
    right: int
    count: int

    def __add__(self, other: Block) -> Block:
        return Block(self.same_sum + other.same_sum, self.right + other.right, self.count + other.count)

    @property
    def rate(self) -> float:
        """Give the share of right ones, with one right and one wrong added (Laplace's rule of succession)."""
        return (self.right + 1) / (self.count + 2)


def fit_knots(pairs: Sequence[tuple[float, bool]], fewest: int = FEWEST) -> list[Knot]:
    """Fit an ascending table to shares of draws and whether the verdict was right.

    Source: pool adjacent violators, Ayer et al., Annals of Mathematical Statistics 26 (1955).

    Raises:
        ValueError: there are fewer findings than one knot needs.
    """
    if len(pairs) < fewest:
        raise ValueError(f"{len(pairs)} findings, a knot needs {fewest}")
    blocks: list[Block] = []
    for share, same in groupby(sorted(pairs), key=lambda pair: pair[0]):
        told = [right for _, right in same]
        blocks = _pool([*blocks, Block(share * len(told), sum(told), len(told))])
    while min(block.count for block in blocks) < fewest:
        least = min(range(len(blocks)), key=lambda place: blocks[place].count)
        beside = [place for place in (least - 1, least + 1) if 0 <= place < len(blocks)]
        nearest = min(beside, key=lambda place: abs(blocks[place].rate - blocks[least].rate))
        low = min(least, nearest)
        blocks[low : low + 2] = [blocks[low] + blocks[low + 1]]
    return [Knot(round(block.same_sum / block.count, 4), round(block.rate, 4), block.count) for block in _pool(blocks)]


def _pool(blocks: Iterable[Block]) -> list[Block]:
    """Join neighbours until the share of right ones ascends strictly."""
    pooled: list[Block] = []
    for block in blocks:
        pooled.append(block)
        while len(pooled) > 1 and pooled[-2].rate >= pooled[-1].rate:
            last = pooled.pop()
            pooled[-1] = pooled[-1] + last
    return pooled


def fit_model_error(board: Scoreboard, used: float) -> float:
    """Find the error of the replay, as a share of the loss, with which intervals hold the truth as often as they say.

    Args:
        used: the error that the intervals were made with.
    """
    needed = []
    for _, true, said in board.priced():
        if said.interval is None or not said.lost_ratio:
            continue
        miss = true.lost_ratio - said.lost_ratio
        half = said.interval[1] - said.lost_ratio if miss > 0 else said.lost_ratio - said.interval[0]
        model = NORMAL_90 * said.lost_ratio
        rest = half**2 - (model * used) ** 2
        clipped = miss <= 0 and said.interval[0] <= 0
        needed.append(0.0 if clipped else float(np.sqrt(max(miss**2 - max(rest, 0.0), 0.0))) / model)
    return round(max(float(np.quantile(needed, LEVEL)), LEAST_ERROR), 4) if needed else used


def fit(outcomes: Sequence[Outcome], used: float, prices: Sequence[Outcome] | None = None) -> Calibration:
    """Fit all that the catalogue holds.

    Args:
        used: see `fit_model_error`.
        prices: the outcomes to take the replay's error from; all if not given.
    """
    told = Scoreboard(tuple(outcomes)).told()
    pairs = [(said.same_ratio, right) for said, right in told if said.same_ratio is not None]
    priced = Scoreboard(tuple(outcomes if prices is None else prices))
    return make_calibration(fit_knots(pairs), fit_model_error(priced, used))


def write_toml(calibration: Calibration, source: str) -> str:
    """Write the catalogue's file."""
    head = "# How often verdicts are right that come back in such a share of the draws of their steps; written by\n"
    head += "# `python -m tests.bench.calibration`, not by hand. `findings` is how many each knot rests on.\n\n"
    text = f'source = """\n{source}"""\n\nmodel_error_ratio = {calibration.model_error_ratio}\n'
    for knot in calibration.knots:
        text += f"\n[[knots]]\nsame_ratio = {knot.same_ratio}\nright_ratio = {knot.right_ratio}\n"
        text += f"findings = {knot.findings}\n"
    return head + text


def list_source(paths: Sequence[Path], commits: str) -> str:
    """Say which suites were scored (suite, count, seed, kernels, format, physics), at which commits."""
    lines = [f"{path.stem}: {len(read_outcomes(path))} recordings\n" for path in paths]
    return f"dprankdiag harness score at {commits}; suite-count-seed-kernels-format-physics:\n{''.join(lines)}"


def list_scored(folders: Iterable[Path]) -> list[Path]:
    """List the files that hold what was said."""
    return sorted(path for folder in folders for path in folder.glob("*.jsonl"))


def read_all(paths: Iterable[Path]) -> list[Outcome]:
    """Read all that was said."""
    return [outcome for path in paths for outcome in read_outcomes(path)]


def main() -> None:
    """Read scored folders and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at", required=True, metavar="COMMIT", help="what was scored")
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR")
    parser.add_argument(
        "--prices", nargs="+", type=Path, metavar="DIR", help="take the replay's error from these alone"
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write here, not to the screen")
    asked = parser.parse_args()
    paths, prices = (list_scored(folders) for folders in (asked.folders, asked.prices or asked.folders))
    fitted = fit(read_all(paths), load_calibration().model_error_ratio, read_all(prices))
    replay = f"replay: {', '.join(it.stem for it in prices)}\n" if asked.prices else ""
    text = write_toml(fitted, list_source(paths, asked.at) + replay)
    if asked.output is None:
        print(text)
    else:
        asked.output.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
