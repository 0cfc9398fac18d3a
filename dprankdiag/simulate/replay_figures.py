"""Measure a replayed run, and how sure its numbers are, by drawn costs and by resampled blocks of requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dprankdiag.analysis.statistics import draw_blocks
from dprankdiag.simulate.base import FloatArray, IntArray
from dprankdiag.simulate.cost_times import GROUPS, Span, find_span, list_groups
from dprankdiag.simulate.costs import StepTable, table_steps
from dprankdiag.simulate.replay import Site
from dprankdiag.simulate.world_tables import Outcome

SECOND_NS = 1_000_000_000
DAY_H = 24.0


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """A number and what it might as well be."""

    value: float
    draws: FloatArray


class Run:
    """A run that was served in the model, seen under other costs than it was served with.

    Steps keep what they hold; only how long they take is told anew. That is right as far as small changes go.

    Attributes:
        request: `(n,)` numbers of the requests that were served, in order of arrival.
    """

    def __init__(self, site: Site, outcome: Outcome, ranks: int) -> None:
        served = outcome.requests
        kept = np.flatnonzero(served["refused"] == 0)
        kept = kept[np.argsort(served["request"][kept], kind="stable")]
        self.request: IntArray = served["request"][kept]
        self.refused = len(served["request"]) - len(kept)
        self._served = {name: served[name][kept] for name in ("arrival_ns", "first_ns", "end_ns", "output_tokens")}
        self._tables = table_steps(outcome)
        self._ranks = ranks
        self._whole = self._find_spans(site, served, kept, "first_ns", "end_ns", "")
        self._first = self._find_spans(site, served, kept, "arrival_ns", "first_ns", "prefill_")

    def _find_spans(
        self, site: Site, served: dict[str, IntArray], kept: IntArray, begin: str, end: str, role: str
    ) -> list[tuple[StepTable, Span]]:
        groups = list_groups(site, served[f"{role}worker"][kept], served[f"{role}rank"][kept])
        found = []
        for key, table in self._tables.items():
            mine = np.flatnonzero(groups == key[0] * GROUPS + key[1])
            if len(mine):
                at = kept[mine]
                found.append((table, find_span(table, mine, served[begin][at], served[end][at])))
        return found

    @property
    def whole_ns(self) -> FloatArray:
        """Give the time of each request from arrival to last token, as served: `(n,)`."""
        return (self._served["end_ns"] - self._served["arrival_ns"]).astype(float)

    def time_requests(self, terms: FloatArray, base: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Give the time to the first token and from there to the last, `(n,)` each, under other terms.

        Args:
            base: the terms it was served with; what lies between steps stays as it was.
        """
        first = (self._served["first_ns"] - self._served["arrival_ns"]).astype(float)
        rest = (self._served["end_ns"] - self._served["first_ns"]).astype(float)
        for target, spans in ((first, self._first), (rest, self._whole)):
            for table, span in spans:
                target[span.rows] += span.sum(table.time(terms) - table.time(base))
        return np.maximum(first, 0.0), np.maximum(rest, 0.0)

    def measure(self, terms: FloatArray, base: FloatArray, chosen: IntArray) -> dict[str, float]:
        """Measure what requests saw and how ranks worked, for some of the requests: by the names of `Service`."""
        first, rest = self.time_requests(terms, base)
        gaps = self._served["output_tokens"] - 1
        token = np.divide(rest, gaps, out=np.full(len(rest), np.nan), where=gaps > 0)[chosen]
        token = token[~np.isnan(token)]
        told = {
            "first_token_p50_ns": _quantile(first[chosen], 0.5),
            "first_token_p99_ns": _quantile(first[chosen], 0.99),
            "token_p50_ns": _quantile(token, 0.5),
            "token_p99_ns": _quantile(token, 0.99),
        }
        return {**told, **self._measure_steps(terms, base), **self._measure_whole(first + rest)}

    def _measure_steps(self, terms: FloatArray, base: FloatArray) -> dict[str, float]:
        totals, most, mean, waits = [], 0.0, 0.0, 0.0
        for table in self._tables.values():
            own = table.weigh_own(terms)
            total = table.time(terms)
            totals.append(total)
            most += float(own.max(axis=1).sum())
            mean += float(own.mean(axis=1).sum())
            waits += float((own.max(axis=1) - own.mean(axis=1)).sum())
        steps = np.concatenate(totals)
        return {
            "imbalance_ratio": most / mean if mean > 0 else 1.0,
            "waiting_ratio": waits / max(float(steps.sum()), 1.0),
            "step_p50_ns": _quantile(steps, 0.5),
            "step_p99_ns": _quantile(steps, 0.99),
        }

    def _measure_whole(self, whole: FloatArray) -> dict[str, float]:
        begin = int(self._served["arrival_ns"].min())
        span_ns = max(float((self._served["arrival_ns"] + whole).max()) - begin, 1.0)
        return {"generation_tok_s": float(self._served["output_tokens"].sum()) * SECOND_NS / span_ns}

    @property
    def busy_ratio(self) -> float:
        """Give the share of the time, from the first arrival to the last token, that groups are in steps."""
        span_ns = int(self._served["end_ns"].max()) - int(self._served["arrival_ns"].min())
        busy = [int(table.total_ns.sum()) for table in self._tables.values()]
        return min(sum(busy) / len(busy) / max(span_ns, 1), 1.0)


def _quantile(values: FloatArray, share: float) -> float:
    return float(np.quantile(values, share)) if len(values) else float("nan")


def measure_run(run: Run, terms: FloatArray, draws: FloatArray) -> dict[str, Drawn]:
    """Measure a run, and again for each draw of terms with as many blocks of requests resampled."""
    every = np.arange(len(run.request))
    value = run.measure(terms, terms, every)
    blocks = draw_blocks(len(every), len(draws))
    drawn = [run.measure(draw, terms, block) for draw, block in zip(draws, blocks, strict=True)]
    return {name: Drawn(value[name], np.array([each[name] for each in drawn])) for name in value}


def compare_runs(run: Run, base: Run, terms: FloatArray, draws: FloatArray) -> Drawn:
    """Tell the share of the requests' time that one run takes less than another: of those that both served.

    It is the middle of what it is under the draws, which need not lie about the terms that runs were served with.
    """
    numbers = np.intersect1d(run.request, base.request)
    mine, theirs = np.searchsorted(run.request, numbers), np.searchsorted(base.request, numbers)
    weights = weigh_blocks(len(numbers), len(draws))

    alike = np.ones(len(numbers))
    gains = np.empty((len(draws), 2))
    for place, (costs, weight) in enumerate(zip(draws, weights, strict=True)):
        spent = np.add(*run.time_requests(costs, terms))[mine]
        before = np.add(*base.time_requests(costs, terms))[theirs]
        gains[place] = [_gain(float(spent @ each), float(before @ each)) for each in (alike, weight)]
    return Drawn(float(np.median(gains[:, 0])), gains[:, 1])


def _gain(spent: float, before: float) -> float:
    return 1 - spent / before if before > 0 else 0.0


def weigh_blocks(count: int, draws: int) -> FloatArray:
    """Draw weights of requests, alike for neighbours, `(draws, count)`: each request counts as much on the mean.

    Blocks that are drawn anew would leave out the first and the last more often, which may be the heaviest.

    Source: Rubin, Annals of Statistics 9 (1981), the Bayesian bootstrap; blocks of √n.
    """
    generator = np.random.default_rng(0)
    size = max(round(np.sqrt(count)), 1)
    offsets = generator.integers(0, size, draws)
    each = generator.exponential(size=(draws, count // size + 2))
    return np.stack([row[(np.arange(count) + offset) // size] for row, offset in zip(each, offsets, strict=True)])


def bound(
    drawn: Drawn, level: float, blur: float = 0.0, relative: Callable[[float], float] = abs
) -> tuple[float, float]:
    """Give the interval of a number: quantiles of its draws, widened by a share of `relative(value)` in quadrature."""
    tail = (1 - level) / 2
    low, high = np.nanquantile(drawn.draws, [tail, 1 - tail])
    more = blur * relative(drawn.value)
    below, above = max(drawn.value - float(low), 0.0), max(float(high) - drawn.value, 0.0)
    return drawn.value - float(np.hypot(below, more)), drawn.value + float(np.hypot(above, more))
