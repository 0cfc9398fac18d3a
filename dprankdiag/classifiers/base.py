"""The contract of a classifier, and what several of them say in the same words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from dprankdiag.analysis.absences import FlightView
from dprankdiag.analysis.awaited import Line, WaitView
from dprankdiag.analysis.observations import Observations
from dprankdiag.analysis.skews import Skews
from dprankdiag.analysis.standouts import Standout, find_period
from dprankdiag.analysis.statistics import BoolArray, FloatArray
from dprankdiag.model.claims import Claim, Undo, UntimedClaim
from dprankdiag.model.diagnosis import Abstention, Evidence, When, Who
from dprankdiag.units import format_ns, format_ratio

LEAST_SHARE = 0.1
"""Ranks that do less than this share of the mean are idle: what they would do with requests does not show in them."""

ONSET_STEPS = 20
"""A change point counts as an onset with at least this many steps on each side (DESIGN 3)."""


class Classifier(Protocol):
    """Judges one cause. Its docstring is the page that `dprankdiag explain` prints."""

    @property
    def cause(self) -> str:
        """The cause, as `class.name`."""
        ...

    def judge(self, seen: Observations, skews: Skews) -> Iterator[Claim | Abstention]:
        """Yield a claim for every fault seen, or an abstention that says why the cause cannot be judged."""
        ...


class WaitClassifier(Protocol):
    """Judges one cause by a receive-wait matrix."""

    @property
    def cause(self) -> str:
        """The cause, as `class.name`."""
        ...

    def judge_waits(self, seen: WaitView) -> Iterator[UntimedClaim]:
        """Yield a claim for every fault seen; what a matrix cannot show is in the catalogue of inputs."""
        ...


class DumpClassifier(Protocol):
    """Judges one cause by Flight Recorder dumps."""

    @property
    def cause(self) -> str:
        """The cause, as `class.name`."""
        ...

    def judge_dumps(self, seen: FlightView) -> Iterator[UntimedClaim | Abstention]:
        """Yield a claim, or an abstention where somebody waits and nobody can be named; nothing if nobody waits."""
        ...


def when_of(seen: Observations, standout: Standout) -> When:
    """Tell single steps from a shift within the recording, and that from a skew that was there throughout."""
    if standout.is_burst:
        return "periodic" if period_of(seen, standout) is not None else "burst"
    long_enough = standout.stop - standout.first >= ONSET_STEPS
    starts = standout.first >= ONSET_STEPS and long_enough
    ends = seen.n_steps - standout.stop >= ONSET_STEPS and long_enough
    return "onset" if starts or ends else "steady"


def period_of(seen: Observations, standout: Standout) -> int | None:
    """Return the period of a burst whose steps come back regularly, in ns."""
    if not standout.is_burst or standout.in_turn:
        return None
    steps = standout.steps if standout.peaks is None else standout.peaks
    return find_period(np.flatnonzero(steps), seen.start_ns[steps])


def who_of(standout: Standout) -> Who:
    """Say whether one rank, a group, or ranks in turn are meant."""
    count = int(standout.mask.sum())
    if standout.in_turn:
        return "all" if count == len(standout.mask) else "rotating"
    return "one" if count == 1 else "group"


def members(mask: BoolArray) -> tuple[int, ...]:
    """List the positions of a mask."""
    return tuple(int(position) for position in np.flatnonzero(mask))


def ranks_of(standout: Standout) -> tuple[int, ...]:
    """List the ranks to name; where all take turns, nobody is named."""
    return () if who_of(standout) == "all" else members(standout.mask)


def name_culprits(seen: Observations, standout: Standout) -> str:
    """Name for people the ranks meant, and say so where they take turns."""
    named = ranks_of(standout)
    return (seen.names_of(named) if named else "every rank") + (" in turn" if standout.in_turn else "")


def even_out(values: FloatArray, standout: Standout) -> FloatArray:
    """Return the factor that spreads the work of the covered steps evenly, its sum conserved.

    Over a run of steps the ranks that stand out are brought to the mean of the others, and all grow by what is taken
    off them: by how much ranks differ anyhow, they go on to differ. Single steps are evened one by one, and so is a run
    in which the others have next to nothing.

    Args:
        values: `(n_steps, n_ranks)` work, speed taken out.

    Returns:
        `(n_steps, n_ranks)`, 1 outside the covered steps.
    """
    factor = np.ones(values.shape)
    steps = standout.steps
    level = values[steps] if standout.is_burst else values[steps].mean(axis=0, keepdims=True)
    target = np.broadcast_to(level.mean(axis=1, keepdims=True), level.shape)
    rest = level[:, ~standout.mask]
    if not standout.is_burst and rest.size and rest.mean() > LEAST_SHARE * level.mean():
        target = np.where(standout.mask, rest.mean(), level)
        target = target * (level.sum() / target.sum())
    factor[steps] = np.where(level > 0, target / np.maximum(level, 1e-9), 1.0)
    return factor


def lift_off(values: FloatArray, standout: Standout) -> FloatArray:
    """Return the factor that brings the ranks that stand out to the level of the rest, as if nothing had been."""
    steps = standout.steps
    level = values[steps] if standout.is_burst else np.median(values[steps], axis=0, keepdims=True)
    others = ~standout.mask
    rest = np.median(level[:, others], axis=1) if others.any() else np.median(level, axis=1)
    lowered = np.where(level > 0, np.minimum(rest[:, None] / np.maximum(level, 1e-9), 1.0), 1.0)
    factor = np.ones(values.shape)
    factor[steps] = lowered
    return np.where(standout.marks, factor, 1.0)


def scale(seen: Observations, component: str, factor: FloatArray) -> Undo:
    """Make an undo from a factor by step and rank."""
    return Undo(component, seen.spread_factor(factor))


def waiting_evidence(seen: Observations, ranks: Sequence[int], steps: BoolArray) -> list[Evidence]:
    """Say how long the culprits and the others waited: the late rank waits least."""
    wait = seen.sums["wait"][steps]
    if not len(wait):
        return []
    own = float(np.mean(wait[:, list(ranks)]))
    others = [position for position in range(seen.n_ranks) if position not in ranks]
    peers = float(np.mean(wait[:, others])) if others else None
    last = _share_last(seen, ranks, steps)
    found = [
        Evidence(
            "share_last", last, "ratio", f"comes last to {format_ratio(last)} of its meetings", None, int(steps.sum())
        ),
        Evidence(
            "wait_ns_per_step", own, "ns", f"waits {format_ns(own)} a step in its collectives", None, int(steps.sum())
        ),
    ]
    if peers is not None:
        text = f"the others wait {format_ns(peers)} a step for it"
        found.append(Evidence("peers_wait_ns_per_step", peers, "ns", text, None, int(steps.sum())))
    return found


def show_culprits(seen: Observations, ranks: Sequence[int], steps: BoolArray) -> list[Evidence]:
    """Say how long the culprits and the others waited, and whether the culprits are all there is of their hosts."""
    return [*waiting_evidence(seen, ranks, steps), *host_evidence(seen, ranks)]


def host_evidence(seen: Observations, ranks: Sequence[int]) -> Iterator[Evidence]:
    """Name the hosts that the ranks make up; nothing if they are part of one, all there are, or if a host is unknown.

    A host with one rank is left out: which of the two is ill cannot be told.
    """
    homes, named = seen.homes, np.isin(np.arange(seen.n_ranks), ranks)
    ill = [host for host, home in homes.items() if (home & named).any()]
    whole = all(named[homes[host]].all() and homes[host].sum() > 1 for host in ill)
    if ill and whole and len(ill) < len(homes):
        which = f"{'host' if len(ill) == 1 else 'hosts'} {', '.join(ill)}"
        text = f"all {len(ranks)} ranks of {which}, and no other rank"
        yield Evidence("host_ranks", float(len(ranks)), "count", text)


def _share_last(seen: Observations, ranks: Sequence[int], steps: BoolArray) -> float:
    """Return the share of meetings, in the given steps, to which one of the ranks came last."""
    came_last = meetings = 0
    for grid_id, grid in enumerate(seen.grids):
        rows = seen.select(grid_id, steps)
        came_last += int(grid.find_last(np.flatnonzero(rows), ranks).any(axis=2).sum())
        meetings += int(rows.sum()) * len(grid.meetings)
    return came_last / meetings if meetings else 0.0


def unseen_member(seen: Observations) -> str | None:
    """Say why nobody can be named while a member of the group was not recorded."""
    if not seen.abilities.missing_ranks:
        return None
    return f"{say_unrecorded(seen.abilities.missing_ranks)}: the slowest member may be the one that is not seen"


def say_unrecorded(ranks: Sequence[int]) -> str:
    """Say which ranks were not recorded."""
    return f"{name_numbers(ranks)} {'was' if len(ranks) == 1 else 'were'} not recorded"


def line_evidence(line: Line, n_ranks: int) -> list[Evidence]:
    """Say how far a line of a wait matrix stands out, who sees it, and how the rank itself waits."""
    seen_by = {"all": "ranks", "near": "ranks of its node", "far": "ranks of other nodes"}[line.scope]
    found = [
        Evidence(
            "wait_ratio", line.ratio, "ratio", f"{times(line.ratio)} the waits of the other ranks", 1.0, line.voters
        ),
        Evidence(
            "agreeing_share",
            line.agreeing,
            "ratio",
            f"{format_ratio(line.agreeing)} of {line.voters} {seen_by} asked see it",
            None,
            line.voters,
        ),
    ]
    if line.own_ratio is not None:
        flat = "stands out too" if line.own_high else "is even"
        text = f"its own row {flat}: {times(line.own_ratio)} the waits of the others"
        found.append(Evidence("own_row_ratio", line.own_ratio, "ratio", text, 1.0, n_ranks - 1))
    return found


def name_numbers(ranks: Sequence[int]) -> str:
    """Name ranks by number, runs of more than two joined: ``rank 3``, ``ranks 0-11, 14``."""
    parts: list[str] = []
    ordered = sorted(ranks)
    first = 0
    for position, rank in enumerate(ordered):
        if position + 1 == len(ordered) or ordered[position + 1] != rank + 1:
            run = ordered[first : position + 1]
            parts += [f"{run[0]}-{run[-1]}"] if len(run) > 2 else [str(number) for number in run]
            first = position + 1
    return f"{'rank' if len(ordered) == 1 else 'ranks'} {', '.join(parts)}"


def count_ranks(ranks: Sequence[int]) -> str:
    """Write how many ranks, or which where it is one: ``rank 3``, ``7 ranks``."""
    return name_numbers(ranks) if len(ranks) == 1 else f"{len(ranks)} ranks"


def times(ratio: float) -> str:
    """Write a factor with three significant digits, whole where it is large: ``2.45 ×``, ``4211 ×``, ``2e+09 ×``."""
    return f"{ratio:.0f} ×" if 1000 <= ratio < 1e6 else f"{ratio:.3g} ×"
