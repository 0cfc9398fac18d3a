from __future__ import annotations

import time
from http.client import IncompleteRead
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from dprankdiag.harness.fake_engine import Asked, Endpoint, FakeEngine, Fault, Reply


def ask(url: str, **headers: str) -> bytes:
    with urlopen(Request(url, headers=headers), timeout=5) as reply:
        body: bytes = reply.read()
    return body


def status_of(url: str, **headers: str) -> int:
    with pytest.raises(HTTPError) as caught:
        ask(url, **headers)
    caught.value.close()
    return caught.value.code


def test_bodies_follow_each_other_and_the_last_one_stays() -> None:
    with FakeEngine({"/metrics": [b"1", b"2"]}) as engine:
        assert [ask(f"{engine.url}/metrics") for _ in range(3)] == [b"1", b"2", b"2"]
        assert engine.requests["/metrics"] == 3


def test_bodies_may_follow_the_time() -> None:
    moments = iter([100.0, 107.5])
    with FakeEngine({"/metrics": lambda seconds: str(seconds).encode()}, clock=lambda: next(moments)) as engine:
        assert ask(f"{engine.url}/metrics?a=b") == b"7.5"


def test_other_paths_are_not_there() -> None:
    with FakeEngine({}) as engine:
        assert status_of(f"{engine.url}/metrics") == 404


def test_a_token_is_wanted_where_engines_want_it() -> None:
    with FakeEngine({"/metrics": b"1", "/v1/loads": b"2"}, token="t") as engine:
        assert ask(f"{engine.url}/metrics") == b"1"
        assert status_of(f"{engine.url}/v1/loads") == 401
        assert ask(f"{engine.url}/v1/loads", Authorization="Bearer t") == b"2"


def test_faults_concern_the_requests_they_name() -> None:
    with FakeEngine({"/metrics": b"1"}, faults={"/metrics": Fault(status=500, first=1, last=1)}) as engine:
        url = f"{engine.url}/metrics"
        assert (ask(url), status_of(url), ask(url)) == (b"1", 500, b"1")


def test_a_body_may_break_off() -> None:
    with (
        FakeEngine({"/metrics": b"12345678"}, faults={"/metrics": Fault(keep_ratio=0.5)}) as engine,
        pytest.raises(IncompleteRead) as caught,
    ):
        ask(f"{engine.url}/metrics")
    assert caught.value.partial == b"1234"


def test_an_answer_may_be_late() -> None:
    with FakeEngine({"/metrics": b"1"}, faults={"/metrics": Fault(delay_s=0.05)}) as engine:
        began = time.monotonic()
        ask(f"{engine.url}/metrics")
        assert time.monotonic() - began >= 0.05


def test_an_endpoint_sees_what_is_asked() -> None:
    def repeat(asked: Asked) -> Reply:
        return Reply(f"{asked.method} {asked.path} {sorted(asked.query.items())} {asked.body.decode()}".encode())

    with FakeEngine({"/a": Endpoint(repeat, ("GET", "POST"))}) as engine:
        assert ask(f"{engine.url}/a?b=1&c=&b=2%20") == b"GET /a [('b', '2 '), ('c', '')] "
        with urlopen(Request(f"{engine.url}/a", b"hello", method="POST"), timeout=5) as reply:
            assert reply.read() == b"POST /a [] hello"


def test_methods_that_an_endpoint_does_not_know_are_refused() -> None:
    with FakeEngine({"/a": Endpoint(lambda asked: Reply(b""), ("POST",)), "/b": b"1"}) as engine:
        assert status_of(f"{engine.url}/a") == 405
        with pytest.raises(HTTPError) as caught:
            urlopen(Request(f"{engine.url}/b", b"", method="POST"), timeout=5)
        caught.value.close()
        assert caught.value.code == 405


def test_an_endpoint_chooses_its_status() -> None:
    with FakeEngine({"/a": Endpoint(lambda asked: Reply(b"{}", 422))}) as engine:
        assert status_of(f"{engine.url}/a") == 422
