from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dprankdiag.model.diagnosis import Diagnosis
from dprankdiag.model.schema import Columns
from dprankdiag.views.html import render, write_inline_json
from dprankdiag.views.markup import Markup, escape_text, join, tag
from dprankdiag.views.printable import make_printable
from tests import builders
from tests.views.results import HOSTILE, make_tables
from tests.views.test_markdown import make_hostile

VOID = {"meta", "br"}


class Outline(HTMLParser):
    """What a browser would see: elements with their attributes and texts, and whether the tags balance."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open:
            self.texts.setdefault(self._open[-1], []).append(data)

    @property
    def shown(self) -> str:
        """All texts for a reader."""
        return " ".join(" ".join(texts) for name, texts in self.texts.items() if name not in ("script", "style"))

    def count(self, name: str) -> int:
        return sum(element == name for element, _ in self.elements)

    def attributes(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for element, attributes in self.elements if element == name]


def _figures(page: str) -> list[dict[str, Any]]:
    (text,) = re.findall(r'<script type="application/json" id="figures">(.*?)</script>', page, re.DOTALL)
    figures: list[dict[str, Any]] = json.loads(text)["figures"]
    return figures


def _titles(page: str) -> list[str]:
    return Outline(page).texts["h2"]


@pytest.fixture(scope="module")
def page() -> str:
    return render(builders.diagnosis(), make_tables())


def test_the_page_is_one_file_that_names_nothing_outside(page: str) -> None:
    outline = Outline(page)
    for name, attributes in outline.elements:
        assert name not in ("link", "iframe", "object", "embed", "base", "form", "img", "a")
        assert not {"src", "href", "srcset", "action", "style"} & set(attributes)
        assert not any(key.startswith("on") for key in attributes)
    assert outline.count("script") == 3
    assert re.search(r"url\(|@import", "".join(outline.texts["style"])) is None


def test_the_policy_allows_the_scripts_of_the_page_and_nothing_else(page: str) -> None:
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    for script in scripts:
        assert not re.search(r"</script|<!--", script, re.IGNORECASE)
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    (policy,) = [
        item["content"]
        for item in Outline(page).attributes("meta")
        if item.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"].split() == [f"'sha256-{value}'" for value in hashes]
    assert "eval" not in policy
    assert "http" not in policy


def test_the_encoding_is_named_within_the_first_kilobyte(page: str) -> None:
    assert b'<meta charset="utf-8">' in page.encode()[:1024]


def test_figures_come_in_reading_order_and_share_one_plotly(page: str) -> None:
    expected = ["lost", "waits-0", "worst-0", "arrivals-0", "layers-0", "ranks"]
    assert [figure["id"] for figure in _figures(page)] == expected
    assert page.count("plotly.js v") == 1
    assert [item["id"] for item in Outline(page).attributes("div") if item.get("class") == "figure"] == expected


def test_every_figure_has_words_and_a_table_beside_it(page: str) -> None:
    outline = Outline(page)
    figures = outline.count("figure")
    assert figures == outline.count("figcaption") == 6
    assert outline.count("table") == figures + len(builders.diagnosis().findings)
    assert all(item["aria-label"] for item in outline.attributes("div") if item.get("class") == "figure")


def test_no_figure_offers_to_share_the_data(page: str) -> None:
    assert '"showSendToCloud":false' in page
    assert '"displaylogo":false' in page


def test_a_finding_shows_all_that_is_known_of_it(page: str) -> None:
    words = Outline(page).shown
    for part in (
        "rank 3: load.context",
        "sglang::scheduler_DP3 (pid 4103)",
        "one rank, steadily; 0.000 to 1.200 s",
        "0.25 s, 21 % of the time (90 % interval: 19 % to 23 %); 6.30 ms a step; replayed",
        "0.97",
        "attention of rank 3 takes 2.5 × its peers' median",
        "equal-work kernels of rank 3",
        "Route by KV tokens",
        "Gain: 15 % (90 % interval: 10 % to 20 %), replayed",
        "dprankdiag explain load.context",
        "lacks GPU_METRICS",
    ):
        assert part in words


def test_equal_input_gives_equal_bytes(page: str) -> None:
    assert render(builders.diagnosis(), dict(reversed(make_tables().items()))) == page


def test_the_page_has_a_language_and_headings_without_gaps(page: str) -> None:
    outline = Outline(page)
    assert outline.attributes("html") == [{"lang": "en"}]
    levels = [int(name[1]) for name, _ in outline.elements if re.fullmatch("h[1-6]", name)]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    ids = [item["id"] for _, item in outline.elements if "id" in item]
    assert len(ids) == len(set(ids))


FACES = {
    "healthy": (builders.even_diagnosis(), "The ranks are even"),
    "uniform": (builders.even_diagnosis(status="uniform"), "look elsewhere"),
    "inconclusive": (builders.undecided_diagnosis(), "This is not the same as healthy"),
}


@pytest.mark.parametrize("name", FACES)
def test_every_status_has_its_own_face(name: str) -> None:
    diagnosis, meaning = FACES[name]
    outline = Outline(render(diagnosis, make_tables() if name != "inconclusive" else {}))
    assert any(meaning in text for text in outline.texts["p"])
    assert outline.attributes("header")[0]["class"] == f"verdict {name}"
    assert "Findings" not in outline.texts["h2"]


def test_an_inconclusive_page_is_no_empty_page() -> None:
    page = render(builders.undecided_diagnosis(), {})
    titles = _titles(page)
    assert titles[0] == "What cannot be told"
    outline = Outline(page)
    assert outline.texts["span"][0] == "cannot tell"
    assert "copy nsys profile -t cuda,nvtx,osrt" in [item["aria-label"] for item in outline.attributes("button")]
    assert "Wait per rank and step, The worst step, Arrival lag per rank, Excess by layer and rank" in outline.shown
    assert "No steps could be compared, so there is nothing to draw" in outline.shown
    assert "No time could be measured for these ranks" in outline.shown
    assert _figures(page) == []


@pytest.mark.parametrize("missing", sorted(make_tables()))
def test_a_bundle_of_an_older_version_says_what_it_lacks(missing: str) -> None:
    tables = {name: columns for name, columns in make_tables().items() if name != missing}
    page = render(builders.diagnosis(), tables)
    drawn = {figure["id"] for figure in _figures(page)}
    lost = {
        "rank_steps": {"waits-0"},
        "arrivals": {"arrivals-0"},
        "layers": {"layers-0"},
        "worst_steps": {"worst-0"},
        "worst_meetings": {"worst-0"},
    }.get(missing, set())
    assert drawn == {"lost", "waits-0", "worst-0", "arrivals-0", "layers-0", "ranks"} - lost
    assert page.count("an older version made it") == bool(lost)


def test_without_any_table_each_figure_says_why_it_is_missing() -> None:
    page = render(builders.diagnosis(), {})
    assert {figure["id"] for figure in _figures(page)} == {"lost", "ranks"}
    assert page.count("an older version made it") == 1


def test_groups_beyond_the_first_are_told_apart() -> None:
    tables = make_tables()
    both: dict[str, Columns] = {}
    for name, columns in tables.items():
        other = {**columns, "group": columns["group"] + 1}
        if name == "members":
            other["engine"] = np.full(len(other["rank"]), "default-2", object)
        both[name] = {key: np.concatenate([columns[key], other[key]]) for key in columns}
    finding = builders.finding(engine="default-2")
    titles = _titles(render(builders.diagnosis(findings=(finding,)), both))
    assert [title for title in titles if title.startswith("Wait per")] == [
        "Wait per rank and step: ranks 0-7 of default-2",
        "Wait per rank and step: ranks 0-7 of default",
    ]


def test_groups_that_are_not_drawn_are_named() -> None:
    tables = make_tables()
    many: dict[str, Columns] = {
        name: {
            key: np.concatenate([values + group if key == "group" else values for group in range(5)])
            for key, values in columns.items()
        }
        for name, columns in tables.items()
    }
    page = render(builders.diagnosis(), many)
    assert sum(figure["id"].startswith("waits-") for figure in _figures(page)) == 3
    assert "Figures of 2 more lockstep groups" in page


def test_a_bundle_of_the_first_version_draws_what_it_has() -> None:
    kept = {"steps", "rank_steps", "layers"}
    tables = {name: columns for name, columns in make_tables().items() if name in kept}
    page = render(builders.diagnosis(), tables)
    assert {figure["id"] for figure in _figures(page)} == {"lost", "waits-0", "layers-0", "ranks"}
    assert "The worst step, Arrival lag per rank" in Outline(page).shown


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_change_nothing_of_the_page(text: str) -> None:
    tables = dict(make_tables())
    tables["positions"] = {**tables["positions"], "operation": np.full(6, text, object)}
    tables["members"] = {**tables["members"], "engine": np.full(8, text, object)}
    tables["kinds"] = {**tables["kinds"], "name": np.full(1, text, object)}
    usual, hostile = (render(_named(name), tables) for name in ("name", text))
    outline = Outline(hostile)
    assert [name for name, _ in outline.elements] == [name for name, _ in Outline(usual).elements]
    shown = " ".join(
        piece for name, pieces in outline.texts.items() if name not in ("script", "style") for piece in pieces
    )
    assert make_printable(text) in shown
    body = hostile[hostile.index("<body>") : hostile.index("<script>")]
    assert all(character == "\n" or character.isprintable() for character in body)


def _named(text: str) -> Diagnosis:
    return replace(make_hostile(text), findings=tuple(replace(f, id="f1") for f in make_hostile(text).findings))


@given(st.text(), st.text())
def test_text_never_becomes_markup(text: str, other: str) -> None:
    outline = Outline(tag("p", text, title=other))
    assert outline.elements == [("p", {"title": make_printable(other)})]
    assert "".join(outline.texts.get("p", [])) == make_printable(text)


def test_markup_stays_markup_and_escaping_is_not_done_twice() -> None:
    assert join("<", Markup("<br>")) == "&lt;<br>"
    assert escape_text(escape_text("<")) == "&lt;"
    assert tag("br") == "<br>"
    assert tag("p", hidden=True, id=None, class_="x") == '<p hidden class="x"></p>'


@given(st.recursive(st.text() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
@settings(max_examples=60)
def test_inline_json_says_the_same_and_cannot_leave_its_element(value: Any) -> None:
    text = write_inline_json([value, "</script><!--<script>"])
    assert json.loads(text) == [value, "</script><!--<script>"]
    assert "<" not in text
    assert text.isascii()
