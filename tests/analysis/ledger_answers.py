"""Answers of engines made by hand, in the order of time or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dprankdiag.analysis.ledgers import Sighting, join_sightings
from dprankdiag.model.ledgers import Ledger, LedgerAnswer

Told = Mapping[str, Sequence[float] | float]


def answer(told: Told, ranks: int | Sequence[int] = 4, where: str = "a.prom", **more: Any) -> LedgerAnswer:
    """Make an answer of SGLang's metrics; a number is told of every rank."""
    numbers = tuple(range(ranks)) if isinstance(ranks, int) else tuple(ranks)
    values = {
        name: np.broadcast_to(np.asarray(value, np.float64), (len(numbers),)).copy() for name, value in told.items()
    }
    given: dict[str, Any] = {"interface": "sglang-metrics", "engine": "sglang", "model": "m", "role": "unified", **more}
    return LedgerAnswer(where=where, ranks=numbers, values=values, **given)


def counting(count: Sequence[float] | float, where: str = "a.prom", **more: Any) -> LedgerAnswer:
    """Make an answer with one counter, and a gauge that tells the same on all ranks."""
    return answer({"decode_tokens": count, "running_requests": 20.0}, where=where, **more)


def loads(stamp_s: float, where: str = "loads.json", **more: Any) -> LedgerAnswer:
    """Make a load answer, which tells no model and no role."""
    told = {"load_running_requests": 20.0, "load_stamp_s": stamp_s}
    return answer(told, where=where, **{"interface": "sglang-loads", "model": None, "role": None, **more})


def join(*answers: LedgerAnswer, place: str = "here", **options: Any) -> list[Ledger]:
    """Join answers that lie in one place."""
    return join_sightings([Sighting(one, place) for one in answers], **options)


def join_said(*said: tuple[LedgerAnswer, float | None], name: str = "x") -> list[Ledger]:
    """Join answers of which the user says the seconds."""
    return join_sightings([Sighting(one, "here", name, at_s) for one, at_s in said])
