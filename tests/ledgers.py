"""Ledgers made by hand: even but for what is named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dprankdiag.model.ledgers import FloatArray, Ledger

BUSY: Mapping[str, Any] = {
    "gauges": {"load_running_requests": 24, "load_waiting_requests": 0, "load_used_tokens": 60000},
    "counters": {
        "scheduled_tokens": 12000,
        "scheduled_pairs": 3e7,
        "active_steps": 500,
        "idle_steps": 0,
        "decode_tokens": 12000,
        "sync_waits": 500,
        "sync_wait_s": 0.25,
        "control_wait_s": 0.1,
    },
}
"""Eight ranks that decode for fifteen seconds with even loads."""


def build_ledger(given: Mapping[str, Any]) -> Ledger:
    """Make a ledger.

    Args:
        given: `ranks` (8), `moments` (2), `seconds` (15, None if not told), `engine`, `facts`, `unlabelled`, `experts`
            (layers of tokens by GPU), `only` (leave out what busy ranks tell), and by field `gauges` (what holds all
            the time) and `counters` (what they grow by in all). A value is a number, or `{all: number, rank: number}`;
            None is not told.
    """
    n_ranks, n_moments = given.get("ranks", 8), given.get("moments", 2)
    seconds = given.get("seconds", 15.0)
    usual = {"gauges": {}, "counters": {}} if given.get("only") else BUSY
    values: dict[str, FloatArray] = {}
    share = np.linspace(0.0, 1.0, n_moments) if n_moments > 1 else np.zeros(1)
    for name, told in {**usual["gauges"], **given.get("gauges", {})}.items():
        if told is not None:
            values[name] = np.tile(_spread(told, n_ranks), (n_moments, 1))
    for name, told in {**usual["counters"], **given.get("counters", {})}.items():
        if told is not None:
            values[name] = 1000.0 + share[:, None] * _spread(told, n_ranks)[None, :]
    experts = given.get("experts")
    return Ledger(
        "default",
        given.get("engine", "sglang"),
        "model",
        "unified",
        tuple(range(n_ranks)),
        None if seconds is None else share * seconds,
        None,
        values,
        np.zeros((n_moments, n_ranks), bool),
        None if experts is None else share[:, None, None] * np.array(experts, np.float64)[None],
        given.get("facts", {}),
        tuple(given.get("interfaces", ("sglang-metrics", "sglang-loads"))),
        given.get("unlabelled", False),
    )


def _spread(told: Any, n_ranks: int) -> FloatArray:
    if not isinstance(told, Mapping):
        return np.full(n_ranks, float(told))
    spread = np.full(n_ranks, np.nan if told.get("all") is None else float(told["all"]))
    for rank, value in told.items():
        if rank != "all":
            spread[int(rank)] = np.nan if value is None else float(value)
    return spread
