"""Bundle tables for the tests of views: eight ranks, three layers, and rank 3 late before every gather."""

from __future__ import annotations

from functools import cache

import numpy as np

from dprankdiag.model.schema import Columns
from dprankdiag.pipelines.result_tables import tabulate
from tests.analysis.builders import observe_steps

N_RANKS = 8
HOSTILE = (
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(1)>",
    "<!--<script>",
    "]( javascript:alert(1) ) [x](javascript:alert(1))",
    "a|b||c",
    "`code` ``` ~~~",
    "*bold* _it_ ~~gone~~ $x$ # head",
    "1. one",
    "- item",
    "> quote",
    "=====",
    "\x1b[31mred\x1b]0;title\x07",
    "\u202egnp.exe\u2066",
    "&lt;b&gt; &amp; &#60;",
    "@someone #12 GH-3 https://example.org www.example.org me@example.org",
    "<b>bold</b><br><a href='javascript:alert(1)'>x</a><sub>y</sub> %{x} %{customdata}",
    "quote \" and ' and {{x}} ${y}",
    "line\nbreak\r\nand\ttab",
    "\u2028line\u2029",
    "\ud800 lone",
)


@cache
def make_tables(n_steps: int = 40, n_ranks: int = N_RANKS, layers: int = 3) -> dict[str, Columns]:
    factor = np.ones(n_ranks)
    factor[3] = 2.5
    return tabulate([observe_steps(n_steps, n_ranks, layers, factor={"attention": factor})])
