"""The page What-if: of a saved file, of a recording, and why there is none."""

from __future__ import annotations

import pytest

from dprankdiag.dashboard.asked import Asked
from dprankdiag.dashboard.pages import whatif
from dprankdiag.dashboard.places import Place
from dprankdiag.dashboard.provider import Snapshot, show_saved, show_what_if
from dprankdiag.errors import InputError
from dprankdiag.model.whatif import WhatIf
from tests import builders
from tests.dashboard.test_app import list_types, read_text
from tests.dashboard.whatifs import make_whatif, option
from tests.pipelines.test_compare import late, side
from tests.views.results import HOSTILE


def read(snapshot: Snapshot) -> str:
    return " ".join(read_text(whatif.render(snapshot, Place("/whatif"))).split())


def test_a_saved_file_is_shown_with_what_to_set_and_what_cannot_be_told() -> None:
    result = make_whatif()
    snapshot = show_what_if("options.json", result).snapshot
    assert snapshot.diagnosis.status == "inconclusive"
    text = read(snapshot)
    for told in (
        result.headline,
        "one option gains most",
        "--load-balance-method total_tokens copy",
        "experts: no counts were given; --experts FILE",
        "layout.other: its steps were not recorded",
        "one GPU a rank is assumed",
        "numbers that the fit did not see are missed by 0.2 %",
    ):
        assert told in text
    assert list_types(whatif.render(snapshot, Place("/whatif"))).count("Graph") == 1


def test_the_best_options_are_the_first_to_set() -> None:
    gain = make_whatif().options[0].gain_ratio
    options = tuple(option(f"policy.{name}", command=f"--x {name}", gain_ratio=gain) for name in "abc")
    text = read(show_what_if("x", make_whatif(options=options, best=("policy.c",))).snapshot)
    assert text.index("--x c") < text.index("--x a") < text.index("--x b")


def test_of_a_recording_it_is_worked_out_once_and_when_somebody_looks() -> None:
    run = side(late(400_000))
    snapshot = show_saved("run.dprank", run.diagnosis, run.tables).snapshot
    assert snapshot.asked is not None
    result = snapshot.asked.get()
    assert result.headline in read(snapshot)
    assert snapshot.asked.get() is result


@pytest.mark.parametrize("path", ["no tables", "live"])
def test_where_there_is_none_the_page_says_how_to_get_one(path: str) -> None:
    saved = show_saved("x", builders.undecided_diagnosis(), {}).snapshot
    snapshot = saved if path == "no tables" else Snapshot(0, "x", builders.diagnosis(), {}, at_ns=1)
    text = read(snapshot)
    assert "Not shown." in text
    assert "dprankdiag whatif INPUT -o FILE.json copy" in text


def test_why_there_is_none_is_asked_once() -> None:
    asked: list[int] = []

    def ask() -> WhatIf:
        asked.append(1)
        raise InputError("holds no steps")

    later = Asked(ask)
    for _ in range(2):
        with pytest.raises(InputError):
            later.get()
    assert asked == [1]


@pytest.mark.parametrize("name", HOSTILE[:6])
def test_hostile_words_of_a_file_are_texts(name: str) -> None:
    result = make_whatif(
        headline=name, notes=(name,), options=(option(name, title=name, command=name, reasons=(name,)),)
    )
    elements = whatif.render(show_what_if(name, result).snapshot, Place("/whatif"))
    assert not {"Script", "Img", "Iframe"} & set(list_types(elements))
    assert " ".join(name.split()) in " ".join(read_text(elements).split())
