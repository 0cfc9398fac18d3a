"""Answers as collectors give them, drawn at random or plain."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from dprankdiag.catalog.ledger import load_fields
from dprankdiag.model.ledgers import Fact, LedgerAnswer, NoData

TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
NAMES = st.text("abcdefgh_-. ", min_size=1, max_size=12)
NUMBERS = st.floats(width=64) | st.integers(0, 2**40).map(float)
RANKS = st.lists(st.integers(0, 400), unique=True, max_size=5).map(lambda ranks: tuple(sorted(ranks)))
FACTS: st.SearchStrategy[Fact] = TEXTS | st.integers(-(2**70), 2**70) | st.booleans() | st.floats()
MOMENTS = st.none() | st.integers(-(2**60), 2**62)


@st.composite
def answers(draw: st.DrawFn) -> LedgerAnswer:
    """Draw an answer, also of kinds that no engine gives."""
    ranks = draw(RANKS)
    names = draw(st.lists(st.sampled_from([*load_fields(), "not_in_the_catalogue"]), unique=True, max_size=6))
    values = {name: np.array(draw(_list_of(len(ranks))), np.float64) for name in names}
    layers, gpus = draw(st.tuples(st.integers(0, 3), st.integers(1, 4)))
    experts = np.array([draw(_list_of(gpus)) for _ in range(layers)], np.float64) if layers else None
    return LedgerAnswer(
        interface=draw(st.sampled_from(["sglang-metrics", "vllm-metrics", "sglang-loads"])),
        where=draw(st.sampled_from(["http://a:30000/metrics", "a folder/metrics_t0.prom", "zmq+tcp://h:5565"])),
        engine=draw(st.sampled_from(["sglang", "vllm"])),
        model=draw(st.none() | TEXTS),
        role=draw(st.sampled_from([None, "unified", "prefill", "decode"])),
        taken_ns=draw(MOMENTS),
        ranks=ranks,
        values=values,
        expert_tokens=experts,
        facts=draw(st.dictionaries(NAMES, FACTS, max_size=4)),
        unlabelled=draw(st.booleans()),
        warnings=tuple(draw(st.lists(TEXTS, max_size=2))),
    )


def _list_of(length: int) -> st.SearchStrategy[list[float]]:
    return st.lists(NUMBERS, min_size=length, max_size=length)


GAPS = st.builds(
    NoData,
    interface=st.sampled_from(["sglang-metrics", "sglang-loads"]),
    where=st.sampled_from(["http://a:30000/metrics", "http://b/v1/loads"]),
    taken_ns=st.integers(0, 2**62),
    reason=TEXTS,
    absent=st.booleans(),
)


def plain_answer(step: int = 0, ranks: int = 8, where: str = "http://a:30000/metrics") -> LedgerAnswer:
    """Make an answer of which every number grows with the step."""
    counted = np.arange(ranks, dtype=np.float64) + 1000.0 * step
    return LedgerAnswer(
        "sglang-metrics",
        where,
        "sglang",
        model="m",
        taken_ns=10**18 + step * 10**9,
        ranks=tuple(range(ranks)),
        values={"scheduled_tokens": counted, "sync_wait_s": counted / 7, "running_requests": counted % 50},
        facts={"spelling": "sglang:"},
    )


def assert_same(one: LedgerAnswer, other: LedgerAnswer) -> None:
    """Compare two answers number by number; what is not a number equals itself."""
    for name in ("interface", "where", "engine", "model", "role", "taken_ns", "ranks", "unlabelled", "warnings"):
        assert getattr(one, name) == getattr(other, name), name
    assert list(one.values) == list(other.values)
    for name, values in one.values.items():
        np.testing.assert_array_equal(values, other.values[name])
    assert repr(sorted(one.facts.items())) == repr(sorted(other.facts.items()))
    assert (one.expert_tokens is None) == (other.expert_tokens is None)
    if one.expert_tokens is not None and other.expert_tokens is not None:
        np.testing.assert_array_equal(one.expert_tokens, other.expert_tokens)
