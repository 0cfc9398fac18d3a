"""Read the LoadStat messages that each SGLang rank publishes when its load changes.

A message has no time of its own: it holds what the rank had when it came, and is sent again at most once a second while
nothing changes. Its list only ever grew at its end; what an older release does not send is absent.

Source: sglang 0.5.23 and 0.5.19.
"""

from __future__ import annotations

from collections.abc import Iterable

from dprankdiag.collectors.frames import (
    Frame,
    Sequences,
    Subscription,
    read_dump,
    refuse_none,
    sort_moments,
)
from dprankdiag.collectors.load_rows import Leaves, read_loads
from dprankdiag.model.ledgers import LedgerAnswer

TAG = "LoadStat"
RANK = 5
LEAVES = (
    (1, "num_running_reqs"),
    (2, "num_waiting_reqs"),
    (3, "num_used_tokens"),
    (4, "max_total_num_tokens"),
    (6, "num_waiting_uncached_tokens"),
    (7, "num_total_tokens"),
    (8, "max_running_requests"),
    (9, "total_prefill_uncached_tokens"),
    (10, "total_prefill_busy_us"),
)
"""Position in the list → leaf of a load answer."""


class LoadStats:
    """Keeps the latest load of each rank."""

    def __init__(self) -> None:
        self._loads: dict[int, Leaves] = {}
        self.sequences = Sequences()

    def add(self, frame: Frame) -> bool:
        """Take a message in; tell whether it was a LoadStat."""
        told = frame.body
        if not isinstance(told, list) or len(told) <= RANK or told[0] != TAG:
            return False
        if not all(isinstance(item, int | float) and not isinstance(item, bool) for item in told[1:]):
            return False
        rank = told[RANK]
        if not isinstance(rank, int) or rank < 0:
            return False
        self.sequences.note(rank, frame.sequence)
        self._loads[rank] = {name: float(told[at]) for at, name in LEAVES if at < len(told)}
        return True

    def answer(self, where: str, taken_ns: int | None, warnings: Iterable[str] = ()) -> LedgerAnswer:
        """Tell the latest load of each rank that has spoken."""
        values, told = read_loads(self._loads, None)
        return LedgerAnswer(
            interface=SglangLoadStat.interface,
            where=where,
            engine="sglang",
            taken_ns=taken_ns,
            ranks=tuple(sorted(self._loads)),
            values=values,
            warnings=(*told, *self.sequences.warnings(), *warnings),
        )


class SglangLoadStat:
    """Collects LoadStat messages; `LoadStatStream` receives them."""

    interface = "sglang-load-stat"
    path = ""

    def parse(self, body: bytes, where: str, taken_ns: int | None = None) -> tuple[LedgerAnswer, ...]:
        """Turn a dump into one answer for each moment; see `Collector.parse`."""
        frames, skipped = read_dump(body, where)
        stats, answers, taken = LoadStats(), [], 0
        for time_ns, moment in sort_moments(frames):
            taken_here = sum(stats.add(frame) for frame in moment)
            taken, skipped = taken + taken_here, skipped + len(moment) - taken_here
            if taken_here:
                answers.append(stats.answer(where, time_ns or taken_ns))
        refuse_none(taken, TAG, where)
        warnings = (f"passed over: {skipped} lines",) if skipped else ()
        last = stats.answer(where, answers[-1].taken_ns, warnings)
        return (*answers[:-1], last)


class LoadStatStream:
    """Receives the LoadStat messages of an engine's ranks.

    Args:
        endpoints: `tcp://host:port`, one a rank: the base port of `/server_info` and the rank.
    """

    def __init__(self, endpoints: Iterable[str]) -> None:
        self._where = ", ".join(endpoints := list(endpoints))
        self._subscription = Subscription(endpoints, b"load")
        self._stats = LoadStats()
        self._skipped = 0

    def close(self) -> None:
        """Stop listening."""
        self._subscription.close()

    def poll(self, taken_ns: int) -> LedgerAnswer | None:
        """Tell the latest load of each rank; None while none has spoken."""
        frames, skipped = self._subscription.drain(taken_ns)
        self._skipped += skipped + sum(not self._stats.add(frame) for frame in frames)
        warnings = (f"passed over: {self._skipped} messages",) if self._skipped else ()
        answer = self._stats.answer(self._where, taken_ns, warnings)
        return answer if answer.ranks else None
