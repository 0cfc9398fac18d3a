"""The verdict of a comparison and its sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dprankdiag.analysis.reference import LEAST_SLOWNESS, LEAST_TRANSFER_SHARE
from dprankdiag.model.comparison import CauseChange, Change, ComparisonVerdict, Direction, EngineChange
from dprankdiag.units import format_ns, format_ratio

_VERDICT_WORDS: dict[ComparisonVerdict, str] = {
    "better": "Better",
    "worse": "Worse",
    "unchanged": "No significant change",
    "not_comparable": "Not comparable",
}
UNNAMED = "default"
MOST_CAUSES = 2
"""Causes that the headline names."""

MOST_ENGINES = 2
"""Lockstep groups whose steps the headline tells, changed or not; of more only some that changed."""


def decide(
    engines: Sequence[EngineChange], causes: Sequence[CauseChange], reasons: Sequence[str]
) -> tuple[ComparisonVerdict, str]:
    """Decide on better or worse by step time, else by what causes of warning or above cost; and say why."""
    comparable = [engine for engine in engines if not engine.reasons]
    if not comparable:
        told = [*(reason for engine in engines for reason in engine.reasons), *reasons]
        return "not_comparable", f"{_VERDICT_WORDS['not_comparable']}: {'; '.join(told) or 'nothing was measured'}"
    weighty = [cause for cause in causes if {cause.before_severity, cause.after_severity} & {"warning", "critical"}]
    verdict = _agree([engine.step_ns.direction for engine in comparable])
    if verdict == "unchanged":
        verdict = _agree([cause.direction for cause in weighty])
    return verdict, f"{_VERDICT_WORDS[verdict]}: {'; '.join(_because(comparable, weighty))}"


def _agree(directions: Sequence[Direction | None]) -> Direction:
    """Return what all that changed agree on."""
    changed = {direction for direction in directions if direction in ("better", "worse")}
    return "worse" if changed == {"worse"} else "better" if changed == {"better"} else "unchanged"


def _because(engines: Sequence[EngineChange], weighty: Sequence[CauseChange]) -> Iterator[str]:
    yield from _describe_engines(engines)
    told = [cause for cause in weighty if cause.direction in ("better", "worse") or cause.presence != "stayed"]
    yield from (cause.summary for cause in told[:MOST_CAUSES])
    if len(told) > MOST_CAUSES:
        yield f"{len(told) - MOST_CAUSES} more changes"
    if not told:
        yield "no cause of warning or above is new, gone or costs significantly more or less"


def _describe_engines(engines: Sequence[EngineChange]) -> Iterator[str]:
    """Say how the step of each lockstep group changed; of many groups, only of those whose step did."""
    if len(engines) == 1:
        yield describe_step(engines[0].step_ns)
        yield from _describe_shared(engines[0])
        return
    changed = [engine for engine in engines if engine.step_ns.direction in ("better", "worse")]
    told = engines if len(engines) <= MOST_ENGINES else changed[:MOST_ENGINES]
    for engine in told:
        prefix = f"{name_group(engine)}: "
        yield prefix + describe_step(engine.step_ns)
        yield from (prefix + text for text in _describe_shared(engine))
    if len(engines) > MOST_ENGINES:
        count = f"{len(changed)} of {len(engines)} lockstep groups"
        yield f"the step of {count} changes significantly"


def name_group(engine: EngineChange) -> str:
    """Name a lockstep group by its engine and ranks."""
    return f"{engine.engine} {engine.ranks[0]}-{engine.ranks[-1]}"


def _describe_shared(engine: EngineChange) -> Iterator[str]:
    """Say what changed for all ranks alike and points the same way as a step that changed."""
    if engine.step_ns.direction not in ("better", "worse"):
        return
    speed, transfer = engine.speed, engine.transfer_ns
    if speed.direction == engine.step_ns.direction and abs(speed.difference or 0.0) >= LEAST_SLOWNESS - 1:
        word = "longer" if speed.direction == "worse" else "less"
        yield f"equal work takes {format_ratio(abs(speed.difference or 0.0))} {word} on all ranks together"
    worth = LEAST_TRANSFER_SHARE * (engine.step_ns.before or 0.0)
    if transfer.direction == engine.step_ns.direction and abs(transfer.difference or 0.0) >= worth:
        word = "longer" if transfer.direction == "worse" else "less"
        yield f"transfers take {format_ns(abs(transfer.difference or 0.0))} a step {word}"


def describe_step(step: Change) -> str:
    """Say how the mean step changed."""
    if step.difference is None or step.before is None or step.interval is None:
        return "step times cannot be compared"
    if step.direction is None:
        return "step times are not compared, because the work differs"
    ratio = step.difference / step.before
    if step.direction == "unchanged":
        low, high = (format_ratio(bound / step.before) for bound in step.interval)
        return f"steps take {format_ns(step.after)}, {format_ns(step.before)} before (90 % interval: {low} to {high})"
    word = "longer" if step.direction == "worse" else "less"
    return f"steps take {format_ns(abs(step.difference))} ({format_ratio(abs(ratio))}) {word}"


def summarise_cause(change: CauseChange, *, comparable: bool) -> str:
    """Say in one sentence what became of a cause; of recordings that cannot be compared, only where it was found."""
    cause = change.cause
    after, before = (_name_ranks(ranks, change.engine) for ranks in (change.after_ranks, change.before_ranks))
    cost = _describe_cost(change)
    if not comparable:
        sides = [f"before{before}"] * bool(change.before_severity) + [f"after{after}"] * bool(change.after_severity)
        return f"{cause} was found {' and '.join(sides)}"
    if change.presence == "gone":
        doubt = f" (it could not be judged after: {change.unjudged})" if change.unjudged else ""
        return f"{cause}{before} is gone{cost}{doubt}"
    if change.presence == "new":
        doubt = f" (it could not be judged before: {change.unjudged})" if change.unjudged else ""
        return f"{cause}{after} is new{cost}{doubt}"
    if change.presence == "moved":
        old = before.removeprefix(" on") if change.before_ranks else " no rank"
        new = after.removeprefix(" on") if change.after_ranks else " no rank"
        return f"{cause} moved from{old} to{new}{cost}"
    renamed = f", told as {change.earlier_cause} before," if change.earlier_cause else ""
    return f"{cause}{after}{renamed} stayed{cost}"


def _name_ranks(ranks: Sequence[int], engine: str) -> str:
    """Name ranks, with their engine where it has a name: engines number their ranks alike."""
    of_engine = "" if engine in ("", UNNAMED) else f" of {engine}"
    if not ranks:
        return of_engine
    noun = "rank" if len(ranks) == 1 else "ranks"
    return f" on {noun} {', '.join(str(rank) for rank in ranks)}{of_engine}"


def _describe_cost(change: CauseChange) -> str:
    by_share = change.lost_ns.direction is None and change.lost_ratio.direction is not None
    known = change.lost_ratio if by_share else change.lost_ns
    if known.before is None or known.after is None:
        return ""
    before, after = (
        f"{format_ratio(value)} of the time" if by_share else f"{format_ns(value)} a step"
        for value in (known.before, known.after)
    )
    sure = ", no significant change" if known.direction == "unchanged" else ""
    if change.presence == "gone":
        return f" ({before} before{sure})"
    if change.presence == "new":
        return f" ({after}{sure})"
    return f" ({after}, {before} before{sure})"
