"""Spans and series of a Prometheus, as a user names them."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner, Result

from dprankdiag.cli import main
from dprankdiag.cli.stored import Moment, SecondsOrMoment, read_question
from dprankdiag.errors import UsageError
from dprankdiag.pipelines.sources import check_server

SERVER = "prometheus+http://p:9090"
OPTIONS = [("--since", "1h"), ("--until", "2026-11-30"), ("--step", "5s"), ("--select", 'a="b"')]


def read(**given: Any) -> Any:
    known = {"since": None, "until": None, "step_s": None, "select": None}
    if isinstance(given.get("since"), str):
        given["since"] = SecondsOrMoment().convert(given["since"], None, None)
    return read_question({**known, **given}, [SERVER], now=lambda: 1_800_000_000.0)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["analyze", *arguments])


@pytest.mark.parametrize(
    "text, second",
    [
        ("2026-11-30T10:00:00Z", 1_796_032_800.0),
        ("2026-11-30T11:00:00+01:00", 1_796_032_800.0),
        ("2026-11-30 10:00", 1_796_032_800.0),
        ("1796032800.5", 1_796_032_800.5),
    ],
)
def test_moments_are_read_as_people_write_them(text: str, second: float) -> None:
    assert Moment().convert(text, None, None) == second


def test_a_span_is_an_hour_to_now_unless_it_is_said() -> None:
    assert (read().span.since_s, read().span.until_s) == (3600.0, None)
    assert read(since="30m").span.since_s == 1800.0
    assert read(since="2027-01-15T07:00:00Z").span.since_s == 3600.0
    assert read(since="2026-11-30T09:00Z", until=1_796_032_800.0).span.since_s == 3600.0


@pytest.mark.parametrize("given", [{"since": "2027-01-16"}, {"since": "1h", "step_s": 3600.0}, {"select": "up"}])
def test_spans_and_series_that_are_none_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        read(**given)


@pytest.mark.parametrize(
    "option", [("--since", "1h"), ("--until", "2026-11-30"), ("--step", "5s"), ("--select", 'a="b"')]
)
def test_options_of_a_server_need_one(option: tuple[str, str]) -> None:
    result = run("examples/healthy.sqlite", *option)
    assert result.exit_code == 2
    assert f"{option[0]}: chooses" in result.stderr


def test_a_server_that_is_not_there_is_one_line() -> None:
    result = run("prometheus+http://127.0.0.1:1")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (3, "", 1)
    assert "cannot be reached" in result.stderr


@pytest.mark.parametrize(
    "target, base",
    [
        ("prometheus+http://p:9090/graph?g0.expr=up", "http://p:9090"),
        ("prometheus+https://m/prometheus/api/v1/query", "https://m/prometheus"),
        ("prometheus+http://vm:8481/select/0/prometheus/", "http://vm:8481/select/0/prometheus"),
    ],
)
def test_an_address_from_a_browser_is_understood(target: str, base: str) -> None:
    assert check_server(target) == base


@pytest.mark.parametrize("target", ["prometheus+ftp://p", "prometheus+http://", "prometheus+http://me:hush@p"])
def test_what_is_no_address_is_refused_without_its_secret(target: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_server(target)
    assert "hush" not in str(caught.value)
