"""Calls, lanes, steps and observations for tests, made by naming only what a test is about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dprankdiag.analysis.calls import Calls, Channel
from dprankdiag.analysis.grid import StepGrid
from dprankdiag.analysis.lanes import COMMUNICATION, FAMILY_CODE, Lane, Naming
from dprankdiag.analysis.observations import Abilities, BatchSeries, Observations, ProbeTimes, sum_steps
from dprankdiag.model.ranks import Rank
from dprankdiag.model.results import COMPONENTS
from dprankdiag.model.schema import ABSENT_NS, Columns
from dprankdiag.model.sources import KernelName, Names, Shape, Trace
from dprankdiag.model.traces import TRACE_TABLES

Array = np.ndarray[Any, np.dtype[Any]]
EPOCH_NS = 1_700_000_000_000_000_000
"""Wall-clock times have 61 bits: a double would round them to 256 ns."""

USUAL_NS = {"attention": 60_000, "expert": 75_000, "probe": 12_000, "other": 6_000, "host": 1_000, "rest": 2_000}
TRANSFER_NS = 16_000


def calls(rank: int, start: Any, end: Any, *, arrival: Any = None, place: Any = 0) -> Calls:
    """Make a rank's calls; they arrive when they start unless said otherwise."""
    starts = np.asarray(start, np.int64)
    return Calls(
        rank,
        starts,
        starts if arrival is None else np.asarray(arrival, np.int64),
        np.asarray(end, np.int64),
        np.broadcast_to(np.asarray(place, np.int64), starts.shape),
    )


def channel(members: Sequence[Calls], operation: str = "all_gather") -> Channel:
    """Make a channel of collective calls."""
    return Channel("gather", "collective", operation, tuple(members))


def meet(arrival: Array, transfer_ns: int | Array = TRANSFER_NS, exit_ns: int | Array = 0) -> Array:
    """End blocking meetings: everybody leaves `transfer_ns` after the last arrival.

    Args:
        arrival: `(n_meetings, n_ranks)`.
        transfer_ns: one number, or one a meeting.
        exit_ns: broadcastable to `arrival`.
    """
    transfer = np.broadcast_to(np.asarray(transfer_ns, np.int64), len(arrival))
    return np.asarray(arrival.max(axis=1, keepdims=True) + transfer[:, None] + np.zeros_like(arrival) + exit_ns)


def arrive(n_meetings: int, n_ranks: int, *, seed: int = 0, spread_ns: int = 40_000, period_ns: int = 400_000) -> Array:
    """Draw arrivals at meetings that come at uneven distances, `(n_meetings, n_ranks)` int64 near the epoch."""
    random = np.random.default_rng(seed)
    begin = EPOCH_NS + np.cumsum(random.integers(period_ns // 2, 3 * period_ns // 2, n_meetings))
    return np.asarray(begin[:, None] + random.integers(0, spread_ns, (n_meetings, n_ranks)))


def to_calls(arrival: Array, end: Array, ranks: Sequence[int] | None = None) -> list[Calls]:
    """Turn meetings by rank into each rank's calls."""
    return [calls(rank, arrival[:, k], end[:, k]) for k, rank in enumerate(ranks or range(arrival.shape[1]))]


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a lane; `channel` counts for communication only."""

    family: str
    start_ns: int
    end_ns: int
    stream: int = 7
    key: int | None = None
    launch_ns: int | None = None
    phase: int = 0
    in_graph: bool = False
    channel: int = 0


def lane(rows: Sequence[Row]) -> Lane:
    """Make a lane; without a launch time in any row the recording has no calls."""
    rows = sorted(rows, key=lambda row: row.start_ns)
    launched = any(row.launch_ns is not None for row in rows)
    launch = [ABSENT_NS if row.launch_ns is None else row.launch_ns for row in rows]
    codes = [FAMILY_CODE[row.family] for row in rows]
    return Lane(
        np.array([row.start_ns for row in rows], np.int64),
        np.array([row.end_ns for row in rows], np.int64),
        np.array([row.stream for row in rows], np.int32),
        np.array(codes, np.int8),
        np.array([codes[k] if row.key is None else row.key for k, row in enumerate(rows)], np.int64),
        np.array([row.channel if row.family in COMMUNICATION else -1 for row in rows], np.int32),
        np.array(launch, np.int64) if launched else None,
        np.array([row.in_graph for row in rows], bool),
        np.array([row.phase for row in rows], np.int8),
    )


def naming(families: Sequence[str], channels: Sequence[str] = ("gather",)) -> Naming:
    """Name kernels by their families; communication kernels all share the first channel."""
    codes = np.array([FAMILY_CODE[name] for name in families], np.int8)
    is_talk = np.array([name in COMMUNICATION for name in families], bool)
    return Naming(
        codes,
        np.where(is_talk, 0, -1).astype(np.int32),
        np.zeros(len(codes), np.int8),
        tuple(channels),
        ("collective",) * len(channels),
        ("all_gather",) * len(channels),
    )


def on(ranks: int | Sequence[int], value: float, n_ranks: int = 8) -> Array:
    """Give a factor of `value` to some ranks in all steps, and 1 to the others: `(1, 1, n_ranks)`."""
    factor = np.ones((1, 1, n_ranks))
    factor[:, :, np.atleast_1d(ranks)] = value
    return factor


def on_steps(
    ranks: int | Sequence[int], value: float, steps: slice | Sequence[int], n_steps: int, n_ranks: int
) -> Array:
    """Give a factor of `value` to some ranks in some steps: `(n_steps, 1, n_ranks)`."""
    factor = np.ones((n_steps, 1, n_ranks))
    chosen = np.arange(n_steps)[steps if isinstance(steps, slice) else list(steps)]
    factor[np.ix_(chosen, np.zeros(1, np.int64), np.atleast_1d(ranks))] = value
    return factor


def run_grid(
    components: Mapping[str, Array],
    *,
    transfer: Array | int = TRANSFER_NS,
    exit_ns: Array | int = 0,
    group: Array | None = None,
    waits: Array | bool = True,
    family: Sequence[str] = (),
    operation: Sequence[str] = (),
    kind: str = "decode",
    start_ns: int = EPOCH_NS,
) -> StepGrid:
    """Play steps in which a group's meeting ends at its last arrival plus the transfer.

    Args:
        components: by name, `(n_steps, n_positions, n_ranks)` ns; what is not named is 0.
        transfer, exit_ns, waits: broadcastable to the same shape; a call that does not wait takes the transfer alone.
        group: `(n_positions, n_ranks)` id of each rank's meeting.
    """
    shape = next(iter(components.values())).shape
    n_steps, n_positions, n_ranks = shape
    parts = {name: np.asarray(components.get(name, np.zeros(shape)), np.int64) for name in COMPONENTS}
    segment = np.sum(list(parts.values()), axis=0)
    moved, late = (np.broadcast_to(np.asarray(value, np.int64), shape) for value in (transfer, exit_ns))
    waiting = np.broadcast_to(np.asarray(waits, bool), shape)
    group = np.zeros((n_positions, n_ranks), np.int64) if group is None else group
    arrays = {name: np.zeros(shape, np.int64) for name in ("wait", "transfer", "own_transfer", "exit")}
    ready, entry = np.full(n_ranks, start_ns, np.int64), np.zeros((n_steps, n_ranks), np.int64)
    borders = [start_ns]
    for step in range(n_steps):
        entry[step] = ready - borders[-1]
        for position in range(n_positions):
            arrival = ready + segment[step, position]
            last = np.array([arrival[group[position] == own].max() for own in group[position]])
            shared = last + moved[step, position]
            leave = np.where(waiting[step, position], shared + late[step, position], arrival + moved[step, position])
            free = ~waiting[step, position]
            arrays["wait"][step, position] = np.where(free, 0, last - arrival)
            arrays["transfer"][step, position] = shared - last
            arrays["own_transfer"][step, position] = np.where(free, leave - arrival, leave - last)
            arrays["exit"][step, position] = leave - shared
            ready = leave
        borders.append(int(shared.max()))
    layers = np.maximum(np.cumsum(np.median(parts["attention"].max(axis=2), axis=0) > 0) - 1, -1)
    return StepGrid(
        kind,
        np.arange(n_steps),
        np.array(borders[:-1], np.int64),
        np.array(borders[1:], np.int64),
        segment,
        parts,
        arrays["wait"],
        arrays["transfer"],
        arrays["own_transfer"],
        entry,
        arrays["exit"],
        np.array(waiting),
        group,
        tuple(family) or ("collective",) * n_positions,
        tuple(operation) or tuple(("all_gather", "reduce_scatter")[k % 2] for k in range(n_positions)),
        tuple(f"channel {k % 2}" for k in range(n_positions)),
        np.asarray(layers, np.int64),
        tuple(("pre", "post")[k % 2] for k in range(n_positions)),
    )


def draw_components(
    n_steps: int = 40,
    n_ranks: int = 8,
    layers: int = 3,
    *,
    factor: Mapping[str, Array] | None = None,
    add: Mapping[str, Array] | None = None,
    noise: float = 0.01,
    seed: int = 0,
) -> dict[str, Array]:
    """Draw what every rank does before each gather (even positions) and before each scatter (odd ones).

    Args:
        factor, add: by component, what its time is multiplied by, and ns added to it where it occurs.
    """
    random = np.random.default_rng(seed)
    before = np.arange(2 * layers) % 2 == 0
    where = {"attention": before, "expert": ~before, "host": np.arange(2 * layers) == 0}
    drawn = {}
    for name, usual in USUAL_NS.items():
        time = usual * np.exp(noise * random.standard_normal((n_steps, 2 * layers, n_ranks)))
        place = where.get(name, np.ones(2 * layers, bool))[None, :, None]
        time = time * (factor or {}).get(name, 1.0) + (add or {}).get(name, 0.0)
        drawn[name] = np.asarray(np.where(place, time, 0.0).round(), np.int64)
    return drawn


def ranks(n_ranks: int, grade: Any = "sure") -> tuple[Rank, ...]:
    """Make the members of a group."""
    return tuple(Rank("default", k, "gpu", "thread-name", grade, dp_rank=k, pid=4100 + k) for k in range(n_ranks))


ABLE = Abilities(
    has_kernels=True,
    has_launches=True,
    whole_graphs=False,
    uneven=None,
    missing_ranks=(),
    clock_bound_ns=5_000,
)


def observe_grids(grids: Sequence[StepGrid], **changes: Any) -> Observations:
    """Make the observations of a group from its grids."""
    grid_of, row_of, sums = sum_steps(grids)
    spans = [(grids[g].start_ns[r], grids[g].end_ns[r]) for g, r in zip(grid_of.tolist(), row_of.tolist(), strict=True)]
    n_ranks = grids[0].segment.shape[2]
    probe = np.concatenate([grid.components["probe"].reshape(-1, n_ranks) for grid in grids]).mean(axis=0)
    known = Observations(
        ranks(n_ranks),
        tuple(grids),
        grid_of,
        row_of,
        np.array([span[0] for span in spans], np.int64),
        np.array([span[1] for span in spans], np.int64),
        "sampling",
        sums,
        ProbeTimes(probe[None, :], np.array([probe.mean()]), ("gemm",)),
        ABLE,
        (),
        None,
        np.zeros(n_ranks),
    )
    return replace(known, **changes)


def observe_steps(
    n_steps: int = 40,
    n_ranks: int = 8,
    layers: int = 3,
    *,
    factor: Mapping[str, Array] | None = None,
    add: Mapping[str, Array] | None = None,
    noise: float = 0.01,
    seed: int = 0,
    transfer: Array | int | None = None,
    exit_ns: Array | int = 0,
    family: Sequence[str] = (),
    operation: Sequence[str] = (),
    **changes: Any,
) -> Observations:
    """Make the observations of a group in lockstep, even but for what is named."""
    parts = draw_components(n_steps, n_ranks, layers, factor=factor, add=add, noise=noise, seed=seed)
    if transfer is None:
        random = np.random.default_rng([seed, 1])
        transfer = (TRANSFER_NS * (1 + 0.02 * random.standard_normal((n_steps, 2 * layers, 1)))).round()
    grid = run_grid(parts, transfer=transfer, exit_ns=exit_ns, family=family, operation=operation)
    return observe_grids([grid], **changes)


def annotate(seen: Observations, **by_rank: Sequence[float] | Array) -> Observations:
    """Give every step a batch annotation that says the same for a rank throughout."""
    start = seen.start_ns + 1_000
    series = []
    for rank in range(seen.n_ranks):
        columns = {name: np.full(seen.n_steps, np.nan) for name in ("requests", "held_tokens", "prefill_tokens")}
        columns |= {name: np.full(seen.n_steps, float(values[rank])) for name, values in by_rank.items()}
        series.append(BatchSeries(start, columns["requests"], columns["held_tokens"], columns["prefill_tokens"]))
    return replace(seen, batches=tuple(series))


def announce(seen: Observations, requests: Array, held_tokens: Array | None = None) -> Observations:
    """Give every step a batch annotation without prompts, `(n_steps, n_ranks)`; 1,000 KV tokens a request."""
    held = 1_000.0 * requests if held_tokens is None else held_tokens
    start, nothing = seen.start_ns + 1_000, np.zeros(seen.n_steps)
    series = [BatchSeries(start, *pair, nothing) for pair in zip(requests.T, held.T, strict=True)]
    return replace(seen, batches=tuple(series))


GRAPH_STEPS, EAGER_STEPS = 40, 20


def observe_lost_graphs(
    *, gap_ns: int = 60_000, empty: Array | None = None, kind: str = "decode", layers: int = 3
) -> Observations:
    """Replay steps as graphs, then launch others kernel by kernel with a gap before every meeting.

    Args:
        empty: `(EAGER_STEPS, n_ranks)` who has no attention work in the eager steps.
        kind: of the eager steps.
        layers: of the replayed steps.
    """
    eager = draw_components(EAGER_STEPS, seed=1)
    eager["host"] = eager["host"] + gap_ns
    if empty is not None:
        eager["attention"] = np.where(empty[:, None, :], 0, eager["attention"])
    first = run_grid(draw_components(GRAPH_STEPS, layers=layers), kind="decode graph")
    return observe_grids([first, run_grid(eager, kind=kind, start_ns=int(first.end_ns[-1]))])


def trace(
    n_ranks: int,
    lanes: Sequence[Sequence[Row]] = (),
    *,
    kernel_names: Sequence[str] = (),
    shapes: Sequence[Shape] = ((1, 1, 1, 128, 1, 1),),
    domains: Sequence[int] | None = None,
    precision: Sequence[str] = ("exact",),
    **changes: Any,
) -> Trace:
    """Make a deployment; the rows of a lane become kernels whose name id is their key.

    Args:
        domains: the recording of each rank; one for all if not given.
        precision: of each recording's place on the axis.
    """
    tables: dict[str, Columns] = {table.name: table.empty() for table in TRACE_TABLES}
    rows = [(rank, row) for rank, mine in enumerate(lanes) for row in sorted(mine, key=lambda row: row.start_ns)]
    if rows:
        tables["kernels"] = {
            "rank": np.array([rank for rank, _ in rows], np.int16),
            "stream": np.array([row.stream for _, row in rows], np.int32),
            "start_ns": np.array([row.start_ns for _, row in rows], np.int64),
            "end_ns": np.array([row.end_ns for _, row in rows], np.int64),
            "name_id": np.array([row.key or 0 for _, row in rows], np.int32),
            "shape_id": np.zeros(len(rows), np.int32),
            "launch_ns": np.array([ABSENT_NS if row.launch_ns is None else row.launch_ns for _, row in rows], np.int64),
            "in_graph": np.array([row.in_graph for _, row in rows], bool),
        }
    known = Trace(
        ranks(n_ranks),
        np.array(domains or [0] * n_ranks, np.int16),
        tuple(f"node-{k}" for k in range(len(precision))),
        tuple(precision),
        Names(tuple(KernelName(name, name) for name in kernel_names), tuple(shapes)),
        tables,
        (),
        (),
        0,
        1,
    )
    return replace(known, **changes)
