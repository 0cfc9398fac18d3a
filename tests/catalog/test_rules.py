import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprankdiag.catalog.kernels import load_kernels
from dprankdiag.catalog.ranges import load_ranges
from dprankdiag.catalog.rules import find_needed_text, make_rule
from tests.catalog.known import KNOWN


@pytest.mark.parametrize(
    "pattern, needed",
    [
        ("nvjet", "nvjet"),
        ("NCCL", "nccl"),
        ("all_?reduce", "reduce"),
        (r"(?<![a-z])mla_(?:decode|prefill)", "mla_"),
        (r"gemmtype\)\s*[12356]\b", "gemmtype"),
        ("ab*c", "a"),
        ("abc+d", "abc"),
        ("ab{2,3}cd", "cd"),
        ("[a-z]{3}xyz", "xyz"),
        (r"[\]a]longer", "longer"),
        ("one|other", ""),
        ("(?:one|other)", ""),
        ("(?x) a b", ""),
        (r"\d+", ""),
    ],
)
def test_the_text_a_pattern_cannot_match_without_is_found(pattern: str, needed: str) -> None:
    assert find_needed_text(pattern) == needed


_PIECES = st.sampled_from(
    ["ab", "c", "d?", "e*", "f+", "(gh)?", "(?:ij|kl)", "[mn]", "o{2}", "p{0,1}", r"\.", ".", "Q"]
)
_ALTERNATIVES = st.lists(st.lists(_PIECES, min_size=1, max_size=6).map("".join), min_size=1, max_size=2).map("|".join)


@given(st.data())
def test_every_match_of_a_pattern_contains_its_needed_text(data: st.DataObject) -> None:
    pattern = data.draw(_ALTERNATIVES)
    text = data.draw(st.from_regex(re.compile(pattern, re.IGNORECASE | re.ASCII)))
    assert find_needed_text(pattern) in text.lower()


def test_skipping_by_needed_text_changes_no_answer() -> None:
    rules = [*load_kernels().rules, *load_ranges().rules]
    for one in (alternative for rule in rules for alternative in rule.alternatives):
        for _, _, name in KNOWN:
            assert not one.expression.search(name) or one.needs in name.lower(), (one.text, name)


def test_a_whole_pattern_does_not_match_a_part() -> None:
    row = {"pattern": ["step", "a|ab"], "role": "step"}
    whole, part = make_rule(row, ("role",), whole=True), make_rule(row, ("role",))
    for text, is_whole in (("step", True), ("ab", True), ("last_step", False), ("step_time", False)):
        assert whole.is_found_in(text, text) is is_whole
        assert part.is_found_in(text, text)
