"""Label matchers are read strictly and written anew."""

from __future__ import annotations

import promql_parser
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprankdiag.collectors.prometheus_select import Matcher, read_matchers, write_selector
from dprankdiag.errors import UsageError


@pytest.mark.parametrize(
    "text, told",
    [
        ('namespace="x"', [("namespace", "=", "x")]),
        ('{namespace="x",pod=~"e-.+"}', [("namespace", "=", "x"), ("pod", "=~", "e-.+")]),
        (" a != \"1\" , b !~ '2|3' , ", [("a", "!=", "1"), ("b", "!~", "2|3")]),
        (r'a="say \"hi\" \\ \n"', [("a", "=", 'say "hi" \\ \n')]),
        ('job="it\'s {here}, there"', [("job", "=", "it's {here}, there")]),
    ],
)
def test_matchers_are_read_as_promql_writes_them(text: str, told: list[tuple[str, str, str]]) -> None:
    assert [(one.label, one.operator, one.value) for one in read_matchers(text)] == told


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "namespace=x",
        'namespace="x"} or up{',
        'namespace="x"}[5m]',
        'namespace="x" pod="y"',
        'namespace="x',
        '0a="x"',
        '__name__="up"',
        'a="x"\nor\nup',
        r'pod=~"e-\d+"',
        "sum(up)",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--select"):
        read_matchers(text)


def test_a_backslash_says_how_it_is_written() -> None:
    with pytest.raises(UsageError, match="twice"):
        read_matchers(r'pod=~"e-\d+"')


@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=30))
def test_no_value_leaves_its_quotes(value: str) -> None:
    selector = write_selector("sglang:.+", (Matcher("pod", "=", value),))
    if "\x00" in value:
        return  # the parser of the test takes no NUL
    (name, mine) = promql_parser.parse(selector).matchers.matchers
    assert (mine.name, mine.value, name.value) == ("pod", value, "sglang:.+")


@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=30))
def test_what_is_written_is_read_back(value: str) -> None:
    matcher = Matcher("pod", "!~", value)
    if any(mark in value for mark in "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"):
        return  # separators of lines that no label holds
    assert read_matchers(matcher.write()) == (matcher,)
