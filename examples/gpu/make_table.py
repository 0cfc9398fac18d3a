"""Ask dprankdiag about every run in a folder, and print a Markdown table of what was planted and what it says.

usage: make_table.py FOLDER COMMAND...     (such as: make_table.py ran dprankdiag)
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HEAD = ("fault", "truth", "verdict", "right", "lost, measured", "lost, told", "confidence", "waits least", "asked for")
ALARMS = ("critical", "warning")


def main(folder: Path, command: Sequence[str]) -> int:
    rows = [judge(path.parent, command) for path in sorted(folder.glob("*/truth.json"))]
    print(render([HEAD, *rows]))
    wrong = [row[0] for row in rows if row[3] != "yes"]
    print(f"\n{len(rows) - len(wrong)} of {len(rows)} right" + (f"; not: {', '.join(wrong)}" if wrong else ""))
    return 1 if wrong or not rows else 0


def judge(case: Path, command: Sequence[str]) -> tuple[str, ...]:
    made = json.loads((case / "truth.json").read_text("utf-8"))
    truths = made["facts"]["truths"]
    start = time.perf_counter()
    answer = ask([str(case / path) for path in made["paths"]], command)
    took = f"{time.perf_counter() - start:.1f} s"
    if isinstance(answer, str):
        return (case.name, say(truths), answer, "no", "-", "-", "-", waits_least(case), took)
    alarms = [found for found in answer["findings"] if found["severity"] in ALARMS]
    expected = [(true["answerable"], true["ranks"]) for true in truths]
    right = [(found["cause"], found["ranks"]) for found in alarms] == expected
    first: dict[str, Any] = alarms[0] if alarms else {}
    return (
        case.name,
        say(truths),
        "; ".join(f"{found['cause']} {found['ranks']} {found['when']}" for found in alarms) or answer["status"],
        "yes" if right else "no",
        percent(truths[0]["lost_ns"] / truths[0]["wall_ns"]) if truths else "-",
        percent(first.get("lost_ratio")),
        "-" if not first else f"{first['confidence']:.2f}",
        waits_least(case),
        took,
    )


def waits_least(case: Path) -> str:
    """Name the rank that waits least by the stamps that collectives on one GPU have taken themselves."""
    stamps = case / "stamps.json"
    if not stamps.exists():
        return "-"
    least = min(json.loads(stamps.read_text("utf-8")), key=lambda own: own["wait_ns"])
    return f"{least['rank']} ({least['wait_ns'] / 1e6:.0f} ms)"


def ask(paths: Sequence[str], command: Sequence[str]) -> dict[str, Any] | str:
    done = subprocess.run(
        [*command, "analyze", *paths, "--format", "json"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        return f"exit code {done.returncode}: {(done.stderr.strip().splitlines() or ['nothing said'])[-1]}"
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def say(truths: Sequence[dict[str, Any]]) -> str:
    return "; ".join(f"{true['answerable']} {true['ranks']} {true['when']}" for true in truths) or "healthy"


def percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{100 * ratio:.1f} %"


def render(rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
