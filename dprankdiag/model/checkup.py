"""What a target offers to a diagnosis, and what stands in its way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from dprankdiag.model.ledgers import EngineName, Fact

Level = Literal["problem", "missing", "note", "ok"]
"""problem: it is set up so that ranks will be uneven, or numbers misread; missing: a number that could be had is not
told; note: to be known when reading the numbers; ok: as it should be."""

LEVELS: tuple[Level, ...] = ("problem", "missing", "note", "ok")

InterfaceStatus = Literal["answered", "absent", "refused", "slow", "unreachable", "failed"]
"""absent: the engine does not offer it; refused: it wants a token; slow: no answer in time; unreachable: no connection;
failed: anything else."""


@dataclass(frozen=True, slots=True)
class Interface:
    """An interface that was asked for.

    Attributes:
        seconds: from asking to the last byte, or to giving up.
        ranks: DP ranks that it told of; None where it tells of none.
        reason: why nothing came, or that what came could not be read.
    """

    name: str
    where: str
    status: InterfaceStatus
    seconds: float
    ranks: tuple[int, ...] | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """A finding about a target's set-up.

    Attributes:
        key: row of the catalogue.
        what: what is so.
        why: what follows from it for a diagnosis or for the service.
        todo: what to do; "" where nothing is to be done.
        source: release or report that the check rests on.
    """

    key: str
    level: Level
    what: str
    why: str
    todo: str
    source: str


@dataclass(frozen=True, slots=True)
class Judgeable:
    """Whether a cause can be judged from what the target offers.

    Attributes:
        answer: "can", "needs" (something that can be switched on, or a trace), or "cannot".
        text: what it rests on, or what is lacking.
        get_it_with: the command or switch that gives what is missing.
    """

    cause: str
    answer: Literal["can", "needs", "cannot"]
    text: str
    get_it_with: str | None


@dataclass(frozen=True, slots=True)
class Checkup:
    """What one target was found to be.

    Attributes:
        target: as given, without credentials.
        engine, version, model: None where nothing told.
        ranks: DP ranks seen.
        expected_ranks: how many it should have; None where nothing tells.
        missing_ranks: those that should be there and were not seen.
        facts: what the checks were made on, by name.
    """

    target: str
    engine: EngineName | None
    version: str | None
    model: str | None
    ranks: tuple[int, ...]
    expected_ranks: int | None
    missing_ranks: tuple[int, ...]
    interfaces: tuple[Interface, ...]
    checks: tuple[Check, ...]
    causes: tuple[Judgeable, ...]
    facts: Mapping[str, Fact]

    @property
    def is_reached(self) -> bool:
        """Tell whether anything answered."""
        return any(interface.status == "answered" for interface in self.interfaces)
