"""Read the message that each SGLang rank publishes after each of its forward passes, and add them up.

The most direct word on a step there is: GPU span and work of one pass. The span includes time blocked in collectives.
Once a second an idle rank sends a heartbeat of zeros, which is no pass; a pass of an idle batch has a span and no work.

Source: sglang 0.5.23 (`--enable-forward-pass-metrics`, 0.5.12 and later).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from dprankdiag.collectors.frames import Frame, Sequences, Subscription, read_dump, refuse_none, sort_moments
from dprankdiag.model.ledgers import LedgerAnswer


@dataclass(slots=True)
class PassSums:
    """A rank's passes since its first message; fields of the ledger by their names."""

    pass_count: float = 0.0
    pass_wall_s: float = 0.0
    pass_prefill_tokens: float = 0.0
    pass_decode_requests: float = 0.0
    pass_context_tokens: float = 0.0
    pass_idle_count: float = 0.0

    def add(self, wall_s: float, work: Mapping[str, float]) -> None:
        """Add a pass."""
        if not work["num_prefill_requests"] and not work["num_decode_requests"]:
            self.pass_idle_count += wall_s > 0
            return
        self.pass_count += 1
        self.pass_wall_s += wall_s
        self.pass_prefill_tokens += work["sum_prefill_tokens"]
        self.pass_decode_requests += work["num_decode_requests"]
        self.pass_context_tokens += work["sum_decode_kv_tokens"]


class PassTally:
    """Adds up the passes of all ranks."""

    def __init__(self) -> None:
        self._sums: dict[int, PassSums] = {}
        self.sequences = Sequences()

    def add(self, frame: Frame) -> bool:
        """Take a message in; tell whether it was a forward pass. A publisher that starts anew counts from zero."""
        told = _read_pass(frame.body)
        if told is None:
            return False
        rank, wall_s, work = told
        if self.sequences.note(rank, frame.sequence):
            self._sums.pop(rank, None)
        self._sums.setdefault(rank, PassSums()).add(wall_s, work)
        return True

    def answer(self, where: str, taken_ns: int | None, warnings: Iterable[str] = ()) -> LedgerAnswer:
        """Tell the sums of each rank that has spoken."""
        ranks = tuple(sorted(self._sums))
        values = {
            column.name: np.array([getattr(self._sums[rank], column.name) for rank in ranks])
            for column in fields(PassSums)
        }
        return LedgerAnswer(
            interface=SglangForwardPass.interface,
            where=where,
            engine="sglang",
            taken_ns=taken_ns,
            ranks=ranks,
            values=values,
            warnings=(*self.sequences.warnings(), *warnings),
        )


class SglangForwardPass:
    """Collects forward-pass messages; `ForwardPassStream` receives them."""

    interface = "sglang-forward-pass"
    path = ""

    def parse(self, body: bytes, where: str, taken_ns: int | None = None) -> tuple[LedgerAnswer, ...]:
        """Turn a dump into one answer for each moment; see `Collector.parse`."""
        frames, skipped = read_dump(body, where)
        tally, answers, taken = PassTally(), [], 0
        for time_ns, moment in sort_moments(frames):
            taken_here = sum(tally.add(frame) for frame in moment)
            taken, skipped = taken + taken_here, skipped + len(moment) - taken_here
            if taken_here:
                answers.append(tally.answer(where, time_ns or taken_ns))
        refuse_none(taken, "forward pass", where)
        warnings = (f"passed over: {skipped} lines",) if skipped else ()
        last = tally.answer(where, answers[-1].taken_ns, warnings)
        return (*answers[:-1], last)


class ForwardPassStream:
    """Receives the forward-pass messages of the ranks of this machine.

    Args:
        endpoints: `ipc://path`, one a rank: the engine's name for it, a dot and the rank.
    """

    def __init__(self, endpoints: Iterable[str]) -> None:
        self._where = ", ".join(endpoints := list(endpoints))
        self._subscription = Subscription(endpoints)
        self._tally = PassTally()
        self._skipped = 0

    def close(self) -> None:
        """Stop listening."""
        self._subscription.close()

    def poll(self, taken_ns: int) -> LedgerAnswer | None:
        """Tell the sums of each rank; None while none has spoken."""
        frames, skipped = self._subscription.drain(taken_ns)
        self._skipped += skipped + sum(not self._tally.add(frame) for frame in frames)
        warnings = (f"passed over: {self._skipped} messages",) if self._skipped else ()
        answer = self._tally.answer(self._where, taken_ns, warnings)
        return answer if answer.ranks else None


WORK = ("num_prefill_requests", "sum_prefill_tokens", "num_decode_requests", "sum_decode_kv_tokens")


def _read_pass(told: Any) -> tuple[int, float, dict[str, float]] | None:
    """Read rank, GPU span and work; None if the body is no forward pass of a version that is known."""
    if not isinstance(told, dict) or told.get("version") != 1:
        return None
    rank, wall_s, work = told.get("dp_rank"), _read_size(told.get("wall_time")), told.get("scheduled_requests")
    if not isinstance(rank, int) or isinstance(rank, bool) or rank < 0 or wall_s is None or not isinstance(work, dict):
        return None
    sizes = {key: _read_size(work.get(key)) for key in WORK}
    known = {key: size for key, size in sizes.items() if size is not None}
    return (rank, wall_s, known) if len(known) == len(WORK) else None


def _read_size(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value < 1e18 else None
