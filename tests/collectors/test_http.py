"""How a target is asked, what is never sent or shown, and what is no data."""

from __future__ import annotations

import gzip
import shutil
import ssl
import subprocess
import traceback
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprankdiag.collectors.http import Access, Fetcher, Pace, Reply, check_target, hide_credentials, read_secret
from dprankdiag.errors import DprankdiagError, UsageError
from dprankdiag.harness.fake_engine import FakeEngine, Fault
from dprankdiag.model.ledgers import NoData

TOKEN = "s3cret-t0ken"
S = 1_000_000_000


def fetch(engine: FakeEngine, access: Access | None = None, path: str = "/metrics") -> Reply | NoData:
    fetcher = Fetcher(access)
    try:
        return fetcher.fetch("sglang-metrics", engine.url, path)
    finally:
        fetcher.close()


def reason(answer: Reply | NoData) -> str:
    assert isinstance(answer, NoData)
    return answer.reason


def secret_of(monkeypatch: pytest.MonkeyPatch, text: str = TOKEN) -> Access:
    monkeypatch.setenv("ENGINE_TOKEN", text)
    return Access(read_secret(env="ENGINE_TOKEN"))


def test_a_body_comes_whole_and_with_its_moment() -> None:
    with FakeEngine({"/metrics": b"a 1\n"}) as engine:
        fetcher = Fetcher(clock=lambda: 77)
        assert fetcher.fetch("x", engine.url, "/metrics") == Reply(b"a 1\n", 77)
        fetcher.close()
        assert engine.headers[0]["Accept"] == "text/plain;version=0.0.4"


def test_compressed_bodies_are_understood() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"Content-Encoding": "gzip"}, content=gzip.compress(b"a 1\n"))

    told = Fetcher(transport=httpx.MockTransport(answer)).fetch("x", "http://h", "/metrics")
    assert isinstance(told, Reply)
    assert told.body == b"a 1\n"


def test_a_damaged_compressed_body_is_no_data() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"Content-Encoding": "gzip"}, stream=httpx.ByteStream(b"\x1f\x8b nonsense"))

    told = Fetcher(transport=httpx.MockTransport(answer)).fetch("x", "http://h", "/metrics")
    assert "damaged" in reason(told)


def test_a_body_that_breaks_off_is_no_data() -> None:
    with FakeEngine({"/metrics": b"a 1\n" * 100}, faults={"/metrics": Fault(keep_ratio=0.5)}) as engine:
        assert "cut short" in reason(fetch(engine))


def test_a_slow_answer_is_no_data() -> None:
    with FakeEngine({"/metrics": b"a 1\n"}, faults={"/metrics": Fault(delay_s=0.4)}) as engine:
        assert "in time" in reason(fetch(engine, Access(reply_s=0.1)))


def test_an_answer_that_never_ends_is_no_data() -> None:
    class Trickle(httpx.SyncByteStream):
        def __iter__(self):  # type: ignore[no-untyped-def]
            while True:
                yield b"a 1\n" * 1000

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, stream=Trickle())

    fetcher = Fetcher(Access(most_bytes=1_000_000), transport=httpx.MockTransport(answer))
    assert "larger than 1000000 bytes" in reason(fetcher.fetch("x", "http://h", "/metrics"))
    fetcher = Fetcher(Access(reply_s=0.05, most_bytes=10**12), transport=httpx.MockTransport(answer))
    assert "longer than 0.05 s" in reason(fetcher.fetch("x", "http://h", "/metrics"))


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """Make a certificate of this machine, with its key in one file."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    key, path = tmp_path / "key.pem", tmp_path / "both.pem"
    names = ("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1")
    made = ("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", str(key), "-out", str(path))
    subprocess.run(["openssl", *made, *names], check=True, capture_output=True)
    path.write_bytes(path.read_bytes() + key.read_bytes())
    return path


def test_only_certificates_that_are_trusted_open_the_door(certificate: Path) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    with FakeEngine({"/metrics": b"a 1\n"}, tls=tls) as engine:
        assert isinstance(fetch(engine, Access(ca_file=certificate)), Reply)
        assert "cannot be reached" in reason(fetch(engine))


def test_a_file_without_certificates_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    for path in (tmp_path / "ca.pem", tmp_path / "none.pem"):
        with pytest.raises(UsageError, match="no certificates"):
            Fetcher(Access(ca_file=path))


@pytest.mark.parametrize("status, absent", [(404, True), (405, True), (500, False), (503, False)])
def test_what_is_not_offered_is_told_from_what_failed(status: int, absent: bool) -> None:
    with FakeEngine({}, faults={"/metrics": Fault(status=status)}) as engine:
        told = fetch(engine)
    assert isinstance(told, NoData)
    assert (told.absent, str(status) in told.reason) == (absent, True)


def test_nobody_there_is_no_data() -> None:
    with FakeEngine({}) as engine:
        url = engine.url
    told = Fetcher().fetch("x", url, "/metrics")
    assert "cannot be reached" in reason(told)


def test_a_token_opens_the_door(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeEngine({"/v1/loads": b"{}"}, token=TOKEN) as engine:
        assert isinstance(fetch(engine, secret_of(monkeypatch), "/v1/loads"), Reply)
        assert "give --token-env or --token-file" in reason(fetch(engine, path="/v1/loads"))
        wrong = reason(fetch(engine, secret_of(monkeypatch, "other"), "/v1/loads"))
        assert "environment variable ENGINE_TOKEN is not accepted" in wrong


def test_a_token_comes_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    secret = read_secret(file=tmp_path / "token", header="X-Key")
    assert secret is not None
    assert (secret.header, secret.value) == ("X-Key", TOKEN)


def test_a_scheme_of_ones_own_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    access = secret_of(monkeypatch, "Basic abc")
    assert access.secret is not None
    assert access.secret.value == "Basic abc"


@pytest.mark.parametrize("text", ["", "  ", "a\nb", "naïve"])
def test_what_cannot_be_a_token_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    with pytest.raises(UsageError, match="holds no token"):
        secret_of(monkeypatch, text)


def test_a_token_has_one_place(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="from one place"):
        read_secret(env="A", file=tmp_path)
    with pytest.raises(UsageError, match="cannot be read"):
        read_secret(file=tmp_path / "none")


def test_a_token_is_not_sent_where_others_can_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request.headers.get("Authorization"))
        return httpx.Response(200, content=b"")

    access = secret_of(monkeypatch)
    fetcher = Fetcher(access, transport=httpx.MockTransport(answer))
    assert "use https" in reason(fetcher.fetch("x", "http://10.0.0.1:30000", "/metrics"))
    assert sent == []
    for base in ("https://10.0.0.1", "http://127.0.0.1:1", "http://[::1]:1", "http://localhost:1"):
        fetcher.fetch("x", base, "/metrics")
    told = Fetcher(Access(access.secret, plain_secret=True), transport=httpx.MockTransport(answer))
    told.fetch("x", "http://10.0.0.1:30000", "/metrics")
    assert sent == [f"Bearer {TOKEN}"] * 5


def test_a_token_does_not_follow_a_redirect(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeEngine({"/metrics": b"a 1\n"}) as elsewhere:
        fault = Fault(status=307, location=f"{elsewhere.url}/metrics")
        with FakeEngine({}, faults={"/metrics": fault}) as engine:
            assert "leads elsewhere" in reason(fetch(engine, secret_of(monkeypatch)))
        assert not elsewhere.requests


def test_a_redirect_at_the_same_port_is_followed_once() -> None:
    faults = {"/metrics": Fault(status=307, location="/metrics/")}
    with FakeEngine({"/metrics/": b"a 1\n"}, faults=faults) as engine:
        assert isinstance(fetch(engine), Reply)
        engine.faults["/metrics/"] = Fault(status=307, location="/metrics")
        assert reason(fetch(engine)) == "leads in a circle"


def test_a_token_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    access = secret_of(monkeypatch)

    def answer(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError(f"failed with {request.headers['Authorization']}", request=request)

    fetcher = Fetcher(access, transport=httpx.MockTransport(answer))
    told = fetcher.fetch("x", "http://127.0.0.1:1", "/metrics")
    shown = [repr(access), str(access), repr(fetcher), repr(told)]
    try:
        raise DprankdiagError(f"wrong {access}")
    except DprankdiagError:
        shown.append(traceback.format_exc())
    assert not any(TOKEN in text for text in shown)


@pytest.mark.parametrize(
    "target, base",
    [
        ("http://h:30000", "http://h:30000"),
        ("h:30000", "http://h:30000"),
        ("https://h/engine/", "https://h/engine"),
        ("http://h:1/metrics", "http://h:1"),
        ("http://[::1]:8000/?a=b", "http://[::1]:8000"),
    ],
)
def test_targets_are_addresses(target: str, base: str) -> None:
    assert check_target(target) == base


@pytest.mark.parametrize("target", ["ftp://h", "http://", "http://h:port", "http://h:99999", "http://[::1"])
def test_other_targets_are_refused(target: str) -> None:
    with pytest.raises(UsageError, match="expected http"):
        check_target(target)


def test_credentials_in_an_address_are_refused_and_not_repeated() -> None:
    with pytest.raises(UsageError, match="holds credentials") as caught:
        check_target(f"http://user:{TOKEN}@host:1")
    assert TOKEN not in str(caught.value)


@given(user=st.text("abc:%", max_size=5), query=st.text("xyz=&", max_size=5))
def test_addresses_are_shown_without_what_may_be_secret(user: str, query: str) -> None:
    assert hide_credentials(f"http://{user}@host:1/path?{query}") == "http://host:1/path"


def pace_after(failures: int, chance: float) -> float:
    """Tell the seconds until an interface is asked again."""
    pace = Pace(0.0, lambda: chance)
    for _ in range(failures):
        pace.note(0, NoData("x", "x", 0, "failed"))
    return next(wait / 8 for wait in range(8 * 700) if pace.is_due(int(wait * S / 8)))


def test_one_failure_changes_nothing_and_more_make_patient() -> None:
    assert [pace_after(failures, 1.0) for failures in range(6)] == [0, 0, 1, 2, 4, 8]
    assert pace_after(50, 1.0) == 60.0


def test_jitter_spreads_those_that_failed_together() -> None:
    assert pace_after(5, 0.0) == 4.0


def test_what_is_not_offered_is_asked_for_rarely() -> None:
    pace = Pace(0.0, lambda: 1.0)
    pace.note(0, NoData("x", "x", 0, "not offered", absent=True))
    assert not pace.is_due(119 * S)
    assert pace.is_due(120 * S)


def test_an_answer_ends_the_wait() -> None:
    pace = Pace(1.0, lambda: 1.0)
    for _ in range(9):
        pace.note(0, NoData("x", "x", 0, "failed"))
    pace.note(0, None)
    assert not pace.is_due(S - 1)
    assert pace.is_due(S)
