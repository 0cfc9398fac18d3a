"""From two diagnoses and their tables to what changed between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dprankdiag.analysis.differences import (
    KNOWN_ZERO,
    Level,
    adjust_chances,
    compare_levels,
    measure_level,
    spread_of_ranks,
    widen_level,
)
from dprankdiag.analysis.reference import measure_growth
from dprankdiag.analysis.statistics import PRIOR_WEIGHT, FloatArray
from dprankdiag.model.comparison import (
    AccountRow,
    Batch,
    CauseChange,
    Change,
    ComparedSide,
    Comparison,
    Direction,
    EngineChange,
    KindChange,
)
from dprankdiag.model.diagnosis import Diagnosis
from dprankdiag.model.schema import Columns
from dprankdiag.pipelines.bets import check_tried, score_bets
from dprankdiag.pipelines.compare_words import decide, summarise_cause
from dprankdiag.pipelines.likeness import measure_slowness
from dprankdiag.pipelines.matching import CausePair, match_causes, numbers_of, ranks_of, severity_of
from dprankdiag.pipelines.mixing import mix_level, mix_mean
from dprankdiag.pipelines.pairs import GroupPair, find_pair, pair_groups
from dprankdiag.pipelines.sides import GroupSide, KindKey, read_groups

LEVEL, SIGNIFICANCE = 0.9, 0.05
UNEXPLAINED, EVEN = "unexplained", "even ranks"
UNKNOWN = Change(None, None)


@dataclass(frozen=True, slots=True)
class Input:
    """What is compared: a diagnosis and its tables."""

    diagnosis: Diagnosis
    tables: Mapping[str, Columns]
    name: str = ""


def compare(before: Input, after: Input, tried: Sequence[str] = ()) -> Comparison:
    """Compare a diagnosis with an earlier one.

    Args:
        tried: keys of the remedies that were tried in between; if none is given, the best one of each finding is
            held against what was gained.

    Raises:
        UsageError: no finding before has such a remedy.
        InputError: a bundle lacks the tables, because an earlier version saved it.
    """
    check_tried(before.diagnosis, tried)
    groups = [read_groups(side.tables, side.name) for side in (before, after)]
    pairs, reasons = pair_groups(groups[0], groups[1])
    reasons += [
        f"{when}: {side.diagnosis.headline}"
        for when, side, mine in (("before", before, groups[0]), ("after", after, groups[1]))
        if not mine
    ]
    names = [[finding.cause for finding in side.diagnosis.findings] for side in (before, after)]
    same = {pair.before.engine: pair.after.engine for pair in pairs}
    engines = [_compare_engine(pair, names) for pair in pairs]
    matched = match_causes(before.diagnosis, after.diagnosis, same)
    causes = [_compare_cause(found, pairs) for found in matched]
    engines, causes = _judge(engines, causes)
    fit = {engine.engine for engine in engines if not engine.reasons}
    causes = [replace(cause, summary=summarise_cause(cause, comparable=cause.engine in fit)) for cause in causes]
    notes = tuple(dict.fromkeys(text for pair in pairs for text in _list_notes(pair)))
    if any(cause.presence == "moved" for cause in causes) and _assumes_ranks(before.diagnosis, after.diagnosis):
        notes = (*notes, "ranks are assumed on one of the sides: what moved may have been numbered otherwise")
    verdict, headline = decide(engines, causes, reasons)
    return Comparison(
        verdict,
        headline,
        _describe(before.diagnosis),
        _describe(after.diagnosis),
        tuple(reasons),
        tuple(engines),
        tuple(causes),
        notes,
        LEVEL,
        SIGNIFICANCE,
        score_bets(matched, pairs, tried, LEVEL),
    )


def _describe(diagnosis: Diagnosis) -> ComparedSide:
    paths = tuple(source.path for source in diagnosis.inputs)
    return ComparedSide(paths, diagnosis.status, diagnosis.headline, len(diagnosis.ranks), diagnosis.time.steps)


def _assumes_ranks(*diagnoses: Diagnosis) -> bool:
    return any(rank.grade == "assumed" for diagnosis in diagnoses for rank in diagnosis.ranks)


def _list_notes(pair: GroupPair) -> Iterator[str]:
    yield from (f"times are not compared, only shares: {text}" for text in pair.unlike)
    for when, mine, other in (("before", pair.before, pair.after), ("after", pair.after, pair.before)):
        for key in mine.kinds:
            if pair.mix and key not in other.kinds:
                steps = int(mine.kinds[key].sum())
                yield f"{key[0]} steps of this order of collectives are only in the recording {when}: {steps} left out"
        if not mine.trusted:
            yield f"the replay of the recording {when} errs too much, so that no lost time is compared"


def _compare_engine(pair: GroupPair, names: Sequence[Sequence[str]]) -> EngineChange:
    sides = (pair.before, pair.after)
    kinds = tuple(_compare_kind(pair, key) for key in pair.mix)
    step = transfer = speed = UNKNOWN
    if pair.mix:
        step = _change(*(mix_level(pair, side, side.measured_ns, widen=True) for side in sides))
        transfer = _change(*(mix_level(pair, side, side.transfer_ns) for side in sides))
        speed = _compare_speed(pair)
    trusted = pair.before.trusted and pair.after.trusted
    account = _account(pair, names) if pair.mix and trusted else ()
    if pair.unlike:
        kinds = tuple(replace(kind, step_ns=_untested(kind.step_ns)) for kind in kinds)
        step, transfer = _untested(step), _untested(transfer)
    name, ranks = pair.after.engine, pair.after.ranks
    return EngineChange(name, ranks, pair.obstacles, step, kinds, account, speed, transfer)


def _compare_speed(pair: GroupPair) -> Change:
    """Compare the time of equal work, which is the same work whatever the batch."""
    slowness, _ = measure_slowness(pair.before, pair.after)
    if slowness is None:
        return UNKNOWN
    growth = measure_growth(slowness, pair.before.probe_ns, pair.after.probe_ns)
    found = compare_levels(KNOWN_ZERO, growth, LEVEL)
    low, high = (float(np.expm1(bound)) for bound in found.interval)
    return Change(1.0, float(np.exp(growth.value)), float(np.expm1(growth.value)), (low, high), found.p)


def _untested(change: Change) -> Change:
    return replace(change, chance=None)


def _compare_kind(pair: GroupPair, key: KindKey) -> KindChange:
    sides = (pair.before, pair.after)
    levels = [_kind_level(side, key, side.measured_ns, widen=True) for side in sides]
    batches = [
        Batch(*(float(value) if np.isfinite(value) else None for value in side.batch[key].tolist())) for side in sides
    ]
    counts = [int(side.kinds[key].sum()) for side in sides]
    return KindChange(key[0], counts[0], counts[1], _change(*levels), batches[0], batches[1])


def _change(before: Level, after: Level) -> Change:
    found = compare_levels(before, after, LEVEL)
    return Change(before.value, after.value, found.value, found.interval, found.p)


def _kind_level(side: GroupSide, key: KindKey, series: FloatArray, *, widen: bool = False) -> Level:
    """Take the level of a series in the steps of one kind.

    Args:
        widen: allow for what the ranks differ among themselves, which another placement of the same load moves.
    """
    mine = side.kinds[key]
    level = measure_level(series[mine])
    return widen_level(level, *spread_of_ranks(side.busy_ns[mine].mean(axis=0))) if widen else level


def _account(pair: GroupPair, names: Sequence[Sequence[str]]) -> tuple[AccountRow, ...]:
    """Split the mean step into what each cause costs, what is unexplained, and the step of even ranks.

    Args:
        names: causes of the findings before and after, in order of their numbers.
    """
    rows: dict[str, list[int]] = {}
    for place, side in enumerate((pair.before, pair.after)):
        for number, loss in side.losses.items():
            rows.setdefault(names[place][number - 1], [0, 0])[place] += round(mix_mean(pair, side, loss.lost_ns))
    rest = [[0, 0], [0, 0]]
    for place, side in enumerate((pair.before, pair.after)):
        rest[1][place] = round(mix_mean(pair, side, side.balanced_ns))
        told = sum(row[place] for row in rows.values())
        rest[0][place] = round(mix_mean(pair, side, side.measured_ns)) - rest[1][place] - told
    named = [*rows.items(), (UNEXPLAINED, rest[0]), (EVEN, rest[1])]
    return tuple(AccountRow(name, *values) for name, values in named)


def _compare_cause(found: CausePair, pairs: Sequence[GroupPair]) -> CauseChange:
    told = (found.after or found.before)[0]
    pair = find_pair(pairs, found)
    time, share = UNKNOWN, UNKNOWN
    if pair is not None and pair.mix:
        time, share = _cost(pair, found)
        time, share = (_untested(time), share) if pair.unlike else (time, _untested(share))
    return CauseChange(
        told.cause,
        told.engine,
        found.presence,
        ranks_of(found.before),
        ranks_of(found.after),
        severity_of(found.before),
        severity_of(found.after),
        time,
        share,
        "",
        found.before[0].cause if found.before and found.before[0].cause != told.cause else None,
        found.unjudged,
    )


def _cost(pair: GroupPair, found: CausePair) -> tuple[Change, Change]:
    """Compare what a cause costs a step, in ns and as a share of the time."""
    sides = ((pair.before, found.before), (pair.after, found.after))
    known = [_measure_cost(pair, side, numbers_of(findings)) for side, findings in sides]
    old, new = known
    if old is None or new is None:
        return (
            Change(old[0].value if old else None, new[0].value if new else None),
            Change(old[1].value if old else None, new[1].value if new else None),
        )
    return _change(old[0], new[0]), _change(old[1], new[1])


def _measure_cost(pair: GroupPair, side: GroupSide, numbers: Sequence[int]) -> tuple[Level, Level] | None:
    """Measure what findings cost a step, and its share of the time; None where one of them has no price."""
    if not numbers:
        return KNOWN_ZERO, KNOWN_ZERO
    if not side.trusted or not set(numbers) <= set(side.losses):
        return None
    losses = [side.losses[number] for number in numbers]
    lost = np.sum([loss.lost_ns for loss in losses], axis=0)
    spread = sum(mix_mean(pair, side, loss.spread_ns) ** 2 for loss in losses)
    runs = np.any([loss.covered for loss in losses if loss.is_run] or [np.zeros(side.n_steps, bool)], axis=0)
    freedom = PRIOR_WEIGHT + len(side.ranks) - 2
    wall = mix_mean(pair, side, side.measured_ns)
    ratio = mix_mean(pair, side, lost) / wall
    # To first order a ratio of means scatters as the mean of what each step has beyond its share.
    beyond = mix_level(pair, side, (lost - ratio * side.measured_ns) / wall, parts=(runs, ~runs))
    share = replace(beyond, value=ratio)
    time = mix_level(pair, side, lost, parts=(runs, ~runs))
    return widen_level(time, spread, freedom), widen_level(share, spread / wall**2, freedom)


def _judge(
    engines: Sequence[EngineChange], causes: Sequence[CauseChange]
) -> tuple[list[EngineChange], list[CauseChange]]:
    """Adjust all chances for being many and name the directions.

    Tests are an engine's step, its speed and its transfers, each kind of step where there are several, and what each
    cause costs.
    """
    changes = [change for engine in engines for change in (engine.step_ns, engine.speed, engine.transfer_ns)]
    changes += [kind.step_ns for engine in engines if len(engine.kinds) > 1 for kind in engine.kinds]
    changes += [change for cause in causes for change in (cause.lost_ns, cause.lost_ratio)]
    tested = [change for change in changes if change.chance is not None]
    adjusted = iter(adjust_chances([float(change.chance or 0.0) for change in tested]))
    judged = iter([_direct(change, next(adjusted)) if change.chance is not None else change for change in changes])
    shared = [(next(judged), next(judged), next(judged)) for _ in engines]
    kinds = [[next(judged) for _ in engine.kinds] if len(engine.kinds) > 1 else None for engine in engines]
    new_engines = []
    for engine, (step, speed, transfer), mine in zip(engines, shared, kinds, strict=True):
        told = mine if mine is not None else [step] * len(engine.kinds)
        new_kinds = tuple(replace(kind, step_ns=change) for kind, change in zip(engine.kinds, told, strict=True))
        new_engines.append(replace(engine, step_ns=step, kinds=new_kinds, speed=speed, transfer_ns=transfer))
    new_causes = [replace(cause, lost_ns=next(judged), lost_ratio=next(judged)) for cause in causes]
    return new_engines, new_causes


def _direct(change: Change, chance: float) -> Change:
    difference = change.difference or 0.0
    direction: Direction = "unchanged"
    if chance <= SIGNIFICANCE and difference != 0:
        direction = "worse" if difference > 0 else "better"
    return replace(change, chance=chance, direction=direction)
