"""Publish the load snapshots of a mock as SGLang does beside its pages: messages over ZMQ, and a file in shared memory.

A message is sent when a rank has published a snapshot with other numbers, and at most once a second while nothing
changes. The file holds the latest snapshot of every rank.

Source: SGLang 0.5.23 (`LoadStat`; header `SLNS`, version 2, slots of 16,384 bytes), and its own messages and files.
"""

from __future__ import annotations

import fcntl
import struct
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import Any, Self

import msgspec

from dprankdiag.harness.ledger_engine import LedgerState
from dprankdiag.harness.ledger_page import Deployed
from dprankdiag.harness.ledger_sglang import parse_version
from dprankdiag.harness.ledger_sglang_loads import list_loads

LOOK_S = 0.1
RESEND_S = 1.0
SLOT_BYTES = 16_384

_HEADER = struct.Struct("<4sHHI")
_LENGTH = struct.Struct("<I")
_SEQUENCE = struct.Struct(">Q")
_LATER = (0, 5, 20)
_KEYS = ("num_running_reqs", "num_waiting_reqs", "num_used_tokens", "max_total_num_tokens", "dp_rank")
_LATER_KEYS = (
    "num_waiting_uncached_tokens", "num_total_tokens", "max_running_requests", "total_prefill_uncached_tokens",
    "total_prefill_busy_us",
)  # fmt: skip


class LoadPublisher:
    """Publishes from `with` on.

    Args:
        look: tells what there is to see now.
        base_port: rank r listens at this port + r; none for no messages.
        file: to write to; none for no file.

    Raises:
        ValueError: messages are wanted, and pyzmq is not installed.
    """

    def __init__(
        self, engine: Deployed, look: Callable[[], LedgerState], base_port: int | None = None, file: Path | None = None
    ) -> None:
        self._engine, self._look = engine, look
        self._base_port, self._file = base_port, file
        self._sent: dict[int, tuple[list[Any], float, int]] = {}
        self._sockets: list[Any] = []
        self._context: Any = None
        self._stop = Event()
        self._thread = Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        """Bind a port a rank, and begin."""
        if self._base_port is not None:
            self._bind(self._base_port)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop, and leave no file and no port behind."""
        self._stop.set()
        self._thread.join()
        for socket in self._sockets:
            socket.close(linger=0)
        if self._context is not None:
            self._context.term()
        if self._file is not None:
            self._file.unlink(missing_ok=True)

    def _bind(self, base_port: int) -> None:
        try:
            import zmq
        except ImportError as error:
            raise ValueError("messages need pyzmq (pip install 'dprankdiag[zmq]')") from error
        self._context = zmq.Context()
        for rank in range(self._look().ranks):
            socket = self._context.socket(zmq.PUB)
            self._sockets.append(socket)
            try:
                socket.bind(f"tcp://127.0.0.1:{base_port + rank}")
            except zmq.ZMQError as error:
                raise OSError(f"port {base_port + rank} cannot be bound: {error}") from error

    def _run(self) -> None:
        while not self._stop.is_set():
            state = self._look()
            loads = list_loads(self._engine, state)
            for load, socket in zip(loads, self._sockets, strict=False):
                self._send(load, socket)
            if self._file is not None:
                _write_locked(self._file, write_slots(loads))
            self._stop.wait(LOOK_S)

    def _send(self, load: dict[str, Any], socket: Any) -> None:
        """Send a rank's load if it is new, or has not been sent for a while."""
        told = make_load_stat(load, parse_version(self._engine.version))
        before, at_s, number = self._sent.get(load["dp_rank"], ([], 0.0, -1))
        now_s = time.monotonic()
        if told == before and now_s - at_s < RESEND_S:
            return
        self._sent[load["dp_rank"]] = (told, now_s, number + 1)
        socket.send_multipart([b"load", _SEQUENCE.pack(number + 1), msgspec.msgpack.encode(told)])


def make_load_stat(load: dict[str, Any], release: tuple[int, ...]) -> list[Any]:
    """Make the body of a message; the first release with messages tells less."""
    keys = _KEYS + (_LATER_KEYS if release >= _LATER else ())
    return ["LoadStat", *(load[key] for key in keys)]


def write_slots(loads: list[dict[str, Any]]) -> bytes:
    """Write the file: a header, and a slot a rank."""
    body = bytearray(_HEADER.pack(b"SLNS", 2, len(loads), SLOT_BYTES))
    for load in loads:
        told = msgspec.msgpack.encode(_leave_out_defaults(load))
        body += (_LENGTH.pack(len(told)) + told).ljust(SLOT_BYTES, b"\0")
    return bytes(body)


def _write_locked(path: Path, body: bytes) -> None:
    """Write while no reader holds the file, as ranks do."""
    path.touch(0o600)
    with path.open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(body)


def _leave_out_defaults(load: dict[str, Any]) -> dict[str, Any]:
    """Leave out counts of 0, and let sections be lists in the order of their declaration."""
    told: dict[str, Any] = {}
    for key, value in load.items():
        if isinstance(value, dict):
            told[key] = list(value.values())
        elif value is not None and not (isinstance(value, int) and value == 0):
            told[key] = value
    return told
