"""Pairs of recordings from the harness, and how often two healthy ones are told apart.

``python -m tests.e2e.compared 80`` counts false alarms over so many pairs of deployments in which nothing is wrong; the
two of a pair differ in every draw: chips, loads, routing, noise.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from dprankdiag.harness.sampling import sample_healthy
from dprankdiag.harness.suites import write_world
from dprankdiag.harness.worlds import World
from dprankdiag.model.comparison import Comparison
from dprankdiag.pipelines.compare import Input, compare
from dprankdiag.pipelines.diagnose import Options, diagnose
from dprankdiag.store.bundle import save_bundle

PLAIN = World(steps=30, layers=4)
BY_BASELINE = ("communication.fabric", "uniform.slow")


def record(world: World, folder: Path, baseline: Path | None = None) -> Input:
    """Write a world, diagnose it, and keep what a comparison needs."""
    outcome = diagnose(write_world(world, folder), Options(baseline=baseline))
    return Input(outcome.diagnosis, outcome.tables, str(folder))


def save(side: Input, path: Path) -> Path:
    """Save a side as a bundle."""
    save_bundle(path, side.diagnosis, side.tables)
    return path


def draw_pairs(count: int, seed: int) -> Mapping[str, tuple[World, World]]:
    """Draw pairs of healthy deployments: one half plain, the other of every shape and noise."""
    pairs = {
        f"plain {k}": (replace(PLAIN, seed=seed + 2 * k), replace(PLAIN, seed=seed + 2 * k + 1))
        for k in range(count // 2)
    }
    sampled = sample_healthy(count - len(pairs), seed, kernels=15_000)
    return pairs | {name: (world, replace(world, seed=world.seed + 1)) for name, world in sampled.items()}


def compare_pair(pair: tuple[World, World], folder: Path) -> tuple[Comparison, list[str]]:
    """Compare two worlds; also list what the second is found guilty of only because the first is its baseline."""
    before = record(pair[0], folder / "before")
    bundle = save(before, folder / "before.dprank")
    after = record(pair[1], folder / "after", bundle)
    return compare(before, after), [item.cause for item in after.diagnosis.findings if item.cause in BY_BASELINE]


def main(count: int, seed: int = 5) -> None:
    """Print every false alarm and their number."""
    told = {"better": 0, "worse": 0, "unchanged": 0, "not_comparable": 0}
    accused = 0
    for name, pair in draw_pairs(count, seed).items():
        with tempfile.TemporaryDirectory() as folder:
            found, causes = compare_pair(pair, Path(folder))
        told[found.verdict] += 1
        accused += bool(causes)
        if found.verdict != "unchanged" or causes:
            print(f"{name}: {found.headline} {causes or ''}")
    comparable = count - told["not_comparable"]
    print(f"{told}; false alarms {told['better'] + told['worse']} of {comparable}, by baseline {accused}")


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
