"""An idle or ineligible rank takes all ranks out of graph replay."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dprankdiag.analysis.lost_graphs import EAGER, IDLE, REPLAYED, LostGraphs, find_lost_graphs
from dprankdiag.analysis.observations import Observations
from dprankdiag.analysis.skews import Skews
from dprankdiag.analysis.standouts import ALIKE, Standout
from dprankdiag.analysis.statistics import BoolArray
from dprankdiag.classifiers.base import members, period_of, unseen_member, when_of
from dprankdiag.model.claims import Claim, Undo
from dprankdiag.model.diagnosis import Abstention, Alternative, Evidence, Who
from dprankdiag.units import format_ns, format_ratio

RUN = 0.9
"""Eager steps that fill so much of the steps from the first to the last of them are a run."""


class StructuralGraph:
    """An idle or ineligible rank takes all ranks out of graph replay.

    *What you see*: some decode steps are replayed as one graph and others, with no larger batch, launch kernel by
    kernel on every rank, with gaps between the kernels. All ranks are slow in the same steps; nobody waits long.

    *Why it happens*: both engines replay a graph only if every rank can (the vote is a minimum over the ranks). A rank
    without requests that may not join as an idle batch, one whose batch is larger than the largest graph captured, or
    one with a feature that graphs lack, makes all launch eagerly.

    *How we tell it apart*: steps without prompts that ran eagerly in a recording in which others were replayed, and in
    which most ranks stand idle longer than there. A rank is named if it has no attention work (or no requests) in most
    of these steps and hardly ever in the others, or if its batch is larger than any that was replayed; else nobody is.
    The loss is a replay with the idle time of graph steps at every meeting; it stays unknown where no graph step held
    such a batch. A step in which a rank computes a prompt is eager for that reason: see `load.prefill`. A late host is
    late against its peers in the same step. A recording in which all steps are eager says nothing.

    *What to do*: keep ranks from running empty, capture graphs up to the batch sizes that occur, turn off what excludes
    graphs on a single rank.
    """

    cause = "structural.graph"

    def judge(self, seen: Observations, skews: Skews) -> Iterator[Claim | Abstention]:
        """Claim the eager steps among graph steps."""
        kinds = {grid.kind for grid in seen.grids}
        if seen.abilities.has_kernels and kinds.intersection(EAGER) and REPLAYED not in kinds:
            reason = "every decode step ran eagerly; whether graphs were meant to be replayed does not show"
            yield Abstention(self.cause, reason, ("steps replayed as CUDA graphs",))
            return
        lost = find_lost_graphs(seen)
        if lost is None:
            return
        if seen.abilities.uneven is not None:
            yield Abstention(self.cause, seen.abilities.uneven)
            return
        yield _claim(seen, lost, self.cause)
        if (hidden := unseen_member(seen)) is not None:
            yield Abstention(self.cause, hidden)


def _claim(seen: Observations, lost: LostGraphs, cause: str) -> Claim:
    steps = lost.known if lost.known.any() else lost.steps
    ranks, who = _name(lost)
    if unseen_member(seen) is not None:
        ranks, who = (), "all"
    run = _describe(lost, steps)
    n, share = int(steps.sum()), float(steps.mean())
    named = seen.names_of(ranks) + (" in turn" if who == "rotating" else "") if ranks else "all ranks"
    because = {
        "idle": "without requests, and no rank replays a graph then",
        "rows": "with more rows than any graph that was replayed, so that no rank replays one",
    }.get(lost.why if ranks else "", "launch kernel by kernel what they replay as graphs in other steps")
    gaps = f"idle {format_ns(lost.eager_ns)} in an eager step, {format_ns(lost.graph_ns)} in a replayed one"
    return Claim(
        cause,
        ranks,
        steps,
        who,
        when_of(seen, run),
        f"{named}: {because}, in {n} of {seen.n_steps} steps",
        (
            Evidence("eager_steps_ratio", share, "ratio", f"{format_ratio(share)} of the steps ran eagerly", 0.0, n),
            Evidence("eager_idle_ns", lost.eager_ns, "ns", gaps, lost.graph_ns, n),
            *_tell_blame(lost),
        ),
        (
            Alternative("single_point.host", "idle gaps on one rank and not on its peers in the same steps"),
            Alternative("load.prefill", "prompt tokens on some rank in the same steps"),
        ),
        tuple(_replay_as_graphs(seen, lost)) if lost.known.any() else (),
        "replayed" if seen.abilities.has_launches else "bound",
        period_ns=period_of(seen, run),
        loss_known=bool(lost.known.any()),
    )


def _name(lost: LostGraphs) -> tuple[tuple[int, ...], Who]:
    """Name the ranks to blame; where all of them take turns, or nothing shows, nobody is named."""
    ranks = members(lost.mask)
    if not ranks or lost.mask.all():
        return (), "all"
    if len(ranks) == 1:
        return ranks, "one"
    together = lost.blame[:, lost.mask].all(axis=1).sum() / max(lost.blame[:, lost.mask].any(axis=1).sum(), 1)
    return ranks, "group" if together >= ALIKE else "rotating"


def _tell_blame(lost: LostGraphs) -> Iterator[Evidence]:
    if not lost.why:
        return
    share = float(lost.blame[lost.steps].any(axis=1).mean())
    what = "a rank has no work of its own" if lost.why == "idle" else "a rank holds more rows than any graph step"
    yield Evidence("ineligible_ratio", share, "ratio", f"{what} in {format_ratio(share)} of the eager steps", 0.0)


def _describe(lost: LostGraphs, steps: BoolArray) -> Standout:
    """Describe the steps as a run, or as single ones where others lie between."""
    where = np.flatnonzero(steps)
    first, stop = int(where[0]), int(where[-1]) + 1
    marks = np.broadcast_to(steps[:, None], lost.blame.shape)
    levels = np.ones(lost.blame.shape[1])
    return Standout(first, stop, lost.mask, levels, 1.0, marks, is_burst=len(where) < RUN * (stop - first))


def _replay_as_graphs(seen: Observations, lost: LostGraphs) -> Iterator[Undo]:
    """Give every eager step the idle time of graph steps at each position, its own samples kept.

    All that a graph holds is launched at once, also where a host that launched less was ahead of its GPU.
    """
    known = [seen.select(grid_id, lost.known)[:, None, None] for grid_id in range(len(seen.grids))]
    yield Undo("launch", tuple(np.where(rows, 0.0, 1.0) for rows in known))
    for component in IDLE:
        factors = []
        for grid_id, (grid, usual) in enumerate(zip(seen.grids, lost.usual[component], strict=True)):
            rows = seen.select(grid_id, lost.known)
            factor = np.ones(grid.segment.shape)
            if usual is not None and rows.any():
                level = np.median(np.maximum(grid.components[component], 0)[rows], axis=0)
                factor[rows] = np.where(level > 0, usual / np.maximum(level, 1.0), 1.0)
            factors.append(factor)
        yield Undo(component, tuple(factors))
