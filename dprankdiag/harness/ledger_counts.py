"""What the engines count and show of a slice, under names of the harness's own.

Counters grow in every step. SGLang writes its gauges only at a prefill and every 40 decode steps, so that a rank that
turns idle keeps its last ones; its load snapshot is published at a prefill, while idle, and every 15 batches.

Source: SGLang 0.5.23 and vLLM 0.33.0 as described in their packages.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dprankdiag.harness.events import Array
from dprankdiag.harness.ledger_steps import Slice

GATHER_EDGES_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
RATIO_EDGES = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0)
COMPUTED, CACHED, DECODED = range(3)
"""Modes of tokens."""

_LAUNCH_S = 0.0015
_STAGE_S = 1e-4
_LONGEST_MOMENT_S = 2.0

COUNTERS = (
    "tokens", "lag_tokens", "pairs", "lag_pairs", "own_steps", "kept_steps", "gather_s", "gathers", "control_s",
    "choose_s", "launch_s", "result_s", "idle_s", "cpu_s", "decode_forward_s", "extend_forward_s", "idle_forward_s",
    "computed", "cached", "generated", "graph_decodes", "eager_decodes", "eager_prefills", "batches", "decode_steps",
    "retracted", "retracted_prompt", "retracted_output", "prefill_busy_s", "gap_s", "gaps", "first_s", "firsts",
    "looked_up", "found", "admitted", "queued_s", "prompt_seen", "prompt_found", "iterations", "iteration_tokens",
    "done",
)  # fmt: skip
QUEUES = ("bootstrap", "inflight", "prealloc", "transfer", "retracted")
"""Queues of engines that only compute prompts or only decode; of others they are empty."""

GAUGES = ("running", "queued", "used", "context", "throughput", "hit_rate", "accept", *QUEUES)
SNAPSHOT = ("stamp_s", "running", "waiting", "waiting_tokens", "used", "total", "computed", "prefill_busy_s", *QUEUES)


def _zeros(names: tuple[str, ...], ranks: int, value: float = 0.0) -> dict[str, Array]:
    return {name: np.full(ranks, value) for name in names}


@dataclass(slots=True)
class Counts:
    """Counters since the start of the engine's processes: `(ranks,)` each, and a few of more dimensions.

    Attributes:
        together: `(modes, ranks + 1, ranks)` tokens by the number of ranks that computed prompts in the step.
        gather_buckets: `(ranks, edges + 1)`, not cumulative.
        ratio_buckets: `(edges + 1,)`; with `ratio_sum` the imbalance ratio as rank 0 saw it.
        moments: `(ranks, 6)` of decode steps: count, rows, µs, rows², rows × µs, tokens.
        experts: `(layers, ranks)` tokens by layer and GPU.
    """

    by_rank: dict[str, Array]
    together: Array
    gather_buckets: Array
    ratio_buckets: Array
    ratio_sum: float
    moments: Array
    experts: Array

    @classmethod
    def start(cls, ranks: int, layers: int) -> Counts:
        """Start at zero."""
        return cls(
            _zeros(COUNTERS, ranks),
            np.zeros((3, ranks + 1, ranks)),
            np.zeros((ranks, len(GATHER_EDGES_S) + 1)),
            np.zeros(len(RATIO_EDGES) + 1),
            0.0,
            np.zeros((ranks, 6)),
            np.zeros((layers, ranks)),
        )

    def copy(self) -> Counts:
        """Copy, so that what was shown stays as it was."""
        return Counts(
            {name: values.copy() for name, values in self.by_rank.items()},
            self.together.copy(),
            self.gather_buckets.copy(),
            self.ratio_buckets.copy(),
            self.ratio_sum,
            self.moments.copy(),
            self.experts.copy(),
        )

    def add(self, **amounts: Array) -> None:
        """Add amounts, `(ranks,)` each."""
        for name, amount in amounts.items():
            self.by_rank[name] += amount

    def add_slice(self, ran: Slice, accept: Array, graph: bool | Array = True, pace: float = 1.0) -> None:
        """Count the steps of a slice.

        Args:
            graph: decode steps replay a graph; or `(steps,)`, which of them do.
            pace: how many times faster than usual the host does what it does once a step.
        """
        self._add_work(ran)
        self._add_time(ran, pace)
        self._add_waits(ran)
        self._add_modes(ran, accept, graph)
        self._add_moments(ran, accept)

    def _add_work(self, ran: Slice) -> None:
        most = ran.tokens.max(axis=1, keepdims=True)
        self.add(
            tokens=ran.tokens.sum(axis=0),
            lag_tokens=(most - ran.tokens).sum(axis=0),
            pairs=ran.pairs.sum(axis=0),
            lag_pairs=(ran.pairs.max(axis=1, keepdims=True) - ran.pairs).sum(axis=0),
            own_steps=ran.active.sum(axis=0),
            kept_steps=(ran.ran & ~ran.active).sum(axis=0),
            batches=ran.ran.sum(axis=0),
        )
        told = most[:, 0] > 0
        ratio = most[told, 0] * ran.tokens.shape[1] / ran.tokens[told].sum(axis=1)
        self.ratio_sum += float(ratio.sum())
        places = np.searchsorted(RATIO_EDGES, ratio - 1e-9)
        self.ratio_buckets += np.bincount(places, minlength=len(RATIO_EDGES) + 1)

    def _add_time(self, ran: Slice, pace: float) -> None:
        prefilling, decoding = ran.prefill > 0, ran.rows > 0
        gpu_s = np.maximum(0.0, ran.step_s - _LAUNCH_S / pace)
        only_decoding = decoding & ~prefilling
        steps = ran.ran.sum(axis=0)
        waited_s = (ran.gather_s + ran.control_s).sum(axis=0)
        launch_s = _LAUNCH_S / pace * steps
        overhead_s = _STAGE_S / pace * steps
        self.add(
            decode_forward_s=(gpu_s * only_decoding).sum(axis=0),
            extend_forward_s=(gpu_s * prefilling).sum(axis=0),
            idle_forward_s=(gpu_s * (ran.ran & ~ran.active)).sum(axis=0),
            prefill_busy_s=(gpu_s * prefilling).sum(axis=0),
            idle_s=ran.idle_s,
            control_s=ran.control_s.sum(axis=0) + overhead_s,
            choose_s=ran.gather_s.sum(axis=0) + overhead_s,
            launch_s=launch_s,
            result_s=np.maximum(0.0, ran.step_s.sum(axis=0) - waited_s - launch_s - 2 * overhead_s),
            cpu_s=ran.step_s.sum(axis=0),
        )

    def _add_waits(self, ran: Slice) -> None:
        ranks = ran.ran.shape[1]
        self.add(gather_s=ran.gather_s.sum(axis=0), gathers=ran.ran.sum(axis=0))
        width = len(GATHER_EDGES_S) + 1
        places = np.searchsorted(GATHER_EDGES_S, ran.gather_s) + np.arange(ranks) * width
        self.gather_buckets += np.bincount(places[ran.ran], minlength=ranks * width).reshape(ranks, width)

    def _add_modes(self, ran: Slice, accept: Array, graph: bool | Array) -> None:
        prefilling = ran.prefill > 0
        together = prefilling.sum(axis=1)
        made = ran.rows * accept
        for number in np.unique(together):
            steps = together == number
            self.together[COMPUTED, number] += ran.prefill[steps].sum(axis=0)
            self.together[DECODED, number] += made[steps].sum(axis=0)
        captured = ((together == 0) & graph)[:, None]
        decoding = (ran.rows > 0) & ~prefilling
        self.add(
            computed=ran.prefill.sum(axis=0),
            graph_decodes=(decoding & captured).sum(axis=0),
            eager_decodes=(decoding & ~captured).sum(axis=0),
            eager_prefills=prefilling.sum(axis=0),
            decode_steps=decoding.sum(axis=0),
            gap_s=(ran.rows * ran.step_s).sum(axis=0),
            gaps=ran.rows.sum(axis=0),
            iterations=ran.active.sum(axis=0),
            iteration_tokens=ran.rows.sum(axis=0),
        )

    def _add_moments(self, ran: Slice, accept: Array) -> None:
        plain = (ran.rows > 0) & (ran.prefill == 0) & (ran.step_s < _LONGEST_MOMENT_S)
        rows, micros = ran.rows * plain, ran.step_s * 1e6 * plain
        parts = (plain, rows, micros, rows * rows, rows * micros, rows * accept)
        self.moments += np.stack([part.sum(axis=0) for part in parts], axis=1)


@dataclass(slots=True)
class Shown:
    """Gauges and load snapshots as they were last written; NaN before the first time.

    Attributes:
        told_steps, told_tokens, told_s: decode steps, generated tokens and moment of the last gauge report.
        published: batches at the last snapshot.
    """

    gauges: dict[str, Array]
    snapshot: dict[str, Array]
    moments: Array
    told_steps: Array
    told_tokens: Array
    told_s: Array
    published: Array
    idle_since_s: float = field(default=0.0)

    @classmethod
    def start(cls, ranks: int) -> Shown:
        """Start with nothing written."""
        return cls(
            _zeros(GAUGES, ranks, np.nan),
            _zeros(SNAPSHOT, ranks),
            np.zeros((ranks, 6)),
            np.zeros(ranks),
            np.zeros(ranks),
            np.zeros(ranks),
            np.zeros(ranks),
        )

    def copy(self) -> Shown:
        """Copy, so that what was shown stays as it was."""
        return Shown(
            {name: values.copy() for name, values in self.gauges.items()},
            {name: values.copy() for name, values in self.snapshot.items()},
            self.moments.copy(),
            self.told_steps,
            self.told_tokens,
            self.told_s,
            self.published,
            self.idle_since_s,
        )
