"""Tell what kind of load makes a rank's attention heavier."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dprankdiag.analysis.chips import SLOW_CHIP_MARGIN
from dprankdiag.analysis.idleness import find_idle
from dprankdiag.analysis.observations import Observations
from dprankdiag.analysis.prompts import find_prompts
from dprankdiag.analysis.skews import Skews
from dprankdiag.analysis.standouts import Standout
from dprankdiag.analysis.statistics import BoolArray, FloatArray

ROWS_ALIKE = 0.10
"""Rows within a tenth of the peers' count as equal (DESIGN 3: load.context before load.requests)."""

PREFILL_APART, PREFILL_LEAST = 2.0, 0.01
"""Prefill attention in a share of the segments this many times, and this much, above that of the other ranks."""

PROMPT_SHARE = 0.5

MORE_ROWS = 2.0
"""Rows of launches that outnumber the rest's by so many times what attention does are no requests: tokens of prompts
have rows as well."""


@dataclass(frozen=True, slots=True)
class LoadSkew:
    """Ranks with more attention work, and what is known of why.

    Attributes:
        kind: "context", "requests", "prefill", "idle" or "unknown".
        row_ratio: requests of the heavier ranks over the rest's, from batch annotations, else from launch shapes;
            None if neither tells.
        held_ratio, prompt_ratio: KV tokens held and prompt tokens, likewise, from batch annotations.
        post_ratio: expert work of the heavier ranks over the rest's; None if there is none.
    """

    standout: Standout
    kind: str
    row_ratio: float | None
    held_ratio: float | None
    prompt_ratio: float | None
    post_ratio: float | None

    @property
    def follows_rows(self) -> bool:
        """Tell whether the rows of the ranks' batches differ, or might."""
        return self.kind in ("requests", "prefill", "idle", "unknown")


EXPLAINS = 0.5
"""Share of what stands out that a load known otherwise must cover to be all there is to it."""


def classify_loads(seen: Observations, skews: Skews) -> list[LoadSkew]:
    """Name the kind of every attention standout, as far as the recording carries it."""
    if skews.speed_basis == "expert":
        # Experts and attention are slow alike and nothing of equal work was seen: not load, not known.
        return []
    known = {"idle": find_idle(seen), "prefill": find_prompts(seen, skews.slowness)}
    found = [_describe(seen, skews, standout, kind) for kind, standout in known.items() if standout is not None]
    for standout in skews.attention:
        explained = any(_covers(load.standout, standout) for load in found)
        if not explained and not _is_slow_chip(seen, skews, standout):
            found += _describe_apart(seen, skews, standout)
    return found


def _describe_apart(seen: Observations, skews: Skews, standout: Standout) -> list[LoadSkew]:
    """Describe ranks that stand out together; where each by itself has a kind, and not all the same, kind by kind."""
    masks: dict[str, BoolArray] = {}
    for members in [] if standout.is_burst or standout.in_turn else _list_parts(seen, standout):
        mask = np.isin(np.arange(seen.n_ranks), members)
        kind = _describe(seen, skews, _take_ranks(standout, mask)).kind
        masks[kind] = masks.get(kind, np.zeros(seen.n_ranks, bool)) | mask
    if len(masks) < 2 or "unknown" in masks:
        return [_describe(seen, skews, standout)]
    return [_describe(seen, skews, _take_ranks(standout, mask), kind) for kind, mask in masks.items()]


def _list_parts(seen: Observations, standout: Standout) -> list[list[int]]:
    """List the ranks that stand out, those of a team together."""
    teams = {rank: team for team in seen.teams for rank in team}
    ranks = np.flatnonzero(standout.mask).tolist()
    parts = dict.fromkeys(teams.get(rank, (rank,)) for rank in ranks)
    return [[rank for rank in part if rank in ranks] for part in parts]


def _take_ranks(standout: Standout, mask: BoolArray) -> Standout:
    return replace(standout, mask=mask, marks=standout.marks & mask)


def _covers(known: Standout, other: Standout) -> bool:
    """Tell whether what is known of some ranks and steps is most of what stands out elsewhere."""
    return bool((known.marks & other.marks).sum() >= EXPLAINS * other.marks.sum())


def _describe(seen: Observations, skews: Skews, standout: Standout, kind: str | None = None) -> LoadSkew:
    told = {name: _read_annotations(seen, standout, name) for name in ("requests", "held_tokens", "prefill_tokens")}
    rows, held, prompt = (it.ratio if it else None for it in told.values())
    by_shape = rows is None
    if by_shape:
        rows = _compare_shapes(seen, standout)
    kind = kind or _kind(seen, standout, rows, told["prefill_tokens"])
    if kind == "requests" and by_shape and rows is not None and rows > 1 + MORE_ROWS * (_work_ratio(standout) - 1):
        kind = "unknown"
    return LoadSkew(standout, kind, rows, held, prompt, _post_ratio(seen, skews, standout))


def _is_slow_chip(seen: Observations, skews: Skews, standout: Standout) -> bool:
    """Tell whether heavier attention is what a slow chip does to it, beyond what the probes show on average.

    Of a team that shares its requests one slow chip is enough: the mean over the team hides the others.
    """
    teams = [team for team in seen.teams if standout.mask[list(team)].any()] or [
        tuple(np.flatnonzero(standout.mask).tolist())
    ]
    for slow in skews.speed:
        ill = standout.mask & slow.mask
        covered = all(ill[list(team)].any() for team in teams) if len(seen.teams) > 1 else ill[standout.mask].all()
        if covered and (slow.steps & standout.steps).any():
            share = float(ill[standout.mask].mean())
            ratio = 1.0 + (float(np.max(standout.levels[standout.mask])) - 1.0) / share
            speed = float(np.mean(slow.levels[ill])) / slow.centre
            return ratio * speed <= SLOW_CHIP_MARGIN * _worst_slowness(skews, ill, speed)
    return False


def _worst_slowness(skews: Skews, ill: BoolArray, speed: float) -> float:
    """Return how slow the worst family of equal work is where all of it is `speed` slower, not on average."""
    typical = float(skews.slowness[:, ill].mean())
    worst = float(skews.worst_family[ill].max())
    return max(1.0 + (worst - 1.0) * (speed - 1.0) / (typical - 1.0), worst) if typical > 1.0 else worst


@dataclass(frozen=True, slots=True)
class _Annotated:
    """What annotations say, on average, of the ranks and steps meant, and of the rest in the same steps.

    Attributes:
        own, rest: mean of a field.
        filled: share of the annotations of those meant that hold more than nothing.
    """

    own: float
    rest: float
    filled: float

    @property
    def ratio(self) -> float | None:
        """The one over the other; None where the rest hold nothing."""
        return self.own / self.rest if self.rest > 0 else None


def _read_annotations(seen: Observations, standout: Standout, field: str) -> _Annotated | None:
    """Average what annotations say of the standout's steps; None if any rank's do not say, or nobody is the rest.

    Of ranks that take turns, those whose turn it is not are the rest.
    """
    covered = np.flatnonzero(standout.steps)
    own: list[FloatArray] = []
    rest: list[FloatArray] = []
    for rank, series in enumerate(seen.batches):
        step = seen.find_step(series.start_ns)
        mine = np.isin(step, np.flatnonzero(standout.marks[:, rank]))
        values = getattr(series, field)
        if standout.mask[rank]:
            own.append(values[mine])
        if standout.in_turn or not standout.mask[rank]:
            rest.append(values[np.isin(step, covered) & ~mine])
    if not own or not rest or not all(len(part) and not np.isnan(part).any() for part in (*own, *rest)):
        return None
    middle = float(np.median([part.mean() for part in rest]))
    return _Annotated(float(np.mean([part.mean() for part in own])), middle, float((np.concatenate(own) > 0).mean()))


def _compare_shapes(seen: Observations, standout: Standout) -> float | None:
    """Compare the rows of launch shapes in the steps meant, all of a recording's difference being theirs."""
    mask = standout.mask
    if seen.row_ratio is None or mask.all():
        return None
    rest = float(np.median(seen.row_ratio[~mask]))
    if rest <= 0:
        return None
    share = float(standout.marks[:, mask].mean())
    return 1 + (float(np.mean(seen.row_ratio[mask])) / rest - 1) / max(share, 1e-9)


def _work_ratio(standout: Standout) -> float:
    return float(np.mean(standout.levels[standout.mask])) / max(standout.centre, 1e-9)


def _kind(seen: Observations, standout: Standout, rows: float | None, prompt: _Annotated | None) -> str:
    ratio = _work_ratio(standout)
    if _runs_prefill(seen, standout) or (prompt is not None and _holds_prompts(prompt, ratio)):
        return "prefill"
    if rows is None:
        return "unknown"
    if abs(rows - 1.0) <= ROWS_ALIKE:
        return "context"
    return "requests" if rows > 1 + ROWS_ALIKE and rows >= 1 + 0.5 * (ratio - 1) else "unknown"


def _runs_prefill(seen: Observations, standout: Standout) -> bool:
    """Tell whether prefill attention runs mostly on the ranks meant; where they take turns, in their turn."""
    mask, steps = standout.mask, standout.steps
    if standout.in_turn and seen.prefill is not None:
        turns, runs = standout.marks[steps], seen.prefill[steps]
        return bool(runs[turns].mean() > PREFILL_APART * runs[~turns].mean() + PREFILL_LEAST)
    share = seen.prefill_share
    return bool((~mask).any() and share[mask].min() > PREFILL_APART * share[~mask].max() + PREFILL_LEAST)


def _holds_prompts(prompt: _Annotated, work_ratio: float) -> bool:
    """Tell whether most steps meant hold prompt tokens, and so many more than the rest that the work follows."""
    if prompt.filled < PROMPT_SHARE:
        return False
    return prompt.ratio is None or prompt.ratio >= 1 + 0.5 * (work_ratio - 1)


def _post_ratio(seen: Observations, skews: Skews, standout: Standout) -> float | None:
    expert = seen.sums["expert"][standout.steps] / skews.slowness[standout.steps]
    if np.median(expert) <= 0 or not (~standout.mask).any():
        return None
    level = np.median(expert, axis=0)
    return float(np.mean(level[standout.mask]) / max(float(np.median(level[~standout.mask])), 1.0))
