"""What routers believed, on the page Ledger: the same numbers as on the command line, in a real browser."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner
from playwright.sync_api import BrowserContext, expect

from dprankdiag.cli.dashboard import command, open_dashboard, read_entrance
from dprankdiag.dashboard.pages import BY_PATH, PAGES
from dprankdiag.dashboard.pages.base import Page
from dprankdiag.dashboard.places import Place
from dprankdiag.dashboard.provider import show_ledgers, show_saved
from dprankdiag.harness.scenario_ledger import record_ledgers
from dprankdiag.harness.scenarios import find_scenario
from dprankdiag.model.dispatches import LedgerRecord
from dprankdiag.store.ledger_record import load_ledgers, save_ledgers
from tests import builders
from tests.dashboard.sight import assert_nothing_wrong, visit, wait_for_figures
from tests.dashboard.test_app import list_types, read_text
from tests.views.results import make_tables


@cache
def keep() -> LedgerRecord:
    return record_ledgers(find_scenario("burst"))


def read_page(place: Place) -> str:
    snapshot = show_ledgers("burst.json", keep()).latest()
    return read_text(BY_PATH["/ledger"].render(snapshot, place))


def test_the_page_says_how_old_and_how_wrong_each_ledger_was() -> None:
    text = read_page(Place("/ledger"))
    assert "The controller was off by up to 19 requests, up to 0.11 s old." in text
    assert "The scheduler was off by up to 6 requests." in text
    assert "16 of 83 dispatches, as it is." in text


def test_the_cured_deployment_has_an_address_of_its_own() -> None:
    assert "The controller was off by up to 0 requests" in read_page(Place("/ledger", group=1))
    assert "as it is." in read_page(Place("/ledger", group=7))


def test_a_record_judges_no_rank() -> None:
    snapshot = show_ledgers("burst.json", keep()).latest()
    assert snapshot is not None
    assert snapshot.diagnosis.status == "inconclusive"
    assert "page Ledger" in snapshot.diagnosis.headline


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.title)
def test_every_page_of_a_record_has_one_heading_of_first_level(page: Page) -> None:
    snapshot = show_ledgers("burst.json", keep()).latest()
    assert snapshot is not None
    assert list_types(page.render(snapshot, Place(page.path))).count("H1") == 1


def test_what_an_engine_tells_and_what_was_believed_of_it_stand_on_one_page() -> None:
    snapshot = replace(show_saved("both", builders.undecided_diagnosis(), make_tables()).snapshot, ledgers=keep())
    text = read_text(BY_PATH["/ledger"].render(snapshot, Place("/ledger")))
    assert "What each rank tells of itself." in text
    assert "Three ledgers" in text


def test_a_saved_record_is_opened_by_its_name(tmp_path: Path) -> None:
    save_ledgers(tmp_path / "burst.json", keep())
    assert load_ledgers(tmp_path / "burst.json") == keep()
    context = command.make_context("dashboard", [str(tmp_path / "burst.json")])
    with open_dashboard(context, read_entrance(context)) as app:
        assert app.server is not None


def test_a_damaged_record_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "burst.json").write_text('{"kind": "dprankdiag.ledgers", "schema_version": 9}')
    told = CliRunner().invoke(command, [str(tmp_path / "burst.json"), "--port", "0"])
    assert told.exit_code != 0
    assert "schema version 9, expected 1" in str(told.exception)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_browser_draws_a_row_for_each_rank_and_bars_no_reader(context: BrowserContext, scheme: str) -> None:
    with visit(context, show_ledgers("burst.json", keep()), scheme) as seen:
        page = seen.go("/ledger")
        wait_for_figures(page, 1)
        expect(page.locator(".js-plotly-plot .cartesianlayer .subplot")).to_have_count(8)
        expect(page.get_by_role("group", name="Ledgers: table").locator("tbody tr")).to_have_count(4)
        rows = page.get_by_role("group", name="Dispatches: table").locator("tbody tr")
        expect(rows).to_have_count(16)
        expect(rows.last).to_contain_text("-19")
        assert_nothing_wrong(seen)
        page.get_by_role("link", name="cured").click()
        expect(page.get_by_role("group", name="Dispatches: table").locator("tbody tr").last).not_to_contain_text("-19")
        assert_nothing_wrong(seen)
