"""What a collector is: it knows where an interface is offered, and turns one body into answers."""

from __future__ import annotations

from typing import Protocol

from dprankdiag.model.ledgers import LedgerAnswer

MOST_NUMBER = 2.0**63
"""What is larger counts or measures nothing: it was not told, and squares of it would be beyond all numbers."""


class Collector(Protocol):
    """One interface of one engine.

    Attributes:
        interface: its name, as in `LedgerAnswer.interface`.
        path: what to ask for at a target's URL, with the query; "" where it is not asked over HTTP.
    """

    interface: str
    path: str

    def parse(self, body: bytes, where: str, taken_ns: int | None = None) -> tuple[LedgerAnswer, ...]:
        """Turn a body into answers, one for each engine (model, role) it speaks of; pure.

        Args:
            where: path or URL for people.
            taken_ns: moment of the answer by the collector's clock; a stamp in the body wins.

        Raises:
            InputError: the body is of another kind.
            DamagedInput: it is of this kind but cut short or broken.
        """
        ...
