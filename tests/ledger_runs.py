"""Watch a simulated deployment with the product's own judgement, from its pages or, for long runs, from its numbers.

The numbers skip writing and reading of pages, which cost far more than the judgement; a test holds both to the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import numpy as np

from dprankdiag.analysis.ledgers import Sighting, join_sightings
from dprankdiag.collectors.base import Collector
from dprankdiag.collectors.sglang_loads import SglangLoads
from dprankdiag.collectors.sglang_metrics import SglangMetrics
from dprankdiag.collectors.vllm_metrics import VllmMetrics
from dprankdiag.harness.ledger_engine import EPOCH_S, LedgerState
from dprankdiag.harness.ledger_score import Named
from dprankdiag.harness.ledger_worlds import Tick
from dprankdiag.model.ledgers import FloatArray, LedgerAnswer, NoData
from dprankdiag.pipelines import watch
from dprankdiag.pipelines.tracking import WINDOW_S, Tracker, judge_moment

Read = Callable[[Tick], Iterable[LedgerAnswer]]

_METRICS: Mapping[str, Collector] = {"sglang": SglangMetrics(), "vllm": VllmMetrics()}
_LOADS = SglangLoads()


def read_pages(tick: Tick) -> list[LedgerAnswer]:
    """Read a poll's pages with the collectors."""
    answers: list[LedgerAnswer] = []
    for name, body in tick.pages.items():
        collector = _LOADS if name == "loads" else _METRICS[tick.world.engine]
        answers += collector.parse(body, name, tick.epoch_ns)
    return answers


COUNTED = {
    "scheduled_tokens": ("tokens",),
    "scheduled_pairs": ("pairs",),
    "active_steps": ("own_steps",),
    "idle_steps": ("kept_steps",),
    "sync_wait_s": ("gather_s",),
    "sync_waits": ("gathers",),
    "control_wait_s": ("control_s",),
    "batch_stage_s": ("choose_s",),
    "idle_stage_s": ("idle_s",),
    "prefill_tokens": ("computed",),
    "cached_tokens": ("cached",),
    "decode_tokens": ("generated",),
    "admitted_requests": ("admitted",),
    "graph_passes": ("graph_decodes",),
    "eager_passes": ("eager_decodes",),
    "retracted_requests": ("retracted",),
}
"""Field of `/metrics` → counters of the simulation; those that begin with the first event are absent before it."""

LATE = ("prefill_tokens", "cached_tokens", "decode_tokens", "admitted_requests", "graph_passes", "eager_passes")
LATE += ("retracted_requests",)

SHOWN = {
    "running_requests": "running",
    "waiting_requests": "queued",
    "used_tokens": "used",
    "context_tokens": "context",
}


def read_numbers(tick: Tick) -> list[LedgerAnswer]:
    """Take what an SGLang deployment counts and shows without writing and reading its pages."""
    state = tick.state
    if state is None:
        return []
    answers = [("metrics", _answer_metrics), ("loads", _answer_loads)]
    return [
        replace(answer(state), taken_ns=tick.epoch_ns, where=name)
        for name, answer in answers
        if name not in tick.failed
    ]


def _answer_metrics(state: LedgerState) -> LedgerAnswer:
    values: dict[str, FloatArray] = {}
    for name, parts in COUNTED.items():
        total = np.sum([state.counts.by_rank[part] for part in parts], axis=0)
        values[name] = np.where(total > 0, total, np.nan) if name in LATE else total
    for name, gauge in SHOWN.items():
        values[name] = state.shown.gauges[gauge]
    values["kv_usage_ratio"] = np.round(state.shown.gauges["used"] / state.capacity, 2)
    told = {name: one for name, one in values.items() if not np.isnan(one).all()}
    return LedgerAnswer("sglang-metrics", "", "sglang", "lab/sparse-moe-1", "unified", None, _ranks(state), told)


def _answer_loads(state: LedgerState) -> LedgerAnswer:
    published, moments = state.shown.snapshot, state.shown.moments
    values = {
        "load_stamp_s": EPOCH_S + published["stamp_s"],
        "load_running_requests": published["running"],
        "load_waiting_requests": published["waiting"],
        "load_used_tokens": published["used"],
        "load_total_tokens": published["total"],
        "load_kv_usage_ratio": np.round(published["used"] / state.capacity, 4),
        "load_prefill_tokens": published["computed"],
    }
    worked = moments[:, 0] > 0
    for name, part, scale in (
        ("load_decode_steps", 0, 1.0),
        ("load_decode_rows", 1, 1.0),
        ("load_decode_step_s", 2, 1e-6),
        ("load_decode_tokens", 5, 1.0),
    ):
        values[name] = np.where(worked, moments[:, part] * scale, np.nan)
    told = {name: one for name, one in values.items() if not np.isnan(one).all()}
    return LedgerAnswer("sglang-loads", "", "sglang", None, "unified", None, _ranks(state), told)


def _ranks(state: LedgerState) -> tuple[int, ...]:
    return tuple(range(state.ranks))


class Live:
    """Judges as `watch` does: the product's own pipeline, tick by tick."""

    def __init__(self, read: Read = read_pages, window_s: float = WINDOW_S) -> None:
        self._read = read
        self._watcher = watch.Watcher(window_s)

    def __call__(self, tick: Tick) -> list[Named]:
        """Name what holds now, at a warning or above."""
        silent = tick.failed if tick.state is not None else ("metrics",)
        told = [replace(answer, where=f"http://lab/{answer.where}") for answer in self._read(tick)]
        failed = [NoData("sglang-metrics", f"http://lab/{name}", tick.epoch_ns, "refused") for name in silent]
        findings = self._watcher.observe([*told, *failed], tick.epoch_ns).diagnosis.findings
        return [(finding.cause, finding.ranks) for finding in findings if finding.severity != "info"]


class Watcher:
    """Judges the last ten seconds at every poll and follows what lasts."""

    def __init__(self, read: Read = read_pages) -> None:
        self._read = read
        self._tracker = Tracker()
        self._recent: deque[tuple[float, list[LedgerAnswer]]] = deque()

    def __call__(self, tick: Tick) -> list[Named]:
        """Name what holds now, at a warning or above."""
        answers = list(self._read(tick))
        if answers:
            self._recent.append((tick.seconds, answers))
        while self._recent and self._recent[0][0] < tick.seconds - WINDOW_S - 1e-6:
            self._recent.popleft()
        findings = []
        for ledger in join_sightings([Sighting(one, "lab") for _, each in self._recent for one in each]):
            if ledger.n_moments > 1 and ledger.seconds is not None:
                findings += judge_moment(ledger, ledger.n_moments - 1)[1]
        held = self._tracker.observe(tick.seconds, findings)
        return [(finding.cause, finding.ranks) for finding in held if finding.severity != "info"]
