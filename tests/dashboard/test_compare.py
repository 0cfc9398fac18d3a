"""The page Compare: any two of the bundles that were opened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from dprankdiag.dashboard.pages import compare
from dprankdiag.dashboard.places import Place, read_place, write_address
from dprankdiag.dashboard.provider import OfflineProvider, Snapshot, show_runs, show_saved
from dprankdiag.dashboard.runs import SavedRuns
from dprankdiag.errors import InputError
from dprankdiag.model.schema import Columns
from dprankdiag.pipelines.compare import Input
from dprankdiag.views.comparison import list_sections
from tests import builders
from tests.dashboard.test_app import read_text
from tests.pipelines.test_compare import late, side
from tests.views.results import HOSTILE, make_tables

SLOW, FAST, SHORT = (side(late(mean_ns), claimed=mean_ns > 0) for mean_ns in (400_000, 0, 200_000))


def show(*runs: Input, names: tuple[str, ...] = ("slow.dprank", "fast.dprank", "short.dprank")) -> Snapshot:
    saved = [(run.diagnosis, run.tables) for run in runs]
    return show_runs(names[: len(runs)], saved).snapshot


def read(snapshot: Snapshot, place: Place | None = None) -> str:
    return read_text(compare.render(snapshot, place or Place("/compare")))


def test_the_first_bundle_is_compared_with_the_second() -> None:
    snapshot = show(SLOW, FAST, SHORT)
    text = read(snapshot)
    comparison = snapshot.runs.compare(0, 1)
    assert comparison.verdict == "better"
    assert comparison.headline in text
    for section in list_sections(comparison):
        assert section.heading in text
        assert all(line in text for line in section.lines)


def test_an_address_chooses_the_sides_and_leads_to_others() -> None:
    snapshot = show(SLOW, FAST, SHORT)
    place = read_place("/compare", "?before=1&after=2")
    assert write_address(place) == "/compare?before=1&after=2"
    assert snapshot.runs.compare(1, 2).headline in read(snapshot, place)
    assert "/compare?before=1&after=0" in str(compare.render(snapshot, place))
    assert snapshot.runs.compare(0, 1).headline in read(snapshot, Place("/compare", before=7, after=1))
    assert "one bundle twice" in read(snapshot, Place("/compare", before=1, after=1))


@pytest.mark.parametrize(
    "provider, told",
    [
        (
            lambda: show_runs(["one.dprank"], [(builders.diagnosis(), make_tables())]),
            "dashboard BEFORE.dprank AFTER.dprank copy opens both",
        ),
        (
            lambda: show_saved("run.sqlite", builders.diagnosis(), make_tables()),
            "analyze TRACE -o FILE.dprank copy saves one",
        ),
    ],
    ids=["one bundle", "no bundle"],
)
def test_without_two_bundles_the_page_says_how_to_open_them(provider: Callable[[], OfflineProvider], told: str) -> None:
    assert told in " ".join(read(provider().snapshot).split())


def test_a_bundle_of_an_older_version_is_said_to_be_one() -> None:
    tables: dict[str, Columns] = {name: rows for name, rows in SLOW.tables.items() if name != "step_walls"}
    older = replace(SLOW, tables=tables, name="older.dprank")
    text = read(show(FAST, older))
    assert "Not shown." in text
    runs = SavedRuns((FAST, older))
    for _ in range(2):
        with pytest.raises(InputError):
            runs.compare(0, 1)


def test_what_was_compared_once_is_kept() -> None:
    runs = SavedRuns((SLOW, FAST))
    assert runs.compare(0, 1) is runs.compare(0, 1)
    assert runs.compare(1, 0).verdict == "worse"


@pytest.mark.parametrize("name", HOSTILE[:6])
def test_hostile_names_of_files_are_texts(name: str) -> None:
    snapshot = show(SLOW, FAST, names=(name, "fast.dprank"))
    assert name in read(snapshot)
