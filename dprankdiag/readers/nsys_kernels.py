"""Read the kernels of an export: 15 columns in, packed into 7 integers a row, under 64 bytes a kernel kept."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dprankdiag.model.schema import ABSENT_NS, Columns, count_rows
from dprankdiag.model.sources import KernelName, Shape
from dprankdiag.readers.base import Array
from dprankdiag.readers.column_buffer import ColumnBuffer
from dprankdiag.readers.nsys_actors import DEVICE_BITS, NO_DEVICE, PID_BITS, ActorIndex
from dprankdiag.readers.nsys_export import NsysExport, Packed, Wanted, pack, want
from dprankdiag.readers.nsys_names import fetch_texts
from dprankdiag.readers.row_order import sort_rows
from dprankdiag.readers.vocabulary import Vocabulary

TABLE = "CUPTI_ACTIVITY_KIND_KERNEL"
_WANTED: tuple[Wanted | Packed, ...] = (
    want("start", absent=ABSENT_NS),
    want("end", absent=ABSENT_NS),
    pack(
        lambda pid, device, node: (((pid >> PID_BITS << DEVICE_BITS) | (device & NO_DEVICE)) << 1) | (node != 0),
        want("globalPid"),
        want("deviceId"),
        want("graphNodeId"),
    ),
    pack(lambda stream, call: (stream << 32) | (call & 0xFFFFFFFF), want("streamId"), want("correlationId")),
    # Each name stands in for the other, so neither is -1 alone and its sign bits cannot cover its neighbour.
    pack(
        lambda demangled, short: (demangled << 32) | short,
        want("demangledName", "shortName", absent=-1),
        want("shortName", "demangledName", absent=-1),
    ),
    # Largest launch dimensions in bits: grid 2^31-1, 65535, 65535; block 1024, 1024, 64.
    # Source: CUDA C++ Programming Guide 13, "Compute Capabilities", technical specifications.
    pack(lambda x, y, z: (((x << 16) | y) << 16) | z, *(want(f"grid{axis}", absent=1) for axis in "XYZ")),
    pack(lambda x, y, z: (((x << 11) | y) << 11) | z, *(want(f"block{axis}", absent=1) for axis in "XYZ")),
)
_DTYPES = {
    "start_ns": "int64",
    "end_ns": "int64",
    "stream": "int32",
    "name_id": "int32",
    "shape_id": "int32",
    "in_graph": "bool",
    "pair": "int16",
    "correlation": "uint32",
}


@dataclass(frozen=True, slots=True)
class RawKernels:
    """Kernels before their actors are known.

    Attributes:
        columns: as `_DTYPES`; `pair` is a position in `pairs`, `correlation` the low 32 bits of correlationId.
        pairs: pair keys seen, as `pair_keys` makes them.
        name_pairs: `(demangled id, short id)` by name_id.
        shapes: by shape_id.
        rows: rows in the file, including the dropped ones.
        dropped: rows without end, or with an end before the start.
    """

    columns: Columns
    pairs: Array
    name_pairs: list[tuple[int, int]]
    shapes: tuple[Shape, ...]
    rows: int
    dropped: int


class _Shapes:
    """Numbers launch shapes."""

    def __init__(self) -> None:
        self._grids, self._blocks, self._both = Vocabulary(), Vocabulary(), Vocabulary()

    def encode(self, grid: Array, block: Array) -> Array:
        return self._both.encode((self._grids.encode(grid).astype(np.int64) << 32) | self._blocks.encode(block))

    def list(self) -> tuple[Shape, ...]:
        grids, blocks = self._grids.values().tolist(), self._blocks.values().tolist()
        both = self._both.values().tolist()
        return tuple(_shape(grids[code >> 32], blocks[code & 0xFFFFFFFF]) for code in both)


def read_kernels(db: NsysExport) -> RawKernels:
    """Read all kernels, in file order."""
    pairs, names, shapes = Vocabulary(), Vocabulary(), _Shapes()
    buffer = ColumnBuffer(_DTYPES, db.bound_rows(TABLE) if db.has(TABLE) else 0)
    for start, end, pair_graph, stream_call, name, grid, block in db.batches(TABLE, _WANTED):
        buffer.append(
            {
                "start_ns": start,
                "end_ns": end,
                "stream": (stream_call >> 32) & 0x7FFFFFFF,
                "name_id": names.encode(name),
                "shape_id": shapes.encode(grid, block),
                "in_graph": (pair_graph & 1) != 0,
                "pair": pairs.encode(pair_graph >> 1),
                "correlation": stream_call & 0xFFFFFFFF,
            }
        )
    columns = buffer.finish()
    rows = count_rows(columns)
    valid = (columns["start_ns"] != ABSENT_NS) & (columns["end_ns"] >= columns["start_ns"])
    if not valid.all():
        columns = {name: values[valid] for name, values in columns.items()}
    name_pairs = [(code >> 32, _signed32(code & 0xFFFFFFFF)) for code in names.values().tolist()]
    return RawKernels(columns, pairs.values(), name_pairs, shapes.list(), rows, rows - count_rows(columns))


def place_kernels(raw: RawKernels, actors: ActorIndex) -> Columns:
    """Put actors in place of process and device and sort by (actor, start); keeps `correlation` for the launches.

    Takes the columns over: `raw.columns` is spent afterwards.
    """
    columns = raw.columns
    pair = columns.pop("pair")
    columns["rank"] = np.take(actors.find_pairs(raw.pairs), pair) if len(raw.pairs) else np.empty(0, np.int16)
    return sort_rows(columns)


def name_kernels(db: NsysExport, raw: RawKernels) -> tuple[KernelName, ...]:
    """Look up the kernels' names, in the order of name_id."""
    texts = fetch_texts(db, {number for pair in raw.name_pairs for number in pair})
    return tuple(KernelName(texts[demangled], texts[short]) for demangled, short in raw.name_pairs)


def _shape(grid: int, block: int) -> Shape:
    return (
        grid >> 32,
        (grid >> 16) & 0xFFFF,
        grid & 0xFFFF,
        block >> 22,
        (block >> 11) & 0x7FF,
        block & 0x7FF,
    )


def _signed32(value: int) -> int:
    return value - (1 << 32) if value >= 1 << 31 else value
