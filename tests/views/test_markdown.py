import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from dprankdiag.model.diagnosis import Diagnosis
from dprankdiag.views.markdown import escape, escape_line, quote_code, render
from dprankdiag.views.printable import make_printable
from tests import builders
from tests.views.results import HOSTILE

READER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
INVISIBLE = "\u200b"
PIECES = st.sampled_from([*HOSTILE, *"\\`*_[]()<>#+-.!|~$&:@=\"'{}%^ \n\t", "1.", "www.", "http://x", "GH-1", "&lt;"])
TEXTS = st.lists(st.one_of(PIECES, st.text(max_size=4)), max_size=8).map("".join)


def _shown(tokens: list[Token]) -> tuple[list[str], str]:
    """Return the kinds of inline tokens and the text a reader sees."""
    children = [child for token in tokens if token.type == "inline" for child in token.children or ()]
    return sorted({child.type for child in children}), "".join(child.content for child in children).replace(
        INVISIBLE, ""
    )


def _expect(text: str) -> str:
    return make_printable(text).strip().replace(INVISIBLE, "")


@given(TEXTS)
def test_any_text_is_shown_as_it_is_in_a_paragraph(text: str) -> None:
    tokens = READER.parse(escape_line(text))
    kinds, shown = _shown(tokens)
    assert set(kinds) <= {"text"}
    assert {token.type for token in tokens} <= {"paragraph_open", "inline", "paragraph_close"}
    assert shown == _expect(text)


@given(TEXTS)
def test_any_text_stays_in_its_heading_item_and_cell(text: str) -> None:
    page = f"# h {escape(text)}\n\n- i\n  - {escape_line(text)}\n\n| a | b |\n|---|---|\n| c {escape(text)} | d |\n"
    tokens = READER.parse(page)
    kinds, _ = _shown(tokens)
    assert set(kinds) <= {"text"}
    inline = [token for token in tokens if token.type == "inline"]
    assert len(inline) == 7 - (not _expect(text))
    assert sum(token.type == "td_open" for token in tokens) == 2
    for before, token in (("h", inline[0]), ("c", inline[-2])):
        assert _shown([token])[1] == f"{before} {_expect(text)}".strip()


@given(TEXTS)
def test_any_text_is_shown_as_it_is_as_code(text: str) -> None:
    kinds, shown = _shown(READER.parse(f"x {quote_code(text)} y"))
    assert set(kinds) <= {"text", "code_inline"}
    assert shown.split() == f"x {_expect(text)} y".split()


@given(TEXTS)
def test_nothing_outside_of_code_becomes_a_link_or_a_mention(text: str) -> None:
    written = re.sub(r"&#8203;|&amp;", "\0", escape(text))
    for pattern in (r"@\w", r"#\d", r"(?i)GH-\d", r"://", r"(?i)www\.[^\0]"):
        assert not re.search(pattern, written)


def make_hostile(text: str) -> Diagnosis:
    ranks = tuple(builders.rank(number, process=text, host=text, engine=text) for number in range(8))
    finding = builders.finding(
        engine=text,
        summary=text,
        evidence=(builders.evidence(text=text, name=text, unit=text),),
        alternatives=(replace(builders.finding().alternatives[0], would_need=text),),
        remedies=(builders.remedy(text=text),),
    )
    return builders.diagnosis(
        headline=text,
        ranks=ranks,
        findings=(finding,),
        inputs=(builders.source(path=text, producer=text, lacked=(text,), warnings=(text,)),),
        abstentions=(builders.abstention(reason=text, lacked=(text,), get_it_with=text),),
        notes=(text,),
        time=builders.time_account(clock=text, step_kinds={text: 40}),
    )


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_change_nothing_of_the_page(text: str) -> None:
    usual = READER.parse(render(make_hostile("name"), {}))
    tokens = READER.parse(render(make_hostile(text), {}))
    assert [token.type for token in tokens] == [token.type for token in usual]
    assert set(_shown(tokens)[0]) <= {"text", "code_inline", "strong_open", "strong_close"}
    written = render(make_hostile(text), {})
    assert all(character == "\n" or character.isprintable() for character in written)


def test_a_finding_shows_all_that_is_known_of_it() -> None:
    page = render(builders.diagnosis(), {})
    for part in (
        "## Rank 3 costs 21 % of every step",
        "**findings** · 1 critical · 8 ranks · 40 steps",
        "### 1. critical: load.context, rank 3",
        "| attention of rank 3 takes 2.5 × its peers' median | attention_work_ratio 2.5, expected 1, n = 640 |",
        "single_point.gpu would need: equal-work kernels",
        "1. Route by KV tokens, not by request count. Gain: 15 % (90 % interval: 10 % to 20 %), replayed",
        "| total | 0.26 s | 22 % | (90 % interval: 19 % to 24 %) |",
        "lacks GPU_METRICS",
        "get it with: `nsys profile -t cuda,nvtx,osrt`",
    ):
        assert part in page


def test_an_inconclusive_page_says_so_and_what_to_do() -> None:
    page = render(builders.undecided_diagnosis(), {})
    assert "This is not the same as healthy" in page
    assert "Could not be computed from this input." in page
    assert "get it with" in page


def test_every_table_row_has_as_many_cells_as_its_head() -> None:
    cells = 0
    for line in render(builders.diagnosis(), {}).splitlines():
        if line.startswith("|"):
            here = len(re.findall(r"(?<!\\)\|", line))
            assert cells in (0, here)
            cells = here
        else:
            cells = 0


def test_a_large_deployment_fits_into_an_issue() -> None:
    ranks = tuple(builders.rank(number) for number in range(1024))
    findings = tuple(builders.finding(id=f"f{k}", ranks=tuple(range(1024)), who="group") for k in range(4))
    inputs = tuple(builders.source(path=f"/data/run/rank-{number}.sqlite") for number in range(1024))
    page = render(builders.diagnosis(ranks=ranks, findings=findings, inputs=inputs), {})
    assert len(page) < 60_000
    assert "and 960 more; the JSON has all of them" in page
