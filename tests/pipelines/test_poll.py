"""Live polling: engines found out, numbers and configuration at their pace, failures that are no verdict."""

from __future__ import annotations

import ctypes
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest

from dprankdiag.errors import UsageError
from dprankdiag.harness.fake_engine import FakeEngine, Fault
from dprankdiag.model.ledgers import LedgerAnswer, NoData
from dprankdiag.pipelines.poll import TIDY_POLLS, Poller, give_back_memory

S = 1_000_000_000
NO_ENGINE = b"process_cpu_seconds_total 5.0\n"


class Clock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now_ns = 1_764_000_000 * S

    def __call__(self) -> int:
        return self.now_ns

    def wait(self, seconds: float) -> None:
        self.now_ns += int(seconds * S)


def sglang_bodies(fixtures: Path, scenario: str = "balanced", release: str = "0.5.23") -> dict[str, bytes]:
    folder = fixtures / f"sglang-{release}" / scenario
    files = {"/metrics": "metrics_t0.prom", "/v1/loads": "v1_loads_t0.json", "/server_info": "server_info.json"}
    return {path: (folder / name).read_bytes() for path, name in files.items() if (folder / name).exists()}


def told(answers: list[LedgerAnswer | NoData]) -> list[str]:
    return [answer.interface for answer in answers if isinstance(answer, LedgerAnswer)]


def test_an_sglang_engine_tells_numbers_always_and_its_configuration_every_minute(fixtures: Path) -> None:
    clock = Clock()
    with FakeEngine(sglang_bodies(fixtures)) as engine, Poller([engine.url], clock=clock) as poller:
        numbers = ["sglang-metrics", "sglang-loads"]
        assert told(poller.poll()) == [*numbers, "sglang-server-info"]
        clock.wait(1)
        assert told(poller.poll()) == numbers
        clock.wait(60)
        assert told(poller.poll()) == [*numbers, "sglang-server-info"]
        assert "/get_load" not in engine.requests


def test_a_vllm_engine_is_known_by_its_page(fixtures: Path) -> None:
    page = (fixtures / "vllm-0.33.0" / "balanced" / "scrape1.prom").read_bytes()
    bodies = {"/metrics": page, "/version": b'{"version":"0.33.0"}', "/load": b'{"server_load":0}'}
    with FakeEngine(bodies) as engine, Poller([engine.url]) as poller:
        answers = poller.poll()
    assert told(answers) == ["vllm-metrics", "vllm-version", "vllm-load"]
    assert [answer.absent for answer in answers if isinstance(answer, NoData)] == [True]


def test_an_engine_without_metrics_is_known_by_its_loads(fixtures: Path) -> None:
    bodies = sglang_bodies(fixtures)
    del bodies["/metrics"]
    with FakeEngine(bodies) as engine, Poller([engine.url]) as poller:
        assert told(poller.poll()) == ["sglang-loads", "sglang-server-info"]


def test_an_old_engine_is_asked_for_what_it_has(fixtures: Path) -> None:
    bodies = {"/metrics": sglang_bodies(fixtures)["/metrics"], "/get_load": b'[{"dp_rank":0,"num_tokens":5}]'}
    with FakeEngine(bodies) as engine, Poller([engine.url]) as poller:
        poller.poll()
        assert told(poller.poll()) == ["sglang-metrics", "sglang-get-load"]


def test_moments_are_those_at_which_bodies_came(fixtures: Path) -> None:
    clock = Clock()
    with FakeEngine(sglang_bodies(fixtures)) as engine, Poller([engine.url], clock=clock) as poller:
        clock.wait(1.25)
        answers = poller.poll()
    assert {answer.taken_ns for answer in answers} == {clock.now_ns}


def test_numbers_do_not_wait_for_configuration_that_never_comes(fixtures: Path) -> None:
    faults = {"/server_info": Fault(delay_s=0.5)}
    with (
        FakeEngine(sglang_bodies(fixtures), faults=faults) as engine,
        Poller([engine.url], patience_s=0.01) as poller,
    ):
        first = told(poller.poll())
        assert told(poller.poll()) == first == ["sglang-metrics", "sglang-loads"]
        time.sleep(0.8)
        assert told(poller.poll()) == [*first, "sglang-server-info"]
        assert engine.requests["/server_info"] == 1


def test_ranks_that_join_are_believed_at_once(fixtures: Path) -> None:
    page = sglang_bodies(fixtures)["/metrics"]
    few = b"".join(line for line in page.splitlines(keepends=True) if b'dp_rank="7"' not in line)
    with FakeEngine({"/metrics": [few, few, page]}) as engine, Poller([engine.url]) as poller:
        ranks = [one.ranks for _ in range(2) for one in poller.poll() if isinstance(one, LedgerAnswer)]
    assert ranks == [tuple(range(7)), tuple(range(8))]


def test_a_page_over_http_is_known_to_be_whole(fixtures: Path) -> None:
    body = sglang_bodies(fixtures, release="0.5.12", scenario="count-skew")["/metrics"]
    lines = [line for line in body.splitlines() if b"cuda_graph_passes" in line and b"#" not in line]
    page = b"\n".join([*[line for line in body.splitlines() if line not in lines], *lines, b""])
    with FakeEngine({"/metrics": page}) as engine, Poller([engine.url]) as poller:
        (answer, *_) = poller.poll()
    assert isinstance(answer, LedgerAnswer)
    assert not np.isnan(answer.values["eager_passes"]).any()


def test_a_target_that_is_gone_is_no_data() -> None:
    with FakeEngine({}) as engine:
        url = engine.url
    with Poller([url]) as poller:
        (answer,) = poller.poll()
    assert isinstance(answer, NoData)
    assert "cannot be reached" in answer.reason
    assert not answer.absent


def test_a_target_that_is_no_engine_is_told() -> None:
    with FakeEngine({"/metrics": NO_ENGINE}) as engine, Poller([engine.url]) as poller:
        (answer,) = poller.poll()
    assert isinstance(answer, NoData)
    assert answer.reason == "shows no engine that is known"


def test_a_door_that_wants_a_token_is_told(fixtures: Path) -> None:
    with FakeEngine(sglang_bodies(fixtures), token="t") as engine, Poller([engine.url]) as poller:
        answers = poller.poll()
    assert told(answers) == ["sglang-metrics"]
    assert all("wants a token" in answer.reason for answer in answers if isinstance(answer, NoData))


def test_one_bad_interface_leaves_the_others_alone(fixtures: Path) -> None:
    faults = {"/v1/loads": Fault(status=500)}
    with FakeEngine(sglang_bodies(fixtures), faults=faults) as engine, Poller([engine.url]) as poller:
        assert told(poller.poll()) == ["sglang-metrics", "sglang-server-info"]


def test_failures_are_asked_again_more_and_more_rarely(fixtures: Path) -> None:
    clock = Clock()
    faults = {"/v1/loads": Fault(status=500)}
    with (
        FakeEngine(sglang_bodies(fixtures), faults=faults) as engine,
        Poller([engine.url], clock=clock, chance=lambda: 1.0) as poller,
    ):
        for _ in range(33):
            poller.poll()
            clock.wait(1)
        assert engine.requests["/v1/loads"] == 6 + 1  # at 0, 1, 2, 4, 8 and 16 s, and at the end
        assert engine.requests["/metrics"] == 1 + 33


def test_a_page_that_lost_its_ranks_is_no_data(fixtures: Path) -> None:
    """A gateway answered in turn with the whole page and with 3 % of it."""
    page = sglang_bodies(fixtures)["/metrics"]
    bodies = {"/metrics": [page, page, NO_ENGINE, page, NO_ENGINE, page]}
    with FakeEngine(bodies) as engine, Poller([engine.url]) as poller:
        kinds = [type(poller.poll()[0]).__name__ for _ in range(5)]
    assert kinds == ["LedgerAnswer", "NoData", "LedgerAnswer", "NoData", "LedgerAnswer"]


def test_ranks_that_stay_away_are_believed_to_be_gone(fixtures: Path) -> None:
    page = sglang_bodies(fixtures)["/metrics"]
    half = b"".join(
        line for line in page.splitlines(keepends=True) if not any(b'dp_rank="%d"' % rank in line for rank in (5, 6))
    )
    with FakeEngine({"/metrics": [page, page, half]}) as engine, Poller([engine.url]) as poller:
        answers = [poller.poll()[0] for _ in range(4)]
    assert isinstance(answers[1], NoData)
    assert answers[1].reason.startswith("ranks 5, 6 are missing")
    assert isinstance(answers[3], LedgerAnswer)
    assert answers[3].ranks == (0, 1, 2, 3, 4, 7)


def test_counters_that_start_anew_are_told_as_they_are(fixtures: Path) -> None:
    folder = fixtures / "sglang-0.5.23" / "balanced"
    later, earlier = (folder / "metrics_t1.prom").read_bytes(), (folder / "metrics_t0.prom").read_bytes()
    with FakeEngine({"/metrics": [later, later, earlier]}) as engine, Poller([engine.url]) as poller:
        steps = []
        for _ in range(2):
            (answer, *_) = poller.poll()
            assert isinstance(answer, LedgerAnswer)
            steps.append(answer.values["active_steps"][0])
    assert steps == [700, 200]


def test_a_slow_target_does_not_hold_the_others_up(fixtures: Path) -> None:
    bodies = sglang_bodies(fixtures)
    with (
        FakeEngine(bodies) as slow,
        FakeEngine(bodies) as quick,
        Poller([slow.url, quick.url]) as poller,
    ):
        poller.poll()
        slow.faults = {"/metrics": Fault(delay_s=0.3), "/v1/loads": Fault(delay_s=0.3)}
        answers = poller.poll()
    moments = {
        (answer.where.startswith(slow.url), answer.interface): answer.taken_ns
        for answer in answers
        if isinstance(answer, LedgerAnswer) and answer.interface == "sglang-metrics"
    }
    late, early = moments[True, "sglang-metrics"], moments[False, "sglang-metrics"]
    assert late is not None
    assert early is not None
    assert late - early > 0.2 * S


def test_many_targets_are_told_in_order(fixtures: Path) -> None:
    page = sglang_bodies(fixtures)["/metrics"]

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=page) if request.url.path == "/metrics" else httpx.Response(404)

    targets = [f"http://engine-{number}:30000" for number in range(40)]
    with Poller(targets, transport=httpx.MockTransport(answer)) as poller:
        answers = [one for one in poller.poll() if isinstance(one, LedgerAnswer)]
    assert [one.where for one in answers] == [f"{target}/metrics" for target in targets]


def test_a_target_named_twice_is_asked_once(fixtures: Path) -> None:
    with FakeEngine(sglang_bodies(fixtures)) as engine, Poller([engine.url, f"{engine.url}/metrics"]) as poller:
        assert told(poller.poll()).count("sglang-metrics") == 1


def test_an_address_with_credentials_is_refused() -> None:
    with pytest.raises(UsageError, match="holds credentials"):
        Poller(["http://user:password@host"])


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="this C library gives memory back by itself")
def test_what_threads_leave_free_between_what_stays_is_given_back() -> None:
    def fill() -> list[bytes]:
        return [bytes(1_000 + place % 7) for place in range(60_000)]

    with ThreadPoolExecutor(4) as pool:
        pages = [future.result() for future in [pool.submit(fill) for _ in range(4)]]
        kept = [page[::500] for page in pages]
        del pages
        before = resident_bytes()
        give_back_memory()
        assert before - resident_bytes() > 50_000_000
    assert sum(map(len, kept)) == 480


def test_free_memory_is_given_back_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[str] = []
    monkeypatch.setattr("dprankdiag.pipelines.poll.give_back_memory", lambda: given.append("now"))
    transport = httpx.MockTransport(lambda request: httpx.Response(404))
    with Poller(["http://127.0.0.1:1"], transport=transport) as poller:
        counts = [(poller.poll(), len(given))[1] for _ in range(2 * TIDY_POLLS)]
    assert [counts.index(times) for times in (1, 2)] == [TIDY_POLLS - 1, 2 * TIDY_POLLS - 1]
