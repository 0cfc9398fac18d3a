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
    seen = observe_steps(n_steps, n_ranks, layers, factor={"attention": factor})
    tables = tabulate([seen])
    step = int(tables["worst_steps"]["step"][0])
    return tabulate([seen], [make_kernels(tables["worst_meetings"], step)])


def make_kernels(meetings: Columns, step: int) -> Columns:
    """Fill every segment with one attention kernel after what idle time there is, and meet in one collective."""
    order = np.lexsort((meetings["position"], meetings["rank"]))
    start, arrival, end, work, rank = (
        meetings[name][order] for name in ("start_ns", "arrival_ns", "end_ns", "work_ns", "rank")
    )
    n = len(rank)
    idle = np.stack([arrival - start - work, np.zeros(n, np.int64)], axis=1).ravel()
    begin, stop = (np.stack(pair, axis=1).ravel() for pair in ((arrival - work, arrival), (arrival, end)))
    return {
        "group": np.zeros(2 * n, np.int16),
        "step": np.full(2 * n, step, np.int32),
        "rank": np.repeat(rank, 2),
        "stream": np.full(2 * n, 7, np.int32),
        "start_ns": begin,
        "end_ns": stop,
        "own_ns": stop - begin,
        "idle_ns": idle,
        "host_ns": idle // 2,
        "family": np.tile(np.array(["attention", "collective"], object), n),
        "name": np.tile(np.array(["flash_fwd_kernel", "ncclDevKernel_AllGather"], object), n),
    }
