import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
from click.testing import Result

from dprankdiag.views.grafana import GROUP, HERE
from tests.conftest import ROOT
from tests.rules.files import RECORDED, list_rules

Run = Callable[..., Result]
COMMITTED = ROOT / "dashboards" / "grafana" / "dprankdiag.json"
BOARD = json.loads(COMMITTED.read_text("utf-8"))
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]


def _list_targets() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for panel in PANELS:
        for target in panel["targets"]:
            yield panel, target


def test_the_dashboard_printed_is_the_dashboard_committed(run: Run) -> None:
    result = run("grafana")
    assert result.exit_code == 0
    assert result.stdout == COMMITTED.read_text("utf-8"), "if meant: dprankdiag grafana -o dashboards/grafana/..."


def test_the_dashboard_is_written_to_a_file(run: Run, tmp_path: Path) -> None:
    assert run("grafana", "-o", str(tmp_path / "board.json")).stdout == ""
    assert (tmp_path / "board.json").read_text("utf-8") == COMMITTED.read_text("utf-8")
    assert run("grafana", "-o", str(tmp_path / "board.yml")).exit_code == 2


def test_it_brings_nothing_of_the_machine_it_was_made_on() -> None:
    assert BOARD["id"] is None
    assert BOARD["editable"] is False
    assert 39 <= BOARD["schemaVersion"] <= 41
    assert "__inputs" not in BOARD
    for variable in BOARD["templating"]["list"]:
        assert "current" not in variable
        assert "options" not in variable


def test_it_asks_for_a_data_source_a_job_and_a_target() -> None:
    kinds = {variable["name"]: variable["type"] for variable in BOARD["templating"]["list"]}
    assert kinds == {"datasource": "datasource", "job": "query", "instance": "query"}


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_every_panel_is_titled_described_and_has_a_unit(panel: dict[str, Any]) -> None:
    assert panel["title"]
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["datasource"]["uid"] == "${datasource}"
    assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])


def test_panels_have_numbers_of_their_own_and_do_not_overlap() -> None:
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    cells = set[tuple[int, int]]()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        own = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not own & cells, panel["title"]
        assert max(x for x, _ in own) < 24
        cells |= own


def test_every_expression_parses_and_reads_what_the_rules_record() -> None:
    recorded = {rule["record"] for rule in list_rules() if "record" in rule}
    for panel, target in _list_targets():
        promql_parser.parse(target["expr"])
        names = set(RECORDED.findall(target["expr"]))
        assert names <= recorded, panel["title"]
        assert names or "ALERTS" in target["expr"] or "dprankdiag_" in target["expr"]


def test_every_expression_of_recorded_series_is_narrowed_to_what_is_chosen() -> None:
    for panel, target in _list_targets():
        if not target["expr"].startswith("dprankdiag_"):
            assert HERE in target["expr"] or GROUP in target["expr"], panel["title"]


def test_the_rows_answer_first() -> None:
    rows = [panel["title"] for panel in BOARD["panels"] if panel["type"] == "row"]
    assert rows == ["Verdict", "Imbalance and wait", "Rank by rank", "Causes", "Engine health"]
