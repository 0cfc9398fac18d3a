"""Look up what a rank of a serving world had done and was showing at any moment, in its own rows of the tables.

Source: gauges and snapshots as in SGLang 0.5.23: gauges are written at every batch that computes prompts, with every
40th decode batch, and after 30 s in which the whole engine was idle; a rank that turns idle beside busy ones keeps its
last.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dprankdiag.harness.events import Array
from dprankdiag.harness.ledger_counts import GAUGES, QUEUES
from dprankdiag.harness.ledger_engine import REPORT_STEPS
from dprankdiag.simulate.world_tables import LOAD_COLUMNS, QUEUE_COLUMNS

LEVELS = (*LOAD_COLUMNS, *QUEUE_COLUMNS)
"""What a rank counts as a step begins and as it publishes."""

IDLE_REPORT_S = 30.0
LONGEST_MOMENT_S = 2.0
"""Decode steps that take longer are left out of a snapshot's moments. Source: SGLang 0.5.23."""

NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of one rank, in order: `(n,)` each.

    Attributes:
        start_ns, end_ns: when each began and was over.
        requests: that decode, drafts not counted.
        kv_tokens: that these read.
        prompt_tokens: computed.
        cached: prompt tokens found in the cache, of requests whose prompt was done.
        levels: by name of LEVELS, as each step began.
    """

    start_ns: Array
    end_ns: Array
    requests: Array
    kv_tokens: Array
    prompt_tokens: Array
    cached: Array
    levels: Mapping[str, Array]


class RankHistory:
    """One rank from the world's beginning to its end.

    Args:
        published: rows of the table of publishes, by column, in order of time.
        accept: tokens that a request gains a step.
        pace: engine seconds are so many times shorter than the world's.
    """

    def __init__(self, steps: Steps, published: Mapping[str, Array], accept: float, pace: float) -> None:
        self.steps, self._published = steps, published
        self._accept, self._pace = accept, pace
        seconds = (steps.end_ns - steps.start_ns) / (NS_PER_S * pace)
        prefills = steps.prompt_tokens > 0
        self._computed = _accumulate(steps.prompt_tokens)
        self._prefill_s = _accumulate(seconds * prefills)
        self._moments = _accumulate(_list_moments(steps, seconds, accept))
        self._generated = _accumulate(steps.requests * accept)
        self._busy_ns = _accumulate(steps.end_ns - steps.start_ns)
        decodes = (steps.requests > 0) & ~prefills
        regular = decodes & (np.cumsum(decodes) % REPORT_STEPS == 0)
        self._decode_reports = np.flatnonzero(regular)
        self._prompt_reports = np.flatnonzero(prefills)
        self._reports = np.flatnonzero(regular | prefills)
        self._working_ends = steps.end_ns[decodes | prefills]

    def is_asleep(self, now_ns: int) -> bool:
        """Tell whether no step is under way."""
        done = self.count_done(now_ns)
        return done == len(self.steps.start_ns) or int(self.steps.start_ns[done]) > now_ns

    def count_done(self, now_ns: int) -> int:
        """Count the steps that are over."""
        return int(np.searchsorted(self.steps.end_ns, now_ns, "right"))

    def idle_ns(self, now_ns: int) -> int:
        """Give the time without a step since the world's beginning."""
        done = self.count_done(now_ns)
        under_way = 0 if self.is_asleep(now_ns) else now_ns - int(self.steps.start_ns[done])
        return now_ns - int(self._busy_ns[done]) - under_way

    def find_told_ns(self, now_ns: int) -> int:
        """Find when the last step with work was over, which is when vLLM tells; 0 before the first."""
        done = int(np.searchsorted(self._working_ends, now_ns, "right"))
        return int(self._working_ends[done - 1]) if done else 0

    def levels(self, now_ns: int) -> dict[str, float]:
        """Tell how full the rank is, by the last step that began or the last load it published."""
        row = int(np.searchsorted(self.steps.start_ns, now_ns, "right")) - 1
        told = int(np.searchsorted(self._published["time_ns"], now_ns, "right")) - 1
        if max(row, told) < 0:
            return dict.fromkeys(LEVELS, 0.0)
        is_row = row >= 0 and (told < 0 or self.steps.start_ns[row] >= self._published["time_ns"][told])
        source, place = (self.steps.levels, row) if is_row else (self._published, told)
        return {name: float(source[name][place]) for name in LEVELS}

    def snapshot(self, now_ns: int) -> tuple[dict[str, float], Array]:
        """Tell the load snapshot as it is and its moments; a rank without a step renews its stamp at every moment."""
        told = int(np.searchsorted(self._published["time_ns"], now_ns, "right")) - 1
        asleep = self.is_asleep(now_ns)
        at_ns = now_ns if asleep else int(self._published["time_ns"][told]) if told >= 0 else 0
        levels = {name: float(self._published[name][told]) if told >= 0 else 0.0 for name in LEVELS}
        done = self.count_done(at_ns)
        shown = {
            "stamp_s": at_ns / (NS_PER_S * self._pace),
            "running": levels["running"],
            "waiting": levels["waiting"],
            "waiting_tokens": levels["waiting_uncached_tokens"],
            "used": levels["used_tokens"],
            "total": levels["total_tokens"],
            "computed": float(self._computed[done]),
            "prefill_busy_s": float(self._prefill_s[done]),
            **{name: levels[name] for name in QUEUES},
        }
        return shown, self._moments[done]

    def gauges(self, now_ns: int, rested_ns: int | None) -> dict[str, float]:
        """Tell the gauges as they were last written; NaN before the first time.

        Args:
            rested_ns: when the whole engine last wrote that it was idle.
        """
        row = self._find(self._reports, now_ns)
        if row is None:
            return dict.fromkeys(GAUGES, np.nan)
        if rested_ns is not None and rested_ns > int(self.steps.end_ns[row]):
            return dict.fromkeys(GAUGES, 0.0)
        levels = {name: float(told[row]) for name, told in self.steps.levels.items()}
        decode, prompt = self._find(self._decode_reports, now_ns), self._find(self._prompt_reports, now_ns)
        return {
            "running": levels["running"],
            "queued": levels["waiting"] - sum(levels[name] for name in QUEUES if name != "inflight"),
            "used": levels["used_tokens"],
            **{name: levels[name] for name in QUEUES},
            "context": 0.0 if decode is None else float(self.steps.kv_tokens[decode]),
            "throughput": 0.0 if decode is None else self._tell_throughput(decode),
            "hit_rate": 0.0 if prompt is None else self._tell_hits(prompt),
            "accept": self._accept if self._accept > 1 and decode is not None else 0.0,
        }

    def _find(self, rows: Array, now_ns: int) -> int | None:
        """Find the last of some rows that is over."""
        count = int(np.searchsorted(self.steps.end_ns[rows], now_ns, "right"))
        return int(rows[count - 1]) if count else None

    def _tell_throughput(self, row: int) -> float:
        """Give tokens a second since the report before."""
        place = int(np.searchsorted(self._decode_reports, row))
        before = int(self._decode_reports[place - 1]) + 1 if place else 0
        begin_ns = int(self.steps.end_ns[before - 1]) if place else int(self.steps.start_ns[0])
        seconds = (int(self.steps.end_ns[row]) - begin_ns) / (NS_PER_S * self._pace)
        return float(self._generated[row + 1] - self._generated[before]) / max(seconds, 1e-9)

    def _tell_hits(self, row: int) -> float:
        cached = float(self.steps.cached[row])
        return cached / (cached + float(self.steps.prompt_tokens[row]))


def _accumulate(values: Array) -> Array:
    """Sum up along the first axis, beginning with nothing: one row more."""
    nothing = np.zeros((1, *values.shape[1:]), values.dtype)
    return np.concatenate([nothing, np.cumsum(values, axis=0)])


def _list_moments(steps: Steps, seconds: Array, accept: float) -> Array:
    """List what each step adds to the moments of a snapshot, `(n, 6)`."""
    plain = (steps.requests > 0) & (steps.prompt_tokens == 0) & (seconds < LONGEST_MOMENT_S)
    rows, micros = steps.requests * plain, seconds * 1e6 * plain
    return np.stack([plain, rows, micros, rows * rows, rows * micros, rows * accept], axis=1).astype(float)
