"""A rank that owns more than its share, whatever the load."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dprankdiag.analysis.layouts import Layout, measure_layouts
from dprankdiag.analysis.observations import IntArray, Observations
from dprankdiag.analysis.sides import Side
from dprankdiag.analysis.skews import Skews
from dprankdiag.analysis.speed import LEAST_SPEED_SHARE
from dprankdiag.analysis.statistics import BoolArray, FloatArray, find_high
from dprankdiag.analysis.thresholds import SPEED_PRIOR_SD
from dprankdiag.catalog.identifiability import load_inputs
from dprankdiag.classifiers.base import members, show_culprits, unseen_member
from dprankdiag.model.claims import Claim, Undo
from dprankdiag.model.diagnosis import Abstention, Alternative, Evidence

_COMPONENTS: dict[Side, tuple[str, ...]] = {
    "pre": ("attention", "probe", "other"),
    "post": ("expert", "probe", "other"),
}
_WORK: dict[Side, str] = {"pre": "attention", "post": "expert"}


class StructuralLayout:
    """A rank that owns more than its share, whatever the load.

    *What you see*: one rank's work on one side of the gather is longer than the others' by the same factor at low and
    at high load, in every layer; on the other side it is even. The others wait for it once a layer.

    *Why it happens*: attention heads, experts or vocabulary do not divide by the ranks that share them, so that one
    rank owns the remainder; or a rank has a second duty, such as the output head or a service beside.

    *How we tell it apart*: total load must vary twofold within the recording, else nothing is said. Before the
    gather: attention takes the same multiple at both loads while batch annotations show as many KV tokens and
    requests as on the other ranks; without annotations, kernels of equal launch shape before the gather must be
    longer on that rank too, which contexts cannot do. Ranks that share their requests (attention-TP) are held
    against each other: no load makes one of them heavier than the rest. A few long requests that stay would add the
    same time at every load, not the same share. After the gather: the same rank in every layer, by as much in each
    as layers scatter, and by the same factor at both loads. Hot experts get more tokens, whose time grows with the
    load beyond the reading of the weights, so that their share would grow; where expert time follows the tokens
    alone the two cannot be told apart and `structural.expert` stands. A slow chip is slow on both sides.

    *What to do*: choose sizes that divide evenly, or give the rank less of something else.
    """

    cause = "structural.layout"

    def judge(self, seen: Observations, skews: Skews) -> Iterator[Claim | Abstention]:
        """Claim ranks whose share is larger at every load."""
        for layout in measure_layouts(seen, skews):
            if layout.doubt:
                reason = f"{seen.names_of(members(layout.mask))}: {layout.doubt}"
                lacked, mend = _tell_lack(layout)
                yield Abstention(self.cause, reason, (lacked,), mend)
            elif (unseen := unseen_member(seen)) is not None:
                yield Abstention(self.cause, unseen)
            else:
                yield _claim(seen, layout, self.cause)


def _tell_lack(layout: Layout) -> tuple[str, str]:
    if layout.lacks_rows:
        return "batch annotations of every rank", load_inputs()["trace-nvtx"].get_it_with
    return "steps at two or more load levels", "record while the load grows or falls twofold or more"


def _claim(seen: Observations, layout: Layout, cause: str) -> Claim:
    ranks, n = members(layout.mask), int(layout.steps.sum())
    what = "the attention work" if layout.side == "pre" else "the expert work"
    low, high, load = layout.low_ratio, layout.high_ratio, layout.load_ratio
    text = f"{low:.2f} × {what} of the other ranks at low load and {high:.2f} × at {load:.1f} times that load"
    return Claim(
        cause,
        ranks,
        layout.steps,
        "one" if len(ranks) == 1 else "group",
        "steady",
        f"{seen.names_of(ranks)}: {text}: it owns more of it",
        (
            Evidence("share_ratio", low, "ratio", f"{low:.2f} × {what} at low load", 1.0, n),
            Evidence("loaded_share_ratio", high, "ratio", f"{high:.2f} × {what} at high load", low, n),
            Evidence("load_span_ratio", load, "ratio", f"total load varies by {load:.1f} ×", 1.0, n),
            *_tell_load(layout),
            *show_culprits(seen, ranks, layout.steps),
        ),
        (
            Alternative("load.context", "KV tokens or requests as uneven as the work")
            if layout.side == "pre"
            else Alternative("structural.expert", "more tokens for that rank's experts, layer by layer"),
            Alternative("single_point.gpu", "kernels of equal work longer on both sides of the gather"),
        ),
        tuple(_share_out(seen, layout)),
    )


def _tell_load(layout: Layout) -> Iterator[Evidence]:
    if layout.held_ratio is not None:
        text = f"{layout.held_ratio:.2f} × the KV tokens of the others"
        yield Evidence("held_token_ratio", layout.held_ratio, "ratio", text, 1.0)
    if layout.request_ratio is not None:
        text = f"{layout.request_ratio:.2f} × the requests of the others"
        yield Evidence("request_ratio", layout.request_ratio, "ratio", text, 1.0)


def _share_out(seen: Observations, layout: Layout) -> Iterator[Undo]:
    """Spread what the ranks own beyond the others' mean over all, the sum and everybody's own samples kept.

    Work beside attention or experts is spread where it stands out on the same ranks.
    """
    for component in _COMPONENTS[layout.side]:
        factors = [_even_side(seen, layout, grid_id, component) for grid_id in range(len(seen.grids))]
        if any((factor != 1.0).any() for factor in factors):
            yield Undo(component, tuple(factors))


def _even_side(seen: Observations, layout: Layout, grid_id: int, component: str) -> FloatArray:
    grid = seen.grids[grid_id]
    factor = np.ones(grid.segment.shape)
    rows, positions = np.flatnonzero(seen.select(grid_id, layout.steps)), _positions(grid.side, layout.side)
    work = grid.components[component][rows][:, positions].astype(np.float64)
    if not len(rows):
        return factor
    # Position by position: the first also holds the end of the step before, of which every rank has as much.
    level = np.median(work / np.maximum(work.mean(axis=2, keepdims=True), 1.0), axis=0)
    has_work = level.all(axis=1)
    if not has_work.any():
        return factor
    if component != _WORK[layout.side] and not _stands_out(np.median(level[has_work], axis=0), layout.mask):
        return factor
    rest = np.maximum(level[:, ~layout.mask].mean(axis=1, keepdims=True), 1e-9)
    even = level.mean(axis=1, keepdims=True) / np.where(layout.mask, np.maximum(level, 1e-9), rest)
    factor[np.ix_(rows, positions)] = np.where(has_work[:, None], even, 1.0)
    return factor


def _positions(side: tuple[str, ...], wanted: Side) -> IntArray:
    return np.flatnonzero(np.array([name == wanted for name in side], bool))


def _stands_out(level: FloatArray, mask: BoolArray) -> bool:
    high = find_high(level, np.zeros(len(level)), SPEED_PRIOR_SD, LEAST_SPEED_SHARE)
    return bool(high.mask[mask].all())
