"""What the mock of vLLM answers: one port for all engines, for a node, or for each."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dprankdiag.harness.mock_vllm import MockVllm, open_ports, split_ports
from tests.harness.served_worlds import RANKS, Clock, serve_dense, serve_vllm
from tests.harness.test_fake_engine import ask, status_of
from tests.harness.test_mock_sglang import Writer, post


def list_engines(page: str) -> set[str]:
    return set(re.findall(r'engine="(\d+)"', page))


def sum_up(page: str, name: str) -> float:
    return sum(float(value) for value in re.findall(rf"^{re.escape(name)}\{{.*\}} (\S+)$", page, re.MULTILINE))


def test_what_is_always_there_and_what_only_in_development() -> None:
    outcome, engine = serve_vllm()
    with MockVllm(outcome, engine) as plain, MockVllm(outcome, engine, dev_mode=True) as open_one:
        assert ask(f"{plain.url}/health") == b""
        assert json.loads(ask(f"{plain.url}/version")) == {"version": "0.33.0"}
        assert json.loads(ask(f"{plain.url}/load")) == {"server_load": 0}
        assert status_of(f"{plain.url}/server_info") == 404
        told = json.loads(ask(f"{open_one.url}/server_info?config_format=json"))["vllm_config"]["parallel_config"]
        assert (told["data_parallel_size"], told["data_parallel_size_local"]) == (RANKS, RANKS)
        assert status_of(f"{plain.url}/start_profile") == 404


def test_several_api_servers_count_iterations_again_and_again_and_tokens_once() -> None:
    outcome, engine = serve_vllm()
    clock = Clock()
    pages = []
    for servers in (1, 8):
        with MockVllm(outcome, replace(engine, api_servers=servers), clock=clock, start_at_s=20.0) as mock:
            pages.append(ask(f"{mock.url}/metrics").decode())
    one, eight = pages
    ratio = sum_up(eight, "vllm:iteration_tokens_total_count") / sum_up(one, "vllm:iteration_tokens_total_count")
    assert ratio == pytest.approx(7.9, abs=0.1)
    for name in ("vllm:iteration_tokens_total_sum", "vllm:generation_tokens_total"):
        assert sum_up(eight, name) == sum_up(one, name) > 0
    assert "_created" in one
    assert "_created" not in eight


@pytest.mark.parametrize("per_port,shown", [(1, [1] * 8), (3, [3, 3, 2])])
def test_ports_of_ranks_or_nodes_together_show_what_one_port_shows(per_port: int, shown: list[int]) -> None:
    outcome, engine = serve_vllm()
    clock = Clock()
    ports, stack = open_ports(outcome, split_ports(engine, per_port), clock=clock, start_at_s=20.0, dev_mode=True)
    with stack, MockVllm(outcome, engine, clock=clock, start_at_s=20.0) as whole:
        pages = [ask(f"{port.url}/metrics").decode() for port in ports]
        together = ask(f"{whole.url}/metrics").decode()
        infos = [json.loads(ask(f"{port.url}/server_info"))["vllm_config"]["parallel_config"] for port in ports]
    assert [len(list_engines(page)) for page in pages] == shown
    assert set.union(*map(list_engines, pages)) == list_engines(together) == set(map(str, range(RANKS)))
    name = "vllm:generation_tokens_total"
    assert sum(sum_up(page, name) for page in pages) == sum_up(together, name)
    assert [info["data_parallel_rank"] for info in infos] == np.cumsum([0, *shown[:-1]]).tolist()
    assert {info["data_parallel_external_lb"] for info in infos} == {per_port == 1}


@pytest.mark.parametrize(
    "world,name",
    [(serve_vllm, r"dp{0}_pp0_tp0_dcp0_ep{0}_rank0\.\d+\.pt\.trace\.json\.gz"), (serve_dense, r"rank0\.\d+\.pt\..*")],
)
def test_profiled_steps_are_in_files_of_the_engine_s_names(world: Callable, name: str, tmp_path: Path) -> None:  # type: ignore[type-arg]
    outcome, engine = world()
    clock, write = Clock(), Writer()
    with MockVllm(outcome, engine, clock=clock, profile=write, profile_dir=tmp_path, start_at_s=3.0) as mock:
        assert status_of(f"{mock.url}/start_profile") == 405
        post(f"{mock.url}/start_profile")
        clock.now_s += 0.5
        post(f"{mock.url}/stop_profile")
    assert write.asked[0][1] > 5
    found = sorted(path.name for path in tmp_path.iterdir())
    assert len(found) == RANKS
    assert all(re.fullmatch(name.format(rank), found[rank]) for rank in range(RANKS))


def test_a_port_of_one_engine_writes_that_engine_s_trace_alone(tmp_path: Path) -> None:
    outcome, engine = serve_vllm()
    port, clock = split_ports(engine)[5], Clock()
    with MockVllm(outcome, port, clock=clock, profile=Writer(), profile_dir=tmp_path, start_at_s=3.0) as mock:
        post(f"{mock.url}/start_profile")
        clock.now_s += 0.5
        post(f"{mock.url}/stop_profile")
    (path,) = tmp_path.iterdir()
    assert path.name.startswith("dp5_")
    assert path.read_text() == "5"
