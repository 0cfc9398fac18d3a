"""What a remedy was predicted to gain against what was gained."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dprankdiag.errors import UsageError
from dprankdiag.model.comparison import Bet
from dprankdiag.pipelines.compare import Input, compare
from dprankdiag.pipelines.remedies import advise
from tests.analysis.builders import Array, annotate
from tests.pipelines.builders import RANKS, claim, late_for, see
from tests.pipelines.sides import give

TAKEN = late_for(0.2)


def late(mean_ns: float, seed: int = 0, scatter: float = 0.05, n_steps: int = 40) -> Array:
    return np.asarray((mean_ns * (1 + scatter * np.random.default_rng(seed).standard_normal(n_steps))).round(), int)


def side(late_ns: Any, *, claimed: bool = True, **changes: Any) -> Input:
    seen = see(late_ns, len(late_ns))
    given = give(seen, *([claim(seen, **changes)] if claimed else []))
    return replace(given, diagnosis=advise(given.diagnosis))


def only(before: Input, after: Input, *tried: str) -> Bet:
    (bet,) = compare(before, after, tried).bets
    return bet


def test_a_remedy_that_wins_back_what_was_predicted_is_kept() -> None:
    bet = only(side(late(TAKEN)), side(late(0), claimed=False))
    assert (bet.verdict, bet.reason, bet.is_stated) == ("kept", None, False)
    assert (bet.cause, bet.findings, bet.ranks) == ("load.context", ("f1",), (1,))
    assert bet.predicted.ratio == pytest.approx(0.2, abs=0.01)
    assert bet.measured.ratio == pytest.approx(bet.predicted.ratio, abs=0.01)


def test_a_remedy_that_wins_back_half_is_partly_kept() -> None:
    bet = only(side(late(TAKEN)), side(late(TAKEN / 2, seed=1)))
    assert (bet.verdict, bet.reason) == ("partly", None)
    assert bet.measured.ratio == pytest.approx(0.1, abs=0.01)


def test_less_than_an_upper_bound_is_said_to_be_below_a_bound() -> None:
    bet = only(side(late(TAKEN), basis="bound"), side(late(TAKEN / 2, seed=1)))
    assert (bet.verdict, bet.reason) == ("partly", "the prediction was an upper bound")


def test_a_remedy_that_changes_nothing_is_not_kept_and_asks_whether_it_was_done() -> None:
    bet = only(side(late(TAKEN)), side(late(TAKEN, seed=1)))
    assert bet.verdict == "not_kept"
    assert bet.reason is not None
    assert "was it done?" in bet.reason


def test_a_gain_that_the_replay_is_not_sure_of_does_not_speak_for_the_remedy() -> None:
    bet = only(side(late(TAKEN)), side(late(0.97 * TAKEN, seed=1, scatter=0.01)))
    assert bet.measured.ratio is not None
    assert 0 < bet.measured.ratio < 0.01
    assert bet.verdict == "not_kept"


def test_a_recording_that_scatters_too_much_cannot_tell() -> None:
    bet = only(side(late(TAKEN)), side(np.where(np.arange(12) < 3, 2 * TAKEN, 0)))
    assert bet.measured.interval is not None
    assert bet.measured.interval[0] < 0 < 0.2 < bet.measured.interval[1]
    assert bet.verdict == "cannot_tell"
    assert bet.reason is not None
    assert "record more steps" in bet.reason


def test_what_was_tried_is_named_and_its_gain_is_scored() -> None:
    bet = only(side(late(TAKEN)), side(late(0), claimed=False), "route-explicitly")
    assert (bet.remedy, bet.is_stated, bet.verdict) == ("route-explicitly", True, "kept")


def test_a_remedy_without_a_predicted_gain_cannot_be_told_but_what_was_gained_is_shown() -> None:
    bet = only(side(late(TAKEN)), side(late(0), claimed=False), "pool-by-length")
    assert (bet.verdict, bet.predicted.ratio) == ("cannot_tell", None)
    assert bet.reason is not None
    assert "no gain was predicted: it cures part of this" in bet.reason
    assert bet.measured.ratio == pytest.approx(0.2, abs=0.01)


def test_a_remedy_that_no_finding_has_is_refused_with_those_there_are() -> None:
    with pytest.raises(UsageError, match="no finding before has the remedy enable-eplb") as raised:
        compare(side(late(TAKEN)), side(late(0)), ("enable-eplb",))
    assert "balance-tokens" in raised.value.mend


def test_other_batches_cannot_tell_and_say_what_differs() -> None:
    def loaded(requests: float, late_ns: Array) -> Input:
        seen = annotate(see(late_ns), requests=np.full(RANKS, requests), held_tokens=np.full(RANKS, 1e4))
        return give(seen, claim(seen))

    bet = only(loaded(16, late(TAKEN)), loaded(32, late(0)))
    assert (bet.verdict, bet.measured.ratio) == ("cannot_tell", None)
    assert bet.reason is not None
    assert "requests" in bet.reason


def test_what_another_cause_costs_less_is_not_this_remedys_gain() -> None:
    """Two causes cost 0.2 in half of the steps each; only the second one goes."""
    first, second = slice(0, 20), slice(20, 40)
    seen = see(late(TAKEN))
    before = give(seen, claim(seen, first), claim(seen, second, cause="single_point.gpu"))
    half = late(TAKEN, seed=1)
    half[second] = 0
    seen = see(half)
    after = give(seen, claim(seen, first))
    bets = {bet.cause: bet for bet in compare(before, after).bets}
    assert (bets["load.context"].verdict, bets["single_point.gpu"].verdict) == ("not_kept", "kept")
    assert bets["load.context"].measured.ratio == pytest.approx(0.0, abs=0.01)
    assert bets["single_point.gpu"].measured.ratio == pytest.approx(0.1, abs=0.01)


def test_nothing_found_before_is_no_bet() -> None:
    assert compare(side(late(0), claimed=False), side(late(TAKEN))).bets == ()
