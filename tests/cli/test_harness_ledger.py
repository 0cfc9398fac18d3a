"""`dprankdiag harness ledger`: text, one request, everything, and the file that the dashboard opens."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from click.testing import Result

Run = Callable[..., Result]


def test_one_request_is_shown_with_the_sums_of_all(run: Run) -> None:
    text = run("harness", "ledger", "burst", "--request", 82).stdout
    assert "1 of 83 dispatches, as it is." in text
    assert "rank 0, by 18 requests" in text
    assert "controller  cured" in text
    cured = run("harness", "ledger", "burst", "--request", 82, "--cured").stdout
    assert "1 of 83 dispatches, cured." in cured
    assert "by 18 requests" not in cured


def test_all_shows_every_dispatch(run: Run) -> None:
    text = run("harness", "ledger", "burst", "--all").stdout
    assert "83 of 83 dispatches" in text
    assert "..." not in text


def test_one_object_holds_every_dispatch_of_both_deployments(run: Run, tmp_path: Path) -> None:
    told = run("harness", "ledger", "burst", "--json", "-o", tmp_path / "burst.json")
    assert (tmp_path / "burst.json").read_text("utf-8") == told.stdout
    assert "dprankdiag dashboard" in told.stderr
    runs = json.loads(told.stdout)["runs"]
    assert [(each["name"], len(each["dispatches"])) for each in runs] == [("as it is", 83), ("cured", 83)]
    narrow = json.loads(run("harness", "ledger", "burst", "--json", "--request", 70).stdout)["runs"]
    assert [[dispatch["request"] for dispatch in each["dispatches"]] for each in narrow] == [[70], [70]]


def test_what_is_not_there_is_an_error_of_usage(run: Run, tmp_path: Path) -> None:
    assert run("harness", "ledger", "nothing").exit_code == 2
    assert run("harness", "ledger", "burst", "--request", 83).exit_code == 2
    assert run("harness", "ledger", "burst", "-o", tmp_path / "burst.csv").exit_code == 2
