from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprankdiag.cli.amounts import Seconds, Size
from dprankdiag.cli.targets import check_targets, read_access
from dprankdiag.errors import UsageError

NOTHING: dict[str, Any] = {
    "token_env": None,
    "token_file": None,
    "header_file": None,
    "ca_file": None,
    "insecure": False,
    "timeout_s": 5.0,
}


def _read(**given: Any) -> dict[str, str]:
    return dict(read_access({**NOTHING, **given}).headers)


def test_a_token_comes_from_a_variable_or_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ENGINE_KEY", " hush \n")
    (tmp_path / "key").write_text("hush\nsecond line\n")
    assert _read(token_env="ENGINE_KEY") == {"Authorization": "Bearer hush"}
    assert _read(token_file=tmp_path / "key") == {"Authorization": "Bearer hush"}


def test_headers_come_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "headers").write_text("X-Team: infra\n\nAuthorization: Basic abc\n")
    assert _read(header_file=tmp_path / "headers") == {"X-Team": "infra", "Authorization": "Basic abc"}


def test_what_is_secret_is_in_no_text_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_KEY", "hush")
    access = read_access({**NOTHING, "token_env": "ENGINE_KEY"})
    assert "hush" not in f"{access!r}{access}"


def test_a_token_given_for_its_name_is_not_repeated() -> None:
    with pytest.raises(UsageError) as caught:
        _read(token_env="sk-live-123")
    assert "sk-live-123" not in str(caught.value)


@pytest.mark.parametrize(
    "given, line",
    [
        ({"token_env": "NOT_SET_ANYWHERE"}, "no token in it"),
        ({"token_env": "A", "token_file": Path("b")}, "exclude each other"),
        ({"token_file": Path("absent")}, "cannot be read"),
        ({"ca_file": Path("absent")}, "no such file"),
    ],
)
def test_what_cannot_be_had_is_one_line(given: dict[str, Any], line: str) -> None:
    with pytest.raises(UsageError, match=line):
        _read(**given)


def test_a_line_that_is_no_header_is_named_but_not_shown(tmp_path: Path) -> None:
    (tmp_path / "headers").write_text("X: y\nhush hush\n")
    with pytest.raises(UsageError, match="line 2") as caught:
        _read(header_file=tmp_path / "headers")
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    "target", ["http://a:30000", "https://[::1]:8000/prefix", "prometheus+http://p:9090", "zmq+tcp://h:5565", "shm:"]
)
def test_every_kind_of_target_is_taken(target: str) -> None:
    assert check_targets([target]) == (target,)


@pytest.mark.parametrize(
    "target, line",
    [
        ("localhost:30000", "did you mean http://localhost:30000"),
        ("ftp://a", "no target of kind 'ftp'"),
        ("http://", "without a host"),
        ("http://me:hush@a", "must not carry a user name"),
        ("http://me:hush@a:port", "no usable address"),
    ],
)
def test_a_target_that_cannot_be_asked_is_refused(target: str, line: str) -> None:
    with pytest.raises(UsageError, match=line) as caught:
        check_targets([target])
    assert "hush" not in str(caught.value)


def test_a_target_given_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="twice"):
        check_targets(["http://a:1", "http://a:1"])


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
