from __future__ import annotations

from pathlib import Path

import httpx

from dprankdiag.model.ledgers import LedgerAnswer, NoData
from dprankdiag.pipelines.poll import Poller


def test_an_engine_is_known_after_its_first_page(fixtures: Path) -> None:
    folder = fixtures / "sglang-0.5.23" / "count-skew"
    pages = {"/metrics": "metrics_t0.prom", "/v1/loads": "v1_loads_t0.json"}

    def answer(request: httpx.Request) -> httpx.Response:
        name = pages.get(request.url.path)
        return httpx.Response(200, content=(folder / name).read_bytes()) if name else httpx.Response(404)

    with Poller(["http://engine:30000"], transport=httpx.MockTransport(answer)) as poller:
        poller.poll()
        answers = poller.poll()
    told = [one for one in answers if isinstance(one, LedgerAnswer)]
    assert [one.interface for one in told] == ["sglang-metrics", "sglang-loads"]
    assert told[0].taken_ns is not None


def test_a_target_that_is_gone_is_no_data() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with Poller(["http://engine:30000"], transport=httpx.MockTransport(answer)) as poller:
        answers = poller.poll()
    assert answers
    assert all(isinstance(one, NoData) and not one.absent for one in answers)
