"""Bodies that are broken in any way are read in part, or refused in one line; nothing else happens."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dprankdiag.collectors.base import Collector
from dprankdiag.collectors.prometheus_api import PrometheusApi
from dprankdiag.collectors.sglang_forward_pass import SglangForwardPass
from dprankdiag.collectors.sglang_load_stat import SglangLoadStat
from dprankdiag.collectors.sglang_loads import SglangGetLoad, SglangLoads
from dprankdiag.collectors.sglang_metrics import SglangMetrics
from dprankdiag.collectors.sglang_server_info import SglangServerInfo
from dprankdiag.collectors.sglang_shm import SglangShm
from dprankdiag.collectors.vllm_info import VllmLoad, VllmServerInfo, VllmVersion
from dprankdiag.collectors.vllm_metrics import VllmMetrics
from dprankdiag.errors import InputError

NEW = "sglang-0.5.23"
BODIES: tuple[tuple[type[Collector], str], ...] = (
    (SglangMetrics, f"{NEW}/measured-gloo-balanced/metrics_t1.prom"),
    (SglangMetrics, f"{NEW}/expert-skew/metrics_eplb.prom"),
    (VllmMetrics, "vllm-0.33.0/hot-rank-external-lb/rank0.scrape1.prom"),
    (SglangLoads, f"{NEW}/count-skew/v1_loads_t1.json"),
    (SglangLoads, f"{NEW}/count-skew/v1_loads_t1.prom"),
    (SglangServerInfo, f"{NEW}/balanced/server_info.json"),
    (SglangShm, f"{NEW}/balanced/loads.shm"),
    (SglangLoadStat, f"{NEW}/one-busy-seven-idle/loadstat_frames_t0.jsonl"),
    (SglangForwardPass, f"{NEW}/forward-pass-metrics/frames.jsonl"),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
SETTINGS = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@cache
def load(path: Path) -> bytes:
    return path.read_bytes()


def damage(body: bytes, seed: int) -> bytes:
    """Overwrite, drop and repeat a few pieces."""
    random, damaged = Random(seed), bytearray(body)
    for _ in range(random.randint(1, 6)):
        at, length = random.randrange(len(damaged) + 1), random.randint(1, 12)
        kind = random.randrange(3)
        if kind == 0:
            damaged[at : at + length] = random.randbytes(length)
        elif kind == 1:
            del damaged[at : at + length]
        else:
            damaged[at:at] = damaged[max(0, at - length) : at]
    return bytes(damaged)


@SETTINGS
@given(which=st.sampled_from(BODIES), seed=st.integers(0, 2**32))
def test_damaged_bodies_are_read_in_part_or_refused(
    fixtures: Path, which: tuple[type[Collector], str], seed: int
) -> None:
    kind, name = which
    with suppress(InputError):
        for answer in kind().parse(damage(load(fixtures / name), seed), "x"):
            assert all(told.shape == (len(answer.ranks),) for told in answer.values.values())
            assert list(answer.ranks) == sorted(set(answer.ranks))


COLLECTORS: tuple[Collector, ...] = (
    SglangMetrics(), VllmMetrics(), SglangLoads(), SglangGetLoad(), SglangServerInfo(), SglangShm(), SglangLoadStat(),
    SglangForwardPass(), VllmVersion(), VllmLoad(), VllmServerInfo(),
    PrometheusApi({"sglang": SglangMetrics(), "vllm": VllmMetrics()}),
)  # fmt: skip


@pytest.mark.parametrize("collector", COLLECTORS, ids=lambda one: str(one.interface))
@SETTINGS
@given(body=st.binary(max_size=60))
def test_other_bytes_are_refused(collector: Collector, body: bytes) -> None:
    with suppress(InputError):
        collector.parse(body, "x")


LOADS = st.fixed_dictionaries({"loads": st.lists(JSON, max_size=3), "timestamp": JSON, "version": JSON})
LOAD = st.fixed_dictionaries(
    {"dp_rank": st.integers(-1, 3) | JSON, "num_running_reqs": JSON, "decode_moments": JSON, "disaggregation": JSON}
)
INFO = st.fixed_dictionaries({"tp_size": JSON, "dp_size": JSON, "internal_states": JSON, "kv_events": JSON})
DATA = st.fixed_dictionaries(
    {
        "status": st.just("success"),
        "data": st.fixed_dictionaries({"resultType": st.just("matrix"), "result": st.lists(JSON, max_size=3)}),
    }
)


@pytest.mark.parametrize("collector", COLLECTORS, ids=lambda one: str(one.interface))
@SETTINGS
@given(
    told=JSON | LOADS | st.lists(LOAD, max_size=3) | st.builds(lambda one: {"loads": one}, st.lists(LOAD)) | INFO | DATA
)
def test_other_json_is_refused_or_passed_over(collector: Collector, told: Any) -> None:
    with suppress(InputError):
        collector.parse(json.dumps(told).encode(), "x")
