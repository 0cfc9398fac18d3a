"""Follow a deployment through a simulated day, poll by poll and without waiting: verdicts, memory, and what is kept.

    python -m tests.bench.soak FOLDER

Watcher and recorder are those of `watch` and `record`; time is the world's own. The day has a night, bursts, lost
polls, a crash, two restarts that change how many ranks there are, and a host that is late for an hour.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from dprankdiag.harness.ledger_days import DayScore, follow_day
from dprankdiag.harness.ledger_score import Named
from dprankdiag.harness.ledger_worlds import LedgerFault, LedgerWorld, Restart, Tick, ledger_truths, simulate_ledger
from dprankdiag.model.ledgers import LedgerAnswer, NoData
from dprankdiag.pipelines.watch import Watcher
from dprankdiag.store.recorder import Recorder
from tests.ledger_runs import read_numbers

HOUR_S = 3600.0
INTERVAL_S = 20.0
WARM_SHARE = 0.35
"""Share of the day after which memory and file must have found their size: the crash is behind, the file is full."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is followed, and how long recordings keep what they are told."""

    world: LedgerWorld
    keep_s: float


@dataclass(frozen=True, slots=True)
class Soaked:
    """What a day came to.

    Attributes:
        false: verdicts that no fault explains, as lines.
        flaps: how often the right verdict went away while the fault was there.
        wait_s: from the fault to its verdict; None if it never came.
        held_s: how long the right verdict stood while the fault was there.
        rss_bytes: resident memory in the middle of what follows the warm-up.
        growth_ratio: by which memory grew after the warm-up, along a line through it, of that.
        file_bytes: size of the recording in the end.
        file_growth_ratio: its largest size after the warm-up over that at its end, less one.
        kept_s: age of the oldest row in the end.
        rank_counts: how many ranks were seen, each number once, in order.
    """

    polls: int
    false: tuple[str, ...]
    flaps: int
    wait_s: float | None
    held_s: float
    rss_bytes: float
    growth_ratio: float
    file_bytes: int
    file_growth_ratio: float
    kept_s: float
    rank_counts: tuple[int, ...]


def plan_day(nodes: int = 40, hours: float = 24.0, keep_s: float = 2 * HOUR_S) -> Plan:
    """Plan a day, or a shorter one in which as much happens."""
    ranks, length_s = 8 * nodes, hours * HOUR_S
    share = length_s / 24

    def at(hour: float) -> float:
        return round(hour * share / INTERVAL_S) * INTERVAL_S

    fault = LedgerFault("host", (ranks * 2 // 5,), 0.02, at(11.0), at(11.0) + min(HOUR_S, 2 * share))
    world = LedgerWorld(
        seed=5,
        ranks=ranks,
        nodes=nodes,
        rate_s=0.75 * ranks,
        rhythm=0.9,
        start_hour=0.0,
        bursts_hour=2.0,
        base_s=0.05,
        failed_scrapes=0.003,
        seconds=length_s,
        interval_s=INTERVAL_S,
        slice_s=5.0,
        warm=False,
        faults=(fault,),
        restarts=(
            Restart(at(5.0), 90.0),
            Restart(at(16.0), 60.0, ranks=ranks * 3 // 4),
            Restart(at(20.0), 60.0, ranks=ranks),
        ),
    )
    return Plan(world, keep_s)


class _Follower:
    """Shows each poll to a watcher and a recorder, and keeps what they take.

    What it keeps of a poll is two numbers, made room for beforehand: its own memory does not grow.
    """

    def __init__(self, recorder: Recorder, plan: Plan) -> None:
        self.watcher = Watcher(3 * INTERVAL_S)
        self.recorder = recorder
        (self.true,) = ledger_truths(plan.world)
        self.rss_bytes, self.file_bytes = np.zeros((2, round(plan.world.seconds / INTERVAL_S) + 2), np.int64)
        self.rss_bytes[:], self.file_bytes[:] = 1, 1  # so that the pages are there
        self.polls = 0
        self.rank_counts: list[int] = []
        self.held_s = 0.0

    def __call__(self, tick: Tick) -> list[Named]:
        told: list[LedgerAnswer | NoData] = [
            replace(answer, where=f"http://lab/{answer.where}") for answer in read_numbers(tick)
        ]
        silent = ("metrics", "loads") if tick.state is None else tick.failed
        told += [NoData("sglang-metrics", f"http://lab/{name}", tick.epoch_ns, "refused") for name in silent]
        self.recorder.write(told, tick.epoch_ns)
        findings = self.watcher.observe(told, tick.epoch_ns).diagnosis.findings
        named = [(finding.cause, finding.ranks) for finding in findings if finding.severity != "info"]
        self.rss_bytes[self.polls] = _measure_rss()
        self.file_bytes[self.polls] = self.recorder.path.stat().st_size
        self.polls += 1
        if tick.state is not None and tick.state.ranks not in self.rank_counts:
            self.rank_counts.append(tick.state.ranks)
        if self.true.start_s <= tick.seconds <= self.true.end_s and (self.true.cause, self.true.ranks) in named:
            self.held_s += INTERVAL_S
        return named


def soak(plan: Plan, folder: Path) -> Soaked:
    """Follow a day to its end."""
    path = folder / "day.dprec"
    truths = ledger_truths(plan.world)
    with Recorder(path, keep_s=plan.keep_s) as recorder:
        follower = _Follower(recorder, plan)
        score = follow_day(play_apart(plan.world), truths, follower)
    return _sum_up(plan, path, score, follower)


def play_apart(world: LedgerWorld) -> Iterator[Tick]:
    """Play a world in a process of its own, so that its requests are not in the memory that is measured."""
    context = get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    player = context.Process(target=_play, args=(world, theirs), daemon=True)
    player.start()
    theirs.close()
    while (tick := ours.recv()) is not None:
        yield tick
    player.join()


def _play(world: LedgerWorld, to: Connection) -> None:
    for tick in simulate_ledger(world):
        to.send(tick)
    to.send(None)


def _sum_up(plan: Plan, path: Path, score: DayScore, follower: _Follower) -> Soaked:
    ((_, wait_s),) = score.waits_s
    warm = slice(int(WARM_SHARE * follower.polls), follower.polls)
    rss = follower.rss_bytes[warm].astype(np.float64)
    slope = float(np.polyfit(np.arange(len(rss)), rss, 1)[0])
    sizes = follower.file_bytes[warm].tolist()
    return Soaked(
        score.polls,
        tuple(f"{it.named[0]} {list(it.named[1])} at {it.start_s:.0f} s" for it in score.false),
        score.flaps,
        wait_s,
        follower.held_s,
        float(np.median(rss)),
        slope * len(rss) / float(np.median(rss)),
        path.stat().st_size,
        max(sizes) / sizes[0] - 1,
        _measure_kept(path),
        tuple(follower.rank_counts),
    )


def _measure_rss() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _measure_kept(path: Path) -> float:
    database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        ((first, last),) = database.execute("SELECT min(recorded_ns), max(recorded_ns) FROM answers")
    finally:
        database.close()
    return float(last - first) / 1e9


def follow_day_apart(folder: Path) -> list[str]:
    """Follow the whole day in a process of its own, whose memory is nothing but its own."""
    return [sys.executable, "-m", __name__, str(folder)]


def main(given: Sequence[str]) -> None:
    """Follow the whole day and print what it came to."""
    print(json.dumps(asdict(soak(plan_day(), Path(given[0])))))


if __name__ == "__main__":
    main(sys.argv[1:])
