"""What the mock of SGLang answers to whom asks it, release by release."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from dprankdiag.harness.mock_scenario import serve_scenario
from dprankdiag.harness.mock_sglang import MockSglang
from dprankdiag.harness.scenarios import find_scenario
from dprankdiag.harness.served_engine import describe_worker
from dprankdiag.simulate.engine import serve
from dprankdiag.simulate.lockstep import LockstepRules
from dprankdiag.simulate.routers.sglang import SglangController
from tests.harness.served_worlds import LONG_RANK, RANKS, Clock, serve_sglang, sglang_worker
from tests.harness.test_fake_engine import ask, status_of


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def engine(clock: Clock) -> Iterator[MockSglang]:
    with MockSglang(*serve_sglang(long=True), clock=clock) as mock:
        clock.now_s += 20
        yield mock


def open_release(version: str, clock: Clock, **rest: object) -> MockSglang:
    outcome, engine = serve_sglang(long=True)
    return MockSglang(outcome, replace(engine, version=version), clock=clock, start_at_s=20.0, **rest)  # type: ignore[arg-type]


def read_loads(mock: MockSglang, query: str = "") -> list[dict[str, object]]:
    loads: list[dict[str, object]] = json.loads(ask(f"{mock.url}/v1/loads{query}"))["loads"]
    return loads


def test_the_rank_of_long_requests_holds_most_tokens_at_as_many_requests(engine: MockSglang) -> None:
    used = [load["num_used_tokens"] for load in read_loads(engine)]
    assert used.index(max(used)) == LONG_RANK  # type: ignore[type-var]
    assert max(used) > 3 * sorted(used)[-2]  # type: ignore[type-var, operator]


def test_one_rank_may_be_asked_for_and_one_that_is_not_there_is_an_empty_list(engine: MockSglang) -> None:
    assert [load["dp_rank"] for load in read_loads(engine, "?dp_rank=3")] == [3]
    assert read_loads(engine, "?dp_rank=99") == read_loads(engine, "?dp_rank=-1") == []
    assert status_of(f"{engine.url}/v1/loads?dp_rank=x") == 422


def test_sections_are_left_out_that_nobody_asks_for(engine: MockSglang) -> None:
    whole, core, some = (read_loads(engine, query)[0] for query in ("", "?include=core", "?include=memory,%20queues"))
    assert set(whole) - set(core) == {"memory", "disaggregation", "queues"}
    assert set(some) - set(core) == {"memory", "queues"}


@pytest.mark.parametrize("version,status", [("0.5.9", 400), ("0.5.12", 200), ("0.5.18", 500), ("0.5.23", 500)])
def test_an_unknown_section_is_answered_as_each_release_does(clock: Clock, version: str, status: int) -> None:
    with open_release(version, clock) as mock:
        url = f"{mock.url}/v1/loads?include=core,what"
        if status == 200:
            assert json.loads(ask(url))["loads"]
        else:
            assert status_of(url) == status


@pytest.mark.parametrize(
    "version,keys",
    [
        ("0.5.6", {"dp_rank", "num_reqs", "num_waiting_reqs", "num_tokens"}),
        ("0.5.12", {"dp_rank", "num_reqs", "num_waiting_reqs", "num_tokens", "ts_tic"}),
        ("0.5.18", {"dp_rank", "num_reqs", "num_waiting_reqs", "num_tokens", "num_pending_tokens", "ts_tic"}),
        ("0.5.23", None),
    ],
)
def test_the_older_load_answer_is_there_until_it_went(clock: Clock, version: str, keys: set[str] | None) -> None:
    with open_release(version, clock) as mock:
        if keys is None:
            assert status_of(f"{mock.url}/get_load") == 404
            return
        loads = json.loads(ask(f"{mock.url}/get_load"))
        assert [set(load) for load in loads] == [keys] * RANKS
        if version == "0.5.6":
            assert status_of(f"{mock.url}/v1/loads") == 404


@pytest.mark.parametrize("version", ["0.5.9", "0.5.12", "0.5.18", "0.5.23"])
def test_loads_as_text_have_the_lines_of_real_ones(fixtures: Path, clock: Clock, version: str) -> None:
    recorded = (fixtures / f"sglang-{version}/count-skew/v1_loads_t1.prom").read_text("utf-8").splitlines()
    with open_release(version, clock) as mock:
        written = ask(f"{mock.url}/v1/loads?format=prometheus").decode().splitlines()
    assert _list_series(written) == _list_series(recorded)
    assert _list_heads(written, "TYPE") == _list_heads(recorded, "TYPE")
    named = [{line.split()[2] for line in lines if line.startswith("# HELP ")} for lines in (written, recorded)]
    assert named[0] == named[1]
    whole = {line.split()[0]: "." in line.split()[1] for line in recorded if not line.startswith("#")}
    assert {line.split()[0]: "." in line.split()[1] for line in written if not line.startswith("#")} == whole


def _list_series(lines: Sequence[str]) -> set[str]:
    return {line.split()[0] for line in lines if not line.startswith("#")}


def _list_heads(lines: Sequence[str], kind: str) -> set[str]:
    return {line for line in lines if line.startswith(f"# {kind} ")}


@pytest.mark.parametrize("version", ["0.5.18", "0.5.23"])
def test_the_configuration_says_how_many_ranks_there_are_as_the_release_does(clock: Clock, version: str) -> None:
    with open_release(version, clock) as mock:
        info = json.loads(ask(f"{mock.url}/server_info"))
    assert info["dp_size"] * info.get("attn_dp_size", 1) == RANKS
    assert ("attn_dp_size" in info) == (version == "0.5.23")
    assert len(info["internal_states"]) == RANKS


def test_the_configuration_is_that_of_the_world(clock: Clock) -> None:
    worker = replace(
        sglang_worker(meeting=LockstepRules(graph_rows=(), dispatch="low_latency")),
        router=SglangController(RANKS, "total_tokens"),
    )
    with MockSglang(serve([], [worker]), describe_worker(worker), clock=clock) as mock:
        info = json.loads(ask(f"{mock.url}/server_info"))
    told = ("load_balance_method", "deepep_mode", "disable_cuda_graph", "enable_two_batch_overlap")
    assert [info[key] for key in told] == ["total_tokens", "low_latency", True, False]


@pytest.mark.parametrize("release", ["0.5.9", "0.5.12", "0.5.23"])
def test_the_queues_of_a_split_engine_add_up_to_what_waits(release: str) -> None:
    with serve_scenario(find_scenario("prealloc"), start_at_s=7.0, release=release) as mocks:
        (front, back) = (read_loads(mock) for mock in mocks)  # type: ignore[arg-type]
    bootstrap = "prefill_bootstrap_queue_reqs" if release != "0.5.9" else "prefill_prealloc_queue_reqs"
    for loads, mode, names in (
        (front, "prefill", [bootstrap]),
        (back, "decode", ["decode_prealloc_queue_reqs", "decode_transfer_queue_reqs", "decode_retracted_queue_reqs"]),
    ):
        for load in loads:
            told: dict[str, int] = load["disaggregation"]  # type: ignore[assignment]
            assert told["mode"] == mode
            own: dict[str, int] = load["queues"]  # type: ignore[assignment]
            assert own["waiting"] + sum(told[name] for name in names) == load["num_waiting_reqs"]
    assert front[4]["disaggregation"][bootstrap] > 3  # type: ignore[index]
    assert back[4]["disaggregation"]["decode_prealloc_queue_reqs"] > 3  # type: ignore[index]


def test_each_queue_of_a_split_engine_has_a_gauge_of_its_own() -> None:
    with serve_scenario(find_scenario("prealloc"), start_at_s=7.0) as mocks:
        pages = [ask(f"{mock.url}/metrics").decode() for mock in mocks]
    assert ['engine_type="prefill"' in page for page in pages] == [True, False]
    for page, name in zip(pages, ("prefill_bootstrap", "decode_prealloc"), strict=True):
        (told,) = re.findall(rf'^sglang:num_{name}_queue_reqs{{dp_rank="4".*}} (.*)$', page, re.MULTILINE)
        assert float(told) > 3
        (own,) = re.findall(r'^sglang:num_queue_reqs{dp_rank="4".*} (.*)$', page, re.MULTILINE)
        assert float(own) == 0


def test_every_key_of_the_configuration_is_one_that_real_ones_tell(fixtures: Path, engine: MockSglang) -> None:
    real = json.loads((fixtures / "sglang-0.5.23/balanced/server_info.json").read_text("utf-8"))
    info = json.loads(ask(f"{engine.url}/server_info"))
    assert set(info) <= set(real)
    assert set(info["internal_states"][0]) <= set(real["internal_states"][0])
    assert {key: type(value) for key, value in info.items() if value is not None and real[key] is not None} == {
        key: type(real[key]) for key, value in info.items() if value is not None and real[key] is not None
    }


def test_a_token_is_wanted_for_loads_and_not_for_metrics(clock: Clock) -> None:
    with open_release("0.5.23", clock, token="hush") as mock:
        assert ask(f"{mock.url}/metrics")
        assert status_of(f"{mock.url}/v1/loads") == 401
        assert ask(f"{mock.url}/v1/loads", Authorization="Bearer hush")


def post(url: str, **told: object) -> bytes:
    with urlopen(Request(url, json.dumps(told).encode(), method="POST"), timeout=5) as reply:
        body: bytes = reply.read()
    return body


class Writer:
    """Writes a file a rank with what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def __call__(self, first: int, count: int, folder: Path) -> list[Path]:
        self.asked.append((first, count))
        paths = [folder / f"{rank}.bin" for rank in range(RANKS)]
        for rank, path in enumerate(paths):
            path.write_text(f"{rank}")
        return paths


def test_a_number_of_steps_is_profiled_on_every_rank_from_the_next_one_on(clock: Clock, tmp_path: Path) -> None:
    outcome, _ = serve_sglang(long=True)
    write = Writer()
    with open_release("0.5.23", clock, profile=write) as mock:
        post(f"{mock.url}/start_profile", output_dir=str(tmp_path), num_steps=7, profile_id="17.5")
    ((first, count),) = write.asked
    assert count == 7
    assert outcome.steps["start_ns"][first - 1] <= 20_000_000_000 < outcome.steps["start_ns"][first]
    names = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert names == {f"17.5-TP-{rank}-DP-{rank}-EP-{rank}.trace.json.gz": f"{rank}" for rank in range(RANKS)}


def test_without_a_number_steps_are_profiled_until_it_is_stopped(clock: Clock, tmp_path: Path) -> None:
    outcome, _ = serve_sglang(long=True)
    write = Writer()
    with open_release("0.5.23", clock, profile=write) as mock:
        assert status_of(f"{mock.url}/stop_profile") == 500
        post(f"{mock.url}/start_profile", output_dir=str(tmp_path))
        assert status_of(f"{mock.url}/start_profile") == 500
        assert list(tmp_path.iterdir()) == []
        clock.now_s += 1.5
        ask(f"{mock.url}/stop_profile")
    ((first, count),) = write.asked
    started = outcome.steps["start_ns"][first : first + count]
    assert 20e9 < started[0] <= started[-1] <= 21.5e9 < outcome.steps["start_ns"][first + count]
    assert len(list(tmp_path.iterdir())) == RANKS


def test_an_engine_that_has_no_steps_left_writes_no_trace(clock: Clock, tmp_path: Path) -> None:
    write = Writer()
    with open_release("0.5.23", clock, profile=write) as mock:
        clock.now_s += 1_000
        post(f"{mock.url}/start_profile", output_dir=str(tmp_path), num_steps=7)
    assert write.asked == list(tmp_path.iterdir()) == []


def test_steps_that_cannot_be_traced_are_an_error_of_the_server(clock: Clock, tmp_path: Path) -> None:
    def refuse(first: int, count: int, folder: Path) -> list[Path]:
        raise ValueError("the ranks do not step together")

    with open_release("0.5.23", clock, profile=refuse) as mock, pytest.raises(HTTPError) as caught:
        post(f"{mock.url}/start_profile", output_dir=str(tmp_path), num_steps=2)
    caught.value.close()
    assert caught.value.code == 500
    assert list(tmp_path.iterdir()) == []


def test_without_a_writer_there_is_no_profiler(engine: MockSglang) -> None:
    assert status_of(f"{engine.url}/start_profile") == 404


@pytest.mark.parametrize("wrong", [{"speed": 0.0}, {"start_at_s": -1.0}])
def test_a_world_that_stands_still_or_begins_before_itself_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="expected a speed above 0"):
        MockSglang(*serve_sglang(long=True), **wrong)  # type: ignore[arg-type]
