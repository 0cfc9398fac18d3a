"""Did two recordings do the same work? What forbids a comparison, and what only forbids some of it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dprankdiag.analysis.statistics import FloatArray
from dprankdiag.pipelines.sides import BATCH, GroupSide, KindKey
from dprankdiag.units import format_ratio

FEWEST_COMMON = 0.5
"""Two recordings that spend less of their time than this in kernels of the same names ran something else."""

ALIKE = 0.10
"""Batches within a tenth of each other count as equal (as rows do among ranks, DESIGN 3)."""

_BATCH_WORDS = {"requests": "requests", "held_tokens": "KV tokens", "prefill_tokens": "prompt tokens"}


def list_obstacles(before: GroupSide, after: GroupSide) -> Iterator[str]:
    """Say why two groups cannot be compared at all."""
    if len(before.ranks) != len(after.ranks):
        yield f"{len(before.ranks)} ranks before, {len(after.ranks)} after"
    if before.has_kernels != after.has_kernels:
        yield "only one of them recorded GPU kernels"
        return
    if before.missing or after.missing:
        yield "ranks are missing from one of them"
    common = share_kernels(before, after)
    if common < FEWEST_COMMON:
        yield (
            f"only {format_ratio(common)} of the kernel time is in kernels that both ran: another engine, model, "
            "release or GPU, or another profiler, which spells names otherwise"
        )
    elif len(before.ranks) == len(after.ranks) and not set(before.kinds) & set(after.kinds):
        if before.team != after.team:
            yield f"attention is shared by {before.team} ranks before, by {after.team} after"
        kinds = f"{_name_kinds(before)} before, {_name_kinds(after)} after"
        yield f"no kind of step with the same collectives, in the same order, is in both ({kinds})"


def _name_kinds(side: GroupSide) -> str:
    return ", ".join(sorted({f"{key[0]} with {side.meetings[key]} collectives" for key in side.kinds})) or "none"


def share_kernels(before: GroupSide, after: GroupSide) -> float:
    """Return the share of the time that both spend in kernels of common names; 1 without kernels."""
    shares = []
    names = [{name for name, _ in side.kernels} for side in (before, after)]
    for side, others in ((before, names[1]), (after, names[0])):
        total = sum(item.total_ns for item in side.kernels.values())
        if not total:
            return 1.0
        shares.append(sum(item.total_ns for (name, _), item in side.kernels.items() if name in others) / total)
    return min(shares)


def list_batch_differences(before: GroupSide, after: GroupSide, key: KindKey) -> Iterator[str]:
    """Say in what the batches of a kind of step differ by more than a tenth."""
    for position, field in enumerate(BATCH):
        old, new = float(before.batch[key][position]), float(after.batch[key][position])
        if np.isfinite(old) and np.isfinite(new) and abs(new - old) > ALIKE * max(old, new):
            yield f"{key[0]} steps hold {old:.0f} {_BATCH_WORDS[field]} before, {new:.0f} after"


def overlap_shapes(before: GroupSide, after: GroupSide) -> float | None:
    """Compare in which shapes kernels of equal work were launched, by name; the shape follows the batch.

    Names whose launches were equal on all ranks on both sides count, each with the time it takes.

    Returns:
        Share of the launches that have their match; None if no name counts.
    """
    weights, overlaps = [], []
    sides = [_shapes_by_name(side) for side in (before, after)]
    for name in sorted(set(sides[0]) & set(sides[1])):
        old, new = sides[0][name], sides[1][name]
        overlaps.append(sum(min(share, new.get(shape, 0.0)) for shape, share in old.items()))
        kernels = (*before.kernels.items(), *after.kernels.items())
        weights.append(sum(item.total_ns for (own, _), item in kernels if own == name))
    return float(np.average(overlaps, weights=weights)) if overlaps else None


def _shapes_by_name(side: GroupSide) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for (name, shape), item in side.kernels.items():
        if item.is_equal_work:
            found.setdefault(name, {})[shape] = item.calls
    return {name: _share(calls) for name, calls in found.items()}


def _share(calls: dict[str, float]) -> dict[str, float]:
    total = sum(calls.values())
    return {shape: count / total for shape, count in calls.items()}


def compare_sizes(before: GroupSide, after: GroupSide) -> tuple[float, str | None]:
    """Compare how much the collectives of the common kinds of step carry: rows, by annotations or launch shapes.

    Returns:
        Share by which the sizes may differ, and why they are unlike (or not known); None if they are alike.
    """
    common = [key for key in before.kinds if key in after.kinds]
    rows = np.array([[_count_rows(side.batch[key]) for key in common] for side in (before, after)])
    if np.isfinite(rows).all():
        margin = float(np.max(np.abs(rows[1] - rows[0]) / np.maximum(rows.max(axis=0), 1.0)))
        worst = int(np.argmax(np.abs(rows[1] - rows[0])))
        text = f"{common[worst][0]} steps hold {rows[0, worst]:.0f} rows before, {rows[1, worst]:.0f} after"
    else:
        overlap = overlap_shapes(before, after)
        if overlap is None:
            return 0.0, "neither annotations nor launch shapes tell the sizes of the batches"
        margin, text = 1 - overlap, f"only {format_ratio(overlap)} of the launches have the same shape"
    return (margin, None) if margin <= ALIKE else (margin, text)


def _count_rows(batch: FloatArray) -> float:
    """Count the rows of a batch: a token for every request that decodes, and the tokens of prompts."""
    return float(batch[0] + np.nan_to_num(batch[2]))


def list_work_differences(before: GroupSide, after: GroupSide) -> list[str]:
    """Say why the same kind of step is not the same work on both sides; empty if it is, as far as shows.

    Annotations say what a batch holds; without them the launch shapes tell.
    """
    common = [key for key in before.kinds if key in after.kinds]
    found = [text for key in common for text in list_batch_differences(before, after, key)]
    annotated = all(np.isfinite(side.batch[key][0]) for key in common for side in (before, after))
    overlap = None if annotated else overlap_shapes(before, after)
    if overlap is not None and overlap < 1 - ALIKE:
        found.append(
            f"only {format_ratio(overlap)} of the launches have the same shape on both sides: other batch sizes"
        )
    return found


def measure_slowness(before: GroupSide, after: GroupSide) -> tuple[FloatArray | None, int]:
    """Compare the time of the kernels of equal work that both ran, each counted as often as it runs on both sides.

    Returns:
        `(n_ranks,)` time after over time before, None where less than half of the equal work is in common kernels; and
        how many those are.
    """
    sides = [{key: item for key, item in side.kernels.items() if item.is_equal_work} for side in (before, after)]
    common = [key for key in sides[1] if key in sides[0]]
    for side in sides:
        if not common or sum(side[key].total_ns for key in common) < FEWEST_COMMON * sum(
            item.total_ns for item in side.values()
        ):
            return None, 0
    weights = np.array([sides[0][key].calls + sides[1][key].calls for key in common])
    there, here = (
        np.array([[mine[key].mean_ns[rank] for rank in side.ranks] for key in common])
        for mine, side in zip(sides, (before, after), strict=True)
    )
    return np.asarray((weights @ here) / (weights @ there)), len(common)
