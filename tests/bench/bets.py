"""Hold remedies as bets: a recording with a fault, the same deployment with the remedy done, and one with nothing done.

``python -m tests.bench.bets`` prints the table; ``python -m tests.bench.bets 5`` of every fifth world only.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dprankdiag.harness.suites import WORLDS, write_world
from dprankdiag.harness.worlds import World, truth, twin
from dprankdiag.model.comparison import Bet
from dprankdiag.model.diagnosis import Finding
from dprankdiag.pipelines.compare import Input, compare
from dprankdiag.pipelines.diagnose import diagnose

POINTS = 0.03
RIGHT: Mapping[str, Mapping[str, str]] = {
    "single_point.gpu": {"": "drain-gpu"},
    "single_point.host": {"": "pin-process"},
    "single_point.link": {"": "isolate-node"},
    "load.context": {"sglang": "balance-tokens", "vllm": "route-explicitly", "": "balance-tokens"},
    "load.requests": {"sglang": "balance-requests", "vllm": "unpin-requests", "": "balance-requests"},
    "load.prefill": {"": "align-prefills"},
    "load.idle": {"": "spread-requests"},
    "structural.expert": {"": "enable-eplb"},
    "structural.dispatch": {"": "spread-experts"},
    "structural.layout": {"": "even-layout"},
    "communication.fabric": {"": "mend-fabric"},
}
"""What an engineer who knows the truth would do first, by cause and engine; "" where the engine does not matter."""

HEADINGS = ("world", "remedy", "right", "predicted", "really", "measured", "error", "done", "not done")


@dataclass(frozen=True, slots=True)
class Held:
    """A remedy's promise and what came of it.

    Attributes:
        really_ratio: by the worlds themselves, without any recording.
        done, undone: bets where the remedy was done, and where nothing was; None where there is none.
    """

    name: str
    finding: Finding
    is_right: bool
    really_ratio: float
    done: Bet | None
    undone: Bet | None

    @property
    def error(self) -> float | None:
        """By how much the promise misses what really is gained; None where nothing was promised."""
        gain = self.finding.remedies[0].gain_ratio
        return None if gain is None else abs(gain - self.really_ratio)

    def row(self) -> tuple[str, ...]:
        """Write the line of the table."""
        promised = self.finding.remedies[0].gain_ratio
        cells = (promised, self.really_ratio, self.done.measured.ratio if self.done else None, self.error)
        told = ["-" if value is None else f"{value:.3f}" for value in cells]
        verdicts = [bet.verdict if bet else "-" for bet in (self.done, self.undone)]
        return (self.name, self.finding.remedies[0].key, "yes" if self.is_right else "no", *told, *verdicts)


def record(world: World, folder: Path) -> Input:
    """Write a world and diagnose it."""
    outcome = diagnose(write_world(world, folder))
    return Input(outcome.diagnosis, outcome.tables, str(folder))


def hold(name: str, world: World, folder: Path) -> Held | None:
    """Hold the remedy of a world's fault; None where its cause was not named at all."""
    true = truth(world)
    before = record(world, folder / "before")
    mine = [item for item in before.diagnosis.findings if item.cause == true.cause and item.lost_ratio is not None]
    if not mine:
        return None
    done = _bet_on(mine[0], compare(before, record(twin(world), folder / "after")).bets)
    other = replace(world, seed=world.seed + 1000)
    undone = _bet_on(mine[0], compare(before, record(other, folder / "other")).bets)
    return Held(name, mine[0], is_right(mine[0], world), true.lost_ratio, done, undone)


def _bet_on(finding: Finding, bets: Sequence[Bet]) -> Bet | None:
    return next((bet for bet in bets if finding.id in bet.findings), None)


def is_right(finding: Finding, world: World) -> bool:
    """Tell whether the first remedy is what is done first where the truth is known, and can be done there."""
    return finding.remedies[0].key == first_remedy(finding.cause, world)


def first_remedy(cause: str | None, world: World) -> str | None:
    """Name what is done first about a cause on the engine of a world."""
    by_engine = RIGHT.get(cause or "", {})
    engine = world.names if world.names in ("sglang", "vllm") else ""
    return by_engine.get(engine, by_engine.get(""))


def choose(step: int = 1) -> Iterator[tuple[str, World]]:
    """List the worlds with one fault whose cause has a remedy of the whole."""
    names = [name for name, world in WORLDS.items() if len(world.faults) == 1 and world.faults[0].cause in RIGHT]
    for name in names[::step]:
        yield name, WORLDS[name]


def print_table(held: Sequence[Held]) -> None:
    """Print the lines, and how many hold."""
    rows = [HEADINGS, *(item.row() for item in held)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(HEADINGS))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    right = sum(item.is_right for item in held)
    near = sum(item.error is not None and item.error <= POINTS for item in held)
    print(f"right first choice {right} of {len(held)}; gain within 3 points {near} of {len(held)}")


def main(step: int = 1) -> None:
    """Hold the worlds and print the table."""
    held = []
    for name, world in choose(step):
        with tempfile.TemporaryDirectory() as folder:
            item = hold(name, world, Path(folder))
        if item is None:
            print(f"{name}: its cause was not named")
        else:
            held.append(item)
            print(name, "yes" if item.is_right else "no", item.error, flush=True)
    print_table(held)


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
