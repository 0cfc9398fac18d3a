"""The page that shows what damaged, hostile and interrupted inputs come to."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from tests.bench.table import describe_machine, find_commit, write_table
from tests.conftest import ROOT
from tests.fuzz.damages import DAMAGES, Damage, Sort
from tests.fuzz.judging import GOOD, Outcome, try_damage
from tests.fuzz.subjects import Subject

PAGE = ROOT / "docs" / "reliability.md"

_HEAD = """# Reliability

This page is written by `./dev bench tests/bench/test_reliability.py`; do not edit it. Files are cut, disks fill,
clocks lie, and some files and servers mean ill. Whatever comes, the program answers, says that it cannot tell, or
refuses in one line that says what is wrong, where, and how to mend it. It names no rank that is innocent.
"""

_LOSSES = """## What is lost

Each input has one guilty rank that was planted. Something is taken away: the end of a file, a block, lines, events,
rows, columns, tables, whole files. What is left is true, so the answer must name the guilty rank, nobody, or what is
wrong with the input. "Wrong" counts answers that name another rank or call the ranks healthy, and everything that
breaks: inner errors, more than one line, more than a minute.
"""

_LIES = """## What is put in place of something else

Bits are flipped, parts of files exchanged, and numbers, values, cells and columns replaced by what does not belong
there. Nobody knows what the right answer would be; "wrong" counts what breaks.
"""

_FAULTS = """## Other faults

These run with all tests; the numbers are those of one run of the files named. That clocks which start elsewhere or
drift, and rows that the profiler lost, leave the verdict alone is tried in
[test_verdicts.py](../tests/properties/test_verdicts.py).
"""

_NETWORK = """## What needs a network

Whether a pinned version has a known vulnerability is told by a service: `./dev audit` asks it where `pip-audit` is
installed and a network is there. All else about dependencies (declared, used, pinned, fitting, licences) is told
offline by `tests/test_dependencies.py`.
"""

FAULTS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "killed with `kill -9` or out of disk while it writes a bundle, page, report or rules",
        "the old file is whole, nothing lies beside it, one line",
        ("tests/fuzz/test_interrupted.py",),
    ),
    (
        "killed with `kill -9` or out of disk while it records",
        "every tick that was written is there",
        ("tests/store/test_recording.py",),
    ),
    (
        "traces, bundles and dumps that unpack to more than any memory, or would run code",
        "refused, or read within half a gigabyte",
        ("tests/fuzz/test_bombs.py", "tests/readers/test_expert_counts.py"),
    ),
    (
        "servers that drip, lead elsewhere, never end, or tell a hundred thousand labels",
        "given up in time, nobody else is asked",
        ("tests/fuzz/test_answers.py", "tests/collectors/test_http.py", "tests/collectors/test_hostile.py"),
    ),
    (
        "secrets in environments, command lines, addresses, headers and labels",
        "in no output, file or message",
        ("tests/fuzz/test_secrets.py",),
    ),
    (
        "names that are markup, escape sequences, links or formulas",
        "shown as text",
        (
            "tests/views/test_html.py", "tests/views/test_markdown.py", "tests/views/test_perfetto.py",
            "tests/dashboard/test_compare.py", "tests/cli/test_terminal.py",
        ),
    ),
    (
        "exports cut at every 64 KiB, zeroed pages, missing rights, pipes, unfinished exports",
        "refused in one line or read in part with a warning, nothing touched",
        ("tests/proof/test_damage.py", "tests/readers/test_damage.py"),
    ),
    ("what fuzzing found before", "mended", ("tests/fuzz/test_found.py",)),
    ("dependencies", "declared, used, pinned, fitting, free", ("tests/test_dependencies.py",)),
)  # fmt: skip
"""What goes wrong, what must come of it, and the tests that try it."""


@dataclass(slots=True)
class Tally:
    """What came of all tries so far."""

    by_subject: dict[tuple[Sort, str], Counter[str]] = field(default_factory=dict)
    by_damage: dict[tuple[Sort, str], Counter[str]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    slowest_s: float = 0.0

    def note(self, subject: Subject, damage: Damage, seed: int, outcome: Outcome) -> None:
        """Count one outcome."""
        kind = outcome.kind if outcome.is_good else "wrong"
        self.by_subject.setdefault((damage.sort, subject.kind), Counter())[kind] += 1
        self.by_damage.setdefault((damage.sort, damage.name), Counter())[kind] += 1
        self.slowest_s = max(self.slowest_s, outcome.seconds)
        if not outcome.is_good:
            place = f"{subject.kind}, {subject.name}, {damage.name}, draw {seed}"
            self.failures.append(f"{place}: {outcome.kind}: {outcome.detail[:200]}")

    @property
    def tries(self) -> int:
        """Count all tries."""
        return sum(sum(counts.values()) for counts in self.by_damage.values())


def campaign(subjects: Sequence[Subject], budget_s: float, first: int = 0) -> Tally:
    """Spoil every subject in every way that fits it, again and again with other draws, until the time is over."""
    pairs = [(subject, damage) for subject in subjects for damage in DAMAGES if damage.fits(subject.files)]
    tally = Tally()
    end_s = time.monotonic() + budget_s
    for seed in count(first):
        for subject, damage in pairs:
            if time.monotonic() > end_s:
                return tally
            tally.note(subject, damage, seed, try_damage(subject, damage, seed))
    raise AssertionError("counting never ends")


def run_tests(paths: Sequence[str]) -> tuple[int, int]:
    """Run test files; return how many tests passed and how many did not."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:dash", "--no-header", "-m", "not bench", *paths]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""
    found = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|errors?)", last)}
    return found.pop("passed", 0), sum(found.values())


def write_page(tally: Tally, faults: Sequence[tuple[str, str, Sequence[str], int, int]], path: Path = PAGE) -> str:
    """Write the page and return it."""
    parts = [_HEAD.strip(), *_write_campaign(tally), _FAULTS.strip(), _write_faults(faults), _NETWORK.strip()]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    parts += [
        f"{tally.tries} spoiled inputs; the slowest answer took {tally.slowest_s:.0f} s, and the process that gave "
        f"them all never held more than {memory:.0f} MiB.",
        f"{describe_machine()} Commit {find_commit()}.",
    ]
    page = "\n\n".join(parts) + "\n"
    path.write_text(page, "utf-8")
    return page


def _write_campaign(tally: Tally) -> Iterator[str]:
    for sort, text in (("loss", _LOSSES), ("lie", _LIES)):
        yield text.strip()
        yield _write_counts("input", sort, tally.by_subject)
        yield _write_counts("damage", sort, tally.by_damage)
    if tally.failures:
        yield "\n".join(("What went wrong:", "", *(f"- {' '.join(line.split())}" for line in tally.failures)))


def _write_counts(what: str, sort: str, counts: dict[tuple[Sort, str], Counter[str]]) -> str:
    kinds = (*GOOD, "wrong")
    mine = sorted((name, found) for (found_sort, name), found in counts.items() if found_sort == sort)
    rows: list[Sequence[object]] = [
        (name, sum(found.values()), *(found[kind] for kind in kinds)) for name, found in mine
    ]
    total = sum((found for _, found in mine), Counter[str]())
    rows.append(("all", sum(total.values()), *(total[kind] for kind in kinds)))
    return write_table((what, "tried", *kinds), rows)


def _write_faults(faults: Sequence[tuple[str, str, Sequence[str], int, int]]) -> str:
    rows = [
        (what, must, passed, failed, ", ".join(f"[{Path(path).name}](../{path})" for path in paths))
        for what, must, paths, passed, failed in faults
    ]
    return write_table(("what goes wrong", "what comes of it", "tests passed", "failed", "where"), rows)
