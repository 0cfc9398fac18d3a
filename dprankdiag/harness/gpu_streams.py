"""Ranks that are streams of one GPU: each has a thread that launches and a collective that waits on the GPU.

Arrival, wait and release are then stamps of one real clock. Nothing leaves the GPU, so that links are those of its
memory; what ranks share, and a deployment does not, are that memory, its cache, and the interpreter's lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from dprankdiag.harness.gpu_layer import Rounds
from dprankdiag.harness.run_plan import Orders
from dprankdiag.harness.run_steps import GATHER, SCATTER, Log, Marks, run_steps

PATIENCE_S = 20.0
"""How long hosts and kernels wait for their peers before they give up."""


class Queue(Protocol):
    """The stream of one rank: calls put work on it and return."""

    def mark_rank(self) -> None:
        """Launch the kernel that tells by its grid whose stream this is."""

    def attend(self, held_tokens: int, prompt_tokens: int, rounds: int) -> None:
        """Attend to what the requests hold, and to a part of a prompt."""

    def route(self, rows: int, rounds: int) -> None:
        """Score all rows."""

    def compute_experts(self, rows: float, rounds: int) -> None:
        """Run the experts."""

    def sample(self, requests: int) -> None:
        """Choose a token for each request."""

    def meet(self, operation: str, number: int, messages: int) -> None:
        """Wait on the GPU for all ranks, in the collective of this number, then move so many messages."""

    def pause(self, duration_ns: int) -> None:
        """Let the launching thread sleep."""

    def wait(self) -> bool:
        """Wait until all is done; False if a collective gave up."""

    def now_ns(self) -> int:
        """Tell the time of the launching thread."""


class HostMeeting:
    """Where the launching threads tell each other how many rows come."""

    def __init__(self, ranks: int, patience_s: float = PATIENCE_S) -> None:
        self._barrier = threading.Barrier(ranks, timeout=patience_s)
        self._rows = [0] * ranks

    def exchange(self, rank: int, rows: int) -> int:
        """Tell the rows of a rank and learn those of all.

        Raises:
            ConnectionError: a thread did not come.
        """
        self._rows[rank] = rows
        try:
            self._barrier.wait()
            total = sum(self._rows)
            self._barrier.wait()  # or the next rows overwrite these
        except threading.BrokenBarrierError:
            raise ConnectionError(f"rank {rank} waited for a host in vain") from None
        return total

    def abort(self) -> None:
        """Let nobody wait any longer."""
        self._barrier.abort()


class StreamDevice:
    """A rank's stream as what it computes on."""

    def __init__(self, rank: int, queue: Queue, meeting: HostMeeting, rounds: Rounds) -> None:
        self._rank, self._queue, self._meeting, self._rounds = rank, queue, meeting, rounds
        self._met = 0

    def announce(self, rows: int) -> int:
        """Meet the other threads."""
        return self._meeting.exchange(self._rank, rows)

    def dally(self, duration_ns: int) -> None:
        """Let the thread sleep."""
        if duration_ns > 0:
            self._queue.pause(duration_ns)

    def attend(self, requests: int, held_tokens: int, prompt_tokens: int, slowness: float) -> None:
        """Launch attention."""
        self._queue.attend(held_tokens, prompt_tokens, self._rounds.slow("attention", slowness))

    def gather(self, messages: int) -> None:
        """Launch the gather."""
        self._meet(GATHER, messages)

    def route(self, rows: int, slowness: float) -> None:
        """Launch the router."""
        self._queue.route(rows, self._rounds.slow("router", slowness))

    def compute_experts(self, rows: float, slowness: float) -> None:
        """Launch the experts."""
        self._queue.compute_experts(rows, self._rounds.slow("experts", slowness))

    def scatter(self, messages: int) -> None:
        """Launch the scatter."""
        self._meet(SCATTER, messages)

    def finish(self, requests: int) -> None:
        """Sample, and wait for the stream.

        Raises:
            ConnectionError: a collective gave up, because a rank did not come.
        """
        self._queue.sample(requests)
        if not self._queue.wait():
            raise ConnectionError(f"rank {self._rank} waited on the GPU for a rank in vain")

    def _meet(self, operation: str, messages: int) -> None:
        self._queue.meet(operation, self._met, messages * self._rounds.transfer)
        self._met += 1


@dataclass(frozen=True, slots=True)
class Ended:
    """What the thread of a rank did: its ranges and the number by which the system knows it."""

    log: Log
    thread: int


def run_streams(
    orders: Sequence[Orders],
    queues: Sequence[Queue],
    rounds: Rounds,
    listen: Callable[[], tuple[Marks, ...]],
    meeting: HostMeeting | None = None,
) -> list[Ended]:
    """Let a thread for each rank go through all steps.

    Args:
        orders: of all ranks.
        queues: their streams.
        rounds: how often each part is done.
        listen: makes a rank's listeners, in its thread.
        meeting: of the hosts.

    Raises:
        ConnectionError: a rank did not come to a meeting.
    """
    hosts = meeting or HostMeeting(len(orders))
    ended: dict[int, Ended] = {}
    failed: list[BaseException] = []

    def launch(rank: int) -> None:
        log = Log(listen(), clock_ns=queues[rank].now_ns)
        try:
            queues[rank].mark_rank()
            run_steps(orders[rank], StreamDevice(rank, queues[rank], hosts, rounds), log)
            ended[rank] = Ended(log, threading.get_native_id())
        except BaseException as problem:
            failed.append(problem)
            hosts.abort()

    threads = [threading.Thread(target=launch, args=(rank,), name=f"rank {rank}") for rank in range(len(orders))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return [ended[rank] for rank in range(len(orders))]
