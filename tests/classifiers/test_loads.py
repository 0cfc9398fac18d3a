"""What load claims undo beside attention, and what they say of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dprankdiag.analysis.observations import Observations
from dprankdiag.analysis.skews import measure_skews
from dprankdiag.classifiers.load_idle import LoadIdle
from dprankdiag.classifiers.load_requests import LoadRequests
from dprankdiag.classifiers.loads import meet_sooner
from dprankdiag.model.claims import Claim
from dprankdiag.simulate.counterfactual import replay_with
from tests.analysis.builders import Array, announce, draw_components, observe_grids, on, run_grid

N, RANKS = 30, 8


def requests_on_rank_3(*, sizes: bool, rows: float = 48.0, kind: str = "decode graph") -> Observations:
    """Let rank 3 hold more requests, in all steps or after as many in a graph of another size."""
    heavy = {"attention": on(3, 2.5)}
    grids, told = [], []
    if sizes:
        grids.append(run_grid(draw_components(N), kind=kind))
        told.append(np.full((N, RANKS), 16.0))
    grown = heavy | ({"probe": np.array(1.5), "other": np.array(1.5)} if sizes else {})
    start = int(grids[-1].end_ns[-1]) if grids else 10**9
    later = run_grid(draw_components(N, factor=grown, seed=1), kind=kind, start_ns=start)
    grids.append(replace(later, number=later.number + len(told) * N))
    told.append(np.where(np.arange(RANKS) == 3, rows, 16.0) * np.ones((N, 1)))
    return announce(observe_grids(grids), np.concatenate(told))


def claim_of(seen: Observations) -> Claim:
    (found,) = LoadRequests().judge(seen, measure_skews(seen))
    assert isinstance(found, Claim)
    return found


def padding_of(found: Claim) -> float | None:
    (said,) = [item for item in found.evidence if item.name == "padding_ns_per_step"]
    return said.value


def wall(seen: Observations, found: Claim, undo: str) -> float:
    return float(replay_with(seen.grids, getattr(found, undo))[-N:].mean())


def test_a_graph_of_one_size_leaves_a_lower_bound() -> None:
    seen = requests_on_rank_3(sizes=False)
    found = claim_of(seen)
    assert found.basis == "lower bound"
    assert padding_of(found) is None
    assert wall(seen, found, "most") < wall(seen, found, "undo") < seen.median_step_ns


def test_graphs_of_two_sizes_show_the_price_of_the_larger() -> None:
    seen = requests_on_rank_3(sizes=True)
    found = claim_of(seen)
    assert found.basis == "replayed"
    price = padding_of(found)
    assert price is not None
    # Probes and other work take half as long again at 48 rows; spread evenly, the busiest rank holds 20 of them.
    even = 6 * (12_000 + 6_000) * 0.5 * (48 - 20) / (48 - 16)
    assert price == pytest.approx(even, rel=0.1)
    assert wall(seen, found, "undo") == pytest.approx(wall(seen, found, "most"), rel=0.01)
    assert wall(seen, found, "proof") == pytest.approx(float(seen.duration_ns[:N].mean()), rel=0.02)


def test_rows_that_nobody_announces_leave_a_lower_bound() -> None:
    seen = requests_on_rank_3(sizes=True)
    unsaid = [replace(series, prefill_tokens=np.full(2 * N, np.nan)) for series in seen.batches]
    found = claim_of(replace(seen, batches=tuple(unsaid)))
    assert found.basis == "lower bound"
    assert padding_of(found) is None


def idle_before(seen: Observations) -> Array:
    return seen.grids[0].components["host"][:, 0]


def test_hosts_that_meet_sooner_shorten_the_idle_time_before_the_step_and_no_more() -> None:
    seen = observe_grids([run_grid(draw_components(N, add={"host": 100_000.0 * np.ones((1, 1, 1))}))])
    saved = np.where(np.arange(N) < 10, 40_000.0, 10.0**9)
    (factor,) = meet_sooner(seen, saved).factors
    left = idle_before(seen) * factor[:, 0]
    assert idle_before(seen)[:10] - left[:10] == pytest.approx(40_000.0)
    assert (left[10:] == 0).all()
    assert (factor[:, 1:] == 1.0).all()


def test_what_attention_takes_with_the_first_request_is_not_spread_over_idle_ranks() -> None:
    idle = on(3, 1.0)
    idle[:, :, [rank for rank in range(RANKS) if rank != 3]] = 0.0
    held = np.where(np.arange(RANKS) == 3, 48.0, 0.0) * np.ones((N, 1))
    seen = announce(observe_grids([run_grid(draw_components(N, factor={"attention": idle}))]), held)
    (found,) = LoadIdle().judge(seen, measure_skews(seen))
    assert isinstance(found, Claim)
    (factor,) = next(undo.factors for undo in found.undo if undo.component == "attention")
    left_ns = factor[:, 0, 3] * seen.sums["attention"][:, 3] / 3
    assert left_ns == pytest.approx(60_000 / 8 + 8_000 * 7 / 8, rel=0.05)
    assert found.spread_ns > 0
