"""Know what gives no data just now, and say it once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from dprankdiag.model.ledgers import LedgerAnswer, NoData

Told = LedgerAnswer | NoData

_PATH = re.compile(r"/(?:metrics|v1/loads|get_load|(?:get_)?server_info|version|load)/?(?:\?.*)?\Z")
"""Where the interfaces of engines lie below their address."""

UNKNOWN = "metrics"
"""The interface of a target of which nothing has answered yet."""


@dataclass(slots=True)
class Failures:
    """Remembers what fails: it is left alone for a while, and then not told of at each tick.

    An interface that is not offered is no failure.

    Attributes:
        current: by address and interface.
    """

    current: dict[tuple[str, str], NoData] = field(default_factory=dict)

    def note(self, told: Sequence[Told]) -> list[str]:
        """Take note of a tick; return what is new, a line for each failure and each that is over."""
        lines = []
        for item in told:
            if isinstance(item, LedgerAnswer):
                lines += [f"{where}: answers again" for where in self._end(item)]
            elif not item.absent:
                key = (find_base(item), item.interface)
                lines += [] if key in self.current else [f"{item.where}: no data: {item.reason}"]
                self.current[key] = item
        return lines

    def _end(self, answer: LedgerAnswer) -> Iterator[str]:
        """End the failure of an interface that answers, and of its address as a whole."""
        base = find_base(answer)
        for key in ((base, answer.interface), (base, UNKNOWN)):
            failed = self.current.pop(key, None)
            if failed is not None:
                yield failed.where


def find_base(told: Told) -> str:
    """Return the address that an answer's interface belongs to, with the path before it if it has one."""
    return strip_path(told.where)


def strip_path(where: str) -> str:
    """Take the path of an interface from the end of where it answered."""
    return _PATH.sub("", where)
