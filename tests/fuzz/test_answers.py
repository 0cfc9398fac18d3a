"""Servers that mean ill: they drip, lead elsewhere, pack bombs, or tell without end; none holds the program up."""

from __future__ import annotations

import gzip
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from dprankdiag.collectors.http import Access, Fetcher, Reply
from dprankdiag.collectors.sglang_metrics import SglangMetrics
from dprankdiag.harness.fake_engine import FakeEngine, Fault
from dprankdiag.model.ledgers import NoData

SHORT_S = 0.3
LINE = 'sglang:num_running_reqs{dp_rank="0",model_name="m",pp_rank="0",tp_rank="0"} 3\n'


@contextmanager
def serve(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Answer one question by hand."""
    listener = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        with suppress(OSError):
            connection, _ = listener.accept()
            with connection:
                connection.recv(65_536)
                answer(connection)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()
        thread.join(5)


def drip(head: bytes) -> Callable[[socket.socket], None]:
    """Send the head of an answer, then a byte at a time."""

    def answer(connection: socket.socket) -> None:
        connection.sendall(head)
        while True:
            connection.sendall(b"a")
            time.sleep(SHORT_S / 10)

    return answer


def ask(url: str, access: Access) -> Reply | NoData:
    fetcher = Fetcher(access)
    try:
        return fetcher.fetch("sglang-metrics", url, "/metrics", read_refusal=lambda body: body.decode())
    finally:
        fetcher.close()


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nX-Long: ",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n",
        b"HTTP/1.1 400 Bad Request\r\nContent-Length: 100000\r\n\r\n",
    ],
    ids=["first line", "headers", "body", "refusal"],
)
def test_a_byte_at_a_time_takes_no_longer_than_an_answer_may(head: bytes) -> None:
    began_s = time.monotonic()
    with serve(drip(head)) as url:
        told = ask(url, Access(reply_s=SHORT_S))
    assert isinstance(told, NoData)
    assert time.monotonic() - began_s < 10 * SHORT_S


def test_a_connection_that_is_kept_has_the_time_of_each_question(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeEngine({"/metrics": LINE.encode()}) as engine:
        fetcher = Fetcher(Access(reply_s=2 * SHORT_S))
        for _ in range(3):
            assert isinstance(fetcher.fetch("x", engine.url, "/metrics"), Reply)
            time.sleep(SHORT_S)
        fetcher.close()


def test_a_packed_body_without_end_is_given_up_at_the_size_of_an_answer() -> None:
    part = gzip.compress(bytes(1 << 20))

    def answer(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n" + part[:10])
        while True:
            connection.sendall(part)

    with serve(answer) as url:
        told = ask(url, Access(most_bytes=1 << 22))
    assert isinstance(told, NoData)
    assert "larger than" in told.reason or "damaged" in told.reason or "longer than" in told.reason


@pytest.mark.parametrize(
    "place", ["file:///etc/passwd", "http://169.254.169.254/latest", "//elsewhere/x", "gopher://x"]
)
def test_nobody_is_asked_at_a_place_that_an_answer_names(place: str) -> None:
    with FakeEngine({"/metrics": b"a 1\n"}, faults={"/metrics": Fault(status=302, location=place)}) as engine:
        told = ask(engine.url, Access())
    assert isinstance(told, NoData)
    assert "leads elsewhere" in told.reason
    assert "passwd" not in told.reason


def test_a_series_of_a_hundred_thousand_labels_is_passed_over_at_once() -> None:
    labels = ",".join(f'l{number}="v"' for number in range(100_000))
    began_s = time.process_time()
    (told,) = SglangMetrics().parse(f"{LINE}sglang:num_running_reqs{{{labels}}} 1\n".encode(), "w", 5)
    assert time.process_time() - began_s < 5
    assert told.values["running_requests"].tolist() == [3]
    assert told.warnings


@pytest.mark.parametrize("rank", ["99999999999999999999", "-1", "1e3", "0x1", "", "٣", "0\\n1"])
def test_what_is_no_rank_makes_none(rank: str) -> None:
    page = LINE + LINE.replace('dp_rank="0"', f'dp_rank="{rank}"')
    ranks = {one for told in SglangMetrics().parse(page.encode(), "w", 5) for one in told.ranks}
    assert all(0 <= one < 2**31 for one in ranks)
