"""Which targets of a Prometheus are one engine, and on which moments they meet."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from dprankdiag.model.ledgers import STORED_IN, STORED_INSTANCE, LedgerAnswer
from dprankdiag.pipelines.stored_homes import Arranged, arrange_stored

S = 10**9


def answers(
    instance: str,
    ranks: Sequence[int],
    at_s: Sequence[float] = (0, 15, 30),
    place: str = "prod/e",
    model: str | None = "m",
    role: str | None = None,
) -> list[LedgerAnswer]:
    return [
        LedgerAnswer(
            "sglang-metrics" if model else "sglang-loads",
            f"http://p:9090 ({place.replace('/', ' ')} {instance})",
            "sglang",
            model,
            role,  # type: ignore[arg-type]
            round(at * S),
            tuple(ranks),
            {"running_requests": np.ones(len(ranks))},
            facts={STORED_IN: place, STORED_INSTANCE: instance},
        )
        for at in at_s
    ]


def arrange(*told: list[LedgerAnswer]) -> Arranged:
    return arrange_stored([answer for part in told for answer in part])


def homes(arranged: Arranged) -> dict[str, str]:
    """Give instance → place of its engine."""
    return {base.rpartition(" ")[2].rstrip(")"): home for base, home in arranged.homes.items()}


def test_nodes_of_one_engine_belong_together() -> None:
    told = arrange(answers("a:1", range(4)), answers("b:1", range(4, 8)))
    assert homes(told) == {"a:1": "p:9090/prod/e", "b:1": "p:9090/prod/e"}
    assert told.notes == ()


def test_replicas_are_engines_of_their_own() -> None:
    told = arrange(answers("a:1", range(8)), answers("b:1", range(8)))
    assert homes(told) == {"a:1": "p:9090/prod/e/a:1", "b:1": "p:9090/prod/e/b:1"}


def test_replicas_of_several_nodes_each_are_not_put_together_by_guess() -> None:
    told = arrange(*(answers(name, ranks) for name, ranks in
                     (("a:1", range(4)), ("b:1", range(4)), ("c:1", range(4, 8)), ("d:1", range(4, 8)))))  # fmt: skip
    assert len(set(homes(told).values())) == 4
    assert "which belong together is not told" in told.notes[0]


@pytest.mark.parametrize("other", ["prod/f", "test/e", "west/prod/e"])
def test_the_same_ranks_of_another_deployment_are_another_engine(other: str) -> None:
    told = arrange(answers("a:1", range(4)), answers("b:1", range(4, 8), place=other))
    assert set(homes(told).values()) == {"p:9090/prod/e", f"p:9090/{other}"}


def test_an_engine_that_moved_is_one_that_started_anew() -> None:
    told = arrange(answers("a:1", range(8)), answers("b:1", range(8), at_s=(60, 75)))
    assert set(homes(told).values()) == {"p:9090/prod/e"}


def test_load_answers_join_the_engine_whose_ranks_they_tell() -> None:
    told = arrange(answers("a:1", range(8)), answers("a:2", range(8), model=None))
    assert set(homes(told).values()) == {"p:9090/prod/e"}
    apart = arrange(answers("a:1", range(8)), answers("b:1", range(8)), answers("a:2", range(8), model=None))
    assert len(set(homes(apart).values())) == 3


def test_prefill_and_decode_at_one_address_share_a_place() -> None:
    told = arrange(answers("a:1", range(2), role="prefill"), answers("a:1", range(2), role="decode"))
    assert set(homes(told).values()) == {"p:9090/prod/e"}


def test_scrapes_of_one_engine_meet_although_each_target_has_its_own_place_in_the_interval() -> None:
    told = arrange(answers("a:1", (0,), (1, 16, 31.2, 46)), answers("b:1", (1,), (8, 23, 38, 53)))
    moments = {name: [one.taken_ns for one in told.answers if name in one.where] for name in ("a:1", "b:1")}
    assert moments["a:1"] == moments["b:1"] == [at * S for at in (1, 16, 31, 46)]


def test_a_scrape_that_is_missing_stays_missing() -> None:
    told = arrange(answers("a:1", (0,), (1, 16, 31, 46)), answers("b:1", (1,), (8, 53)))
    assert [one.taken_ns for one in told.answers if "b:1" in one.where] == [8 * S, 53 * S]
    more = arrange(answers("a:1", (0,), (1, 16, 31, 46, 61)), answers("b:1", (1,), (8, 23, 53, 68)))
    assert [one.taken_ns for one in more.answers if "b:1" in one.where] == [at * S for at in (1, 16, 46, 61)]


def test_a_target_that_came_later_begins_later() -> None:
    told = arrange(answers("a:1", (0,), (1, 16, 31, 46)), answers("b:1", (1,), (38, 53)))
    assert [one.taken_ns for one in told.answers if "b:1" in one.where] == [31 * S, 46 * S]


def test_the_moments_of_one_target_are_its_own() -> None:
    told = arrange(answers("a:1", range(8), (1.25, 16.5)))
    assert [one.taken_ns for one in told.answers] == [1_250_000_000, 16_500_000_000]
