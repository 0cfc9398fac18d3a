"""What the load classifiers claim in the same words: attention, rows and padding spread evenly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dprankdiag.analysis.host_meetings import LateToMeeting, measure_lateness
from dprankdiag.analysis.idleness import add_first_rows
from dprankdiag.analysis.loads import LoadSkew, classify_loads
from dprankdiag.analysis.observations import Observations
from dprankdiag.analysis.padding import Padding, even_rows, judge_padding
from dprankdiag.analysis.rows import RowWork, measure_row_work
from dprankdiag.analysis.skews import Skews, rest_of_work
from dprankdiag.analysis.standouts import Standout
from dprankdiag.analysis.statistics import BoolArray, FloatArray
from dprankdiag.analysis.tails import shrink_tails
from dprankdiag.classifiers.base import (
    even_out,
    lift_off,
    members,
    name_culprits,
    period_of,
    ranks_of,
    scale,
    show_culprits,
    unseen_member,
    when_of,
    who_of,
)
from dprankdiag.model.claims import Claim, Undo
from dprankdiag.model.diagnosis import Abstention, Alternative, Evidence
from dprankdiag.units import format_ns, format_ratio

NEXT_TO_NONE = 0.01
"""Work below this share of a busy rank's is told as none: a ratio to it would be a number without meaning."""

ROWS_ERROR = 0.15
"""How far what all ranks pay for the busiest one's rows may be off, as a share of it (a standard deviation).

Between and below the sizes seen it is taken to lie on a line, but matrix products grow by whole tiles; and hosts that
come sooner launch sooner only as far as nothing else holds them up.

Source: simulated deployments of the physics with tiles and memory; the other one has straight lines.
"""


def claim_loads(seen: Observations, skews: Skews, cause: str, kind: str, because: str) -> Iterator[Claim | Abstention]:
    """Claim every attention standout of one kind.

    The undo spreads the attention work evenly over the group, the total conserved; other work before the gather that
    grows with it is spread too, and work after the gather that is padded to the busiest rank's rows shrinks on all.

    Args:
        because: ends the summary "rank 3: 2.1 × the attention work of the other ranks".
    """
    for load in classify_loads(seen, skews):
        if load.kind != kind:
            continue
        if (reason := unseen_member(seen)) is not None:
            yield Abstention(cause, reason)
            continue
        standout = load.standout
        ranks = members(standout.mask)
        typical = float(np.median(seen.sums["attention"] / skews.slowness))
        undo, proof, most = _undo_load(seen, skews, load)
        padded = _judge_rows(seen, skews, standout) if load.follows_rows else None
        late = measure_lateness(seen, standout.marks) if load.follows_rows else None
        if late is not None:
            sooner = meet_sooner(seen, late.saved_ns)
            undo, proof, most = [*undo, sooner], [*proof, sooner], [*most, sooner]
        if padded is not None and padded.padding is not None:
            undo += padded.shrink(seen, padded.even)
            most += padded.shrink(seen, padded.even, at_most=True)
            proof += padded.shrink(seen, padded.rest)
        where = f" in {int(standout.steps.sum())} of {seen.n_steps} steps" if standout.is_burst else ""
        yield Claim(
            cause,
            ranks_of(standout),
            standout.steps,
            who_of(standout),
            when_of(seen, standout),
            f"{name_culprits(seen, standout)}: {_say_load(load)}{where}{because}",
            (*_load_evidence(seen, load, ranks, standout.steps), *_rows_evidence(seen, padded, late)),
            (
                Alternative("single_point.gpu", "kernels of equal work longer on that rank too"),
                Alternative("structural.layout", "the same share at every load level"),
            ),
            tuple(undo),
            "lower bound" if load.kind == "prefill" or (padded is not None and padded.reason) else "replayed",
            period_ns=period_of(seen, standout),
            proof=tuple(proof),
            most=tuple(most),
            spread_ns=float(np.hypot(_doubt_attention(seen, load, typical), ROWS_ERROR * _excess(seen, padded, late))),
        )


def _doubt_attention(seen: Observations, load: LoadSkew, typical: float) -> float:
    """Return by how much attention spread evenly may be off, ns a step."""
    rest = add_first_rows(seen, seen.sums["attention"])[1] if load.kind == "idle" else 0.0
    return float(np.hypot(load.standout.spread * typical, rest))


def _undo_load(seen: Observations, skews: Skews, load: LoadSkew) -> tuple[list[Undo], list[Undo], list[Undo]]:
    """Undo what the heavier ranks do themselves: spread evenly, gone, and spread without lengthening the others' work.

    A few rows more may cost the others nothing: what their weights take to be read they take with fewer rows as well.
    """
    standout = load.standout
    work = seen.sums["attention"] / skews.slowness
    spread = add_first_rows(seen, work)[0] if load.kind == "idle" else work
    undo = [scale(seen, "attention", even_out(spread, standout))]
    proof = [scale(seen, "attention", lift_off(work, standout))]
    # Decoders beside a prompt read in the same kernel, which may hide what a short part of it takes.
    most = list(proof if load.kind == "prefill" else undo)
    if load.follows_rows:
        rows = [measure_row_work(seen, skews.slowness, standout, component) for component in ("probe", "other")]
        found: list[RowWork] = [item for item in rows if item is not None]
        undo += [Undo(item.component, item.spread) for item in found]
        proof += [Undo(item.component, item.lift) for item in found]
        most += [Undo(item.component, item.lift) for item in found]
        return undo, proof, most
    ranks = list(members(standout.mask))
    for other in skews.other:
        if other.mask[ranks].all() and (other.steps & standout.steps).any():
            component = rest_of_work(skews.speed_basis)
            rest_work = seen.sums[component] / skews.slowness
            undo.append(scale(seen, component, even_out(rest_work, standout)))
            proof.append(scale(seen, component, lift_off(rest_work, standout)))
            most.append(undo[-1])
            break
    return undo, proof, most


@dataclass(frozen=True, slots=True)
class _RowsOfAll:
    """What all ranks pay for the rows of those that stand out.

    Attributes:
        padding: None where nothing can be judged.
        steps: `(n_steps,)` those in which one of them holds the most rows.
        even, rest: `(n_steps,)` the busiest rank's rows were all spread evenly, and without theirs.
        reason: why the price is not known, or not all of it; "" where it is.
    """

    padding: Padding | None
    steps: BoolArray
    even: FloatArray
    rest: FloatArray
    reason: str

    def shrink(self, seen: Observations, rows: FloatArray, *, at_most: bool = False) -> list[Undo]:
        """Make the undos that bring every rank's time to that of so many rows."""
        if self.padding is None:
            return []
        top = np.nan_to_num(self.padding.rows).max(axis=1)
        found = (
            *self.padding.shrink(seen, self.steps, rows, at_most=at_most),
            *shrink_tails(seen, self.steps, top, rows),
        )
        return [Undo(component, tuple(factors)) for component, factors in found]


def _judge_rows(seen: Observations, skews: Skews, standout: Standout) -> _RowsOfAll:
    # A host that is late by itself is told as such, and one that is seen to be late needs no guess.
    padding = judge_padding(seen, with_hosts=not skews.host and seen.host_come is None)
    if isinstance(padding, str):
        nothing = np.zeros(seen.n_steps)
        return _RowsOfAll(None, standout.steps, nothing, nothing, padding)
    rows = np.nan_to_num(padding.rows)
    steps = standout.steps & standout.marks[np.arange(seen.n_steps), rows.argmax(axis=1)]
    even = even_rows(rows, standout.marks)
    others = np.where(standout.mask[None, :], 0.0, rows).max(axis=1)
    return _RowsOfAll(padding, steps, even, np.where(others > 0, others, even), padding.reason(seen, steps))


def meet_sooner(seen: Observations, saved_ns: FloatArray) -> Undo:
    """Make the undo of idle time before the first launch of a step that ends with the hosts' meeting.

    Args:
        saved_ns: `(n_steps,)` by how much earlier the hosts meet.
    """
    factors = []
    for grid_id, grid in enumerate(seen.grids):
        idle = grid.components["host"][:, 0]
        factor = np.ones(grid.segment.shape)
        saved = saved_ns[seen.grid_of == grid_id][:, None]
        factor[:, 0] = np.where(idle > 0, 1.0 - np.minimum(saved / np.maximum(idle, 1), 1.0), 1.0)
        factors.append(factor)
    return Undo("host", tuple(factors))


def _excess(seen: Observations, padded: _RowsOfAll | None, late: LateToMeeting | None) -> float:
    """Give how much longer a step is on all ranks for the rows of those that stand out, and for their hosts, ns."""
    found = 0.0 if late is None else float(late.saved_ns.sum()) / max(int((late.saved_ns > 0).sum()), 1)
    if padded is None or padded.padding is None:
        return found
    return found + padded.padding.excess_ns(seen, padded.steps, padded.even)


def _rows_evidence(seen: Observations, padded: _RowsOfAll | None, late: LateToMeeting | None) -> Iterator[Evidence]:
    if late is not None:
        text = f"its host takes {format_ns(late.lateness_ns)} longer than the others' to come to their meeting"
        yield Evidence("host_meeting_lateness_ns", late.lateness_ns, "ns", text, 0.0)
    if padded is None:
        return
    if padded.reason:
        text = f"whether rows are padded to this rank's, and what that costs, cannot be judged: {padded.reason}"
        yield Evidence("padding_ns_per_step", None, "ns", text, 0.0)
        return
    excess = _excess(seen, padded, None)
    if excess > 0:
        text = f"what follows the busiest rank's rows takes every rank {format_ns(excess)} a step longer"
        yield Evidence("padding_ns_per_step", excess, "ns", text, 0.0, int(padded.steps.sum()))


def _say_load(load: LoadSkew) -> str:
    if load.kind == "idle":
        return "all requests"
    ratio = _work_ratio(load.standout)
    if ratio is None:
        return "attention work while the other ranks have next to none"
    return f"{ratio:.2f} × the attention work of the other ranks"


def _work_ratio(standout: Standout) -> float | None:
    """Give the work of the ranks meant over the others'; None where these have next to none."""
    own = float(np.mean(standout.levels[standout.mask]))
    return own / standout.centre if standout.centre > NEXT_TO_NONE * own else None


def _load_evidence(seen: Observations, load: LoadSkew, ranks: Sequence[int], steps: BoolArray) -> Iterator[Evidence]:
    attention = seen.sums["attention"][steps]
    others = [position for position in range(seen.n_ranks) if position not in ranks]
    n = int(steps.sum())
    ratio = _work_ratio(load.standout)
    if ratio is not None:
        yield Evidence("attention_work_ratio", ratio, "ratio", f"attention takes {ratio:.2f} × as long", 1.0, n)
    if others:
        own = float(np.median(attention[:, list(ranks)]))
        rest = float(np.median(attention[:, others]))
        text = f"{format_ns(own)} of attention a step, the others {format_ns(rest)}: {format_ns(own - rest)} more"
        yield Evidence("attention_excess_ns", own - rest, "ns", text, 0.0, n)
    if load.post_ratio is not None:
        text = f"experts after the gather take {load.post_ratio:.2f} × the others' time: not a slower chip"
        yield Evidence("post_gather_ratio", load.post_ratio, "ratio", text, 1.0, n)
    if load.row_ratio is not None:
        text = f"{load.row_ratio:.2f} × the requests of the others"
        yield Evidence("request_ratio", load.row_ratio, "ratio", text, 1.0, n)
    if load.held_ratio is not None:
        text = f"{load.held_ratio:.2f} × the KV tokens of the others"
        yield Evidence("held_token_ratio", load.held_ratio, "ratio", text, 1.0, n)
    if load.prompt_ratio is not None and load.kind == "prefill":
        text = f"{load.prompt_ratio:.2f} × the prompt tokens of the others"
        yield Evidence("prompt_token_ratio", load.prompt_ratio, "ratio", text, 1.0, n)
    if load.standout.is_burst:
        share = n / seen.n_steps
        text = f"{format_ratio(share)} of the steps are held up so"
        yield Evidence("held_up_steps_ratio", share, "ratio", text, 0.0, seen.n_steps)
    yield from show_culprits(seen, ranks, steps)
