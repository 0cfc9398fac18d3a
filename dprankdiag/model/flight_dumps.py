"""What PyTorch's Flight Recorder keeps: the last collectives that a rank entered, and how far each got."""

from __future__ import annotations

from dataclasses import dataclass

from dprankdiag.model.ranks import Grade
from dprankdiag.model.schema import Column, Columns, Table
from dprankdiag.model.sources import Source

SCHEDULED, STARTED, COMPLETED = 0, 1, 2
"""States of an entry: enqueued by the process, running on the GPU, done."""

FLIGHT_ENTRIES = Table(
    "flight_entries",
    "one collective that a rank entered, in the order of entering",
    (
        Column("group_id", "int32", "id", "index into FlightDump.groups"),
        Column("sequence", "int64", "id", "position among the collectives of the group"),
        Column("name_id", "int32", "id", "index into FlightDump.names"),
        Column("size_id", "int32", "id", "index into FlightDump.sizes"),
        Column("state", "int8", "id", "0 scheduled, 1 started, 2 completed"),
        Column("is_retired", "bool", "flag", "no longer watched; if not completed, it timed out"),
        Column("created_ns", "int64", "ns", "UTC, when the process entered it", nullable=True),
        Column("last_ns", "int64", "ns", "UTC, last that was seen of it", nullable=True),
    ),
)


@dataclass(frozen=True, slots=True)
class Group:
    """A process group as one rank knows it.

    Attributes:
        name: the name PyTorch gave it; unique among ranks only together with its members.
        ranks: its members, ascending; empty where the dump does not say.
        last_entered, last_completed: sequence numbers the rank itself keeps, also of entries that have left the
            ring; None where the dump does not say.
    """

    name: str
    description: str
    ranks: tuple[int, ...]
    last_entered: int | None = None
    last_completed: int | None = None


@dataclass(frozen=True, slots=True)
class FlightDump:
    """The dump of one rank.

    Attributes:
        rank: None where neither the dump nor its name says.
        entries: `FLIGHT_ENTRIES`, collectives only (no send and receive).
        is_whole: nothing has left the ring: a group without an entry was never entered.
        pending_sends: sends and receives that have not completed.
    """

    rank: int | None
    grade: Grade
    groups: tuple[Group, ...]
    names: tuple[str, ...]
    sizes: tuple[str, ...]
    entries: Columns
    is_whole: bool
    pending_sends: int
    source: Source
