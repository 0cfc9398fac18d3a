"""The scoreboard judges what a command prints, and nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dprankdiag.harness.faults import slow_gpu, uniform
from dprankdiag.harness.score import Rate, Scoreboard, Verdict, read_verdict, score
from dprankdiag.harness.worlds import Truth, World, truth

TINY = World(seed=1, ranks=2, steps=4, layers=1, lean=True)
SLOW = World(seed=1, ranks=4, steps=6, layers=2, faults=(slow_gpu(1, 1.5),))


def write_command(folder: Path, answer: str, code: int = 0) -> tuple[str, str]:
    """Make a program that prints one answer, whatever it is asked."""
    script = folder / "answer.py"
    script.write_text(
        f"import sys\nassert sys.argv[1] == 'analyze' and sys.argv[-2:] == ['--format', 'json']\n"
        f"print({answer!r})\nprint('because', file=sys.stderr)\nsys.exit({code})\n"
    )
    return (sys.executable, str(script))


def finding(true: Truth, **changes: object) -> dict[str, object]:
    """Make the finding a perfect diagnosis would print."""
    perfect = {"cause": true.cause, "ranks": list(true.ranks), "severity": "critical", "lost_ns": true.lost_ns}
    return perfect | changes


def judge(true: Truth, *findings: dict[str, object], status: str = "findings") -> Verdict:
    """Judge findings against a truth."""
    return read_verdict("world", true, {"status": status, "findings": list(findings)}, 0.5)


def test_a_perfect_answer_is_right_in_every_respect() -> None:
    true = truth(SLOW)
    verdict = judge(true, finding(true))
    assert verdict.right_cause
    assert verdict.right_ranks
    assert verdict.lost_error == 0


def test_another_rank_is_a_wrong_culprit_of_the_right_cause() -> None:
    true = truth(SLOW)
    verdict = judge(true, finding(true, ranks=[2]))
    assert verdict.right_cause
    assert verdict.right_ranks is False


def test_a_cause_above_what_the_recording_carries_is_wrong() -> None:
    world = World(seed=1, ranks=4, steps=6, layers=2, graph_mode="graph", faults=(slow_gpu(1, 1.5),))
    true = truth(world)
    assert not judge(true, finding(true)).right_cause
    assert judge(true, finding(true, cause="unclassified.late")).right_cause


def test_the_costliest_alarm_counts_even_if_an_info_finding_stands_before_it() -> None:
    true = truth(SLOW)
    verdict = judge(true, finding(true, cause="ledger.stale", severity="info"), finding(true))
    assert verdict.right_cause
    assert verdict.alarms == 1


def test_an_alarm_in_a_healthy_world_is_false() -> None:
    true = truth(TINY)
    board = Scoreboard((judge(true, status="healthy"), judge(true, finding(true, cause="load.context", ranks=[0]))))
    assert str(board.false_alarms()).startswith("1/2")
    assert board.recall("healthy").hits == 1
    assert board.precision("load.context").hits == 0


def test_an_unpriced_finding_has_no_lost_error() -> None:
    true = truth(SLOW)
    assert judge(true, finding(true, lost_ns=None)).lost_error is None


def test_uniform_slowness_is_right_as_a_status_without_alarms() -> None:
    true = truth(World(seed=1, ranks=2, steps=6, layers=1, faults=(uniform(1.5),)))
    assert judge(true, status="uniform").right_cause
    assert not judge(true, finding(true, cause="load.context")).right_cause


@pytest.mark.parametrize(
    "hits,count,low,high", [(8, 10, 0.490, 0.943), (0, 20, 0.0, 0.161), (20, 20, 0.839, 1.0), (0, 0, 0.0, 1.0)]
)
def test_bounds_of_a_rate_are_wilsons(hits: int, count: int, low: float, high: float) -> None:
    assert Rate(hits, count).bounds == pytest.approx((low, high), abs=1e-3)


def test_a_run_writes_the_worlds_asks_the_command_and_prints_tables(tmp_path: Path) -> None:
    command = write_command(tmp_path, '{"status": "healthy", "findings": []}')
    board = score(tmp_path / "worlds", {"tiny": TINY, "slow": SLOW}, command)
    assert [verdict.right_cause for verdict in board.verdicts] == [True, False]
    assert (tmp_path / "worlds" / "slow" / "slow.sqlite").exists()
    text = board.text()
    assert "single_point.gpu" in text
    assert "culprits 0/1" in text
    assert "false alarms 0/1" in text


def test_a_run_may_write_torch_traces_a_rank(tmp_path: Path) -> None:
    command = write_command(tmp_path, '{"status": "healthy", "findings": []}')
    score(tmp_path / "worlds", {"tiny": TINY}, command, format="torch")
    assert len(list((tmp_path / "worlds" / "tiny").glob("tiny-*-TP-*.trace.json.gz"))) == TINY.ranks


@pytest.mark.parametrize(
    "answer,code,said", [("{}", 3, "exit code 3: because"), ("hello", 0, "not JSON"), ("[1]", 0, "object")]
)
def test_a_command_that_fails_is_a_wrong_answer_with_its_reason(
    tmp_path: Path, answer: str, code: int, said: str
) -> None:
    (verdict,) = score(tmp_path / "worlds", {"tiny": TINY}, write_command(tmp_path, answer, code)).verdicts
    assert verdict.said == "failed"
    assert not verdict.right_cause
    assert said in verdict.error


def test_a_command_that_is_not_there_is_reported(tmp_path: Path) -> None:
    (verdict,) = score(tmp_path, {"tiny": TINY}, (str(tmp_path / "nothing"),)).verdicts
    assert "nothing" in verdict.error
