from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dprankdiag.collectors.sglang_loads import SglangGetLoad, SglangLoads
from dprankdiag.errors import DamagedInput, InputError
from dprankdiag.model.ledgers import LedgerAnswer

T1_NS = 1_764_000_015_000_000_000


def read(path: Path) -> LedgerAnswer:
    (answer,) = SglangLoads().parse(path.read_bytes(), str(path))
    return answer


@pytest.mark.parametrize("release", ["0.5.9", "0.5.12", "0.5.18", "0.5.23"])
def test_all_releases_tell_running_requests(fixtures: Path, release: str) -> None:
    folder = fixtures / f"sglang-{release}" / "count-skew"
    answer = read(folder / "v1_loads_t1.json")
    assert answer.values["load_running_requests"].tolist() == [24, 24, 24, 80, 24, 24, 24, 24]
    assert (answer.role, answer.taken_ns, answer.facts["version"]) == ("unified", T1_NS, release)


@pytest.mark.parametrize("release", ["0.5.9", "0.5.12", "0.5.18", "0.5.23"])
def test_both_formats_tell_the_same(fixtures: Path, release: str) -> None:
    folder = fixtures / f"sglang-{release}" / "count-skew"
    nested, flat = read(folder / "v1_loads_t1.json"), read(folder / "v1_loads_t1.prom")
    assert nested.ranks == flat.ranks
    shared = set(nested.values) & set(flat.values)
    assert set(nested.values) - shared <= {
        "load_decode_steps", "load_decode_rows", "load_decode_step_s", "load_decode_tokens",
    }  # fmt: skip
    for name in shared:
        np.testing.assert_array_equal(nested.values[name], flat.values[name])


def test_decode_moments_are_counters_in_seconds(fixtures: Path) -> None:
    answer = read(fixtures / "sglang-0.5.23" / "count-skew" / "v1_loads_t1.json")
    assert answer.values["load_decode_steps"][3] == 689
    assert answer.values["load_decode_step_s"][3] == pytest.approx(20.67)
    assert answer.values["load_decode_rows"][3] == 55120


def test_a_missing_rank_is_missing(fixtures: Path) -> None:
    assert read(fixtures / "sglang-0.5.23" / "missing-rank" / "v1_loads_t1.json").ranks == (0, 1, 2, 3, 4, 6, 7)


def test_a_slot_that_was_never_written_tells_nothing() -> None:
    silent = b'{"timestamp": 0.0, "dp_rank": 0, "num_running_reqs": 0}'
    told = b'{"timestamp": 5.0, "dp_rank": 1, "num_running_reqs": 2}'
    (answer,) = SglangLoads().parse(b'{"loads": [' + silent + b"," + told + b"]}", "x")
    assert np.isnan(answer.values["load_running_requests"]).tolist() == [True, False]
    assert answer.warnings == ("rank 0 has published no load yet",)


def test_other_json_is_refused() -> None:
    with pytest.raises(InputError, match="list 'loads'"):
        SglangLoads().parse(b'{"detail": "Not Found"}', "x")


def test_an_answer_cut_short_is_damaged(fixtures: Path) -> None:
    body = (fixtures / "sglang-0.5.23" / "count-skew" / "v1_loads_t1.json").read_bytes()
    with pytest.raises(DamagedInput):
        SglangLoads().parse(body[:-2], "x")


def test_get_load_tells_running_and_waiting_apart() -> None:
    (answer,) = SglangGetLoad().parse(
        b'[{"dp_rank": 1, "num_reqs": 5, "num_waiting_reqs": 2, "num_tokens": 900}, {"dp_rank": 0, "num_tokens": 7}]',
        "x",
    )
    assert answer.ranks == (0, 1)
    assert answer.values["load_running_requests"][1] == 3
    assert answer.values["load_total_tokens"].tolist() == [7, 900]


@pytest.mark.parametrize("mark", [b":", b"_"])
def test_a_metrics_page_is_refused_in_both_spellings(fixtures: Path, mark: bytes) -> None:
    page = (fixtures / "sglang-0.5.23" / "count-skew" / "metrics_t1.prom").read_bytes()
    with pytest.raises(InputError, match="dp_rank alone"):
        SglangLoads().parse(page.replace(b"\nsglang:", b"\nsglang" + mark), "x")


@pytest.mark.parametrize(
    "mode, told, silent",
    [
        ("decode", {"load_prealloc_requests": 3.0, "load_retracted_requests": 2.0}, {"load_bootstrap_requests"}),
        ("prefill", {"load_bootstrap_requests": 5.0}, {"load_running_requests", "load_prealloc_requests"}),
        ("null", {"load_running_requests": 1.0}, {"load_bootstrap_requests", "load_prealloc_requests"}),
    ],
)
def test_a_role_tells_only_of_its_own_queues(mode: str, told: dict[str, float], silent: set[str]) -> None:
    load = {
        "dp_rank": 0,
        "num_running_reqs": 1,
        "disaggregation": {
            "mode": mode,
            "prefill_bootstrap_queue_reqs": 5,
            "decode_prealloc_queue_reqs": 3,
            "decode_retracted_queue_reqs": 2,
        },
    }
    (answer,) = SglangLoads().parse(json.dumps({"loads": [load]}).encode(), "x")
    assert {name: float(answer.values[name][0]) for name in told} == told
    assert silent.isdisjoint(answer.values)


def test_loads_without_rank_or_told_twice_are_passed_over() -> None:
    loads = [{"dp_rank": 0, "num_running_reqs": 1}, {"num_running_reqs": 2}, {"dp_rank": 0, "num_running_reqs": 3}, 7]
    (answer,) = SglangLoads().parse(json.dumps({"loads": loads}).encode(), "x")
    assert answer.values["load_running_requests"].tolist() == [3.0]
    assert answer.warnings == ("passed over: 3 loads told twice or without dp_rank",)


def test_the_single_number_of_the_first_releases_is_of_rank_0() -> None:
    (answer,) = SglangGetLoad().parse(b'{"load": 1234}', "x")
    assert (answer.ranks, answer.values["load_total_tokens"].tolist()) == ((0,), [1234.0])


@pytest.mark.parametrize("body", [b"{}", b"[5]", b'[{"num_reqs": 1}]', b'{"loads": []}'])
def test_other_answers_are_not_of_get_load(body: bytes) -> None:
    with pytest.raises(InputError):
        SglangGetLoad().parse(body, "x")
