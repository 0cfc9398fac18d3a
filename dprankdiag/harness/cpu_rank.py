"""Ranks that meet over sockets: a process of this interpreter each."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess

import numpy as np

from dprankdiag.harness.cpu_collectives import PATIENCE_S, Collectives, Ring, link_ring
from dprankdiag.harness.cpu_device import CpuDevice
from dprankdiag.harness.run_plan import Orders
from dprankdiag.harness.run_record import Ran, Row
from dprankdiag.harness.run_steps import Device, Log, run_steps
from dprankdiag.harness.torch_listeners import listen

_WARM_UP = 3


@contextmanager
def hurry() -> Iterator[None]:
    """Let what else runs on this machine wait for this thread and those it starts, where that is allowed.

    A rank sleeps nearly all the time; but on a busy machine it would wake up late, and its peers would wait for that.
    """
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    try:
        yield
    finally:
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def carry_out(orders: Orders, device: Device, group: Collectives, log: Log) -> None:
    """Go through all steps, after a few meetings that bring every rank to the start."""
    for _ in range(_WARM_UP):
        group.all_gather(np.zeros(1))
    run_steps(orders, device, log)
    group.all_gather(np.zeros(1))


def run_rank(orders: Orders, links: tuple[socket.socket, socket.socket], answer: Connection) -> None:
    """Work through all steps, then send what was marked: the main function of a process.

    Args:
        orders: what to do.
        links: to the next rank and from the last one.
        answer: where the ranges are sent.
    """
    group, log = Ring(orders.rank, orders.ranks, *links), Log(listen())
    try:
        with hurry():
            carry_out(orders, CpuDevice(group, orders.rank), group, log)
    finally:
        group.close()
    answer.send(log.rows)
    answer.close()


def run_sockets(orders: Sequence[Orders]) -> Ran:
    """Start a process for each rank, let them meet, and collect their ranges.

    Raises:
        OSError: a rank failed, or did not end in time.
    """
    context = get_context("spawn")
    processes: list[SpawnProcess] = []
    answers: list[Connection] = []
    try:
        for own, ends in zip(orders, link_ring(len(orders)), strict=True):
            answer, theirs = context.Pipe(duplex=False)
            process = context.Process(target=run_rank, args=(own, ends, theirs))
            process.start()
            theirs.close()
            for link in ends:
                link.close()  # or a rank that fails would not be missed
            processes.append(process)
            answers.append(answer)
        rows = tuple(_receive(answer) for answer in answers)
        for process in processes:
            process.join(PATIENCE_S)
    finally:
        for process in processes:
            process.kill()
            process.join()
        for answer in answers:
            answer.close()
    return Ran(rows, tuple(process.pid or 0 for process in processes))


def _receive(answer: Connection) -> list[Row]:
    """Wait for a rank's ranges; a rank whose peers are gone gives up by itself, and no run takes minutes."""
    try:
        if not answer.poll(5 * PATIENCE_S):
            raise TimeoutError("a rank did not end in time")
        rows: list[Row] = answer.recv()
    except EOFError:
        raise ConnectionError("a rank failed before it had recorded its ranges") from None
    return rows
