"""Who is let in, and with which headers, asked of the WSGI application itself."""

from __future__ import annotations

from typing import Any

import pytest

from dprankdiag.dashboard.app import create_app
from dprankdiag.dashboard.provider import show_saved
from dprankdiag.dashboard.security import COOKIE, Entrance, open_entrance
from dprankdiag.errors import UsageError
from tests import builders

TOKEN = "correct horse battery"


def ask(entrance: Entrance | None = None) -> Any:
    return create_app(show_saved("saved", builders.diagnosis(), {}), entrance).server.test_client()


@pytest.mark.parametrize("host", ["127.0.0.1:8050", "localhost", "LOCALHOST:1", "[::1]:8050"])
def test_this_machine_is_answered(host: str) -> None:
    assert ask().get("/", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:8050", "10.0.0.1:8050", "localhost.evil", ""])
@pytest.mark.parametrize("path", ["/", "/waiting", "/_dash-layout", "/download/diagnosis.json", "/assets/dashboard.js"])
def test_a_name_that_is_not_ours_is_refused(host: str, path: str) -> None:
    answer = ask().get(path, headers={"Host": host})
    assert answer.status_code == 403
    assert b"rank 3" not in answer.data


def test_every_answer_has_its_headers() -> None:
    client = ask()
    for path in ("/", "/_dash-layout", "/assets/dashboard.css", "/download/diagnosis.html", "/download/none"):
        headers = client.get(path, buffered=True).headers
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self' 'sha256-")
        assert "frame-ancestors 'none'" in policy
        assert "unsafe-eval" not in policy
        assert "'unsafe-inline'" not in policy.split("style-src")[0]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["X-Frame-Options"] == "DENY"
    assert client.get("/").headers["Cache-Control"] == "no-store"


def test_the_page_names_no_other_server() -> None:
    page = ask().get("/").get_data(as_text=True)
    assert 'lang="en"' in page
    scripts = page.split("<script")[1:]
    assert not [script for script in scripts if 'src="http' in script]


def test_without_the_token_nothing_is_shown() -> None:
    client = ask(open_entrance("0.0.0.0", allow_remote=True, token=TOKEN))
    for path in ("/", "/_dash-layout", "/download/diagnosis.json", "/assets/dashboard.js"):
        answer = client.get(path)
        assert answer.status_code == 401
        assert b"rank 3" not in answer.data
    assert client.post("/_dash-update-component", json={}).status_code == 401
    assert client.post("/", data={"token": "wrong"}).status_code == 401
    assert client.get("/", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_the_token_opens_the_page_asked_for_and_stays_out_of_address_and_cookie() -> None:
    client = ask(open_entrance("0.0.0.0", allow_remote=True, token=TOKEN))
    answer = client.post("/timeline?step=3", data={"token": TOKEN})
    assert (answer.status_code, answer.headers["Location"]) == (303, "/timeline?step=3")
    cookie = answer.headers["Set-Cookie"]
    assert cookie.startswith(f"{COOKIE}=")
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie
    assert "horse" not in cookie
    assert client.get("/timeline?step=3").status_code == 200


def test_after_the_token_nobody_is_sent_to_another_server() -> None:
    client = ask(open_entrance("0.0.0.0", allow_remote=True, token=TOKEN))
    answer = client.post("//evil.example/", data={"token": TOKEN})
    assert not answer.headers.get("Location", "/").startswith(("//", "http"))


def test_a_server_for_others_is_known_by_addresses_and_given_names() -> None:
    entrance = open_entrance("0.0.0.0", allow_remote=True, token=TOKEN, names=["gpu-7.example"])
    assert entrance.knows_host("192.0.2.7:8050")
    assert entrance.knows_host("GPU-7.example:8050")
    assert not entrance.knows_host("gpu-8.example:8050")


def test_others_are_let_in_only_on_purpose_and_with_a_token() -> None:
    with pytest.raises(UsageError, match=r"others could reach it.*ssh -L"):
        open_entrance("0.0.0.0", allow_remote=False, token=None)
    with pytest.raises(UsageError, match=r"needs a token.*--view-token-file"):
        open_entrance("0.0.0.0", allow_remote=True, token=None)
    with pytest.raises(UsageError, match="short") as caught:
        open_entrance("0.0.0.0", allow_remote=True, token="hunter2")
    assert "hunter2" not in str(caught.value)


def test_the_token_is_not_in_the_text_of_the_entrance() -> None:
    assert "horse" not in repr(open_entrance("127.0.0.1", allow_remote=True, token=TOKEN))
