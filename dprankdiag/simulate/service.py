"""Measure what clients saw of a serving world: time to the first token, time for each further one, tokens a second."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dprankdiag.model.schema import Column, Columns, Table
from dprankdiag.simulate.base import FloatArray, IntArray
from dprankdiag.simulate.world_tables import Outcome

SECOND_NS = 1_000_000_000

SERVICE = Table(
    "service",
    "a request that was served",
    (
        Column("request", "int64", "", "its number"),
        Column("worker", "int64", "", "that generated its output"),
        Column("rank", "int64", "", "within that engine"),
        Column("first_token_ns", "int64", "ns", "from its arrival to its first token"),
        Column("token_ns", "float64", "ns", "from one token to the next, on the mean; NaN for a lone token"),
        Column("whole_ns", "int64", "ns", "from its arrival to its last token"),
    ),
)


def measure_service(outcome: Outcome) -> Columns:
    """Measure every request that was served; those refused are left out."""
    table = outcome.requests
    kept = table["refused"] == 0
    arrival, first, end = (table[name][kept] for name in ("arrival_ns", "first_ns", "end_ns"))
    gaps = np.maximum(table["output_tokens"][kept] - 1, 1)
    token_ns = np.where(table["output_tokens"][kept] > 1, (end - first) / gaps, np.nan)
    return SERVICE.check(
        {
            "request": table["request"][kept],
            "worker": table["worker"][kept],
            "rank": table["rank"][kept],
            "first_token_ns": first - arrival,
            "token_ns": token_ns,
            "whole_ns": end - arrival,
        }
    )


@dataclass(frozen=True, slots=True)
class Summary:
    """What all requests of a world saw.

    Attributes:
        requests: that were served.
        first_token_ns: quantiles of the time to the first token, by `QUANTILES`.
        token_ns: quantiles of the time for a further token.
        generation_tok_s: output tokens a second, from the first arrival to the last end.
        waiting_ratio: share of the ranks' time in steps that they waited for slower ones.
    """

    requests: int
    first_token_ns: tuple[float, ...]
    token_ns: tuple[float, ...]
    generation_tok_s: float
    waiting_ratio: float


QUANTILES = (0.5, 0.9, 0.99)


def summarize(outcome: Outcome) -> Summary | None:
    """Summarize the service of a world; None if it served nothing."""
    service = measure_service(outcome)
    if not len(service["request"]):
        return None
    table = outcome.requests
    kept = table["refused"] == 0
    span_ns = int(table["end_ns"][kept].max() - table["arrival_ns"][kept].min())
    further = service["token_ns"][~np.isnan(service["token_ns"])]
    return Summary(
        len(service["request"]),
        _find_quantiles(service["first_token_ns"]),
        _find_quantiles(further),
        int(table["output_tokens"][kept].sum()) * SECOND_NS / max(span_ns, 1),
        _measure_waiting(outcome),
    )


def _find_quantiles(values: IntArray | FloatArray) -> tuple[float, ...]:
    return tuple(float(value) for value in np.quantile(values, QUANTILES)) if len(values) else ()


def _measure_waiting(outcome: Outcome) -> float:
    steps: dict[str, np.ndarray[Any, Any]] = outcome.rank_steps
    # Engines open steps in order of time, so the table of steps is numbered as it is sorted.
    whole = int(outcome.steps["total_ns"][steps["step"]].sum())
    return int(steps["waiting_ns"].sum()) / max(whole, 1)
