"""The steps of a real rank: what is ordered in which order, and what else happens meanwhile."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace

import numpy as np

from dprankdiag.harness.run_plan import Orders, Plan, give_orders
from dprankdiag.harness.run_steps import Log, run_steps


@dataclass
class Witness:
    """A device that computes nothing and remembers what was asked for."""

    asked: list[tuple[object, ...]] = field(default_factory=list)
    rivals: list[bool] = field(default_factory=list)

    def announce(self, rows: int) -> int:
        self.rivals.append("rival" in {thread.name for thread in threading.enumerate()})
        self.asked.append(("announce", rows))
        return 10 * rows

    def dally(self, duration_ns: int) -> None:
        self.asked.append(("dally", duration_ns))

    def attend(self, requests: int, held_tokens: int, prompt_tokens: int, slowness: float) -> None:
        self.asked.append(("attend", requests, prompt_tokens, slowness))

    def gather(self, messages: int) -> None:
        self.asked.append(("gather", messages))

    def route(self, rows: int, slowness: float) -> None:
        self.asked.append(("route", rows, slowness))

    def compute_experts(self, rows: float, slowness: float) -> None:
        self.asked.append(("experts", rows, slowness))

    def scatter(self, messages: int) -> None:
        self.asked.append(("scatter", messages))

    def finish(self, requests: int) -> None:
        self.asked.append(("finish", requests))


@dataclass
class Listener:
    """Remembers the ranges it is told of."""

    open: list[str] = field(default_factory=list)
    deepest: list[str] = field(default_factory=list)

    def push(self, text: str) -> None:
        self.open.append(text)
        if len(self.open) > len(self.deepest):
            self.deepest = list(self.open)

    def pop(self) -> None:
        self.open.pop()


def small_orders() -> Orders:
    return give_orders(Plan("small", ranks=4, steps=2, layers=1, requests=5, context_tokens=10))[1]


def test_a_step_goes_through_all_parts_with_what_the_ranks_bring() -> None:
    orders = small_orders()
    orders = replace(
        orders, late_ns=np.array([0, 7]), slowness=np.array([1.0, 2.0]), messages=np.array([1, 3]),
        prompt_tokens=np.array([0, 4]),
    )  # fmt: skip
    device = Witness()
    run_steps(orders, device, Log())
    assert device.asked == [
        ("announce", 5), ("dally", 0), ("attend", 5, 0, 1.0), ("gather", 1), ("route", 50, 1.0),
        ("experts", 12.5, 1.0), ("scatter", 1), ("finish", 5),
        ("announce", 9), ("dally", 7), ("attend", 5, 4, 2.0), ("gather", 3), ("route", 90, 2.0),
        ("experts", 22.5, 2.0), ("scatter", 3), ("finish", 5),
    ]  # fmt: skip


def test_ranges_are_nested_and_every_listener_hears_of_them() -> None:
    listeners = Listener(), Listener()
    log = Log(listeners, clock_ns=iter(range(1000)).__next__)
    run_steps(small_orders(), Witness(), log)
    for listener in listeners:
        assert [text.split("[")[0] for text in listener.deepest] == ["decode_step", "step", "layer 0", "attention"]
        assert not listener.open
    outer, inner = (next(row for row in log.rows if row[2].startswith(text)) for text in ("decode_step", "step["))
    assert outer[0] < inner[0] < inner[1] < outer[1]
    assert [value for _, _, text, value in log.rows if text == "decode_step"] == [0, 1]


def test_a_contended_host_has_a_rival_only_while_it_is_ordered() -> None:
    device = Witness()
    run_steps(replace(small_orders(), contended=np.array([False, True])), device, Log())
    assert device.rivals == [False, True]
    assert "rival" not in {thread.name for thread in threading.enumerate()}
