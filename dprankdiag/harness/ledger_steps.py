"""The steps of one slice of time: what each rank has in each step, how long it takes, and who waits for whom.

Matrices are steps × ranks. In lockstep a step takes as long as its slowest rank; in a mixture of experts the ranks'
GPUs finish together whatever each had to do, so that what a rank's host waits for at the border of a step is how late
the other hosts are, and not their load.

Source: facts measured with SGLang 0.5.23's own gather among eight processes; vLLM 0.33.0's lockstep rules.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dprankdiag.harness.events import Array
from dprankdiag.harness.ledger_world import LedgerWorld

GATHER_FLOOR_S = 1.5e-4
CONTROL_FLOOR_S = 2e-5
"""Waits in the gather and in the control broadcast of ranks that are all ready; chosen, not measured."""

_HOP_S = 5e-5
_GPU_TAIL_S = 4e-5
_HICCUP_S = 0.03


@dataclass(frozen=True, slots=True)
class Slice:
    """Steps that ran in a slice, `(steps, ranks)` unless said otherwise.

    Attributes:
        prefill: prompt tokens computed.
        rows: requests that decoded.
        tokens: both, as the engine counts a step's work.
        pairs: pairs of query and key that attention computed.
        active: the rank had tokens of its own.
        step_s: duration; of a lockstep equal on all ranks.
        gather_s, control_s: waits in the gather, in the control broadcast.
        ran: the rank took part in the step; always in lockstep.
        idle_s: `(ranks,)` time without a step.
        debt_s: `(ranks,)` by how much the last step outlasted the slice.
    """

    prefill: Array
    rows: Array
    tokens: Array
    pairs: Array
    active: Array
    step_s: Array
    gather_s: Array
    control_s: Array
    ran: Array
    idle_s: Array
    debt_s: Array

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class Load:
    """What the ranks bring into a slice.

    Attributes:
        rank, held, decodes: `(requests,)` decoding requests: their rank, KV tokens, and steps until they end.
        prefill: `(steps, ranks)` prompt tokens wanted by step.
        prefix: `(ranks,)` mean cached tokens before those prompt tokens.
        accept: `(ranks,)` tokens that a request gains a step.
        gpu: `(ranks,)` factor on GPU time.
        late_s: `(ranks,)` by how much the host is late in every step.
        expert: factor on the time spent in experts.
        debt_s: `(ranks,)` left over from the slice before.
    """

    rank: Array
    held: Array
    decodes: Array
    prefill: Array
    prefix: Array
    accept: Array
    gpu: Array
    late_s: Array
    expert: float
    debt_s: Array


@lru_cache(maxsize=64)
def broadcast_tree(ranks: int) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """Give the rounds of the broadcast from rank 0: who receives, from whom.

    A binomial tree over mirrored numbers, in which, of eight ranks, rank 2 sits behind rank 6.
    """
    rounds = []
    width = 1
    while width < ranks:
        mirrored = range(width, min(2 * width, ranks))
        rounds.append((tuple(-it % ranks for it in mirrored), tuple(-(it - width) % ranks for it in mirrored)))
        width *= 2
    return tuple(rounds)


def run_slice(world: LedgerWorld, load: Load, span_s: float, random: np.random.Generator) -> Slice:
    """Run the steps that fit into a slice."""
    wanted, ranks = load.prefill.shape
    prefilling = load.prefill > 0
    mixed = world.engine == "vllm"
    turns: Array = np.ones((wanted, ranks), bool) if mixed else ~prefilling
    decoded = np.cumsum(turns, axis=0) - turns
    count, held = _fade(load, wanted, ranks)
    here = np.arange(ranks)
    rows = np.where(turns, count[decoded, here], 0.0)
    context = np.where(turns, held[decoded, here] + decoded * rows * load.accept, 0.0)
    tokens = load.prefill + rows
    pairs = context + load.prefill * (load.prefix + (load.prefill + 1) / 2)
    gpu_s = _time_gpu(world, load, rows, context, random)
    ready_s, control_s = _arrive(world, load, (wanted, ranks), random)
    active = tokens > 0
    if world.lockstep:
        together: Array = active.max(axis=1)
        step_s = np.repeat((gpu_s.max(axis=1) + ready_s.max(axis=1) + GATHER_FLOOR_S)[:, None], ranks, axis=1)
        running: Array = np.repeat(together[:, None], ranks, axis=1)
    else:
        step_s = gpu_s + ready_s
        running = active
    waits = ready_s.max(axis=1, keepdims=True) - ready_s + GATHER_FLOOR_S * (0.7 + 0.6 * random.random((wanted, ranks)))
    end_s = np.cumsum(step_s, axis=0) + load.debt_s
    ran = (end_s - step_s < span_s) & running
    spent = np.where(end_s - step_s < span_s, step_s, 0.0)
    busy = (spent * running).sum(axis=0)
    debt_s = np.maximum(0.0, load.debt_s + spent.sum(axis=0) - span_s)
    kept = int(ran.any(axis=1).nonzero()[0].max(initial=-1)) + 1
    cut = slice(0, kept)
    return Slice(
        load.prefill[cut] * ran[cut], rows[cut] * ran[cut], tokens[cut] * ran[cut], pairs[cut] * ran[cut],
        active[cut] & ran[cut], step_s[cut] * ran[cut], waits[cut] * ran[cut], control_s[cut] * ran[cut],
        ran[cut], np.maximum(0.0, span_s - load.debt_s - busy + debt_s), debt_s,
    )  # fmt: skip


def _fade(load: Load, steps: int, ranks: int) -> tuple[Array, Array]:
    """Count requests and their KV tokens by the decode steps that a rank has done in the slice."""
    ends = np.minimum(load.decodes, steps).astype(np.int64)
    places = ends * ranks + load.rank.astype(np.int64)
    size = (steps + 1) * ranks
    gone = np.bincount(places, minlength=size).reshape(steps + 1, ranks)
    freed = np.bincount(places, weights=load.held, minlength=size).reshape(steps + 1, ranks)
    count = gone.sum(axis=0) - np.cumsum(gone, axis=0)
    held = freed.sum(axis=0) - np.cumsum(freed, axis=0)
    return count.astype(float), held


def _time_gpu(world: LedgerWorld, load: Load, rows: Array, context: Array, random: np.random.Generator) -> Array:
    prefill = load.prefill
    attended = prefill * (load.prefix + prefill / 2)
    base = world.base_s * (1 + world.expert_share * (load.expert - 1))
    own = base + world.row_s * rows + world.context_s * context
    own = own + world.prompt_s * prefill + world.pair_s * attended
    return own * load.gpu * (1 + world.noise * np.abs(random.standard_normal(own.shape)))


def _arrive(world: LedgerWorld, load: Load, shape: tuple[int, int], random: np.random.Generator) -> tuple[Array, Array]:
    """Tell when each host is ready to gather, and how long it waited for the control broadcast before."""
    own_s = world.host_s * np.exp(0.5 * random.standard_normal(shape)) + load.late_s + _GPU_TAIL_S * (load.gpu - 1)
    if random.random() < world.hiccups_hour * shape[0] * world.base_s / 3600:
        own_s[random.integers(shape[0]), random.integers(shape[1])] += random.exponential(_HICCUP_S)
    if world.engine != "sglang" or not world.control_broadcast:
        return own_s, np.zeros(shape)
    told_s = own_s.copy()
    for receivers, senders in broadcast_tree(shape[1]):
        told_s[:, receivers] = np.maximum(own_s[:, receivers], told_s[:, senders] + _HOP_S)
    return told_s, told_s - own_s + CONTROL_FLOOR_S
