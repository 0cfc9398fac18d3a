"""A claim gives way to one that asks for more and explains the same ranks and steps, and to no other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dprankdiag.classifiers.precedence import give_way
from dprankdiag.model.claims import Claim, Undo
from tests.analysis.builders import observe_steps

SEEN = observe_steps(40)
STEPS = np.ones(40, bool)
LAYOUT = Claim("structural.layout", (3,), STEPS, "one", "steady", "", (), (), (), 1.0)


@pytest.mark.parametrize("cause", ["load.context", "load.requests", "load.unknown", "structural.expert"])
def test_loads_and_hot_experts_give_way_to_a_layout_on_their_ranks(cause: str) -> None:
    assert give_way(SEEN, [LAYOUT, replace(LAYOUT, cause=cause)]) == [LAYOUT]


@pytest.mark.parametrize(
    "other",
    [
        replace(LAYOUT, cause="load.context", ranks=(4,)),
        replace(LAYOUT, cause="load.context", ranks=(3, 4)),
        replace(LAYOUT, cause="load.prefill"),
        replace(LAYOUT, cause="single_point.host"),
    ],
)
def test_what_a_layout_does_not_explain_stays(other: Claim) -> None:
    assert give_way(SEEN, [LAYOUT, other])[1] is other


def test_a_load_in_other_steps_stays() -> None:
    early = replace(LAYOUT, steps=np.arange(40) < 20)
    late = replace(LAYOUT, cause="load.context", steps=np.arange(40) >= 20)
    assert give_way(SEEN, [early, late])[1] is late


@pytest.mark.parametrize("cause", ["structural.dispatch", "single_point.link"])
def test_what_is_late_for_no_known_reason_goes_to_the_late_exchanges_of_the_same_ranks(cause: str) -> None:
    exits, idle = (Undo(name, (np.ones((40, 1, 1)),)) for name in ("exit", "rest"))
    exchanges = replace(LAYOUT, cause=cause, ranks=(1, 3), undo=(exits,))
    late = replace(LAYOUT, cause="unclassified.late", ranks=(3,), undo=(idle,))
    (told,) = give_way(SEEN, [exchanges, late])
    assert (told.cause, told.ranks, told.undo) == (cause, (1, 3), (exits, idle))


@pytest.mark.parametrize(
    "other",
    [
        replace(LAYOUT, cause="unclassified.late", ranks=(3, 4)),
        replace(LAYOUT, cause="single_point.host"),
        replace(LAYOUT, cause="single_point.gpu"),
    ],
)
def test_other_ranks_and_known_causes_stay_beside_late_exchanges(other: Claim) -> None:
    assert give_way(SEEN, [replace(LAYOUT, cause="structural.dispatch"), other])[1] is other
