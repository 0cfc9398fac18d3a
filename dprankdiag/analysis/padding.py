"""Tell what every rank's time follows of the busiest rank's rows.

Where rows are padded to the longest batch, or a graph captured for it is replayed, one rank's requests lengthen the
kernels and transfers of all ranks alike, and no wait shows it (DESIGN 2.1, rule 9). It shows between steps in which the
busiest rank holds few rows and many: within a kind of steps, or between the graphs captured for so many rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dprankdiag.analysis.batches import tabulate_prompts, tabulate_requests, tabulate_rows
from dprankdiag.analysis.grid import StepGrid
from dprankdiag.analysis.idleness import mark_empty
from dprankdiag.analysis.observations import Observations
from dprankdiag.analysis.statistics import MEDIAN_ERROR, BoolArray, FloatArray, robust_sd

IntArray = np.ndarray[Any, np.dtype[np.int64]]

REPLAYED = "decode graph"
"""Kind of steps replayed as a graph: of each captured size, launch shapes and all that follows from them are fixed."""

FEWEST_STEPS = 5
FEWEST_OF_GRAPH = 3
"""Steps with few and with many rows; fewer do where other graphs are replayed for these than for those."""

ROWS_APART = 1.1
"""The busiest rank's rows must differ this much between steps for work to be held against them."""

LEAST_GROWTH = 0.02
GROWTH_SCORE = 5.0
TOLD = 0.9
"""Share of the steps in which the rows of all ranks must be known."""

LITTLE_SHOWN = "the busiest rank holds about as many rows in all steps"


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a step that may follow the busiest rank's rows.

    Attributes:
        component: of the segments, or "transfer".
        places: `(n_positions,)` where it lies.
    """

    name: str
    component: str
    places: BoolArray


@dataclass(frozen=True, slots=True)
class Course:
    """How long a part takes by the busiest rank's rows.

    Attributes:
        rows: `(k,)` ascending.
        time_ns: `(k, n_positions)` the median rank's, never falling with the rows; 0 outside the part's places.
    """

    part: Part
    rows: FloatArray
    time_ns: FloatArray

    def at(self, rows: FloatArray, *, in_full: bool = False) -> FloatArray:
        """Give the time at so many rows, `(n, n_positions)`.

        Fewer rows than were seen lie on the line through all, and take no less than their share of the fewest seen.

        Args:
            in_full: let them take just their share.
        """
        right = np.clip(np.searchsorted(self.rows, rows), 1, max(len(self.rows) - 1, 1))
        left, right = right - 1, np.minimum(right, len(self.rows) - 1)
        low, high = self.rows[left], self.rows[right]
        part = np.clip((rows - low) / np.maximum(high - low, 1e-9), 0.0, 1.0)[:, None]
        seen = self.time_ns[left] + part * (self.time_ns[right] - self.time_ns[left])
        per_row = (self.time_ns[-1] - self.time_ns[0]) / max(float(self.rows[-1] - self.rows[0]), 1e-9)
        line = self.time_ns[0] + np.minimum(rows - self.rows[0], 0.0)[:, None] * per_row
        share = self.time_ns[0] * np.minimum(rows / self.rows[0], 1.0)[:, None]
        below = share if in_full else np.maximum(line, share)
        return np.where(rows[:, None] < self.rows[0], below, seen)


@dataclass(frozen=True, slots=True)
class Family:
    """Kinds of steps that hold the same operations, each with the rows it was launched for.

    Attributes:
        grids: their ordinals.
        follows: what follows the busiest rank's rows, by how long it takes.
        may_follow: what cannot be judged, though it may well follow them.
        reason: why it cannot be judged; "" where it can.
    """

    grids: tuple[int, ...]
    follows: tuple[Course, ...]
    may_follow: tuple[Course, ...] = ()
    reason: str = ""

    def list_courses(self, at_most: bool) -> tuple[Course, ...]:
        """List what follows the rows, with what may."""
        return (*self.follows, *self.may_follow) if at_most else self.follows


@dataclass(frozen=True, slots=True)
class Padding:
    """What follows the busiest rank's rows, by families of steps.

    Attributes:
        rows: `(n_steps, n_ranks)` rows of every rank's batch; NaN where nothing tells.
    """

    rows: FloatArray
    families: tuple[Family, ...]

    def reason(self, seen: Observations, steps: BoolArray) -> str:
        """Say why what some of the steps cost cannot be judged; "" where it can."""
        asked = [item.reason for item in self.families if item.reason and _is_any(seen, item.grids, steps)]
        return asked[0] if asked else ""

    def shrink(
        self, seen: Observations, steps: BoolArray, target: FloatArray, *, at_most: bool = False
    ) -> Iterator[tuple[str, list[FloatArray]]]:
        """Give the factors that bring components from the busiest rank's rows to `target`, an array a grid.

        Args:
            steps: `(n_steps,)` those to shrink.
            target: `(n_steps,)` rows of the busiest rank.
            at_most: let all that may follow the rows do so in full, where it was not seen how far it does.
        """
        top = self.rows.max(axis=1)
        chosen = steps & np.isfinite(top) & np.isfinite(target)
        pairs = [(family, course) for family in self.families for course in family.list_courses(at_most)]
        for component in sorted({course.part.component for _, course in pairs}):
            factors = [np.ones((len(grid.number), grid.segment.shape[1], 1)) for grid in seen.grids]
            for family, course in pairs:
                for grid_id in family.grids if course.part.component == component else ():
                    rows = np.flatnonzero(chosen[seen.grid_of == grid_id])
                    these = np.flatnonzero(seen.grid_of == grid_id)[rows]
                    own, even = course.at(top[these]), course.at(target[these], in_full=at_most)
                    factor = np.minimum(even / np.maximum(own, 1.0), 1.0)
                    factors[grid_id][rows] *= np.where(course.part.places & (own > 0), factor, 1.0)[:, :, None]
            if any((factor != 1.0).any() for factor in factors):
                yield component, factors

    def excess_ns(self, seen: Observations, steps: BoolArray, target: FloatArray) -> float:
        """Give how much longer a step is than with `target` rows, the mean over the steps."""
        total = 0.0
        for component, factors in self.shrink(seen, steps, target):
            for grid, factor in zip(seen.grids, factors, strict=True):
                total += float((_take(grid, component) * (1.0 - factor[:, :, 0])).sum())
        return total / max(int(steps.sum()), 1)


def even_rows(rows: FloatArray, marks: BoolArray) -> FloatArray:
    """Give the rows of the busiest rank were those of the ranks meant spread over all: whole requests, `(n_steps,)`.

    By how much the others differ anyhow, they go on to differ.

    Args:
        rows, marks: `(n_steps, n_ranks)`.
    """
    mean = rows.mean(axis=1)
    count = np.maximum((~marks).sum(axis=1), 1)
    rest = (rows * ~marks).sum(axis=1) / count
    level = np.where(marks, rest[:, None], rows)
    usual = level.max(axis=1) / np.maximum(level.mean(axis=1), 1e-9)
    return np.asarray(np.ceil(np.where(rest > 0, np.maximum(usual, 1.0), 1.0) * mean))


def judge_padding(seen: Observations, *, with_hosts: bool = True) -> Padding | str:
    """Hold what lasts equally long on all ranks against the busiest rank's rows, between steps with few and with many.

    Work that is not padded follows the rows of all ranks together, and grows by no more than they do; what grows by
    more follows the busiest rank. Between graphs captured for different sizes, all follows the size but attention and
    experts, whose kernels look at what they really hold.

    Args:
        with_hosts: hosts, too, may take longer for more rows, while those of other ranks wait for them.

    Returns:
        What follows the rows and why the rest cannot be judged; or why nothing can.
    """
    told = tabulate_rows(seen)
    if not np.isnan(told).all():
        told = np.where(np.isnan(told) & mark_empty(seen, tabulate_requests(seen)), 0.0, told)
    known: BoolArray = np.asarray(~np.isnan(told).any(axis=1))
    if known.mean() < TOLD:
        return "the rows of the ranks' batches are not annotated in every step"
    families: dict[tuple[object, ...], list[int]] = {}
    for grid_id, grid in enumerate(seen.grids):
        families.setdefault((grid.kind, grid.operation), []).append(grid_id)
    return Padding(told, tuple(_judge_family(seen, told, known, ids, with_hosts) for ids in families.values()))


def is_after_gather(side: tuple[str, ...]) -> BoolArray:
    """Mark the positions whose segments lie wholly after the gather."""
    return np.array([name == "post" for name in side], bool)


def _judge_family(seen: Observations, rows: FloatArray, known: BoolArray, ids: list[int], with_hosts: bool) -> Family:
    steps = known & np.isin(seen.grid_of, ids)
    top = rows.max(axis=1)
    parts = list(_list_parts(seen.grids[ids[0]], with_hosts and seen.abilities.has_launches))
    is_captured = seen.grids[ids[0]].kind == REPLAYED
    spans = list(_find_spans(seen, ids, top, known, is_captured and len(ids) > 1))
    if not spans:
        return Family(tuple(ids), ())
    low, high = _halve(top, steps)
    fewest = FEWEST_OF_GRAPH if is_captured and len(ids) > 1 else FEWEST_STEPS
    if min(low.sum(), high.sum()) < fewest or top[high].mean() < ROWS_APART * top[low].mean():
        if not is_captured and _are_packed(seen, rows, steps):
            parts = [part for part in parts if part.name == "hosts"]
        unclear = tuple(_draw(seen, part, spans) for part in parts if part.name != "expert")
        return Family(tuple(ids), (), unclear, LITTLE_SHOWN if unclear else "")
    follows = []
    for part in parts:
        total = _sum_part(seen, ids, part)
        usual = float(np.median(total[low]))
        if usual <= 0:
            continue
        growth = float(np.median(total[high])) / usual - 1.0
        free = is_captured and len(ids) > 1 and part.name != "expert"
        common = 0.0 if free or part.name == "hosts" else _common_growth(rows, low, high, part)
        if growth - common >= max(LEAST_GROWTH, GROWTH_SCORE * _growth_error(total, low, high)):
            follows.append(_draw(seen, part, spans))
    return Family(tuple(ids), tuple(follows))


def _are_packed(seen: Observations, rows: FloatArray, steps: BoolArray) -> bool:
    """Tell whether kernels after the gather are launched for as many rows as all ranks hold, and no more.

    A kernel that runs once a row shows it by its launch size; with padding that is the busiest rank's rows from each.
    """
    if seen.row_blocks is None or not len(seen.row_blocks):
        return False
    teams = [list(team) for team in seen.teams] or [[rank] for rank in range(seen.n_ranks)]
    held = np.stack([rows[steps][:, team].mean(axis=1) for team in teams], axis=1)
    # What announces a prompt may count its requests, or those that decode beside it, among its tokens.
    told = tabulate_requests(seen)[steps] * (tabulate_prompts(seen)[steps] > 0)
    doubt = np.nansum(np.stack([told[:, team[0]] for team in teams], axis=1), axis=1)
    packed, padded = (
        _is_near(seen.row_blocks, wanted, doubt).mean() for wanted in (held.sum(axis=1), held.max(axis=1) * len(teams))
    )
    return bool(packed >= TOLD and padded < 1 - TOLD)


def _is_near(blocks: IntArray, wanted: FloatArray, doubt: FloatArray) -> BoolArray:
    """Tell which numbers, `(n,)`, are among sorted ones, or as near to one as they are in doubt."""
    right = np.clip(np.searchsorted(blocks, wanted), 0, len(blocks) - 1)
    apart = np.minimum(np.abs(blocks[right] - wanted), np.abs(blocks[np.maximum(right - 1, 0)] - wanted))
    return np.asarray(apart <= doubt)


def _list_parts(grid: StepGrid, with_hosts: bool) -> Iterator[Part]:
    """List what may follow the busiest rank's rows; before the gather that is so in replayed graphs alone."""
    after = is_after_gather(grid.side)
    yield Part("expert", "expert", after)
    for name in ("probe", "other"):
        yield Part("after", name, after)
        if grid.kind == REPLAYED:
            yield Part("before", name, ~after)
    yield Part("transfer", "transfer", np.ones(len(after), bool))
    if with_hosts and grid.border is not None:
        yield Part("hosts", "host", np.arange(len(after)) == 0)


def _find_spans(
    seen: Observations, ids: Sequence[int], top: FloatArray, known: BoolArray, is_captured: bool
) -> Iterator[tuple[float, int, BoolArray]]:
    """Find which steps tell of how many rows: rows, kind of step, and which of its steps.

    Args:
        is_captured: each kind is a graph of one size, whatever rows it holds; else work may follow the rows within.
    """
    for grid_id in ids:
        mine, sure = top[seen.grid_of == grid_id], known[seen.grid_of == grid_id]
        if not sure.any() or mine[sure].max() <= 0:
            continue
        if is_captured:
            for edge in sorted({float(mine[sure].min()), float(mine[sure].max())}):
                yield edge, grid_id, sure
            continue
        low, high = _halve(mine, sure)
        if min(low.sum(), high.sum()) >= FEWEST_STEPS and mine[high].mean() >= ROWS_APART * mine[low].mean():
            yield float(mine[low].mean()), grid_id, low
            yield float(mine[high].mean()), grid_id, high
        else:
            yield float(np.median(mine[sure])), grid_id, sure


def _halve(top: FloatArray, steps: BoolArray) -> tuple[BoolArray, BoolArray]:
    """Split steps in the middle between the fewest and the most rows of the busiest rank."""
    middle = (float(top[steps].min()) + float(top[steps].max())) / 2
    return steps & (top <= middle), steps & (top > middle)


def _take(grid: StepGrid, component: str) -> FloatArray:
    """Take the median rank's time, `(n_steps, n_positions)`."""
    values = grid.transfer if component == "transfer" else grid.components[component]
    return np.asarray(np.median(values, axis=2))


def _sum_part(seen: Observations, ids: Sequence[int], part: Part) -> FloatArray:
    """Sum a part over the step, `(n_steps,)`; the median rank's; 0 in other steps."""
    found = np.zeros(seen.n_steps)
    for grid_id in ids:
        found[seen.grid_of == grid_id] = _take(seen.grids[grid_id], part.component)[:, part.places].sum(axis=1)
    return found


def _common_growth(rows: FloatArray, low: BoolArray, high: BoolArray, part: Part) -> float:
    """Give by how much what is not padded may grow: as the rows of all, before the gather as the median rank's."""
    own = np.median(rows, axis=1) if part.name == "before" else rows.mean(axis=1)
    return max(float(own[high].mean() / max(float(own[low].mean()), 1e-9)) - 1.0, 0.0)


def _growth_error(total: FloatArray, low: BoolArray, high: BoolArray) -> float:
    errors = [float(robust_sd(total[part])) / np.sqrt(part.sum()) for part in (low, high)]
    return MEDIAN_ERROR * float(np.hypot(*errors)) / float(np.median(total[low]))


def _draw(seen: Observations, part: Part, spans: Sequence[tuple[float, int, BoolArray]]) -> Course:
    """Draw a part's time over the rows; what falls with more rows is levelled."""
    ordered = sorted(spans, key=lambda span: span[0])
    time_ns = np.stack([np.median(_take(seen.grids[k], part.component)[steps], axis=0) for _, k, steps in ordered])
    rising = np.maximum.accumulate(time_ns, axis=0)
    held = np.minimum.accumulate(time_ns[::-1], axis=0)[::-1]
    level = np.where(part.places[None, :], np.maximum((rising + held) / 2, 0.0), 0.0)
    return Course(part, np.array([span[0] for span in ordered]), level)


def _is_any(seen: Observations, grids: Sequence[int], steps: BoolArray) -> bool:
    return bool((steps & np.isin(seen.grid_of, grids)).any())
