"""End a command that runs until it is told to stop: the first signal asks it to, the second makes it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stop_on_signal() -> Iterator[Callable[[float], bool]]:
    """Give a function that waits for so many seconds and returns True as soon as the user wants to stop.

    A second signal is not waited for: it interrupts whatever runs.
    """
    stop = threading.Event()
    before: dict[signal.Signals, Any] = {}

    def ask_to_stop(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    if threading.current_thread() is threading.main_thread():
        before = {number: signal.signal(number, ask_to_stop) for number in _SIGNALS}
    try:
        yield stop.wait
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
