"""What engines tell of their own load: one answer at a moment, and a target's answers in order of time.

Absent is NaN inside an array and None elsewhere, never 0. Counters are kept raw; differences are taken when they are
judged. Fields (names, kinds, units) are rows of `catalog/ledger.toml`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from dprankdiag.model.devices import Devices
from dprankdiag.model.sources import Source

FloatArray = np.ndarray[Any, np.dtype[np.float64]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]

EngineName = Literal["sglang", "vllm"]
Role = Literal["unified", "prefill", "decode"]
Fact = str | int | float | bool
"""What an engine says of its configuration; never a secret."""

STORED_IN, STORED_INSTANCE = "stored_in", "stored_instance"
"""Facts of an answer that a Prometheus server stored: cluster/namespace/job of what was scraped, and its instance."""


@dataclass(frozen=True, slots=True)
class LedgerAnswer:
    """What one interface told at one moment.

    Attributes:
        interface: "sglang-metrics", "sglang-loads", "sglang-get-load", "sglang-server-info", "sglang-load-stat",
            "sglang-forward-pass", "sglang-shm", "sglang-log", "vllm-metrics", "vllm-log", "vllm-server-info".
        where: path or URL, without credentials, for people.
        engine: whose interface it is.
        model: served model, None where the interface does not say (load answers do not).
        role: of the engine in a prefill-decode pair; None where the interface does not say.
        taken_ns: moment of the answer, UTC epoch ns: a stamp inside it or the collector's clock; None if unknown.
        ranks: DP ranks (vLLM: engine numbers), ascending, those the answer speaks of.
        values: field → `(n_ranks,)` float64, NaN where the answer does not say.
        expert_tokens: `(n_layers, n_gpus)` tokens routed so far to the experts on each GPU; None where not told.
        facts: configuration and switches by the engine's own names ("version", "spelling", "dp_size", ...).
        unlabelled: the series carry no rank label, so that ranks cannot be told apart (`ranks` is empty then).
        warnings: what in the answer was passed over, for people.
    """

    interface: str
    where: str
    engine: EngineName
    model: str | None = None
    role: Role | None = None
    taken_ns: int | None = None
    ranks: tuple[int, ...] = ()
    values: Mapping[str, FloatArray] = field(default_factory=dict)
    expert_tokens: FloatArray | None = None
    facts: Mapping[str, Fact] = field(default_factory=dict)
    unlabelled: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def is_stored(self) -> bool:
        """Tell whether a server stored it: its stamp is of the scrape then, not of our question, and stays."""
        return STORED_IN in self.facts


@dataclass(frozen=True, slots=True)
class NoData:
    """A poll that gave nothing to judge: refused, timed out, cut short, or a page that lost its ranks.

    Attributes:
        interface, where: as in `LedgerAnswer`.
        taken_ns: when it was given up, UTC epoch ns.
        reason: one line for people.
        absent: the engine says that it does not offer this interface (404), as against a failure.
    """

    interface: str
    where: str
    taken_ns: int
    reason: str
    absent: bool = False


@dataclass(frozen=True, slots=True)
class Ledger:
    """All answers about one target on one time axis: moments in order, ranks ascending.

    Attributes:
        name: the target as the diagnosis calls it (its `engine`).
        model, role: as told by any answer.
        ranks: `(n_ranks,)` DP ranks.
        seconds: `(n_moments,)` seconds after the first moment; None if no answer tells and nobody said.
        start_ns: UTC epoch ns of the first moment; None if unknown.
        values: field → `(n_moments, n_ranks)` float64, NaN where not told.
        expert_tokens: `(n_moments, n_layers, n_gpus)`; None where not told.
        restarted: `(n_moments, n_ranks)` counters of the rank fell since the moment before.
        facts: configuration, the latest word wins.
        interfaces: those that answered.
        unlabelled: some answer lost its rank labels.
        sources: one a file, URL or recording.
        notes: what ordering and joining decided and the user should know.
        swinging: counters fell and were back again and again: answers of several processes in turn.
    """

    name: str
    engine: EngineName
    model: str | None
    role: Role | None
    ranks: tuple[int, ...]
    seconds: FloatArray | None
    start_ns: int | None
    values: Mapping[str, FloatArray]
    restarted: BoolArray
    expert_tokens: FloatArray | None = None
    facts: Mapping[str, Fact] = field(default_factory=dict)
    interfaces: tuple[str, ...] = ()
    unlabelled: bool = False
    sources: tuple[Source, ...] = ()
    notes: tuple[str, ...] = ()
    swinging: bool = False

    @property
    def n_moments(self) -> int:
        """Count the moments."""
        return len(self.restarted)


@dataclass(frozen=True, slots=True)
class LedgerFile:
    """What a file holds of a ledger.

    Attributes:
        place: folder it lies in; files of different folders are of different targets.
        name, at_s: target and seconds if the user gave them.
        gaps: polls that failed, of a recording.
        places: of each answer, where the file holds several targets; empty if all are of `place`.
        devices: GPUs and hosts, where a server stores of them too.
    """

    source: Source
    answers: tuple[LedgerAnswer, ...]
    place: str
    name: str | None = None
    at_s: float | None = None
    gaps: tuple[NoData, ...] = ()
    places: tuple[str, ...] = ()
    devices: Devices | None = None
