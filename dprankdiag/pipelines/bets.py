"""Score remedies as bets: what was predicted of an earlier recording against what a later one gains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dprankdiag.analysis.differences import compare_levels
from dprankdiag.analysis.statistics import FloatArray
from dprankdiag.errors import UsageError
from dprankdiag.model.comparison import UNKNOWN_GAIN, Bet, BetVerdict, StepGain
from dprankdiag.model.diagnosis import Diagnosis, Finding, Remedy
from dprankdiag.pipelines.matching import CausePair, numbers_of, ranks_of
from dprankdiag.pipelines.mixing import mix_level, mix_mean
from dprankdiag.pipelines.pairs import GroupPair, find_pair
from dprankdiag.pipelines.sides import GroupSide

NOTHING_DONE = "steps take no less, or hardly less, than before: was it done?"
TOO_WIDE = "the interval holds both no gain and the one predicted: record more steps"
UPPER_BOUND = "the prediction was an upper bound"


@dataclass(frozen=True, slots=True)
class Measured:
    """What the step gained; unknown for a reason."""

    gain: StepGain = UNKNOWN_GAIN
    reason: str | None = None


def check_tried(before: Diagnosis, tried: Sequence[str]) -> None:
    """Refuse remedies that no finding of the earlier recording has.

    Raises:
        UsageError: with the keys there are.
    """
    keys = sorted({remedy.key for finding in before.findings for remedy in finding.remedies})
    for key in tried:
        if key not in keys:
            there = f"its remedies are {', '.join(keys)}" if keys else "it has no finding to cure"
            raise UsageError(f"no finding before has the remedy {key}", where="--tried", mend=there)


def score_bets(
    found: Sequence[CausePair], pairs: Sequence[GroupPair], tried: Sequence[str], level: float
) -> tuple[Bet, ...]:
    """Score the remedies that were tried; where nobody says which, the best one of each finding with a gain.

    Args:
        found: findings of both sides, brought together.
        pairs: groups of both sides.
        tried: keys of remedies.
        level: of the intervals.
    """
    bets = []
    for mine in found:
        chosen = [(finding, remedy) for finding in mine.before for remedy in _choose(finding, tried)]
        for key in dict.fromkeys(remedy.key for _, remedy in chosen):
            remedies = [remedy for _, remedy in chosen if remedy.key == key]
            bets.append(_score(mine, remedies, _measure(mine, found, pairs, level), pairs, is_stated=key in tried))
    return tuple(bets)


def _choose(finding: Finding, tried: Sequence[str]) -> Iterator[Remedy]:
    """List the remedies of a finding that count as tried."""
    if tried:
        yield from (remedy for remedy in finding.remedies if remedy.key in tried)
        return
    best = next((remedy for remedy in finding.remedies if remedy.gain_ratio is not None), None)
    if best is not None:
        yield best


def _measure(mine: CausePair, found: Sequence[CausePair], pairs: Sequence[GroupPair], level: float) -> Measured:
    """Measure how much less the step takes, what the other causes cost less or more taken out."""
    pair = find_pair(pairs, mine)
    if pair is None:
        return Measured(reason="its ranks are not in the recording after")
    if pair.obstacles or pair.unlike:
        return Measured(reason="; ".join(pair.obstacles or pair.unlike))
    if not pair.mix:
        return Measured(reason="the two have no kind of step in common")
    others = [other for other in found if other is not mine and find_pair(pairs, other) is pair]
    series = []
    for side, numbers in (
        (pair.before, [number for other in others for number in numbers_of(other.before)]),
        (pair.after, [number for other in others for number in numbers_of(other.after)]),
    ):
        if others and not side.trusted:
            return Measured(reason="the replay errs too much to take out what the other causes cost")
        series.append(_take_out(side, numbers))
    levels = [
        mix_level(pair, side, values, widen=True)
        for side, values in zip((pair.before, pair.after), series, strict=True)
    ]
    change = compare_levels(levels[0], levels[1], level)
    wall = mix_mean(pair, pair.before, pair.before.measured_ns)
    low, high = change.interval
    return Measured(StepGain(-change.value / wall, (-high / wall, -low / wall)))


def _take_out(side: GroupSide, numbers: Sequence[int]) -> FloatArray:
    """Take what findings cost out of the steps, as far as they have a price, `(n_steps,)`."""
    known = [side.losses[number].lost_ns for number in numbers if number in side.losses]
    return np.asarray(side.measured_ns - np.sum(known, axis=0)) if known else side.measured_ns


def _score(
    mine: CausePair, remedies: Sequence[Remedy], measured: Measured, pairs: Sequence[GroupPair], *, is_stated: bool
) -> Bet:
    first = mine.before[0]
    scale = _scale_to_mix(mine, find_pair(pairs, mine))
    predicted = _predict(remedies, scale)
    verdict, reason = _judge(predicted, measured, remedies[0], scale)
    return Bet(
        tuple(finding.id for finding in mine.before),
        first.cause,
        first.engine,
        ranks_of(mine.before),
        remedies[0].key,
        remedies[0].command,
        is_stated,
        predicted,
        remedies[0].basis,
        measured.gain,
        verdict,
        reason,
    )


def _predict(remedies: Sequence[Remedy], scale: float) -> StepGain:
    """Sum the gains of one remedy over the findings of one cause, which cost different steps."""
    gains = [remedy.gain_ratio for remedy in remedies if remedy.gain_ratio is not None]
    if len(gains) < len(remedies):
        return UNKNOWN_GAIN
    bounds = [remedy.interval for remedy in remedies if remedy.interval is not None]
    interval = (sum(low for low, _ in bounds) * scale, sum(high for _, high in bounds) * scale)
    return StepGain(sum(gains) * scale, interval if len(bounds) == len(remedies) else None)


def _scale_to_mix(mine: CausePair, pair: GroupPair | None) -> float:
    """Tell by how much more a cause costs in the kinds of step that both sides ran than in all of them."""
    if pair is None or not pair.mix:
        return 1.0
    lost = [pair.before.losses[number].lost_ns for number in numbers_of(mine.before) if number in pair.before.losses]
    if not lost:
        return 1.0
    whole = np.sum(lost, axis=0)
    overall = float(whole.sum() / pair.before.measured_ns.sum())
    mixed = mix_mean(pair, pair.before, whole) / mix_mean(pair, pair.before, pair.before.measured_ns)
    return mixed / overall if overall > 0 else 1.0


def _judge(predicted: StepGain, measured: Measured, remedy: Remedy, scale: float) -> tuple[BetVerdict, str | None]:
    """Hold a measured gain against a predicted one, by where their intervals lie."""
    if measured.gain.interval is None:
        return "cannot_tell", measured.reason
    if predicted.ratio is None:
        return "cannot_tell", f"no gain was predicted: {remedy.why_no_gain or 'its basis is ' + remedy.basis}"
    if scale <= 0:
        return "cannot_tell", "the kind of step that it costs is only in the recording before"
    least, most = predicted.interval or (predicted.ratio, predicted.ratio)
    low, high = measured.gain.interval
    if low > 0 and high >= least:
        return "kept", None
    # The replay is not sure of less than this, so that a smaller gain does not speak for the remedy.
    if low > (most - least) / 2:
        return "partly", UPPER_BOUND if remedy.basis == "bound" else None
    return ("cannot_tell", TOO_WIDE) if high >= least else ("not_kept", NOTHING_DONE)
