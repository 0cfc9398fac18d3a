"""What the screen shows at an address and what changes of it, without a browser."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from dash import no_update
from dash.development.base_component import Component

from dprankdiag.dashboard.app import Screen, create_app, find_clicked, find_typed, show_place
from dprankdiag.dashboard.downloads import make_file, write_csv
from dprankdiag.dashboard.elements import make_elements
from dprankdiag.dashboard.pages import BY_PATH, PAGES
from dprankdiag.dashboard.pages.export import WHOLE
from dprankdiag.dashboard.pages.waiting import find_worst_step
from dprankdiag.dashboard.places import Place, read_place, write_address
from dprankdiag.dashboard.provider import Snapshot, show_saved
from dprankdiag.model.diagnosis import Diagnosis, TimeWindow
from dprankdiag.model.results import REPLAY_FAMILY
from dprankdiag.model.schema import take_rows
from dprankdiag.store.bundle import load_bundle
from dprankdiag.views.markup import tag
from tests import builders
from tests.views.results import HOSTILE, make_tables


def make_snapshot(revision: int = 0, **changes: Any) -> Snapshot:
    return Snapshot(revision, "run.dprank", builders.diagnosis(**changes), make_tables())


def read_text(element: Any) -> str:
    if isinstance(element, (list, tuple)):
        return " ".join(read_text(one) for one in element)
    if isinstance(element, Component):
        table = getattr(element, "data-table", "")
        return f"{read_text(getattr(element, 'children', None))} {table}"
    return "" if element is None else str(element)


def show(snapshot: Snapshot | None, address: str, shown: Any = None) -> Screen:
    path, _, search = address.partition("?")
    return show_place(snapshot, read_place(path, search), shown)


@pytest.mark.parametrize(
    "address", ["/", "/timeline?group=0&step=12&rank=3", "/waiting?rank=0", "/timeline?group=0&step=12&meeting=4"]
)
def test_an_address_is_read_as_it_was_written(address: str) -> None:
    assert write_address(read_place(*address.partition("?")[::2])) == address


@pytest.mark.parametrize("search", ["?step=x", "?step=-1", "?step=1e9", "?step=" + "9" * 30, "?step=٣", "?step=", None])
def test_what_is_no_number_is_left_out_of_an_address(search: str | None) -> None:
    assert read_place("/timeline", search) == Place("/timeline")


def list_types(element: Any) -> list[str]:
    if isinstance(element, (list, tuple)):
        return [name for one in element for name in list_types(one)]
    if isinstance(element, Component):
        return [type(element).__name__, *list_types(getattr(element, "children", None))]
    return []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.title)
def test_every_page_has_one_heading_of_first_level(page: Any) -> None:
    for diagnosis in (builders.diagnosis(), builders.even_diagnosis(), builders.undecided_diagnosis()):
        for tables in (make_tables(), {}):
            elements = page.render(Snapshot(0, "x", diagnosis, tables), Place(page.path))
            assert list_types(elements).count("H1") == 1


@pytest.mark.parametrize("path", ["/waiting", "/timeline", "/blame", "/imbalance", "/layers", "/ledger"])
def test_a_page_without_its_data_says_how_to_get_them(path: str) -> None:
    ledger = builders.diagnosis(ranks=tuple(builders.rank(number, level="dp_rank") for number in range(8)))
    text = read_text(BY_PATH[path].render(Snapshot(0, "x", ledger, {}), Place(path)))
    assert "Not shown." in text
    assert "dprankdiag" in text


def test_a_click_on_blame_over_the_steps_leads_to_the_chain_of_the_step() -> None:
    clicks = [{"points": [{"x": 12, "y": "3"}]}]
    found = find_clicked(make_snapshot(), clicks, [{"type": "figure", "key": "blamed-0"}])
    assert found == "/blame?group=0&step=12&rank=3"
    snapshot = make_snapshot()
    worst = int(snapshot.tables["worst_steps"]["step"][0])
    text = read_text(show(snapshot, f"/blame?group=0&step={worst}").outputs[0])
    assert f"The chain of blame of step {worst}" in text
    assert "Rank 3" in text
    other = read_text(show(snapshot, "/blame?group=0&step=99999").outputs[0])
    assert "A bundle keeps the meetings of the worst step" in other
    assert f"The worst step, {worst}" in other


def test_an_unknown_address_names_the_pages_there_are() -> None:
    text = read_text(show(make_snapshot(), "/nowhere").outputs[0])
    assert "There is no page /nowhere" in text
    assert all(page.title in text for page in PAGES)


def test_before_the_first_answer_the_screen_says_so_and_follows() -> None:
    first = show(None, "/")
    assert "No answer yet" in read_text(first.outputs[0])
    assert "No answer yet" not in read_text(show(make_snapshot(), "/", first.outputs[4]).outputs[0])


def test_what_is_on_the_screen_already_is_not_sent_again() -> None:
    shown = show(make_snapshot(), "/").outputs[4]
    again = show(make_snapshot(), "/", json.loads(json.dumps(shown)))
    assert again == Screen((no_update,) * 5)


def test_of_a_page_that_stays_only_what_changed_is_sent() -> None:
    shown = show(make_snapshot(), "/").outputs[4]
    later = show(make_snapshot(1, headline="Another headline"), "/", shown)
    assert later.outputs[0] is no_update
    assert later.outputs[1] is no_update
    assert [part["key"] for part, _ in later.changes] == ["verdict"]
    assert "Another headline" in read_text(later.changes[0][1]["children"])
    assert "Another headline" in read_text(later.outputs[2])


def test_of_another_meeting_of_a_step_only_what_tells_of_it_is_sent() -> None:
    step = int(make_tables()["worst_steps"]["step"][0])
    shown = show(make_snapshot(), f"/timeline?group=0&step={step}&meeting=1").outputs[4]
    later = show(make_snapshot(), f"/timeline?group=0&step={step}&meeting=2", shown)
    assert later.outputs[0] is no_update
    assert {part["key"] for part, _ in later.changes} == {"meeting", "kernels", "late", "segment", "whole-step"}
    elsewhere = show(make_snapshot(), f"/timeline?group=0&step={step}&rank=2&meeting=2", shown)
    assert elsewhere.outputs[0] is not no_update


def test_a_page_of_another_shape_is_sent_whole() -> None:
    shown = show(make_snapshot(), "/waiting").outputs[4]
    later = show(Snapshot(1, "x", builders.diagnosis(), {}), "/waiting", shown)
    assert "Not shown." in read_text(later.outputs[0])
    assert later.changes == ()


def test_going_elsewhere_sends_that_page() -> None:
    shown = show(make_snapshot(), "/").outputs[4]
    assert "Layers" in read_text(show(make_snapshot(), "/layers", shown).outputs[0])


def test_a_click_on_a_heat_map_of_waits_leads_to_its_step_and_rank() -> None:
    graphs = [{"type": "figure", "key": "waits-0"}, {"type": "figure", "key": "arrivals-0"}]
    click = {"points": [{"x": 7, "y": "3"}]}
    assert find_clicked(make_snapshot(), [click, None], graphs) == "/timeline?group=0&step=7&rank=3"
    assert find_clicked(make_snapshot(), [None, click], graphs) is None
    assert find_clicked(make_snapshot(), [None, None], graphs) is None


@pytest.mark.parametrize("told", [2, ["97 µs<br>all_gather", 2]])
def test_a_click_on_a_meeting_leads_to_its_kernels(told: Any) -> None:
    graphs = [{"type": "figure", "key": "meetings-0-12"}]
    address = "/timeline?group=0&step=12&meeting=2"
    assert find_clicked(make_snapshot(), [{"points": [{"customdata": told}]}], graphs) == address
    address = "/timeline?group=0&step=12&rank=6&meeting=2"
    assert find_clicked(make_snapshot(), [{"points": [{"customdata": told}]}], graphs, 6) == address


@pytest.mark.parametrize("told", [None, -1, [], ["words"], "2"])
def test_a_click_beside_the_meetings_leads_nowhere(told: Any) -> None:
    graphs = [{"type": "figure", "key": "meetings-0-12"}]
    assert find_clicked(make_snapshot(), [{"points": [{"customdata": told}]}], graphs) is None


def test_of_a_column_of_several_steps_the_one_with_the_longest_wait_is_meant() -> None:
    tables = dict(make_tables(n_steps=5000))
    waits = tables["rank_steps"]["wait_ns"].copy()
    waits[tables["rank_steps"]["step"] == 31] *= 50
    tables["rank_steps"] = {**tables["rank_steps"], "wait_ns": waits}
    snapshot = Snapshot(0, "x", builders.diagnosis(), tables)
    graphs = [{"type": "figure", "key": "waits-0"}]
    assert find_clicked(snapshot, [{"points": [{"x": 30, "y": "1"}]}], graphs) == "/timeline?group=0&step=31&rank=1"


def test_a_typed_step_leads_there_unless_it_is_shown() -> None:
    assert find_typed(5, {"group": 1, "step": 4}) == "/timeline?group=1&step=5"
    assert find_typed(4, {"group": 1, "step": 4}) is None
    assert find_typed(None, {"group": 1, "step": 4}) is None


@pytest.mark.parametrize("step", [0, 39, 10**8])
def test_a_step_that_is_not_there_shows_the_nearest(step: int) -> None:
    text = read_text(show(make_snapshot(), f"/timeline?step={step}").outputs[0])
    assert f"Step {min(step, 39)} and those beside it" in text


def test_a_finding_leads_to_the_worst_step_of_its_window() -> None:
    tables = make_tables()
    steps = tables["steps"]
    late = builders.finding(window=TimeWindow(int(steps["start_ns"][30]), int(steps["end_ns"][35])))
    snapshot = Snapshot(0, "x", builders.diagnosis(findings=(late,)), tables)
    found = find_worst_step(snapshot, 0, late.window)
    assert found is not None
    assert 30 <= found <= 35
    assert f"step {found} on the timeline" in read_text(show(snapshot, "/").outputs[0])


def test_a_finding_without_steps_leads_nowhere_that_is_empty() -> None:
    text = read_text(show(Snapshot(0, "x", builders.diagnosis(), {}), "/").outputs[0])
    assert "on the timeline" not in text
    assert "See it:" in text


def test_who_released_whom_is_told_of_the_worst_step() -> None:
    text = read_text(show(make_snapshot(), "/timeline").outputs[0])
    assert "Who released whom" in text
    assert '"rank 3"' in text


def read_kernels(snapshot: Snapshot, address: str) -> str:
    """Read the section of kernels."""
    elements = show(snapshot, address).outputs[0]
    texts = (" ".join(read_text(one).split()) for one in elements)
    return next((text for text in texts if text.startswith("Kernels")), "")


def test_of_the_meeting_with_the_longest_wait_the_kernels_are_compared() -> None:
    text = read_kernels(make_snapshot(), "/timeline")
    assert "Rank 3 comes last" in text
    assert "flash_fwd_kernel" in text
    assert "The same over the whole step" in text


def test_an_address_chooses_the_meeting_whose_kernels_are_shown() -> None:
    step = int(make_tables()["worst_steps"]["step"][0])
    for meeting in (0, 3):
        assert f"meeting {meeting} of 0 to 5" in read_kernels(
            make_snapshot(), f"/timeline?step={step}&meeting={meeting}"
        )
    longest = read_kernels(make_snapshot(), "/timeline")
    assert read_kernels(make_snapshot(), f"/timeline?step={step}&meeting=999") == longest


def test_a_bundle_without_kernels_says_how_to_get_them() -> None:
    tables = {name: columns for name, columns in make_tables().items() if name != "step_kernels"}
    text = read_kernels(Snapshot(0, "x", builders.diagnosis(), tables), "/timeline")
    assert "an older version saved it" in text
    assert "dprankdiag analyze TRACE -o run.dprank" in text


def test_a_recording_without_kernels_says_how_to_record_them() -> None:
    tables = {**make_tables(), "step_kernels": {k: v[:0] for k, v in make_tables()["step_kernels"].items()}}
    text = read_kernels(Snapshot(0, "x", builders.diagnosis(), tables), "/timeline")
    assert "holds no kernels" in text
    assert "--cuda-graph-trace=node" in text


def test_graphs_recorded_as_a_whole_are_shown_and_said_to_be() -> None:
    kernels = dict(make_tables()["step_kernels"])
    kernels["family"] = np.where(kernels["family"] == "collective", REPLAY_FAMILY, kernels["family"])
    text = read_kernels(Snapshot(0, "x", builders.diagnosis(), {**make_tables(), "step_kernels": kernels}), "/timeline")
    assert "a replay is one bar" in text
    assert "--cuda-graph-trace=node" in text


def test_ranks_whose_kernels_were_not_kept_are_told_of() -> None:
    kernels = take_rows(make_tables()["step_kernels"], make_tables()["step_kernels"]["rank"] < 5)
    text = read_kernels(Snapshot(0, "x", builders.diagnosis(), {**make_tables(), "step_kernels": kernels}), "/timeline")
    assert "Of 8 ranks the kernels of 5 were kept" in text


def test_of_another_step_than_the_worst_a_bundle_says_what_shows_it() -> None:
    text = " ".join(read_text(show(make_snapshot(), "/timeline?step=1").outputs[0]).split())
    assert "keeps only the worst step" in text
    assert "dprankdiag dashboard TRACE" in text


def test_what_gives_no_data_is_said_on_every_page() -> None:
    from dprankdiag.model.ledgers import NoData

    failing = replace(make_snapshot(), failures=(NoData("sglang-loads", "http://a:1", 0, "timed out"),), at_ns=1)
    for page in PAGES:
        assert "timed out" in read_text(show(failing, page.path).outputs[0])
    stopped = replace(make_snapshot(), trouble="the disk is full")
    assert "Nothing new comes. the disk is full" in " ".join(read_text(show(stopped, "/").outputs[0]).split())


@pytest.mark.parametrize("text", HOSTILE)
def test_markup_becomes_elements_and_text_stays_text(text: str) -> None:
    (element,) = make_elements(tag("p", text, tag("code", text), title=text))
    assert isinstance(element, Component)
    assert [type(child).__name__ for child in element.children] in (["str", "Code"], ["str", "str", "Code"])


@pytest.mark.parametrize("name", [name for name, _, _ in WHOLE])
def test_every_file_that_is_offered_can_be_saved(name: str) -> None:
    client = create_app(show_saved("x", builders.diagnosis(), make_tables())).server.test_client()
    answer = client.get(f"/download/{name}")
    assert answer.status_code == 200
    assert answer.headers["Content-Disposition"] == f'attachment; filename="{name}"'
    assert answer.data


def test_a_saved_bundle_can_be_opened_again(tmp_path: Any) -> None:
    content = make_file(make_snapshot(), "diagnosis.dprank")
    assert content is not None
    path = tmp_path / "diagnosis.dprank"
    path.write_bytes(content)
    diagnosis, tables = load_bundle(path)
    assert isinstance(diagnosis, Diagnosis)
    assert set(tables) == set(make_tables())


@pytest.mark.parametrize("name", ["x.csv", "diagnosis.exe", "..", "members.csv.csv", "%2e%2e%2fpyproject.toml"])
def test_no_other_file_is_given(name: str) -> None:
    client = create_app(show_saved("x", builders.diagnosis(), make_tables())).server.test_client()
    answer = client.get(f"/download/{name}")
    assert answer.status_code == 404 or answer.mimetype == "text/html"
    assert b'dprankdiag"\ndescription' not in answer.data


def test_a_table_is_saved_with_nothing_for_what_is_absent_and_no_formulas() -> None:
    text = write_csv({"engine": np.array(["=1+1", "a,b"], object), "wait_ns": np.array([1.5, np.nan])})
    assert text == 'engine,wait_ns\n\'=1+1,1.5\n"a,b",\n'


def test_two_applications_live_side_by_side() -> None:
    apps = [create_app(show_saved(name, builders.diagnosis(), {})) for name in ("one", "two")]
    assert apps[0].server is not apps[1].server
    assert all(app.server.test_client().get("/").status_code == 200 for app in apps)
