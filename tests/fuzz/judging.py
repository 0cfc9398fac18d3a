"""Give spoiled files to the command, and judge what it makes of them."""

from __future__ import annotations

import json
import resource
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

from tests.fuzz.damages import Damage, Sort
from tests.fuzz.subjects import Subject
from tests.proof.command import Answer, run_here

LONGEST_S = 60
MOST_BYTES = 4 << 30

GOOD = ("same culprit", "nobody named", "answered", "refused")
"""What may come of a loss; of a lie nobody knows what would be right, so that only calm is asked for."""


class Hang(BaseException):
    """The command took too long; no handler of the product may catch it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one input.

    Attributes:
        kind: one of `GOOD`, or what is wrong.
        detail: for people: what was said.
    """

    kind: str
    detail: str
    seconds: float

    @property
    def is_good(self) -> bool:
        """Tell that nothing is wrong."""
        return self.kind in GOOD


def try_damage(subject: Subject, damage: Damage, seed: int, root: Path | None = None) -> Outcome:
    """Spoil a subject and let the command judge it; the same seed, the same files."""
    draw = Random(f"{subject.kind}|{subject.name}|{damage.name}|{seed}")
    return try_files(subject, damage.spoil(dict(subject.files), draw), damage.sort, root)


def try_files(subject: Subject, files: Mapping[str, bytes], sort: Sort, root: Path | None = None) -> Outcome:
    """Let the command judge files in place of a subject's own."""
    with tempfile.TemporaryDirectory(dir=root) as folder:
        words = subject.write(Path(folder), files)
        began_s = time.perf_counter()
        try:
            with limit_time(LONGEST_S), limit_memory(MOST_BYTES):
                answer = run_here(*words)
        except Hang:
            return Outcome("hung", f"after {LONGEST_S} s", time.perf_counter() - began_s)
        return Outcome(*judge(subject, answer, sort), time.perf_counter() - began_s)


def judge(subject: Subject, answer: Answer, sort: Sort) -> tuple[str, str]:
    """Say what kind of answer came, and what it said."""
    if not answer.is_calm:
        return "internal error", answer.stderr[-400:]
    lines = answer.stderr.splitlines()
    if any(not line.startswith("dprankdiag: ") for line in lines):
        return "stray lines", answer.stderr[:400]
    if answer.code in (2, 3):
        is_clean = not answer.stdout and len(lines) == 1
        return ("refused" if is_clean else "not one line"), answer.stderr[:400]
    if not subject.guilty or "json" not in subject.words:
        return "answered", ""
    said = json.loads(answer.stdout)
    warned = [item for item in said["findings"] if subject.is_faint or item["severity"] != "info"]
    named = {rank for item in warned for rank in item["ranks"]}
    told = f"{said['status']}: {[(item['cause'], item['ranks']) for item in warned]}"
    if named and named <= subject.guilty:
        return "same culprit", told
    if sort == "lie":
        return "answered", told
    if named:
        return "another accused", told
    return ("called healthy" if said["status"] == "healthy" else "nobody named"), told


@contextmanager
def limit_memory(more_bytes: int) -> Iterator[None]:
    """Let what takes much more memory than is taken now fail, and not the machine."""
    former = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + more_bytes, former[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, former)


@contextmanager
def limit_time(seconds: int) -> Iterator[None]:
    """End what takes longer."""

    def stop(number: int, frame: FrameType | None) -> Any:
        raise Hang

    former = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, former)
