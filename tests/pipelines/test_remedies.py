"""Which remedy comes first, with which command, on the engine that an input shows."""

from dataclasses import replace

import pytest

from dprankdiag.catalog.causes import load_causes
from dprankdiag.model.diagnosis import Diagnosis, Finding
from dprankdiag.model.serving import Serving
from dprankdiag.pipelines.remedies import NO_STEPS, UNTRUSTED, Gain, advise, find_serving, list_remedies
from tests import builders

WHOLE = Gain(0.2, (0.18, 0.22), "replayed")


def diagnose(cause: str, process: str = "worker (pid 1)", producer: str | None = None, gain: Gain = WHOLE) -> Diagnosis:
    remedies = list_remedies(load_causes()[cause], gain)
    finding = builders.finding(cause=cause, remedies=remedies)
    base = builders.diagnosis(findings=(finding,))
    ranks = tuple(replace(rank, engine=finding.engine, process=process) for rank in base.ranks)
    return replace(base, ranks=ranks, inputs=(replace(base.inputs[0], producer=producer),))


def first(diagnosis: Diagnosis) -> Finding:
    return advise(diagnosis).findings[0]


def test_where_a_gain_is_known_what_cures_comes_before_what_only_looks() -> None:
    remedies = first(diagnose("single_point.gpu")).remedies
    assert load_causes()["single_point.gpu"].remedies[0].key == "check-clocks"
    assert remedies[0].key == "drain-gpu"
    assert (remedies[0].gain_ratio, remedies[0].interval, remedies[0].basis) == (0.2, (0.18, 0.22), "replayed")


@pytest.mark.parametrize("gain", [NO_STEPS, UNTRUSTED])
def test_where_no_gain_is_known_the_catalogue_orders_and_the_reason_is_told(gain: Gain) -> None:
    remedies = first(diagnose("single_point.gpu", gain=gain)).remedies
    assert [item.key for item in remedies] == [item.key for item in load_causes()["single_point.gpu"].remedies]
    (drain,) = [item for item in remedies if item.key == "drain-gpu"]
    assert (drain.gain_ratio, drain.why_no_gain) == (None, gain.why_unknown)


@pytest.mark.parametrize(
    "process,producer,serving",
    [
        ("sglang::scheduler_DP3_TP3_EP3 (pid 7)", None, Serving("sglang")),
        ("sglang::schedul (pid 7)", None, Serving("sglang")),
        ("VLLM::Worker_DP3_EP3 (pid 7)", None, Serving("vllm")),
        ("worker", "sglang 0.5.23", Serving("sglang", "0.5.23")),
        ("worker", "vllm 0.33.0", Serving("vllm", "0.33.0")),
        ("worker", "vllm", Serving("vllm")),
        ("worker", "2025.5.1", Serving()),
        ("sglang::scheduler_DP3 (pid 7)", "vllm 0.33.0", Serving("sglang")),
    ],
)
def test_the_engine_is_known_by_titles_and_by_who_wrote_the_inputs(
    process: str, producer: str | None, serving: Serving
) -> None:
    seen = diagnose("load.context", process, producer)
    assert find_serving(seen, seen.findings[0].engine) == serving


def test_on_vllm_the_first_remedy_of_long_contexts_is_one_that_vllm_has() -> None:
    remedies = first(diagnose("load.context", "VLLM::Worker_DP0_EP0 (pid 1)")).remedies
    assert remedies[0].key == "route-explicitly"
    assert remedies[0].command == "header X-data-parallel-rank: RANK"
    assert remedies[0].gain_ratio == 0.2
    assert "balance-tokens" not in [item.key for item in remedies]


def test_on_sglang_the_first_remedy_of_long_contexts_is_its_token_balance() -> None:
    remedies = first(diagnose("load.context", producer="sglang 0.5.23")).remedies
    assert (remedies[0].key, remedies[0].command) == ("balance-tokens", "--load-balance-method total_tokens")


def test_a_release_without_the_setting_is_told_so_and_promised_nothing() -> None:
    remedies = first(diagnose("load.context", producer="sglang 0.5.3")).remedies
    (balance,) = [item for item in remedies if item.key == "balance-tokens"]
    assert balance.command is None
    assert balance.gain_ratio is None
    assert balance.why_no_gain == "this release has no such setting"
    assert remedies[0].key != "balance-tokens"


def test_no_remedy_gains_more_than_its_finding_costs() -> None:
    found = first(diagnose("load.requests"))
    assert all(item.gain_ratio is None or item.gain_ratio <= 0.2 for item in found.remedies)
    assert all((item.gain_ratio is None) == (item.why_no_gain is not None) for item in found.remedies)


def test_a_finding_carries_the_experiments_that_tell_it_apart() -> None:
    assert [item.key for item in first(diagnose("structural.expert")).experiments] == ["even-dispatch"]
