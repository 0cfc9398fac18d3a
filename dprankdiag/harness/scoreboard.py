"""The figures by which a diagnosis of recordings is judged, each beside the bar it should reach."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any, TypeVar

import numpy as np

from dprankdiag.harness.answers import Outcome, Said, class_of, fits
from dprankdiag.harness.baselines import RULES
from dprankdiag.harness.cases import HEALTHY, NOTHING, UNIFORM
from dprankdiag.harness.sampling import SLOWDOWNS
from dprankdiag.harness.score import Rate
from dprankdiag.harness.transforms import CAREFUL, INVARIANT
from dprankdiag.harness.worlds import Truth

NEAR = 0.95
"""A drawn fault gets as near as this to the slowdown it is sized to."""
OURS = "dprankdiag"
_ABOVE = "above the rung"
_SINGLE = ("", "S", "R")
_ONE_CAUSE = (*_SINGLE, "L")
_BINS, _CHANCES = 10, 200
Item = TypeVar("Item")
FloatArray = np.ndarray[Any, np.dtype[np.float64]]
_SURE = 0.9
_LONG_STEPS = 190


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure: what was measured, what came out in words, what should, and whether it does (None: no bar)."""

    what: str
    value: str
    bar: str
    holds: bool | None


@dataclass(frozen=True, slots=True)
class Scoreboard:
    """All outcomes of a run, of one suite or several."""

    outcomes: tuple[Outcome, ...]

    def chosen(self, suites: Sequence[str], least: float = 0.0) -> list[Outcome]:
        """List the outcomes of suites whose faults lengthen the step by a share at least, or that are calm."""
        return [
            it for it in self.outcomes
            if it.facts.suite in suites and (it.facts.is_calm or it.facts.slowdown_ratio >= NEAR * least)
        ]  # fmt: skip

    def class_score(self, least: float) -> float | None:
        """Give the macro-F1 over classes, with health as one; None without both faults and health."""
        told = [it for it in self.chosen((*_SINGLE, "H"), least) if it.facts.expected != NOTHING]
        return _macro_f1([(_expected_class(it), _said_class(it)) for it in told])

    def cause_score(self, least: float) -> float | None:
        """Give the macro-F1 over causes, health left out."""
        told = [it for it in self.chosen((*_SINGLE, "H"), least) if it.facts.expected not in (NOTHING, UNIFORM)]
        return _macro_f1([(it.facts.expected, it.said) for it in told], without=HEALTHY)

    def per_cause(self) -> list[tuple[str, Rate, Rate]]:
        """Give precision and recall of every cause that was expected or said where one thing is wrong or nothing."""
        told = self.chosen((*_ONE_CAUSE, "H"))
        causes = sorted({it.facts.expected for it in told} | {it.said for it in told})
        rows = []
        for cause in causes:
            named, there = [it for it in told if it.said == cause], [it for it in told if it.facts.expected == cause]
            rows.append((cause, _rate(named, lambda it: it.right_cause), _rate(there, lambda it: it.right_cause)))
        return rows

    def per_slowdown(self, suites: Sequence[str] = ("S", "L")) -> list[tuple[float, Rate, Rate]]:
        """Count by slowdown where cause and ranks were named right, and of the findings the right ones."""
        faulty = [it for it in self.chosen(suites) if not it.facts.is_calm]
        rows = []
        for size in sorted({_nearest(it.facts.slowdown_ratio) for it in faulty}):
            told = [it for it in faulty if _nearest(it.facts.slowdown_ratio) == size]
            pairs = [(true, said) for it in told for true, said in it.match() if said]
            named = _rate(told, lambda it: it.right_cause and it.right_ranks is not False)
            rows.append((size, named, _rate(pairs, lambda pair: fits(*pair))))
        return rows

    def smallest_named(self) -> float | None:
        """Find the smallest slowdown from which on 95 % are named right, and of the findings 95 % are right."""
        best = None
        for size, named, right in reversed(self.per_slowdown(("L",))):
            if min(named.hits / named.count, right.hits / max(1, right.count)) < 0.95:
                break
            best = size
        return best

    def culprits(self, least_ranks: int, most_ranks: int) -> Rate:
        """Count the worlds with so many culprits that cost 10 % in which exactly these are named."""
        told = [
            it for it in self.chosen((*_ONE_CAUSE, "C"), 0.1)
            if it.right_ranks is not None and least_ranks <= len(it.facts.culprits) <= most_ranks
        ]  # fmt: skip
        return _rate(told, lambda it: bool(it.right_ranks))

    def false_alarms(self) -> Rate:
        """Count the worlds that warrant no warning and got one."""
        return _rate([it for it in self.outcomes if it.facts.is_calm], lambda it: bool(it.answer.alarms))

    def others_named(self) -> Rate:
        """Count the worlds in which an alarm names a rank that is not to blame."""
        return _rate(self.outcomes, lambda it: it.names_others)

    def compound(self) -> tuple[Rate, Rate, Rate]:
        """Count in worlds with several faults: faults of 5 % told, alarms that are a fault, worlds right as a whole."""
        told = self.chosen(("C",))
        pairs = [pair for it in told for pair in it.match()]
        grave = [(true, said) for true, said in pairs if true and true.lost_ratio >= 0.05]
        alarms = [(true, said) for true, said in pairs if said and said.is_alarm]
        return (
            _rate(grave, lambda pair: fits(*pair)),
            _rate(alarms, lambda pair: fits(*pair)),
            _rate(told, lambda it: it.right),
        )

    def priced(self) -> list[tuple[Outcome, Truth, Said]]:
        """List the faults that were told with their cause and a price, each alone in its world."""
        return [
            (it, true, said)
            for it in self.chosen((*_ONE_CAUSE, "C"))
            if len(it.facts.truths) == 1
            for true, said in it.match()
            if true and said and said.cause == true.answerable and said.lost_ratio is not None
        ]

    def totals(self) -> Rate:
        """Count the worlds with several faults in which the total of what is lost is near enough."""
        pairs = [
            (it.answer.total_ratio, it.facts.lost_ns / it.facts.wall_ns)
            for it in self.chosen(("C",))
            if len(it.facts.truths) > 1 and it.answer.total_ratio is not None
        ]
        return _rate(pairs, lambda pair: _is_near(*pair))

    def unexplained(self) -> Rate:
        """Count the worlds of one cause and a loss of 5 % in which at most a tenth of the total is unexplained."""
        shares = [
            abs(it.answer.unexplained_ns) / it.answer.total_ns
            for it in self.chosen(_ONE_CAUSE)
            if it.facts.lost_ns >= 0.05 * it.facts.wall_ns
            if it.answer.total_ns and it.answer.unexplained_ns is not None
        ]
        return _rate(shares, lambda share: share <= 0.1)

    def told(self) -> list[tuple[Said, bool]]:
        """List every finding and whether it is a fault itself; where nothing is wrong, only alarms count."""
        faulty, calm = ([it for it in self.outcomes if it.facts.is_calm == calm] for calm in (False, True))
        pairs = [(said, fits(true, said)) for it in faulty for true, said in it.match() if said]
        return pairs + [(said, False) for it in calm for said in it.answer.alarms]

    def confidences(self) -> list[tuple[float, bool]]:
        """List the confidence of every finding and whether it is a fault itself: its cause and exactly its ranks."""
        return [(said.confidence, right) for said, right in self.told() if said.confidence is not None]

    def calibration_error(self) -> float | None:
        """Give the expected calibration error over bins of equal mass."""
        told = np.asarray(sorted(self.confidences()), float).reshape(-1, 2)
        return _miscalibration(told[:, 0], told[:, 1]) if len(told) else None

    def calibration_chance(self) -> float | None:
        """Give the error that chance alone brings about where confidence is exactly right: fewer findings, more."""
        sure = np.sort([confidence for confidence, _ in self.confidences()])
        drawn = np.random.default_rng(0).random((_CHANCES, len(sure))) < sure
        return float(np.mean([_miscalibration(sure, right.astype(float)) for right in drawn])) if len(sure) else None

    def sure_ones(self) -> Rate:
        """Count the right ones among the findings of high confidence."""
        return _rate([right for confidence, right in self.confidences() if confidence >= _SURE], bool)

    def by_change(self) -> list[tuple[str, Rate]]:
        """Count by change the copies whose verdict stayed (T1), or that name no other rank (T2)."""
        rows = []
        for name in (*INVARIANT, *CAREFUL):
            keeps = stays_same if name in INVARIANT else names_no_other
            told = [it for it in self.outcomes if name in it.changed]
            if told:
                rows.append((name, _rate(told, lambda it, name=name, keeps=keeps: keeps(it, name))))  # type: ignore[misc]
        return rows

    def simple_rules(self) -> list[tuple[str, Rate, Rate]]:
        """Give, of each simple rule and of ours, how often it names exactly the culprits, and its false alarms."""
        faulty = [it for it in self.chosen(("S", "C", "L"), 0.1) if it.right_ranks is not None]
        calm = [it for it in self.outcomes if it.facts.is_calm and it.facts.simple_rules]
        if not faulty and not calm:
            return []
        rows = [(OURS, _rate(faulty, lambda it: bool(it.right_ranks)), self.false_alarms())]
        for rule in RULES:
            if not all(rule in it.facts.simple_rules for it in (*faulty, *calm)):
                continue
            hits = _rate(faulty, lambda it, rule=rule: set(it.facts.simple_rules[rule]) == it.facts.culprits)  # type: ignore[misc]
            rows.append((rule, hits, _rate(calm, lambda it, rule=rule: bool(it.facts.simple_rules[rule]))))  # type: ignore[misc]
        return rows

    def figures(self) -> list[Figure]:
        """List the figures that have something to be measured on, with their bars."""
        return [figure for figure in self._all_figures() if figure.value not in ("-", "None")]

    def _all_figures(self) -> Iterator[Figure]:
        for least, bar in ((0.1, 0.98), (0.05, 0.9)):
            yield _share(f"class, macro-F1, steps {100 * least:g} % longer", self.class_score(least), bar)
        for least in (0.1, 0.05):
            yield _share(f"cause, macro-F1, steps {100 * least:g} % longer", self.cause_score(least), 0.95)
        yield _counted("culprit named, one, steps 10 % longer", self.culprits(1, 1), 0.995)
        yield _counted("culprits named, exactly two or three", self.culprits(2, 3), 0.95)
        yield _counted("culprits named, exactly, four or more", self.culprits(4, 999), None)
        yield _none("false alarms where nothing is wrong", self.false_alarms())
        yield _none("alarms that name a rank without fault", self.others_named())
        for what, rate in zip(("faults of 5 % told", "alarms right", "worlds right"), self.compound(), strict=True):
            yield _counted(f"several faults: {what}", rate, None)
        yield _counted("several faults: total within 1 % of the step or 15 % of the loss", self.totals(), 0.95)
        yield from self._price_figures()
        yield _counted("unexplained ≤ 10 % of the total", self.unexplained(), 0.95)
        error = self.calibration_error()
        yield Figure(
            "confidence, expected calibration error", _show(error), "≤ 0.05", None if error is None else error <= 0.05
        )
        yield Figure("of that by chance, so few findings there are", _show(self.calibration_chance()), "–", None)
        yield _counted("findings of confidence ≥ 0.9 that are right", self.sure_ones(), 0.9)
        smallest = self.smallest_named()
        if self.chosen(("L",)):
            shown = f"{100 * smallest:g} %" if smallest else "more than 10 %"
            yield Figure(
                "smallest slowdown named right in 95 %", shown, "≤ 3 %", smallest is not None and smallest <= 0.03
            )
        changes = dict(self.by_change())
        yield _counted("verdict unchanged by what must not matter", _sum(changes, INVARIANT), 0.99)
        yield _none("another rank named after damage", _complement(_sum(changes, CAREFUL)))

    def _price_figures(self) -> Iterator[Figure]:
        priced = self.priced()
        losses = [(said.lost_ratio, true.lost_ratio) for _, true, said in priced if said.lost_ratio is not None]
        near = _rate(losses, lambda pair: _is_near(*pair))
        yield _counted("lost time within 1 % of the step or 15 % of the loss", near, 0.95)
        if losses:
            bias = mean(said - true for said, true in losses)
            small = abs(bias) <= 0.01
            yield Figure("lost time, mean error, share of the step", f"{100 * bias:+.2f} %", "within ±1 %", small)
        bounds = [(true.lost_ratio, said.interval, it.facts.steps) for it, true, said in priced if said.interval]
        held = Rate(sum(low <= lost <= high for lost, (low, high), _ in bounds), len(bounds))
        in_range = held.bounds[0] <= 0.95 and held.bounds[1] >= 0.85 if held.count else None
        yield Figure("90 % interval holds the truth", str(held), "85–95 %", in_range)
        widths = [(high - low) / 2 / lost for lost, (low, high), steps in bounds if steps >= _LONG_STEPS and lost > 0]
        if widths:
            width = median(widths)
            yield Figure(
                "half-width of it over the loss, 200 steps, median", f"{100 * width:.1f} %", "≤ 10 %", width <= 0.1
            )


def stays_same(outcome: Outcome, change: str) -> bool:
    """Tell whether a changed copy has the verdict of the untouched recording, ranks renumbered with it."""
    new_of = outcome.renamed.get(change, {})
    before = {(it.cause, tuple(sorted(new_of.get(rank, rank) for rank in it.ranks))) for it in outcome.answer.alarms}
    after = outcome.changed[change]
    return after.status == outcome.answer.status and {(it.cause, it.ranks) for it in after.alarms} == before


def names_no_other(outcome: Outcome, change: str) -> bool:
    """Tell whether a changed copy names no rank that is not to blame."""
    return all(set(said.ranks) <= outcome.facts.culprits for said in outcome.changed[change].alarms)


def _expected_class(outcome: Outcome) -> str:
    return HEALTHY if outcome.facts.is_calm else class_of(outcome.facts.expected)


def _said_class(outcome: Outcome) -> str:
    """Name the class said; a kind that the recording cannot show is not what was asked for."""
    if outcome.facts.is_calm:
        return HEALTHY if not outcome.answer.alarms and outcome.answer.status else class_of(outcome.said)
    said, expected = outcome.said, outcome.facts.expected
    above = expected.endswith(".unknown") and class_of(said) == class_of(expected) and said != expected
    return _ABOVE if above else class_of(said)


def _miscalibration(sure: FloatArray, right: FloatArray) -> float:
    """Give the mean distance of confidence and share of right ones over bins of equal mass.

    Findings of one confidence count alike wherever a bin ends among them: each with the share of all these that are
    right.

    Args:
        sure: ascending.
    """
    _, same = np.unique(sure, return_inverse=True)
    share = (np.bincount(same, right) / np.bincount(same))[same]
    edges = np.array_split(np.arange(len(sure)), min(_BINS, len(sure)))
    return sum(len(part) * abs(float(sure[part].mean() - share[part].mean())) for part in edges) / len(sure)


def _is_near(said: float, true: float) -> bool:
    return abs(said - true) <= max(0.01, 0.15 * true)


def _macro_f1(pairs: Sequence[tuple[str, str]], without: str = "") -> float | None:
    names = sorted({expected for expected, _ in pairs} - {without})
    return mean(_f1(pairs, name) for name in names) if len(names) > 1 else None


def _f1(pairs: Sequence[tuple[str, str]], name: str) -> float:
    both = sum(expected == said == name for expected, said in pairs)
    total = sum((expected == name) + (said == name) for expected, said in pairs)
    return 2 * both / total


def _nearest(slowdown: float) -> float:
    sizes = (0.01, 0.02, *SLOWDOWNS)
    return min(sizes, key=lambda size: abs(float(np.log(max(slowdown, 1e-4) / size))))


def _rate(items: Sequence[Item], holds: Callable[[Item], object]) -> Rate:
    return Rate(sum(bool(holds(item)) for item in items), len(items))


def _sum(rates: Mapping[str, Rate], names: Mapping[str, object]) -> Rate:
    chosen = [rate for name, rate in rates.items() if name in names]
    return Rate(sum(rate.hits for rate in chosen), sum(rate.count for rate in chosen))


def _complement(rate: Rate) -> Rate:
    return Rate(rate.count - rate.hits, rate.count)


def _share(what: str, value: float | None, bar: float) -> Figure:
    return Figure(what, _show(value), f"≥ {bar:g}", None if value is None else value >= bar)


def _show(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _counted(what: str, rate: Rate, bar: float | None) -> Figure:
    if bar is None or not rate.count:
        return Figure(what, str(rate), "–", None)
    return Figure(what, str(rate), f"≥ {100 * bar:g} %", rate.hits >= bar * rate.count)


def _none(what: str, rate: Rate) -> Figure:
    return Figure(what, str(rate), "0", rate.hits == 0 if rate.count else None)
