"""Make the example recordings anew: `python examples/make_examples.py [FOLDER]`."""

from __future__ import annotations

import sys
from pathlib import Path

from dprankdiag.harness.faults import host_burst, load_context
from dprankdiag.harness.ledger_worlds import LEDGER_WORLDS, ledger_truths, write_ledger_world
from dprankdiag.harness.nsys_schema import Schema
from dprankdiag.harness.suites import write_world
from dprankdiag.harness.worlds import Truth, World, truth

EXAMPLES: dict[str, tuple[World, Schema]] = {
    "load-one-rank": (World(seed=101, steps=20, layers=3, lean=True, faults=(load_context(3, 2.5),)), "3.25"),
    "host-stalls": (
        World(
            seed=102,
            steps=30,
            layers=2,
            lean=True,
            names="vllm",
            faults=(host_burst(5, stalls=3, stall_ns=3_000_000),),
        ),
        "3.0",
    ),
    "healthy": (World(seed=103, steps=20, layers=3, lean=True), "3.25"),
}


LEDGERS: dict[str, str] = {"long-contexts": "context"}
"""Folder of two scrapes → the simulated engine they are of."""


def main(folder: Path) -> None:
    for name, (world, schema) in EXAMPLES.items():
        (path,) = write_world(world, folder, name=name, schema=schema, compact=True)
        print(f"{path.name}: {path.stat().st_size // 1000} kB, {describe(truth(world))}")

    for name, world in LEDGERS.items():
        inputs = write_ledger_world(LEDGER_WORLDS[world], folder / name)
        faults = ", ".join(f"{fault.cause} on rank {fault.ranks[0]}" for fault in ledger_truths(LEDGER_WORLDS[world]))
        print(f"{name}: {len(inputs)} files, {faults}")


def describe(true: Truth) -> str:
    if true.healthy:
        return f"nothing wrong, {true.wall_ns / 1e6:.2f} ms"
    ranks = ", ".join(map(str, true.ranks))
    lost = f"{true.lost_ns / 1e6:.2f} ms of {true.wall_ns / 1e6:.2f} ms lost ({100 * true.lost_ratio:.1f} %)"
    return f"{true.cause} on rank {ranks}, {true.when}: {lost}"


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
