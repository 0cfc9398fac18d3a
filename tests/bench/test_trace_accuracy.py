"""How right verdicts on recordings are: suites of the harness, scored by the installed command as a user would.

Under half an hour on two cores. `DPRANKDIAG_SCORED` names a folder in which answers are kept, so that a stopped run
goes on; without it they pass.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dprankdiag.harness.score_tables import render_board
from tests.bench.accuracy import write_section
from tests.bench.recordings import (
    INTRO,
    compare_ablated,
    list_commands,
    list_runs,
    list_tables,
    read_board,
    score_without,
)
from tests.bench.table import Section
from tests.bench.without import STAGES

pytestmark = pytest.mark.bench


def test_recordings_are_judged_right(tmp_path: Path) -> None:
    folder = Path(os.environ.get("DPRANKDIAG_SCORED", tmp_path))
    boards, commands = {}, []
    for physics, draws in list_runs().items():
        kept = folder / physics
        for draw in draws:
            commands.append(["harness", "score", draw.suite, *draw.list_options(physics)])
            line = [sys.executable, "-m", "dprankdiag", *commands[-1], "-o", str(kept)]
            subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
        boards[physics] = read_board(kept)
    ablated = {stage: score_without(stage, folder / f"without-{stage}") for stage in STAGES}
    whole = score_without(None, folder / "whole")
    for physics, board in boards.items():
        print(f"\n{physics}\n\n{render_board(board)}")
    tables = (*list_tables(boards), compare_ablated(whole, ablated), list_commands(commands))
    write_section(Section("Recordings", INTRO, tables))
    assert sum(board.false_alarms().hits for board in boards.values()) == 0
    assert boards["fixed"].others_named().hits <= 0.02 * len(boards["fixed"].outcomes)
