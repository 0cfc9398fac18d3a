"""Count the requests of each rank: running, waiting, arriving, and how many of them are independent."""

from __future__ import annotations

import numpy as np

from dprankdiag.analysis.ledger_signals import is_positive
from dprankdiag.analysis.ledger_window import LedgerWindow
from dprankdiag.model.ledgers import BoolArray, FloatArray

QUEUES = ("waiting_requests", "decode_prealloc_requests")
"""Gauges of a rank's queues. Requests in the others of a split engine (bootstrap, inflight, transfer) wait for another.

Source: SGLang 0.5.23, whose gauges each count one queue.
"""

LOAD_ELSEWHERE = ("load_bootstrap_requests", "load_transfer_requests")
"""Parts of what load answers call waiting, that wait for another engine: for its pages, or for KV that it sends.

Source: SGLang 0.5.23, whose load answers add up all queues but that of KV on its way.
"""

UNCOUNTED = 4.0
"""Requests that each rank is taken to have where nothing counts them."""


def count_running(window: LedgerWindow, frozen: BoolArray) -> FloatArray | None:
    """Return requests in the running batch, by steps if counted, else by load answers, else by live gauges."""
    live = window.level("load_running_requests")
    if live is not None:
        steps, rows = window.growth("load_decode_steps"), window.growth("load_decode_rows")
        if steps is None or rows is None:
            return live
        return np.where(steps > 0, rows / np.maximum(steps, 1), live)
    gauge = window.level("running_requests")
    if gauge is None:
        rows = _decode_rows(window)
        return _pass_rows(window) if rows is None else rows
    # A rank that never worked has no gauge; its peers do.
    return np.where(frozen, 0.0, gauge)


def _decode_rows(window: LedgerWindow) -> FloatArray | None:
    """Return rows a step: the tokens each rank generated, else those scheduled where none are of prompts."""
    steps, tokens = window.steps, window.growth("decode_tokens")
    if tokens is None and not is_positive(window.growth("prefill_tokens")):
        tokens = window.growth("scheduled_tokens")
    return None if steps is None or tokens is None else tokens / steps


def _pass_rows(window: LedgerWindow) -> FloatArray | None:
    """Return decode rows a pass, from forward-pass frames."""
    rows, passes = window.growth("pass_decode_requests"), window.growth("pass_count")
    if rows is None or passes is None:
        return None
    idle = window.growth("pass_idle_count")
    total = passes if idle is None else passes + np.nan_to_num(idle)
    return np.where(total > 0, rows / np.where(total > 0, total, 1.0), 0.0)


def count_rows(window: LedgerWindow, running: FloatArray | None, frozen: BoolArray) -> tuple[str, FloatArray] | None:
    """Return requests that each rank was given: running and waiting ones."""
    if running is None:
        return None
    waiting = count_waiting(window)
    if waiting is None:
        return "running", running
    return "running and waiting", running + np.where(frozen, 0.0, np.nan_to_num(waiting))


def count_waiting(window: LedgerWindow) -> FloatArray | None:
    """Return the requests that wait for their rank: those that wait for another engine are none of its load."""
    waiting = window.level("load_waiting_requests")
    if waiting is not None:
        elsewhere = [level for name in LOAD_ELSEWHERE if (level := window.level(name)) is not None]
        own: FloatArray = np.maximum(waiting - sum(np.nan_to_num(level) for level in elsewhere), 0.0)
        return own
    queues = [level for name in QUEUES if (level := window.level(name)) is not None]
    return np.sum([np.nan_to_num(level) for level in queues], axis=0) if queues else None


def count_independent(window: LedgerWindow, running: FloatArray | None, admitted: FloatArray | None) -> FloatArray:
    """Count the independent requests behind each rank's sums; a few where nothing tells.

    What a gauge shows at one moment is made of those that are there, and not of those that came before.
    """
    if running is None:
        return np.full(window.n_ranks, UNCOUNTED)
    finished = window.growth("finished_requests")
    more = admitted if admitted is not None else finished
    # Of the average over a window with many arrivals, half of them are independent: a request stays for a while.
    counts = running if more is None else running + np.nan_to_num(more) / 2.0
    return np.maximum(np.nan_to_num(counts), 1.0)


def count_all(rows: tuple[str, FloatArray] | None, admitted: FloatArray | None) -> float:
    """Count the independent requests of all ranks together."""
    held = 0.0 if rows is None else float(np.nansum(rows[1]))
    return held if admitted is None else held + float(np.nansum(admitted))


def count_arrivals(window: LedgerWindow, admitted: FloatArray | None) -> FloatArray | None:
    """Return the requests that came to each rank: admitted ones, else those that got their first token."""
    first = window.growth("first_tokens")
    for counts in (admitted, first):
        if counts is not None and is_positive(counts):
            return counts
    return None
