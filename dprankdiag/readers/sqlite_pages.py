"""Read columns of a SQLite table from the pages of its file, thousands of rows at a time, without SQLite.

SQLite hands rows over one by one; here each step is taken for all rows of some pages at once, which costs about half of
what SQLite needs to scan the same columns. Only what exports are made of is understood: tables with rowids, values that
lie within their page, records with all their columns. Whatever else turns up ends the walk, and SQLite goes on.

Source: https://www.sqlite.org/fileformat2.html, sections 1.3 "The Database Header", 1.6 "B-tree Pages", 2.1 "Record
Format".
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from itertools import islice, pairwise
from pathlib import Path

import numpy as np

from dprankdiag.readers.base import Array

_MAGIC = b"SQLite format 3\0"
_UTF8 = 1
_INTERIOR, _LEAF = 0x05, 0x0D
_LEAF_HEAD, _INTERIOR_HEAD = 8, 12
_BATCH_BYTES = 1 << 19
_MOST_THREADS = 4
_MANY_BYTES = 0x80
"""From here on a byte says that its number goes on in the next one."""
_FIRST_TEXT = 12
_FLOAT = 7
_ONE = 9


def _list_sizes() -> Array:
    """Return the bytes of the value that each serial type of one byte announces; 10 and 11 are not in use."""
    sizes = [0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0]
    sizes += [(serial - _FIRST_TEXT) // 2 for serial in range(_FIRST_TEXT, _MANY_BYTES)]
    return np.array(sizes + [0] * _MANY_BYTES, np.uint8)


_SIZES = _list_sizes()
_IS_INTEGER = np.array([1 <= serial <= 6 for serial in range(256)])
# An integer of fewer than eight bytes is cut from eight by a shift, which also brings its sign.
_SHIFTS = np.where(_IS_INTEGER, 64 - 8 * _SIZES.astype(np.int64), 0)
# Serial types 0, 8 and 9 stand for null, 0 and 1, and no byte of the record is theirs.
_KEPT_BITS = np.where(_IS_INTEGER, -1, 0).astype(np.int64)
_CONSTANTS = np.where(np.arange(256) == _ONE, 1, 0).astype(np.int64)


class ForeignPages(Exception):
    """The file holds something that is not read here."""


class Sort(Enum):
    """What is asked of a column: its integers, whether it is null, or its texts."""

    INTEGER = 1
    FLAG = 2
    TEXT = 3


@dataclass(frozen=True, slots=True)
class Cells:
    """The values of a column in some rows.

    Attributes:
        values: int64; of texts the position in `texts`; 0 where null, and throughout in a flag.
        nulls: which are null; None if none is.
        texts: the distinct texts, undecoded.
    """

    values: Array
    nulls: Array | None = None
    texts: tuple[bytes, ...] = ()


Sorts = Mapping[int, Sort]
"""What is asked of each column, by its place in the stored record; at least one."""


class PageFile:
    """A SQLite file, open to read its pages.

    Attributes:
        page_bytes: size of a page.
        usable_bytes: how many of them hold content.
        is_utf8: texts are stored as UTF-8.
    """

    def __init__(self, path: Path) -> None:
        """Open a file.

        Raises:
            ForeignPages: it is no SQLite file, or this system cannot read at a place.
            OSError: it cannot be opened.
        """
        if not hasattr(os, "preadv"):
            raise ForeignPages("this system has no preadv")
        self._descriptor = os.open(path, os.O_RDONLY)
        header = os.pread(self._descriptor, 100, 0)
        if len(header) < 100 or header[:16] != _MAGIC:
            self.close()
            raise ForeignPages("no SQLite file")
        size = int.from_bytes(header[16:18], "big")
        self.page_bytes = 65_536 if size == 1 else size
        self.usable_bytes = self.page_bytes - header[20]
        self.is_utf8 = int.from_bytes(header[56:60], "big") == _UTF8
        if self.page_bytes < 512 or self.page_bytes & (self.page_bytes - 1) or self.usable_bytes < 480:
            self.close()
            raise ForeignPages("a page size that cannot be")
        self._pages = os.fstat(self._descriptor).st_size // self.page_bytes

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def list_leaves(self, root: int) -> Array:
        """Return the numbers of the pages that hold the rows of a table, in the order of its rows.

        Raises:
            ForeignPages: the tree is broken, or not that of a table with rowids.
        """
        level, seen = np.array([root], np.int64), 0
        while True:
            seen += len(level)
            if level.min() < 2 or level.max() > self._pages or seen > self._pages:
                raise ForeignPages("a tree of pages that is broken")
            if self._read(level[:1])[0] == _LEAF:
                break
            level = self._list_next(level)
        if len(np.unique(level)) < len(level):
            raise ForeignPages("a page that is in a table twice")
        return level

    def _list_next(self, level: Array) -> Array:
        """Return the pages that the pages of a level point to."""
        parts: list[Array] = []
        total = 0
        for page in level:
            parts.append(self._list_children(page))
            total += len(parts[-1])
            if total > self._pages:
                raise ForeignPages("a tree of pages that is broken")
        return np.concatenate(parts)

    def _list_children(self, page: int) -> Array:
        raw = self._read(np.array([page]))
        count = int(_view(raw, ">u2")[3])
        if raw[0] != _INTERIOR or _INTERIOR_HEAD + 2 * count > self.usable_bytes:
            raise ForeignPages("a tree of pages that is broken")
        cells = _view(raw, ">u2")[_INTERIOR_HEAD + 2 * np.arange(count)].astype(np.int64)
        if (cells > self.usable_bytes - 4).any():
            raise ForeignPages("a tree of pages that is broken")
        children: Array = _view(raw, ">u4")[np.append(cells, 8)].astype(np.int64)
        return children

    def _read(self, pages: Array) -> Array:
        """Return the bytes of pages one after the other, and a few more at the end that belong to none."""
        size = self.page_bytes
        raw = np.zeros(len(pages) * size + 16, np.uint8)
        view = memoryview(raw.data)
        edges = [0, *(np.flatnonzero(np.diff(pages) != 1) + 1).tolist(), len(pages)]
        for first, stop in pairwise(edges):
            part = view[first * size : stop * size]
            if os.preadv(self._descriptor, [part], (int(pages[first]) - 1) * size) < len(part):
                raise ForeignPages("a file that ends before its pages do")
        return raw

    def read_cells(self, pages: Array, sorts: Sorts) -> dict[int, Cells]:
        """Return columns of the rows of some pages, by their place in the record.

        Raises:
            ForeignPages: something that is not read here lies among them.
        """
        raw = self._read(pages)
        try:
            return _decode(raw, *self._find_records(raw, len(pages)), sorts)
        except IndexError as error:
            raise ForeignPages("a row that points out of its pages") from error

    def _find_records(self, raw: Array, n_pages: int) -> tuple[Array, Array]:
        """Return where the record of each row begins, and where it ends."""
        starts = np.arange(n_pages) * self.page_bytes
        if (raw[starts] != _LEAF).any():
            raise ForeignPages("a page that holds no rows among those that do")
        shorts = _view(raw, ">u2")
        counts = shorts[starts + 3].astype(np.int64)
        if (_LEAF_HEAD + 2 * counts > self.usable_bytes).any():
            raise ForeignPages("a page of more rows than it can hold")
        page = np.repeat(starts, counts)
        number = np.arange(len(page)) - np.repeat(np.cumsum(counts) - counts, counts)
        place = page + shorts[page + _LEAF_HEAD + 2 * number]
        size, place = _read_varint(raw, place)
        place = _skip_varint(raw, place)
        end = place + size
        # A longer record would go on in other pages: section 1.6, "usable size minus 35".
        if (size > self.usable_bytes - 35).any() or (end > page + self.usable_bytes).any():
            raise ForeignPages("a row that goes on in other pages")
        return place, end


def stream_cells(path: Path, root: int, sorts: Sorts) -> Iterator[dict[int, Cells]]:
    """Yield columns of a table, some pages at a time, in the order of its rows.

    Args:
        path: the file.
        root: number of the table's first page.
        sorts: what to read.

    Raises:
        ForeignPages: what comes next is not read here; all before it has been yielded.
        OSError: the file cannot be read.
    """
    file = PageFile(path)
    try:
        if not file.is_utf8 and Sort.TEXT in sorts.values():
            raise ForeignPages("texts that are not UTF-8")
        leaves = file.list_leaves(root)
        step = max(1, _BATCH_BYTES // file.page_bytes)
        spans = [leaves[first : first + step] for first in range(0, len(leaves), step)]
        yield from _read_ahead(file, spans, sorts)
    finally:
        file.close()


def _read_ahead(file: PageFile, spans: Sequence[Array], sorts: Sorts) -> Iterator[dict[int, Cells]]:
    """Read spans of pages in threads, a few ahead of the one that is asked for."""
    threads = min(_MOST_THREADS, os.cpu_count() or 1, len(spans))
    if threads < 2:
        for span in spans:
            yield file.read_cells(span, sorts)
        return
    waiting: deque[Future[dict[int, Cells]]] = deque()
    ahead = iter(spans)
    with ThreadPoolExecutor(threads, thread_name_prefix="pages") as pool:
        try:
            waiting.extend(pool.submit(file.read_cells, span, sorts) for span in islice(ahead, threads + 1))
            while waiting:
                cells = waiting.popleft().result()
                waiting.extend(pool.submit(file.read_cells, span, sorts) for span in islice(ahead, 1))
                yield cells
        finally:
            pool.shutdown(cancel_futures=True)


def _view(raw: Array, dtype: str) -> Array:
    """View bytes as numbers that begin at every byte."""
    size = np.dtype(dtype).itemsize
    return np.ndarray((len(raw) - size + 1,), dtype, buffer=raw, strides=(1,))


def _read_varint(raw: Array, place: Array) -> tuple[Array, Array]:
    """Return the numbers of one or two bytes that begin at each place, and where they end."""
    first = raw[place]
    value = first.astype(np.int64)
    long = first >= _MANY_BYTES
    if not long.any():
        return value, place + 1
    second = raw[place + 1]
    if (second[long] >= _MANY_BYTES).any():
        raise ForeignPages("a row that goes on in other pages")
    value = np.where(long, (value - _MANY_BYTES << 7) | second, value)
    return value, place + 1 + long


def _skip_varint(raw: Array, place: Array) -> Array:
    """Return where the numbers of up to nine bytes that begin at each place end."""
    more = raw[place] >= _MANY_BYTES
    place = place + 1
    for _ in range(8):
        if not more.any():
            break
        follows = raw[place] >= _MANY_BYTES
        place += more
        more &= follows
    return place


def _decode(raw: Array, place: Array, end: Array, sorts: Sorts) -> dict[int, Cells]:
    """Return columns of the records that begin and end at some places of the bytes."""
    words = _view(raw, ">i8")
    head_bytes, head = _read_varint(raw, place)
    body = place + head_bytes
    head_end = body.copy()
    cells: dict[int, Cells] = {}
    last = max(sorts) if len(place) else -1
    for column in range(last + 1):
        serial = raw[head]
        low, high = int(serial.min()), int(serial.max())
        head += 1
        sort = sorts.get(column)
        if high < _MANY_BYTES:
            size: Array | int = int(_SIZES[low]) if low == high else _SIZES[serial]
        else:
            serial, size, head = _read_long_serials(raw, serial, head)
        if sort is Sort.INTEGER:
            cells[column] = _decode_integers(words, body, serial, low, high)
        elif sort is Sort.FLAG:
            cells[column] = Cells(np.zeros(len(place), np.int64), serial == 0 if low == 0 else None)
        elif sort is Sort.TEXT:
            cells[column] = _decode_texts(raw, body, serial)
        body += size
    if (head > head_end).any() or (body > end).any():
        raise ForeignPages("a row that lacks columns")
    return cells or {column: Cells(np.empty(0, np.int64)) for column in sorts}


def _read_long_serials(raw: Array, first: Array, head: Array) -> tuple[Array, Array, Array]:
    """Return serial types of one or two bytes, the sizes of their values, and where the next types are."""
    long = first >= _MANY_BYTES
    second = raw[head]
    if (second[long] >= _MANY_BYTES).any():
        raise ForeignPages("a row that goes on in other pages")
    serial = np.where(long, (first.astype(np.int64) - _MANY_BYTES << 7) | second, first)
    size = np.where(long, (serial - _FIRST_TEXT) // 2, _SIZES[first])
    return serial, size, head + long


def _decode_integers(words: Array, body: Array, serial: Array, low: int, high: int) -> Cells:
    if high > _ONE or low == _FLOAT or high == _FLOAT or (high > _FLOAT and (serial == _FLOAT).any()):
        raise ForeignPages("a value that is no integer")
    if low == high and not _IS_INTEGER[low]:
        values = np.full(len(body), _CONSTANTS[low])
    else:
        values = words[body].astype(np.int64)
        values >>= _SHIFTS[low] if low == high else _SHIFTS[serial]
        if low == 0 or high > _FLOAT:
            values &= _KEPT_BITS[serial]
            values |= _CONSTANTS[serial]
    return Cells(values, serial == 0 if low == 0 else None)


def _decode_texts(raw: Array, body: Array, serial: Array) -> Cells:
    """Return the texts of a column, each length on its own, for equal ones have equal lengths."""
    if ((serial != 0) & (serial < _FIRST_TEXT)).any():
        raise ForeignPages("a value that is no text")
    sizes = np.where(serial == 0, 0, (serial.astype(np.int64) - _FIRST_TEXT) // 2)
    values = np.zeros(len(body), np.int64)
    texts = [b""]
    for size in np.unique(sizes[sizes > 0]).tolist():
        rows = np.flatnonzero(sizes == size)
        found, inverse = np.unique(_view(raw, f"V{size}")[body[rows]], return_inverse=True)
        values[rows] = inverse + len(texts)
        texts += [bytes(text) for text in found]
    return Cells(values, serial == 0, tuple(texts))
