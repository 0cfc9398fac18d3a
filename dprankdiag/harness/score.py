"""Score the installed command against recordings whose truth is known.

The command is run as a user runs it, on files, and judged by the JSON it prints. A case's folder holds its recording,
changed copies of it, and the truth; a run's folder holds what was said, one line a case, so that a stopped run goes on.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import msgspec

from dprankdiag.harness.answers import Answer, Outcome, read_answer, read_outcomes
from dprankdiag.harness.cases import Case, Facts, learn_facts
from dprankdiag.harness.suites import Format, write_world
from dprankdiag.harness.transforms import change_copy
from dprankdiag.harness.world import World

TRUTH = "truth.json"
_RECORDING, _CHANGED = "recording", "changed"

Progress = Callable[[str, "float | None"], None]
"""Told the stage and the share that is done."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A share with its 95 % bounds."""

    hits: int
    count: int

    @property
    def bounds(self) -> tuple[float, float]:
        """Bound the share behind the sample.

        Source: Wilson, Probable inference, the law of succession, and statistical inference, JASA 22 (1927).
        """
        if not self.count:
            return (0.0, 1.0)
        z, share = 1.959964, self.hits / self.count
        middle = share + z * z / (2 * self.count)
        half = z * math.sqrt(share * (1 - share) / self.count + z * z / (4 * self.count**2))
        scale = 1 + z * z / self.count
        return (max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale))

    def __str__(self) -> str:
        low, high = self.bounds
        return f"{self.hits}/{self.count} ({low:.2f}–{high:.2f})" if self.count else "-"


@dataclass(frozen=True, slots=True)
class Change:
    """A changed copy: its files, relative to the case's folder, in the order to give them; renumbered ranks."""

    name: str
    paths: tuple[str, ...]
    renamed: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Made:
    """What a case's folder holds, as its truth.json says."""

    facts: Facts
    paths: tuple[str, ...]
    changes: tuple[Change, ...] = ()


def make_case(case: Case, folder: Path, *, format: Format = "nsys") -> Made:
    """Write a case's recording, its changed copies, and what is true of it.

    Args:
        case: the case.
        folder: the case's own, made anew.
        format: of the recording; changes are made to exports only.

    Raises:
        ValueError: the world cannot be recorded so.
    """
    if case.changes and format != "nsys":
        raise ValueError("only exports of Nsight Systems can be changed")
    world = case.sized_world()
    facts = learn_facts(case, world)
    return make_recording(world, facts, folder, format=format)


def make_recording(world: World, facts: Facts, folder: Path, *, format: Format = "nsys") -> Made:
    """Write the recording of a world, its changed copies, and what is true of it, into a folder made anew.

    Raises:
        ValueError: the world cannot be recorded so.
    """
    shutil.rmtree(folder, ignore_errors=True)
    paths = write_world(world, folder / _RECORDING, name=facts.name, format=format)
    changes = []
    for position, name in enumerate(facts.changes):
        changed = change_copy(name, paths, folder / _CHANGED / f"{position}-{name.replace(' ', '-')}", world)
        changes.append(Change(name, _relate(changed.paths, folder), changed.renamed))
    made = Made(facts, _relate(paths, folder), tuple(changes))
    (folder / TRUTH).write_bytes(msgspec.json.format(msgspec.json.encode(made), indent=1) + b"\n")
    return made


def find_made(folder: Path) -> dict[Path, Made]:
    """Find the cases that were made in a folder, by their own folders.

    Raises:
        ValueError: a truth is not one that `make_case` has written.
    """
    found = {}
    for path in sorted(folder.glob(f"*/{TRUTH}")):
        try:
            found[path.parent] = msgspec.json.decode(path.read_bytes(), type=Made)
        except msgspec.MsgspecError as problem:
            raise ValueError(f"{path}: {problem}") from problem
    return found


def ask_about(folder: Path, made: Made, command: Sequence[str]) -> Outcome:
    """Let the command judge what a case's folder holds."""
    answer = _ask([folder / path for path in made.paths], command)
    changed = {it.name: _ask([folder / path for path in it.paths], command) for it in made.changes}
    renamed = {it.name: dict(it.renamed) for it in made.changes if it.renamed}
    return Outcome(made.facts, answer, changed, renamed)


def score_case(case: Case, command: Sequence[str], format: Format = "nsys") -> Outcome:
    """Make a case in a folder that is removed afterwards, and let the command judge it."""
    with tempfile.TemporaryDirectory(prefix="dprankdiag-") as folder:
        return ask_about(Path(folder), make_case(case, Path(folder), format=format), command)


def run_tasks(
    tasks: Mapping[str, Callable[[], Outcome]], kept: Path, *, jobs: int = 1, progress: Progress | None = None
) -> list[Outcome]:
    """Run what scores cases and keep what was said, one line a case; what a former run has kept is not run again.

    Args:
        tasks: by the case's name a call that can be sent to another process.
        kept: file of the lines; made if it is not there.
        jobs: processes.
        progress: told what has been done.

    Returns:
        Outcomes in the order of the tasks.
    """
    done = {outcome.facts.name: outcome for outcome in read_outcomes(kept)}
    left = [task for name, task in tasks.items() if name not in done]
    with _open_lines(kept) as write:
        for count, outcome in enumerate(_run(left, jobs), len(tasks) - len(left) + 1):
            write(outcome)
            done[outcome.facts.name] = outcome
            if progress:
                progress(f"scoring {count} of {len(tasks)}", count / len(tasks))
    return [done[name] for name in tasks]


def _run(tasks: list[Callable[[], Outcome]], jobs: int) -> Iterator[Outcome]:
    if jobs <= 1:
        yield from (task() for task in tasks)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        running = [pool.submit(task) for task in tasks]
        try:
            yield from (future.result() for future in as_completed(running))
        finally:
            pool.shutdown(cancel_futures=True)


class _open_lines:
    """Write outcomes behind those of a former run; each is handed to the system before the next case begins."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+b")
        self._file.seek(0)
        self._file.truncate(self._file.read().rfind(b"\n") + 1)

    def __enter__(self) -> Callable[[Outcome], None]:
        return self._write

    def __exit__(self, *failure: object) -> None:
        self._file.close()

    def _write(self, outcome: Outcome) -> None:
        self._file.write(msgspec.json.encode(outcome) + b"\n")
        self._file.flush()


def run_command(paths: Sequence[Path | str], command: Sequence[str]) -> tuple[dict[str, Any] | None, str]:
    """Run the diagnosis; give its JSON, or None and the reason."""
    line = [*command, "analyze", *map(str, paths), "--format", "json"]
    try:
        done = subprocess.run(line, capture_output=True, text=True, check=False)
    except OSError as problem:
        return None, str(problem)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:]
        return None, f"exit code {done.returncode}: {''.join(last)}"
    try:
        answer = json.loads(done.stdout)
    except json.JSONDecodeError as problem:
        return None, f"not JSON: {problem}"
    return (answer, "") if isinstance(answer, dict) else (None, "not one JSON object")


def _ask(paths: Sequence[Path], command: Sequence[str]) -> Answer:
    begin = time.perf_counter()
    printed, error = run_command(paths, command)
    return read_answer(printed, time.perf_counter() - begin, error)


def _relate(paths: Sequence[Path], folder: Path) -> tuple[str, ...]:
    return tuple(str(path.relative_to(folder)) for path in paths)
