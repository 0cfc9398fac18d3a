"""Stream the events of a torch profiler trace (Chrome JSON, plain or gzip) in batches, without ever holding the file.

A batch ends between two events. Where that is follows from decoding itself: a prefix that decodes as a list of events
ends between two of them, whatever strings or nested lists it holds.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import msgspec

from dprankdiag.errors import DamagedInput

BATCH_BYTES = 8 << 20
_PACKED_BYTES = 1 << 18
_GZIP_FORMAT = 31
_TAIL_BYTES = 1 << 16
_LONGEST_HEAD_BYTES = 64 << 20
_TRIES = 16
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(rb"\}\s*,\s*(?=\{)")
_CLOSE = re.compile(rb"\]")
_PLACE = re.compile(r"\(byte (\d+)\)")
_TRUNCATED = "truncated"
_NO_TEXT = "Invalid UTF-8"
_HEADER_MARK = b'"schemaVersion"'
"""Written once a trace. Source: libkineto/src/output_json.cpp of pytorch/kineto."""


class Arguments(msgspec.Struct):
    """What is read of an event's `args`; the names are kineto's."""

    device: Any = None
    stream: Any = None
    correlation: Any = None
    grid: Any = None
    block: Any = None
    size_bytes: Any = msgspec.field(name="bytes", default=None)
    graph_node: Any = msgspec.field(name="graph node id", default=None)
    group_name: Any = msgspec.field(name="Process Group Name", default=None)
    group_ranks: Any = msgspec.field(name="Process Group Ranks", default=None)
    sequence: Any = msgspec.field(name="Seq", default=None)
    elements_in: Any = msgspec.field(name="In msg nelems", default=None)
    elements_out: Any = msgspec.field(name="Out msg nelems", default=None)
    element_type: Any = msgspec.field(name="dtype", default=None)
    collective: Any = msgspec.field(name="Collective name", default=None)
    name: Any = None
    labels: Any = None


class Event(msgspec.Struct):
    """One event; times stay text, because a double does not hold nanoseconds since the epoch."""

    ph: Any = None
    cat: Any = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: msgspec.Raw = msgspec.Raw()
    dur: msgspec.Raw = msgspec.Raw()
    args: Arguments | None = None


_EVENTS = msgspec.json.Decoder(list[Event])
_PIECES = msgspec.json.Decoder(list[msgspec.Raw])
_EVENT = msgspec.json.Decoder(Event)


class TorchTrace:
    """One trace file.

    Attributes:
        header: the keys beside `traceEvents`; complete once `batches` is exhausted.
        broken: events that could not be read.
        damage: why the events end early; None if the file is whole.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header: dict[str, Any] = {}
        self.broken = 0
        self.damage: str | None = None
        self._marks = 0
        self._read_bytes = 0

    def batches(self) -> Iterator[list[Event]]:
        """Yield the events in file order.

        Raises:
            DamagedInput: there are no events at all, or several traces were written into one file.
        """
        with ExitStack() as stack:
            read = self._open(stack)
            buffer = self._read_head(read)
            at_end = False
            while not at_end:
                piece = read()
                at_end = not piece
                buffer += piece
                if not at_end:
                    events, buffer = self._take(buffer)
                    if events:
                        yield events
            yield self._finish(buffer)

    def _open(self, stack: ExitStack) -> Callable[[], bytes]:
        """Open the file; return what reads its next piece, and nothing at its end."""
        try:
            file = stack.enter_context(self.path.open("rb"))
            is_packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
        except OSError as error:
            raise DamagedInput(f"cannot be read ({error.strerror or error})", where=str(self.path)) from error
        pieces = self._unpack(file) if is_packed else iter(lambda: file.read(BATCH_BYTES), b"")

        def read() -> bytes:
            try:
                piece = next(pieces, b"")
            except OSError as error:
                raise DamagedInput(f"cannot be read ({error.strerror or error})", where=str(self.path)) from error
            self._read_bytes += len(piece)
            self._marks += piece.count(_HEADER_MARK)
            return piece

        return read

    def _unpack(self, file: IO[bytes]) -> Iterator[bytes]:
        """Decompress piece by piece; an archive that breaks off or is damaged ends where it can still be read."""
        packed = b""
        while packed or (packed := file.read(_PACKED_BYTES)):
            member = zlib.decompressobj(_GZIP_FORMAT)
            while not member.eof:
                try:
                    piece = member.decompress(packed, BATCH_BYTES)
                except zlib.error as error:
                    self.damage = f"the gzip archive is damaged ({error})"
                    return
                if piece:
                    yield piece
                packed = member.unconsumed_tail
                if not packed and not member.eof and not (packed := file.read(_PACKED_BYTES)):
                    self.damage = "the gzip archive breaks off"
                    return
            packed = member.unused_data.lstrip(b"\0")

    def _read_head(self, read: Callable[[], bytes]) -> bytes:
        """Read up to the first event; what came before is the header."""
        buffer = b""
        while len(buffer) < _LONGEST_HEAD_BYTES:
            piece = read()
            buffer += piece
            if buffer.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
                return buffer[buffer.index(b"[") + 1 :]
            for match in _EVENTS_KEY.finditer(buffer):
                head = _decode_object(buffer[: match.start()].removeprefix(b"\xef\xbb\xbf") + b'"":0}')
                if head is not None:
                    self.header |= head
                    return buffer[match.end() :]
            if not piece:
                break
        raise DamagedInput(
            "a torch profiler trace that ends before its events begin" if self.damage or buffer else "an empty trace",
            where=str(self.path),
            mend="copy it again, or record again and let the profiler finish writing",
        )

    def _take(self, buffer: bytes) -> tuple[list[Event], bytes]:
        """Take the whole events off the front of a buffer that goes on; return them and the rest."""
        for low in (max(len(buffer) - _TAIL_BYTES, 0), 0):
            cuts = list(_BETWEEN.finditer(buffer, low))[-_TRIES:]
            for cut in reversed(cuts):
                events, problem = _decode_events(buffer[: cut.start() + 1])
                if events is not None:
                    self.broken += problem
                    return events, buffer[cut.end() :]
        if len(buffer) <= 2 * BATCH_BYTES or _ends_here(buffer):
            return [], buffer
        # Until little is left, so that a file of which most is broken is never held whole.
        taken: list[Event] = []
        at = 0
        while len(buffer) - at > BATCH_BYTES:
            found, at = self._pass_over(buffer, at)
            taken += found
        return taken, buffer[at:]

    def _finish(self, buffer: bytes) -> list[Event]:
        """Read the last events and the keys after them."""
        closes = [match.start() for match in _CLOSE.finditer(buffer)]
        for close in reversed(closes[-_TRIES * _TRIES :]):
            rest = buffer[close + 1 :].strip(b" \t\r\n\0")
            footer = {} if not rest else _decode_object(b'{"":0' + rest)
            if footer is None:
                continue
            events, problem = _decode_events(buffer[:close].rstrip(b" \t\r\n,"))
            if events is not None:
                self.broken += problem
                self.header |= footer
                return events
        return self._salvage(buffer)

    def _salvage(self, buffer: bytes) -> list[Event]:
        """Read what can be read of a file that does not end as it should."""
        self._refuse_several()
        events: list[Event] = []
        at = 0
        while at < len(buffer):
            taken, at = self._pass_over(buffer, at)
            events += taken
        self.damage = self.damage or "the file breaks off in the middle of its events"
        return events

    def _pass_over(self, buffer: bytes, at: int) -> tuple[list[Event], int]:
        """Take the events before the first place that is no JSON; return them and where the event after it begins."""
        self._refuse_several()
        part, place = _find_next_problem(buffer, at)
        before = list(_BETWEEN.finditer(part, 0, place))[-_TRIES:]
        events: list[Event] = []
        start = 0
        for cut in reversed(before):
            found, problem = _decode_events(part[: cut.start() + 1])
            if found is not None:
                events, start = found, cut.end()
                self.broken += problem
                break
        following = _BETWEEN.search(buffer, at + max(place, start))
        if following is None:
            return events, len(buffer)
        self.broken += 1
        self.damage = self.damage or f"broken JSON at byte {self._read_bytes - len(buffer) + at + place}"
        return events, following.end()

    def _refuse_several(self) -> None:
        if self._marks > 1:
            raise DamagedInput(
                f"{self._marks} traces were written into this one file, and their events are mixed",
                where=str(self.path),
                mend="record again with a path of its own for each rank, such as one with {rank} in its name",
            )


def _decode_events(text: bytes) -> tuple[list[Event] | None, int]:
    """Decode events separated by commas; also count those of them that are none. None if the text is no JSON."""
    try:
        return _EVENTS.decode(b"[" + text + b"]"), 0
    except msgspec.ValidationError:
        pass
    except msgspec.DecodeError as error:
        return _decode_events(_mend_text(text)) if _NO_TEXT in str(error) else (None, 0)
    events = []
    pieces = _PIECES.decode(b"[" + text + b"]")
    for piece in pieces:
        try:
            events.append(_EVENT.decode(piece))
        except msgspec.DecodeError:
            continue
    return events, len(pieces) - len(events)


def _mend_text(text: bytes) -> bytes:
    """Put a mark in place of bytes that are no UTF-8, as cut names leave behind."""
    return text.decode("utf-8", "replace").encode()


def _decode_object(text: bytes) -> dict[str, Any] | None:
    try:
        found = msgspec.json.decode(_mend_text(text))
    except msgspec.DecodeError:
        return None
    if not isinstance(found, dict):
        return None
    found.pop("", None)
    return found


def _find_problem(buffer: bytes) -> int:
    """Return the place at which a buffer of events stops being JSON; its length if it only breaks off."""
    try:
        _PIECES.decode(b"[" + buffer + b"]")
    except msgspec.DecodeError as error:
        place = _PLACE.search(str(error))
        return len(buffer) if place is None or _TRUNCATED in str(error) else max(int(place[1]) - 1, 0)
    return len(buffer)


def _find_next_problem(buffer: bytes, at: int) -> tuple[bytes, int]:
    """Look for a problem from a place on, in a part that grows until it holds one or is all there is.

    A problem in the last event of a part may be nothing but its end.

    Returns:
        The part that was looked at, and the place in it; its length if there is no problem.
    """
    size = _TAIL_BYTES
    while True:
        part = buffer[at : at + size]
        place = _find_problem(part)
        is_inside = place < len(part) and _BETWEEN.search(part, place) is not None
        if is_inside or at + size >= len(buffer):
            return part, place
        size *= 4


def _ends_here(buffer: bytes) -> bool:
    """Tell whether the list of events ends inside a buffer, so that what follows are keys of the trace."""
    place = _find_problem(buffer)
    return place < len(buffer) and buffer[:place].rstrip().endswith(b"]")
