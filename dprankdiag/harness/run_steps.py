"""The steps that every real rank goes through, whatever it computes on: processes that sleep, GPUs, or streams of one.

A step is the hosts' meeting, then per layer attention over the rank's own batch, a gather, the router and the experts
over what came, and a scatter. It needs nothing but Python and numpy, so that any interpreter that has torch can run it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

from dprankdiag.harness.events import NO_VALUE
from dprankdiag.harness.run_plan import Orders

STEP, BATCH, SYNC, LAYER = "decode_step", "batch", "metadata_all_gather", "layer"
ATTENTION, ROUTER, EXPERTS, GATHER, SCATTER = "attention", "router", "moe_experts", "all_gather", "reduce_scatter"


class Device(Protocol):
    """What a rank computes on, and how it meets the others. Calls may return before what they order is done."""

    def announce(self, rows: int) -> int:
        """Meet the other hosts and tell them how many rows come: the rows of all ranks."""

    def dally(self, duration_ns: int) -> None:
        """Let the host do nothing."""

    def attend(self, requests: int, held_tokens: int, prompt_tokens: int, slowness: float) -> None:
        """Run attention over the rank's own requests, and over a part of a prompt beside them."""

    def gather(self, messages: int) -> None:
        """Get the rows of all ranks, sent so often."""

    def route(self, rows: int, slowness: float) -> None:
        """Score all rows: the same work on every rank."""

    def compute_experts(self, rows: float, slowness: float) -> None:
        """Run the rank's experts over the rows routed to them."""

    def scatter(self, messages: int) -> None:
        """Give every rank what all experts have made of its rows, sent so often."""

    def finish(self, requests: int) -> None:
        """Sample a token for each request, and wait until all of the step is done."""


class Marks(Protocol):
    """Who is told of a range."""

    def push(self, text: str) -> None:
        """Open a range."""

    def pop(self) -> None:
        """Close the last one."""


@dataclass(slots=True)
class Log:
    """Ranges as they happen, on the monotonic clock that all processes of a host share; listeners are told as well.

    Attributes:
        rows: start and end (ns), text, payload.
        clock_ns: tells the time.
    """

    listeners: tuple[Marks, ...] = ()
    rows: list[tuple[int, int, str, int]] = field(default_factory=list)
    clock_ns: Callable[[], int] = time.monotonic_ns

    @contextmanager
    def mark(self, text: str, value: int = NO_VALUE) -> Iterator[None]:
        """Mark what happens inside as a range."""
        for listener in self.listeners:
            listener.push(text)
        start_ns = self.clock_ns()
        yield
        self.rows.append((start_ns, self.clock_ns(), text, value))
        for listener in reversed(self.listeners):
            listener.pop()


def run_steps(orders: Orders, device: Device, log: Log) -> None:
    """Go through all steps."""
    for step in range(orders.steps):
        with log.mark(STEP, step), _contend() if orders.contended[step] else nullcontext():
            _run_step(orders, device, log, step)


def _run_step(orders: Orders, device: Device, log: Log, step: int) -> None:
    slowness, messages = float(orders.slowness[step]), int(orders.messages[step])
    with log.mark(SYNC):
        rows = device.announce(int(orders.rows[step]))
    with log.mark(orders.say_step(step)):
        device.dally(int(orders.late_ns[step]))
        for layer in range(orders.layers):
            with log.mark(f"{LAYER} {layer}"):
                with log.mark(ATTENTION):
                    device.attend(*orders.own_work(step), slowness)
                with log.mark(GATHER):
                    device.gather(messages)
                with log.mark(ROUTER):
                    device.route(rows, slowness)
                with log.mark(EXPERTS):
                    device.compute_experts(float(orders.routed_share[step, layer]) * rows, slowness)
                with log.mark(SCATTER):
                    device.scatter(messages)
        device.finish(int(orders.requests[step]))


@contextmanager
def _contend() -> Iterator[None]:
    """Keep the interpreter busy in another thread, so that this one gets it back only when it is made to."""
    over = threading.Event()

    def compute() -> None:
        while not over.is_set():
            sum(range(1000))

    rival = threading.Thread(target=compute, name="rival")
    rival.start()
    try:
        yield
    finally:
        over.set()
        rival.join()


def pause(duration_ns: int) -> None:
    """Sleep, or do not."""
    if duration_ns > 0:
        time.sleep(duration_ns * 1e-9)
