"""Keep what a Prometheus server stored once, however often it is asked for it."""

from __future__ import annotations

from collections.abc import Sequence

from dprankdiag.model.ledgers import LedgerAnswer, NoData


class FirstTime:
    """Remembers the last sample of each target that a server stored."""

    def __init__(self) -> None:
        self._last: dict[tuple[str | None, ...], int] = {}

    def pick(self, told: Sequence[LedgerAnswer | NoData]) -> list[LedgerAnswer | NoData]:
        """Leave out samples of servers that were passed on before, and pass on all else as it comes."""
        stored = [one for one in told if isinstance(one, LedgerAnswer) and one.is_stored]
        fresh = {id(one) for one in sorted(stored, key=lambda one: one.taken_ns or 0) if self._is_new(one)}
        return [one for one in told if not (isinstance(one, LedgerAnswer) and one.is_stored) or id(one) in fresh]

    def _is_new(self, answer: LedgerAnswer) -> bool:
        key = (answer.where, answer.interface, answer.model, answer.role)
        stamp = answer.taken_ns or 0
        if stamp <= self._last.get(key, -1):
            return False
        self._last[key] = stamp
        return True
