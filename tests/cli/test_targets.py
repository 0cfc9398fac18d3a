from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprankdiag.cli.amounts import Seconds, Size
from dprankdiag.cli.targets import check_once, read_access
from dprankdiag.collectors.http import Access
from dprankdiag.errors import UsageError

NOTHING: dict[str, Any] = {
    "token_env": None,
    "token_file": None,
    "token_header": "Authorization",
    "plain_token": False,
    "ca_file": None,
    "timeout_s": 5.0,
}


def _read(**given: Any) -> Access:
    return read_access({**NOTHING, **given})


def test_a_token_comes_from_a_variable_or_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ENGINE_KEY", " hush \n")
    (tmp_path / "key").write_text("hush\n")
    for access in (_read(token_env="ENGINE_KEY"), _read(token_file=tmp_path / "key")):
        assert access.secret is not None
        assert (access.secret.header, access.secret.value) == ("Authorization", "Bearer hush")
        assert "hush" not in f"{access!r}{access}"


def test_without_a_token_nothing_is_sent() -> None:
    assert _read().secret is None


def test_another_header_carries_the_token_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_KEY", "hush")
    secret = _read(token_env="ENGINE_KEY", token_header="X-Api-Key").secret
    assert secret is not None
    assert (secret.header, secret.value) == ("X-Api-Key", "hush")


def test_a_token_given_for_its_name_is_not_repeated() -> None:
    with pytest.raises(UsageError, match="takes the name") as caught:
        _read(token_env="sk-live-123")
    assert "sk-live-123" not in str(caught.value)


def test_the_longest_wait_bounds_the_connection_too() -> None:
    access = _read(timeout_s=0.5)
    assert (access.connect_s, access.reply_s) == (0.5, 0.5)


@pytest.mark.parametrize(
    "given, line",
    [
        ({"token_env": "NOT_SET_ANYWHERE"}, "no token"),
        ({"token_env": "A", "token_file": Path("b")}, "one place"),
        ({"token_file": Path("absent")}, "cannot be read"),
        ({"token_header": "X: y"}, "name of a header"),
        ({"ca_file": Path("absent")}, "no such file"),
    ],
)
def test_what_cannot_be_had_is_one_line(given: dict[str, Any], line: str) -> None:
    with pytest.raises(UsageError, match=line):
        _read(**given)


def test_a_target_given_twice_is_refused_without_its_password() -> None:
    with pytest.raises(UsageError, match="twice") as caught:
        check_once(["http://me:hush@a:1", "http://me:hush@a:1"])
    assert "hush" not in str(caught.value)
    assert check_once(["http://a:1", "http://b:1"]) == ("http://a:1", "http://b:1")


@pytest.mark.parametrize("text, seconds", [("5", 5), ("500ms", 0.5), ("10min", 600), ("1.5h", 5400), ("7d", 604800)])
def test_times_are_read_with_their_unit(text: str, seconds: float) -> None:
    assert Seconds().convert(text, None, None) == seconds


@pytest.mark.parametrize("text, size", [("5", 5), ("500MB", 500_000_000), ("2GiB", 2**31), ("1.5kB", 1500)])
def test_sizes_are_read_with_their_unit(text: str, size: int) -> None:
    assert Size().convert(text, None, None) == size


@given(st.text(max_size=6), st.sampled_from([Seconds(), Size()]))
def test_any_other_text_is_refused_or_above_zero(text: str, kind: Seconds | Size) -> None:
    try:
        value = kind.convert(text, None, None)
    except click.BadParameter:
        return
    assert value > 0
