import pytest

from dprankdiag.catalog.causes import load_causes
from dprankdiag.catalog.identifiability import load_identifiability, load_inputs

ABILITIES = load_identifiability()
CELLS = [(cause, name, ability) for cause, row in ABILITIES.items() for name, ability in row.items()]


def test_every_cause_is_judged_for_every_input() -> None:
    assert set(ABILITIES) == set(load_causes())
    assert list(load_inputs()) == [
        "trace-kernels", "trace-kernels-calls", "trace-nvtx", "trace-graph", "metrics", "ledger",
        "matrix", "flight-recorder",
    ]  # fmt: skip
    assert all(list(row) == list(load_inputs()) for row in ABILITIES.values())


def test_what_cannot_be_seen_says_how_to_get_it() -> None:
    for cause, name, ability in CELLS:
        assert bool(ability.get_it_with) == (ability.answer != "can"), (cause, name)
        assert ability.text.startswith(ability.answer), (cause, name)


def test_every_cause_can_be_shown_by_something() -> None:
    for cause, row in ABILITIES.items():
        assert any(ability.answer != "cannot" for ability in row.values()), cause


def test_calls_beside_kernels_never_show_less() -> None:
    order = {"cannot": 0, "needs": 1, "can": 2}
    for cause, row in ABILITIES.items():
        assert order[row["trace-kernels-calls"].answer] >= order[row["trace-kernels"].answer], cause


def test_an_unknown_kind_needs_no_more_than_its_kinds() -> None:
    order = {"cannot": 0, "needs": 1, "can": 2}
    for cause, row in ABILITIES.items():
        group = cause.split(".")[0]
        rung = ABILITIES.get(f"{group}.unknown", row)
        for name in ("trace-kernels", "trace-kernels-calls"):
            assert order[rung[name].answer] >= order[row[name].answer], (cause, name)


@pytest.mark.parametrize("cause", ["single_point.gpu", "structural.dispatch", "communication.fabric"])
def test_counters_never_show_speed(cause: str) -> None:
    assert ABILITIES[cause]["metrics"].answer == "cannot"
    assert ABILITIES[cause]["ledger"].answer == "cannot"


def test_a_graph_trace_asks_for_the_kernels_inside() -> None:
    ability = ABILITIES["single_point.gpu"]["trace-graph"]
    assert ability.answer == "needs"
    assert ability.get_it_with is not None
    assert "--cuda-graph-trace=node" in ability.get_it_with


def test_a_caller_cannot_change_the_catalogue() -> None:
    load_identifiability()["load.context"].clear()
    assert load_identifiability() == ABILITIES
