"""Use an earlier bundle as the reference of a diagnosis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dprankdiag.analysis.observations import Observations
from dprankdiag.analysis.reference import measure_transfers
from dprankdiag.analysis.work import digest_order
from dprankdiag.errors import DamagedInput, InputError, UsageError
from dprankdiag.model.diagnosis import Diagnosis
from dprankdiag.model.reference import Reference, TransferSamples
from dprankdiag.model.schema import Columns
from dprankdiag.pipelines.compare import Input, compare
from dprankdiag.pipelines.compared_tables import GroupPart, tabulate_compared
from dprankdiag.pipelines.likeness import compare_sizes, list_obstacles, measure_slowness
from dprankdiag.pipelines.pairs import find_partner
from dprankdiag.pipelines.result_tables import tabulate
from dprankdiag.pipelines.sides import GroupSide, read_groups
from dprankdiag.store.bundle import is_bundle, load_bundle


@dataclass(frozen=True, slots=True)
class Baseline:
    """An earlier diagnosis.

    Attributes:
        name: its file.
        misfit: why none of it can be used; None if it can.
        given: the diagnosis and its tables; None where there is a misfit.
    """

    name: str
    misfit: str | None
    given: Input | None = None
    groups: tuple[GroupSide, ...] = ()


def load_baseline(path: Path) -> Baseline:
    """Load a bundle to compare with; one that another version made is a misfit, no error.

    Raises:
        UsageError: not a bundle, or no such file.
        DamagedInput: a bundle that cannot be read.
    """
    if not path.exists():
        raise UsageError("no such file", where=f"--baseline {path}")
    if not is_bundle(path):
        mend = "save one with: dprankdiag analyze TRACE -o FILE.dprank"
        raise UsageError("not a .dprank bundle", where=f"--baseline {path}", mend=mend)
    try:
        diagnosis, tables = load_bundle(path)
        groups = read_groups(tables)
    except DamagedInput:
        raise
    except InputError as error:
        return Baseline(path.name, error.what)
    if not groups:
        return Baseline(path.name, "no steps of its ranks could be compared")
    return Baseline(path.name, None, Input(diagnosis, tables, str(path)), tuple(groups))


def attach_references(groups: Sequence[Observations], baseline: Baseline) -> tuple[Observations, ...]:
    """Give every group what it can be held against."""
    found = [_refer(seen, baseline, alone=len(groups) == 1) for seen in groups]
    return tuple(
        replace(seen, reference=reference)
        for seen, reference in zip(groups, _spread_groups(groups, found), strict=True)
    )


def _refer(seen: Observations, baseline: Baseline, *, alone: bool) -> Reference:
    if baseline.misfit is not None:
        return Reference(baseline.name, baseline.misfit)
    ranks = tuple(rank.rank for rank in seen.ranks)
    is_only = alone and len(baseline.groups) == 1
    then = baseline.groups[0] if is_only else find_partner(baseline.groups, seen.engine, ranks)
    if then is None:
        return Reference(baseline.name, f"it has no group of as many ranks of engine {seen.engine}")
    (now,) = read_groups(tabulate([seen]) | tabulate_compared([GroupPart(seen, None)], ()))
    obstacle = next(list_obstacles(then, now), None)
    if obstacle is not None:
        return Reference(baseline.name, obstacle)
    return _measure(seen, now, then, baseline.name)


def _spread_groups(groups: Sequence[Observations], found: Sequence[Reference]) -> list[Reference]:
    """Tell every group how far the groups differ in what became of their transfers."""
    ratios: dict[tuple[str, int], list[float]] = {}
    for seen, reference in zip(groups, found, strict=True):
        for item in reference.transfers:
            now = measure_transfers(seen, item)[1].value
            ratios.setdefault((item.operation, item.members), []).append(
                float(np.log(max(now, 1.0) / max(float(item.transfer_ns.mean()), 1.0)))
            )
    return [
        replace(
            reference,
            transfers=tuple(
                replace(item, spread=float(np.std(mine, ddof=1)), groups=len(mine)) if len(mine) > 1 else item
                for item in reference.transfers
                for mine in (ratios[item.operation, item.members],)
            ),
        )
        for reference in found
    ]


def _measure(seen: Observations, now: GroupSide, then: GroupSide, name: str) -> Reference:
    margin, unlike = compare_sizes(then, now)
    slowness, kernels = measure_slowness(then, now)
    transfers = tuple(_list_transfers(seen, then)) if unlike is None else ()
    return Reference(name, None, unlike, margin, transfers, slowness, kernels, then.probe_ns)


def _list_transfers(seen: Observations, then: GroupSide) -> Iterator[TransferSamples]:
    for number, grid in enumerate(seen.grids):
        steps = then.kinds.get((grid.kind, digest_order(grid)))
        if steps is None:
            continue
        for (operation, members), transfer_ns in then.transfers.items():
            samples = transfer_ns[steps]
            if not np.isnan(samples).any():
                yield TransferSamples(number, operation, members, samples)


def describe_against(baseline: Baseline, diagnosis: Diagnosis, tables: Mapping[str, Columns]) -> list[str]:
    """Say of every finding whether the baseline had it already, and what is gone; or why the baseline does not fit."""
    if baseline.given is None:
        return [f"the baseline {baseline.name} is not used: {baseline.misfit}"]
    found = compare(baseline.given, Input(diagnosis, tables))
    against = f"against the baseline {baseline.name}"
    return [f"{against}: {found.headline}", *(f"{against}: {change.summary}" for change in found.causes)]


def list_misfits(groups: Sequence[Observations]) -> list[str]:
    """Say, for a warning, of which groups the baseline does not fit and why."""
    given = [seen.reference for seen in groups if seen.reference is not None]
    return list(dict.fromkeys(f"the baseline {item.name} does not fit: {item.misfit}" for item in given if item.misfit))
