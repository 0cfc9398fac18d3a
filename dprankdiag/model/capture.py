"""How to take a trace of all ranks of a deployment: the calls, in order, and what to watch for."""

from __future__ import annotations

from dataclasses import dataclass

from dprankdiag.model.ledgers import EngineName


@dataclass(frozen=True, slots=True)
class CaptureStep:
    """One thing to do.

    Attributes:
        title: what and where.
        commands: shell lines, to be run as they are; a token stands in them by name only.
        notes: what to watch for.
    """

    title: str
    commands: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CaptureWay:
    """One way to take the trace.

    Attributes:
        tool: "torch" or "nsys".
        shows: what a verdict can rest on.
    """

    tool: str
    title: str
    shows: str
    steps: tuple[CaptureStep, ...]


@dataclass(frozen=True, slots=True)
class CapturePlan:
    """All that is printed for one engine.

    Attributes:
        targets: its URLs; several where it spans nodes or ports.
        gpus: traces that should come of it; None where nothing tells.
        assumed: the engine did not tell what it is: it was named by the user.
    """

    engine: EngineName
    version: str | None
    targets: tuple[str, ...]
    nodes: int
    gpus: int | None
    ways: tuple[CaptureWay, ...]
    assumed: bool = False
