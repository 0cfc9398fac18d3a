"""Receive the frames that SGLang's ranks publish over ZMQ, or read a dump of them.

A message has three frames: topic, a sequence number (8 bytes, big-endian) and a msgpack body. A dump has one message a
line: JSON with `topic_hex`, `seq_hex`, `payload_hex` and perhaps the time `t` it came (epoch s) and `tp_rank`.

Source: sglang 0.5.23.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

import msgspec

from dprankdiag.errors import DamagedInput, InputError, UsageError

MOST_BYTES = 64 * 1024
"""Largest body of a message; those of SGLang have less than a kilobyte."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One message.

    Attributes:
        sequence: of its publisher, from 0.
        body: decoded.
        time_ns: when it came, UTC epoch ns; None where a dump does not say.
    """

    topic: bytes
    sequence: int
    body: Any
    time_ns: int | None


class Tally(Protocol):
    """What a stream of frames adds up to."""

    def add(self, frame: Frame) -> bool:
        """Take a frame in; tell whether it was one of this kind."""
        ...


class Sequences:
    """Notices messages that were lost and publishers that started anew."""

    def __init__(self) -> None:
        self._last: dict[int, int] = {}
        self.lost = 0
        self.restarts = 0

    def note(self, rank: int, sequence: int) -> bool:
        """Note the number of a rank's message; tell whether its publisher started anew."""
        last = self._last.get(rank)
        self._last[rank] = sequence
        if last is None:
            return False
        if sequence <= last:
            self.restarts += 1
            return True
        self.lost += sequence - last - 1
        return False

    def warnings(self) -> tuple[str, ...]:
        """Tell what was noticed, for people."""
        told = []
        if self.lost:
            told.append(f"{self.lost} messages were lost")
        if self.restarts:
            told.append(f"a publisher started anew {self.restarts} times")
        return tuple(told)


def decode_message(parts: Sequence[bytes], time_ns: int | None) -> Frame | None:
    """Decode a message; None if it is none of SGLang's."""
    if len(parts) != 3 or len(parts[1]) != 8 or len(parts[2]) > MOST_BYTES:
        return None
    try:
        body = msgspec.msgpack.decode(parts[2])
    except (msgspec.DecodeError, RecursionError, ValueError):
        return None
    return Frame(parts[0], int.from_bytes(parts[1], "big"), body, time_ns)


def read_dump(body: bytes, where: str) -> tuple[list[Frame], int]:
    """Read a dump; return its messages in the order of their lines, and how many lines were passed over.

    Raises:
        InputError: no line of it is a message.
    """
    frames, skipped = [], 0
    for line in body.splitlines():
        if not line.strip():
            continue
        frame = _read_line(line)
        if frame is not None:
            frames.append(frame)
        elif b'"bind"' not in line:
            skipped += 1
    if not frames:
        raise InputError("expected lines with topic_hex, seq_hex and payload_hex", where=where)
    return frames, skipped


def _read_line(line: bytes) -> Frame | None:
    try:
        told = msgspec.json.decode(line)
        parts = [bytes.fromhex(told[key]) for key in ("topic_hex", "seq_hex", "payload_hex")]
        stamp = told.get("t")
        return decode_message(parts, round(stamp * 1e6) * 1000 if isinstance(stamp, int | float) else None)
    except (msgspec.DecodeError, RecursionError, KeyError, TypeError, AttributeError, ValueError, OverflowError):
        return None


class Subscription:
    """Receives the messages of several publishers.

    Args:
        endpoints: `tcp://host:port` or `ipc://path`, one a rank.
        topic: messages whose topic begins otherwise are not sent to us.

    Raises:
        UsageError: pyzmq is missing, or an endpoint is none.
    """

    def __init__(self, endpoints: Iterable[str], topic: bytes = b"") -> None:
        try:
            import zmq
        except ImportError as error:
            raise UsageError("listening to publishers needs pyzmq", mend="pip install 'dprankdiag[zmq]'") from error
        self._again = zmq.Again
        self._now = zmq.NOBLOCK
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RCVHWM, 10_000)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MOST_BYTES)
        self._socket.setsockopt(zmq.SUBSCRIBE, topic)
        for endpoint in endpoints:
            self._connect(endpoint)

    def _connect(self, endpoint: str) -> None:
        import zmq

        try:
            self._socket.connect(endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise UsageError("expected tcp://HOST:PORT or ipc://PATH", where=endpoint) from error

    def __enter__(self) -> Self:
        """Take part in a `with`."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close at the end of a `with`."""
        self.close()

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()
        self._context.term()

    def wait(self, longest_ms: int) -> bool:
        """Wait until a message is there, or the time is over."""
        return bool(self._socket.poll(longest_ms))

    def drain(self, time_ns: int, most: int = 100_000) -> tuple[list[Frame], int]:
        """Take the messages that have come, and count those that are none of SGLang's."""
        frames, skipped = [], 0
        for _ in range(most):
            try:
                parts = self._socket.recv_multipart(self._now)
            except self._again:
                break
            frame = decode_message(parts, time_ns)
            if frame is None:
                skipped += 1
            else:
                frames.append(frame)
        return frames, skipped


def sort_moments(frames: Iterable[Frame]) -> list[tuple[int | None, list[Frame]]]:
    """Sort messages of a dump into moments: by the time they came, else by their numbers."""
    moments: dict[tuple[int, int], list[Frame]] = {}
    for frame in frames:
        key = (0, frame.time_ns) if frame.time_ns is not None else (1, frame.sequence)
        moments.setdefault(key, []).append(frame)
    return [(key[1] if key[0] == 0 else None, moments[key]) for key in sorted(moments)]


def refuse_none(taken: int, kind: str, where: str) -> None:
    """Refuse a dump without a message of the kind.

    Raises:
        DamagedInput: none was taken in.
    """
    if not taken:
        raise DamagedInput(f"holds no message of the kind {kind}", where=where)
