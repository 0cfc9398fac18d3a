"""Keep the rows of every GPU for as long as they are needed, and make its lane from them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from dprankdiag.analysis.kernel_record import PackedRows, pack_rows
from dprankdiag.analysis.lanes import FAMILY_CODE, GRAPH_REPLAY, MEMORY, Lane, Naming
from dprankdiag.catalog.kernels import FAMILIES
from dprankdiag.model.results import REPLAY_FAMILY
from dprankdiag.model.schema import ABSENT_NS, Columns
from dprankdiag.model.sources import Names

COPY = "memory copy or set"
_COPY, _REPLAY = -1, -2
"""Name ids of rows that are no kernels; they count from the end of the naming's arrays."""


class KernelShelf:
    """The kernels, copies and whole-graph replays of every rank, each rank's in arrays of their own.

    A rank's rows are packed once they are spent, so that a long trace is not held as a whole beside what is measured on
    it. Takes the kernels over: the tables hold none afterwards.

    Attributes:
        packed: rows of the ranks that were spent, by position of the rank.
    """

    def __init__(self, tables: Mapping[str, Columns], names: Names, n_ranks: int, naming: Naming) -> None:
        kernels = tables["kernels"]
        self.packed: dict[int, PackedRows] = {}
        has_replays = GRAPH_REPLAY in naming.channels
        replay = naming.channels.index(GRAPH_REPLAY) if has_replays else -1
        self._family = np.append(naming.family, np.array([FAMILY_CODE["collective"], MEMORY], np.int8))
        self._channel = np.append(naming.channel, np.array([replay, -1], np.int32))
        self._phase = np.append(naming.phase, np.zeros(2, np.int8))
        self._names = names.kernel_names
        self._n_shapes = max(1, len(names.shapes))
        bounds = np.searchsorted(kernels.pop("rank"), np.arange(n_ranks + 1)).tolist()
        slices = [slice(low, high) for low, high in pairwise(bounds)]
        self._has_launches = [bool(np.any(kernels["launch_ns"][rows] != ABSENT_NS)) for rows in slices]
        sources = {_COPY: tables["copies"]} | ({_REPLAY: tables["graph_replays"]} if has_replays else {})
        others = [_list_others(sources, rank, self._n_shapes) for rank in range(n_ranks)]
        places = [
            np.searchsorted(kernels["start_ns"][rows], more["start_ns"], side="right")
            for rows, more in zip(slices, others, strict=True)
        ]
        self._rows: list[Columns] = [{} for _ in slices]
        for name in list(kernels):
            # Column by column: no more than one of them is there twice.
            column = kernels.pop(name)
            for own, rows, place, more in zip(self._rows, slices, places, others, strict=True):
                own[name] = np.insert(column[rows], place, more[name])

    def lane(self, rank: int) -> Lane:
        """Make the lane of a rank."""
        rows = self._rows[rank]
        name = rows["name_id"]
        return Lane(
            rows["start_ns"],
            rows["end_ns"],
            rows["stream"],
            self._family[name],
            name.astype(np.int64) * self._n_shapes + rows["shape_id"],
            self._channel[name],
            rows["launch_ns"] if self._has_launches[rank] else None,
            rows["in_graph"],
            self._phase[name],
        )

    def list_names(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """List the name and the family of every name id."""
        texts = [*(name.demangled for name in self._names), GRAPH_REPLAY, COPY]
        families = [FAMILIES[code] for code in self._family.tolist()]
        families[_REPLAY] = REPLAY_FAMILY
        return np.array(texts, object), np.array(families, object)

    def spend(self, rank: int) -> Lane:
        """Make the lane of a rank for the last time; packed rows alone stay when the caller lets go of it."""
        lane = self.lane(rank)
        self.packed[rank] = pack_rows(self._rows[rank], has_launches=self._has_launches[rank])
        self._rows[rank] = {}
        return lane


def _list_others(sources: dict[int, Columns], rank: int, n_shapes: int) -> Columns:
    """Give a rank's rows of other tables the columns of kernels, sorted by start.

    Args:
        sources: table by the name id that its rows get.
        rank: whose rows.
        n_shapes: so many shapes are known; the shape given makes the key of these rows -1.
    """
    parts = [_as_kernels(table, rank, name_id, n_shapes) for name_id, table in sources.items()]
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    order = np.argsort(joined["start_ns"], kind="stable")
    return {name: values[order] for name, values in joined.items()}


def _as_kernels(table: Columns, rank: int, name_id: int, n_shapes: int) -> Columns:
    mine = np.flatnonzero(table["rank"] == rank)
    taken = {name: table[name][mine] for name in ("start_ns", "end_ns", "stream", "launch_ns") if name in table}
    fixed: dict[str, Any] = {
        "launch_ns": np.int64(ABSENT_NS),
        "name_id": np.int32(name_id),
        "shape_id": np.int32(-name_id * n_shapes - 1),
        "in_graph": np.False_,
    }
    return {name: np.full(len(mine), value) for name, value in fixed.items()} | taken
