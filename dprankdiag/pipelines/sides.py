"""One side of a comparison, read back from the tables of its bundle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dprankdiag.analysis.statistics import BoolArray, FloatArray
from dprankdiag.errors import InputError
from dprankdiag.model.compared import COMPARED_TABLES
from dprankdiag.model.results import COMPONENTS
from dprankdiag.model.schema import Columns

KindKey = tuple[str, str]
"""Name of a kind of step and digest of its order of meetings: what both must share to be compared."""

BUSY = tuple(name for name in COMPONENTS if name not in ("host", "rest"))
BATCH = ("requests", "held_tokens", "prefill_tokens")
NEEDED = ("rank_steps", *(table.name for table in COMPARED_TABLES))


@dataclass(frozen=True, slots=True)
class KernelTimes:
    """A kernel of one name and launch shape.

    Attributes:
        calls: a rank and step, the mean.
        mean_ns: by rank, time of one call; NaN on ranks that never ran it.
    """

    family: str
    is_equal_work: bool
    calls: float
    mean_ns: Mapping[int, float]
    total_ns: int


@dataclass(frozen=True, slots=True)
class FindingLoss:
    """What a finding costs in every step of its group: columns of `model.compared.STEP_LOSSES`, `(n_steps,)` each."""

    lost_ns: FloatArray
    spread_ns: FloatArray
    covered: BoolArray

    @property
    def is_run(self) -> bool:
        """Tell whether the finding is about one run of steps, not about single ones."""
        return int(np.abs(np.diff(self.covered.astype(np.int8))).sum()) <= 2 and int(self.covered.sum()) > 1


@dataclass(frozen=True, slots=True)
class GroupSide:
    """A lockstep group of one side.

    Attributes:
        kinds: by key, which steps are of that kind, `(n_steps,)`.
        meetings: by key, collectives a step.
        batch: by key, means of all ranks together in a step; NaN where annotations do not say.
        measured_ns, balanced_ns: `(n_steps,)`.
        busy_ns: `(n_steps, n_ranks)` time in which a rank's kernels ran.
        probe_ns: `(n_steps, n_ranks)` the part of it in kernels of equal work.
        losses: by number of the finding.
        transfers: by operation and members, `(n_steps,)` ns; NaN in steps without it.
    """

    engine: str
    ranks: tuple[int, ...]
    missing: int
    team: int
    basis: str
    has_kernels: bool
    trusted: bool
    kinds: dict[KindKey, BoolArray]
    meetings: dict[KindKey, int]
    batch: dict[KindKey, FloatArray]
    measured_ns: FloatArray
    balanced_ns: FloatArray
    busy_ns: FloatArray
    probe_ns: FloatArray
    losses: dict[int, FindingLoss]
    kernels: dict[tuple[str, str], KernelTimes]
    transfers: dict[tuple[str, int], FloatArray]

    @property
    def n_steps(self) -> int:
        """Count the steps."""
        return len(self.measured_ns)

    @property
    def transfer_ns(self) -> FloatArray:
        """Sum the transfers of each step, `(n_steps,)`."""
        total = np.zeros(self.n_steps)
        for samples in self.transfers.values():
            total += np.nan_to_num(samples)
        return total


def read_groups(tables: Mapping[str, Columns], where: str = "") -> list[GroupSide]:
    """Read the groups of a side; none if no steps could be compared among its ranks.

    Raises:
        InputError: the bundle lacks tables, because an earlier version saved it.
    """
    if "groups" in tables and not len(tables["groups"]["group"]):
        return []
    lacking = sorted(set(NEEDED) - set(tables))
    if lacking:
        mend = "save it again with: dprankdiag analyze TRACE -o FILE.dprank"
        raise InputError(f"the bundle lacks the tables {', '.join(lacking)}", where=where, mend=mend)
    return [_read_group(tables, row) for row in range(len(tables["groups"]["group"]))]


def _of_group(tables: Mapping[str, Columns], name: str, group: int) -> Columns:
    table = tables[name]
    mine = table["group"] == group
    return {column: values[mine] for column, values in table.items()}


def _read_group(tables: Mapping[str, Columns], row: int) -> GroupSide:
    about = {name: values[row] for name, values in tables["groups"].items()}
    group = int(about["group"])
    walls, kinds = _of_group(tables, "step_walls", group), _of_group(tables, "compared_kinds", group)
    ranks, (busy, probe) = _read_rank_steps(_of_group(tables, "rank_steps", group), len(walls["step"]))
    masks, batch = _read_kinds(kinds, walls["kind"])
    return GroupSide(
        str(about["engine"]),
        ranks,
        int(about["missing"]),
        int(about["team"]),
        str(about["basis"]),
        bool(about["has_kernels"]),
        bool(about["trusted"]),
        masks,
        {_key(kinds, row): int(kinds["meetings"][row]) for row in range(len(kinds["kind"]))},
        batch,
        walls["measured_ns"],
        walls["balanced_ns"],
        busy,
        probe,
        _read_losses(_of_group(tables, "step_losses", group)),
        _read_kernels(_of_group(tables, "kernels_used", group), len(walls["step"])),
        _read_transfers(_of_group(tables, "step_transfers", group), len(walls["step"])),
    )


def _read_rank_steps(rank_steps: Columns, n_steps: int) -> tuple[tuple[int, ...], tuple[FloatArray, FloatArray]]:
    """Lay out the busy time and the time in equal work by step and rank."""
    ranks, column = np.unique(rank_steps["rank"], return_inverse=True)
    busy, probe = np.zeros((n_steps, len(ranks))), np.zeros((n_steps, len(ranks)))
    busy[rank_steps["step"], column] = np.sum([rank_steps[f"{name}_ns"] for name in BUSY], axis=0)
    probe[rank_steps["step"], column] = rank_steps["probe_ns"]
    return tuple(ranks.tolist()), (busy, probe)


def _key(kinds: Columns, row: int) -> KindKey:
    return str(kinds["name"][row]), str(kinds["order"][row])


def _read_kinds(kinds: Columns, kind_of: Any) -> tuple[dict[KindKey, BoolArray], dict[KindKey, FloatArray]]:
    """Join the kinds of equal key; they differ in attention kernels only."""
    masks: dict[KindKey, BoolArray] = {}
    sums: dict[KindKey, FloatArray] = {}
    for row, kind in enumerate(kinds["kind"]):
        key = _key(kinds, row)
        mine = np.asarray(kind_of == kind)
        means = np.array([kinds[name][row] for name in BATCH], np.float64)
        masks[key] = masks.get(key, np.zeros(len(mine), bool)) | mine
        sums[key] = sums.get(key, np.zeros(len(BATCH))) + means * mine.sum()
    return masks, {key: total / masks[key].sum() for key, total in sums.items()}


def _read_losses(losses: Columns) -> dict[int, FindingLoss]:
    found = {}
    for number in np.unique(losses["finding"]).tolist():
        mine = losses["finding"] == number
        found[number] = FindingLoss(*(losses[name][mine] for name in ("lost_ns", "spread_ns", "is_covered")))
    return found


def _read_kernels(used: Columns, n_steps: int) -> dict[tuple[str, str], KernelTimes]:
    rows: dict[tuple[str, str], list[int]] = {}
    for row, key in enumerate(zip(used["name"].tolist(), used["shape"].tolist(), strict=True)):
        rows.setdefault(key, []).append(row)
    found = {}
    for key, mine in rows.items():
        calls, total = used["calls"][mine], used["total_ns"][mine]
        mean = np.where(calls > 0, total / np.maximum(calls, 1), np.nan)
        by_rank = dict(zip(used["rank"][mine].tolist(), mean.tolist(), strict=True))
        family, equal = str(used["family"][mine[0]]), bool(used["is_equal_work"][mine[0]])
        found[key] = KernelTimes(family, equal, float(calls.mean()) / max(n_steps, 1), by_rank, int(total.sum()))
    return found


def _read_transfers(transfers: Columns, n_steps: int) -> dict[tuple[str, int], FloatArray]:
    found: dict[tuple[str, int], FloatArray] = {}
    pairs = list(zip(transfers["operation"].tolist(), transfers["members"].tolist(), strict=True))
    for pair in dict.fromkeys(pairs):
        mine = np.array([other == pair for other in pairs])
        values = np.full(n_steps, np.nan)
        values[transfers["step"][mine]] = transfers["transfer_ns"][mine]
        found[pair] = values
    return found
