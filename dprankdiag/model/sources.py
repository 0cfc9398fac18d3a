"""Where rows came from: one file's reading, and the deployment that `gather` makes of several."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from dprankdiag.model.ranks import Rank, RankClaim
from dprankdiag.model.schema import Columns

Shape = tuple[int, int, int, int, int, int]
"""(gridX, gridY, gridZ, blockX, blockY, blockZ) of a kernel launch."""


@dataclass(frozen=True, slots=True)
class KernelName:
    """A kernel's name, demangled and short; both may be the same."""

    demangled: str
    short: str

    @property
    def is_missing(self) -> bool:
        """Tell that the recording lacks the text, so that only its number is known."""
        return all(name.startswith("#") and name[1:].lstrip("-").isdigit() for name in (self.demangled, self.short))


@dataclass(frozen=True, slots=True)
class Source:
    """One input as the diagnosis reports it (DESIGN 4.2 `inputs`)."""

    path: str
    kind: str
    status: Literal["used", "partial", "unused", "skipped"]
    producer: str | None = None
    kernels: int = 0
    ranks: tuple[int, ...] = ()
    lacked: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Session:
    """The clock of one recording.

    Attributes:
        host: host name, None if the file does not say.
        utc_start_ns: UTC epoch ns of time 0.
        system_clock_ns: boot-type clock of the host at time 0; two sessions of one host align exactly by it.
        start_ns, end_ns: span of the recorded events on the session clock.
        is_utc: event times are UTC epoch ns already (exported with time normalisation).
    """

    host: str | None
    utc_start_ns: int | None
    system_clock_ns: int | None
    start_ns: int
    end_ns: int
    is_utc: bool = False


@dataclass(frozen=True, slots=True)
class Actor:
    """A process and device that may be a rank, with all evidence of which.

    Attributes:
        pid: process id as the file gives it.
        device: CUDA ordinal inside the process; None where no CUDA rows exist.
        process: the longest name known for the process.
        gpu: physical identity (uuid, bus id or index) if the file gives one.
        claims: evidence of the rank, strongest first.
    """

    pid: int
    device: int | None
    process: str | None
    gpu: str | None
    claims: tuple[RankClaim, ...] = ()


@dataclass(frozen=True, slots=True)
class Capture:
    """How the recording was made, as far as the file says.

    Attributes:
        graph_mode: "graph" (a replay is one row), "node", or None if unknown.
        expected_ranks: ranks that the command line of the recorded program announces; None if it does not.
        options: capture options worth comparing between files (name to value); never environment.
        diagnostics: warnings and errors the profiler itself recorded.
    """

    graph_mode: str | None = None
    expected_ranks: int | None = None
    options: dict[str, str] = field(default_factory=dict)
    diagnostics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Names:
    """The texts that ids in the tables point to."""

    kernel_names: tuple[KernelName, ...] = ()
    shapes: tuple[Shape, ...] = ()
    call_names: tuple[str, ...] = ()
    range_names: tuple[str, ...] = ()
    domain_names: tuple[str, ...] = ("",)
    group_names: tuple[tuple[str, str], ...] = ()
    """Process groups: name, and members as the recording writes them."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What one file holds. `tables` has every table of `TRACE_TABLES` by name; a table the file lacked is empty."""

    source: Source
    session: Session
    capture: Capture
    actors: tuple[Actor, ...]
    names: Names
    tables: dict[str, Columns]


@dataclass(frozen=True, slots=True)
class Trace:
    """A deployment: the readings of all its files on one time axis, with ranks in place of actors.

    Attributes:
        ranks: sorted by (engine, rank); the `rank` column of every table is a position here.
        clock_domain: `(n_ranks,)` int16, the recording session (clock) of each rank.
        domain_hosts: host of each clock domain, None if unknown.
        domain_precision: how well each domain was placed on the axis before looking at collectives: "exact" (same
            session or same host's boot clock), "utc" (wall clocks, ms), "unknown".
        sources: one a file, in the order given.
        captures: one a file that was used.
        missing_ranks: ranks that should be there and are not.
        notes: what gather decided and the user should know.
        digests: by rank, the tables of `model.digests` that stand in for its kernels, by name, nothing for a rank whose
            rows are all there; empty if there is no digest at all.
    """

    ranks: tuple[Rank, ...]
    clock_domain: np.ndarray[Any, Any]
    domain_hosts: tuple[str | None, ...]
    domain_precision: tuple[str, ...]
    names: Names
    tables: dict[str, Columns]
    sources: tuple[Source, ...]
    captures: tuple[Capture, ...]
    start_ns: int
    end_ns: int
    missing_ranks: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    digests: tuple[dict[str, Columns], ...] = ()
