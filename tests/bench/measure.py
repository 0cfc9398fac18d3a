"""Run a command and weigh it: wall time, CPU time, most memory held."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

# A child is charged with the memory of the process it was forked from until it starts its own program. So the command
# hangs from a process smaller than any that is weighed here.
_LAUNCHER = """
import json, resource, subprocess, sys, time
began = time.perf_counter()
done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE)
wall = time.perf_counter() - began
used = resource.getrusage(resource.RUSAGE_CHILDREN)
weight = [wall, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024, done.returncode]
sys.stdout.write(json.dumps(weight) + "\\n" + done.stdout.decode())
"""


@dataclass(frozen=True, slots=True)
class Weight:
    """What a command cost."""

    wall_s: float
    cpu_s: float
    peak_bytes: int
    output: str


def weigh(command: Sequence[str]) -> Weight:
    """Run a command to its end.

    Raises:
        RuntimeError: it failed.
    """
    launch = [sys.executable, "-I", "-c", _LAUNCHER, *command]
    done = subprocess.run(launch, capture_output=True, text=True, check=True)
    head, output = done.stdout.split("\n", 1)
    wall, cpu, peak, code = json.loads(head)
    if code:
        raise RuntimeError(f"{command[0]} ended with {code}: {done.stderr[-2000:]}")
    return Weight(wall, cpu, peak, output)


def weigh_in_turn(commands: Sequence[Sequence[str]], rounds: int, forget: Sequence[Path] = ()) -> list[list[Weight]]:
    """Run commands by turns, so that what disturbs one disturbs all; give each command's weights.

    Args:
        commands: what to run.
        rounds: how often.
        forget: files that the system is asked to drop from memory before every run.
    """
    weights: list[list[Weight]] = [[] for _ in commands]
    for _ in range(rounds):
        for command, kept in zip(commands, weights, strict=True):
            for path in forget:
                drop_from_memory(path)
            kept.append(weigh(command))
    return weights


def drop_from_memory(path: Path) -> None:
    """Ask the system to forget the cached pages of a file."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def middle(weights: Sequence[Weight], what: Callable[[Weight], float]) -> float:
    """Give the median of one quantity."""
    return statistics.median(what(weight) for weight in weights)
