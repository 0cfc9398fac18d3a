"""Requests and loads, made by naming only what a test is about."""

from __future__ import annotations

from dprankdiag.simulate.base import Load, Part, Request

MS = 1_000_000


def ask(
    number: int = 0,
    prompt: int = 0,
    *,
    parts: tuple[Part, ...] | None = None,
    output: int = 100,
    session: int = 0,
    pin: int | None = None,
    room: int | None = None,
    probe: bool = False,
) -> Request:
    """Make a request; its prompt is one part of its own unless parts are given."""
    own = (Part(-number - 1, prompt),) if prompt else ()
    return Request(number, 0, own if parts is None else parts, output, session, pin, room, probe)


def show(
    running: int = 0,
    waiting: int = 0,
    total: int = 0,
    *,
    stamp: int = 0,
    uncached: int = 0,
    used: int | None = None,
    capacity: int = 100_000,
) -> Load:
    """Make a load; all of its tokens are used ones unless said otherwise."""
    return Load(stamp, running, waiting, uncached, total if used is None else used, total, capacity)
