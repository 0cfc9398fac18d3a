"""The scores of ledgers judge what is said, on two scrapes and through a day, and nothing else."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dprankdiag.harness.ledger_days import DayScore, follow_day
from dprankdiag.harness.ledger_sampling import ONSET_S, sample_onset
from dprankdiag.harness.ledger_score import (
    LedgerBoard,
    LedgerVerdict,
    Named,
    Outcome,
    read_ledger_verdict,
    score_ledgers,
)
from dprankdiag.harness.ledger_worlds import (
    LEDGER_WORLDS,
    LedgerFault,
    LedgerTruth,
    LedgerWorld,
    Tick,
    ledger_truths,
    simulate_ledger,
)

HOT = LedgerTruth("load.requests", ("load.requests",), (3,), 0.0, 60.0)
DARK = LedgerTruth("single_point.gpu", (), (6,), 0.0, 60.0)


def said(*findings: tuple[str, tuple[int, ...], str], status: str = "findings") -> dict[str, Any]:
    """Make an answer of the command."""
    return {
        "status": status,
        "findings": [{"cause": cause, "ranks": list(ranks), "severity": grave} for cause, ranks, grave in findings],
    }


def judge(true: LedgerTruth | None, answer: dict[str, Any] | None) -> LedgerVerdict:
    """Judge an answer against a truth."""
    return read_ledger_verdict("world", true, answer, 0.2, 0.5)


@pytest.mark.parametrize(
    "true,answer,outcome",
    [
        (HOT, said(("load.requests", (3,), "warning")), "right"),
        (HOT, said(("load.requests", (3,), "info"), status="inconclusive"), "right"),
        (HOT, said(("load.requests", (4,), "warning")), "wrong ranks"),
        (HOT, said(("load.context", (3,), "warning")), "wrong cause"),
        (HOT, said(("single_point.host", (3,), "warning")), "wrong class"),
        (HOT, said(("load.requests", (3,), "info"), ("load.idle", (1,), "warning")), "wrong cause"),
        (HOT, said(status="inconclusive"), "abstained"),
        (DARK, said(status="inconclusive"), "quiet"),
        (DARK, said(("single_point.gpu", (6,), "warning")), "false alarm"),
        (None, said(("load.requests", (3,), "info"), status="inconclusive"), "quiet"),
        (None, said(("load.requests", (3,), "critical")), "false alarm"),
        (None, None, "failed"),
    ],
)
def test_each_answer_has_its_outcome(true: LedgerTruth | None, answer: dict[str, Any] | None, outcome: Outcome) -> None:
    assert judge(true, answer).outcome == outcome


def test_a_fault_without_effect_need_not_be_named() -> None:
    silent = replace(judge(HOT, said(status="inconclusive")), shows=False)
    assert silent.outcome == "quiet"
    assert LedgerBoard((silent,)).rights().count == 0
    assert replace(judge(HOT, said(("load.requests", (3,), "warning"))), shows=False).outcome == "right"


def test_blame_of_a_rank_without_fault_is_seen_beside_the_right_one() -> None:
    assert judge(HOT, said(("load.requests", (3,), "warning"), ("load.idle", (1,), "warning"))).names_others
    assert not judge(HOT, said(("load.requests", (3,), "warning"), ("load.idle", (1,), "info"))).names_others


def test_a_board_counts_what_was_right_and_what_was_not() -> None:
    right = judge(HOT, said(("load.requests", (3,), "warning")))
    wrong = judge(HOT, said(("single_point.host", (1,), "warning")))
    calm, alarm = judge(None, said(status="inconclusive")), judge(None, said(("load.requests", (3,), "warning")))
    board = LedgerBoard((right, wrong, calm, alarm))
    assert (board.rights().hits, board.rights().count) == (1, 2)
    assert (board.false_alarms().hits, board.false_alarms().count) == (1, 2)
    assert board.others_named().hits == 2
    assert board.class_score() == pytest.approx((2 / 4 + 2 / 3) / 2)
    assert "false alarms                  1/2" in board.text()
    assert board.rights(least_growth=0.5).count == 0


def test_a_perfect_board_scores_one() -> None:
    board = LedgerBoard(
        (judge(HOT, said(("load.requests", (3,), "warning"))), judge(None, said(status="inconclusive")))
    )
    assert board.class_score() == 1.0


def test_the_command_is_asked_for_two_moments_of_every_page(tmp_path: Path) -> None:
    script = tmp_path / "answer.py"
    answer = json.dumps(said(("load.requests", (3,), "warning")))
    script.write_text(
        "import sys\n"
        "moments = [word.partition('=')[0] for word in sys.argv[2:-2]]\n"
        "assert sys.argv[1] == 'analyze' and moments == ['hot@15', 'hot@15', 'hot@30', 'hot@30'], moments\n"
        f"print({answer!r})\n"
    )
    world = replace(LEDGER_WORLDS["requests"], seconds=30.0)
    board = score_ledgers(tmp_path, {"hot": world}, (sys.executable, str(script)))
    assert [verdict.outcome for verdict in board.verdicts] == ["right"]
    assert board.verdicts[0].growth_ratio > 0.05


def test_a_command_that_fails_is_no_verdict(tmp_path: Path) -> None:
    world = replace(LEDGER_WORLDS["healthy"], seconds=20.0)
    board = score_ledgers(tmp_path, {"well": world}, (sys.executable, "-c", "raise SystemExit('cannot')"))
    assert board.verdicts[0].outcome == "failed"
    assert "cannot" in board.verdicts[0].error


LATE = LedgerFault("host", (2,), 0.006, 20.0, 40.0)
WORLD: LedgerWorld = replace(LEDGER_WORLDS["healthy"], seconds=60.0, slice_s=1.0, rate_s=8.0, faults=(LATE,))


def follow(names: dict[float, list[Named]]) -> DayScore:
    """Follow a judge that names something at some moments."""

    def answer(tick: Tick) -> Iterable[Named]:
        return names.get(tick.seconds, [])

    return follow_day(simulate_ledger(WORLD), ledger_truths(WORLD), answer)


def lasting(named: Named, first: int, last: int) -> dict[float, list[Named]]:
    """Name something from a second to a second, both included."""
    return {float(second): [named] for second in range(first, last + 1)}


HOST_2: Named = ("single_point.host", (2,))


def test_a_right_verdict_is_timed_from_the_onset() -> None:
    score = follow(lasting(HOST_2, 26, 40))
    assert [wait for _, wait in score.waits_s] == [6.0]
    assert (score.false, score.flaps) == ((), 0)
    assert score.share_within(10) == 1.0
    assert score.share_within(5) == 0.0


def test_a_verdict_that_goes_and_comes_back_flaps() -> None:
    assert follow(lasting(HOST_2, 22, 25) | lasting(HOST_2, 30, 35)).flaps == 1


def test_a_verdict_that_turns_into_another_of_its_class_does_not_flap() -> None:
    busy: Named = ("load.idle", (2, 4))
    truths = (LedgerTruth("load.idle", ("load.idle", "load.requests"), (2,), 20.0, 50.0),)
    held = lasting(("load.requests", (2,)), 25, 29) | lasting(busy, 30, 34) | lasting(("load.idle", (2,)), 35, 50)
    score = follow_day(simulate_ledger(WORLD), truths, lambda tick: held.get(tick.seconds, []))
    assert (score.flaps, score.false) == (0, ())


@pytest.mark.parametrize("named", [("single_point.host", (3,)), ("load.requests", (2,)), ("single_point.host", (2, 3))])
def test_another_rank_or_class_is_a_false_verdict(named: Named) -> None:
    score = follow(lasting(named, 26, 40))
    assert [it.named for it in score.false] == [named]
    assert [wait for _, wait in score.waits_s] == [None]


def test_a_verdict_before_its_fault_is_false_and_one_that_lingers_is_not() -> None:
    assert len(follow(lasting(HOST_2, 10, 15)).false) == 1
    assert len(follow(lasting(HOST_2, 30, 55)).false) == 0


def test_a_day_of_it_is_reckoned_by_the_length() -> None:
    score = follow(lasting(("load.requests", (1,)), 5, 6))
    assert score.false_a_day == pytest.approx(86_400 / 59)
    assert "1 false verdicts" in score.text()


def test_drawn_onsets_begin_half_way() -> None:
    worlds = [sample_onset(seed) for seed in range(7)]
    assert {world.faults[0].start_s for world in worlds} == {ONSET_S}
    assert len({world.faults[0].kind for world in worlds}) == 7
