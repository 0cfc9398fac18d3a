"""Deployments by name and drawn by chance, each with its truth; their pages tick by tick, in memory or as files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dprankdiag.harness import ledger_sglang, ledger_sglang_loads, ledger_vllm
from dprankdiag.harness.ledger_engine import EPOCH_S, Deployment, LedgerState
from dprankdiag.harness.ledger_sglang import parse_version
from dprankdiag.harness.ledger_traffic import DAY_S, Traffic
from dprankdiag.harness.ledger_world import LedgerFault, LedgerWorld, Policy, Restart, Trouble

__all__ = [
    "LEDGER_WORLDS",
    "LedgerFault",
    "LedgerTruth",
    "LedgerWorld",
    "Restart",
    "Tick",
    "day_world",
    "fault_shows",
    "faulty_day",
    "ledger_truths",
    "measure_growth",
    "simulate_ledger",
    "write_ledger_world",
]

SCRAPE_GAP_S = 15.0

CLEAR = 1.5
"""Uneven load shows once its rank holds so many times what the others hold; requests have to come first."""

FULL = 0.9
"""Share of a pool from which on requests wait for room."""


@dataclass(frozen=True, slots=True)
class LedgerTruth:
    """What a perfect diagnosis says about one fault of a world.

    Attributes:
        cause: the whole truth.
        accepted: the causes that the pages can carry, best first; empty where they show nothing of it, so that naming
            anything is wrong.
        ranks: the culprits; of "load.idle" the busy ones.
        start_s, end_s: when it acts, seconds after the world's beginning.
    """

    cause: str
    accepted: tuple[str, ...]
    ranks: tuple[int, ...]
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Tick:
    """One poll of all pages of a deployment.

    Attributes:
        seconds: after the world's beginning.
        state: what the engine has counted and shows; None while it is down.
        failed: pages that gave nothing.
    """

    seconds: float
    world: LedgerWorld
    state: LedgerState | None
    failed: tuple[str, ...] = ()

    @property
    def epoch_ns(self) -> int:
        """Give the moment by the wall clock."""
        return round((EPOCH_S + self.seconds) * 1e9)

    @property
    def pages(self) -> dict[str, bytes]:
        """Write the pages that answered, by name."""
        if self.state is None:
            return {}
        names = list_pages(self.world, self.state.ranks)
        return {name: write_page(self.world, self.state, name) for name in names if name not in self.failed}


def list_pages(world: LedgerWorld, ranks: int) -> list[str]:
    """List the pages of a deployment: metrics, or one a host or an engine, and the load answer."""
    if world.engine == "vllm":
        return [f"rank{rank}" for rank in range(ranks)] if world.external_lb else ["metrics"]
    metrics = [f"node{node}" for node in range(world.nodes)] if world.nodes > 1 else ["metrics"]
    return metrics + (["loads"] if world.loads else [])


def write_page(world: LedgerWorld, state: LedgerState, name: str) -> bytes:
    """Write one page."""
    if name == "loads":
        return ledger_sglang_loads.write_loads(world, state)
    every = range(state.ranks)
    if world.engine == "vllm":
        return ledger_vllm.write_metrics(world, state, every if name == "metrics" else [int(name[4:])])
    if name == "metrics":
        return ledger_sglang.write_metrics(world, state, every)
    shares = np.array_split(np.arange(state.ranks), world.nodes)
    return ledger_sglang.write_metrics(world, state, shares[int(name[4:])].tolist())


def simulate_ledger(world: LedgerWorld) -> Iterator[Tick]:
    """Run a world and poll it; the same world gives the same ticks."""
    traffic = Traffic(world)
    chance = np.random.default_rng([world.seed, 31])
    deployment: Deployment | None = Deployment(world, traffic, world.ranks, 0.0, world.warm)
    pending = sorted(world.restarts, key=lambda it: it.at_s)
    ranks, up_s, stagger_s = world.ranks, 0.0, 0.0
    seconds, polled_s = 0.0, 0.0
    while seconds < world.seconds - 1e-9:
        if pending and pending[0].at_s <= seconds:
            restart = pending.pop(0)
            ranks = restart.ranks or ranks
            deployment, up_s, stagger_s = None, seconds + restart.down_s, restart.stagger_s
        if deployment is None and seconds >= up_s:
            deployment = Deployment(world, traffic, ranks, seconds, warm=False)
        if deployment is None:
            traffic.draw(seconds, world.slice_s)
        else:
            deployment.advance(seconds, world.slice_s)
        seconds += world.slice_s
        if seconds - polled_s >= world.interval_s - 1e-9:
            polled_s += world.interval_s
            names = list_pages(world, ranks)
            failed = [name for name in names if chance.random() < world.failed_scrapes]
            failed += [
                f"rank{rank}" for rank in range(ranks) if seconds < up_s + rank * stagger_s and world.external_lb
            ]
            yield Tick(seconds, world, deployment.state(seconds) if deployment else None, tuple(failed))


def ledger_truths(world: LedgerWorld) -> tuple[LedgerTruth, ...]:
    """Tell what is true of a world, fault by fault; nothing of a healthy one."""
    return tuple(
        LedgerTruth(
            fault.cause, _list_accepted(world, fault), fault.ranks, fault.start_s, min(fault.end_s, world.seconds)
        )
        for fault in world.faults
    )


def _list_accepted(world: LedgerWorld, fault: LedgerFault) -> tuple[str, ...]:
    """Name the causes that a world's pages can carry.

    SGLang's waits and stages show late hosts and nothing of the GPUs' speed; vLLM's pages show neither in lockstep, and
    where engines run alone they show that one is slow, not whether its host or its GPU is.
    """
    release = parse_version(world.version)
    match fault.kind:
        case "gpu" | "host" if not world.lockstep:
            return ("single_point.unknown", "single_point.gpu", "single_point.host")
        case "gpu" | "uniform":
            return ()
        case "host":
            return (fault.cause,) if world.engine == "sglang" and release >= (0, 5, 20) else ()
        case "stale":
            return (fault.cause,) if world.engine == "sglang" and world.loads and release >= (0, 5, 16) else ()
        case "expert":
            return (fault.cause,) if world.engine == "sglang" and world.expert_counts else ()
        case "speculation":
            return (fault.cause,) if world.engine == "sglang" else ()
        case "idle":
            return ("load.idle", "load.requests")
        case _:
            return (fault.cause,)


def fault_shows(true: LedgerTruth, state: LedgerState | None) -> bool:
    """Tell whether a fault has had its effect on what ranks hold."""
    if state is None:
        return False
    mine = np.isin(np.arange(state.ranks), true.ranks)
    match true.cause:
        case "load.idle":
            # Ranks that are left alone drain first; until the last of them has, others hold work as well.
            held = state.running + state.waiting
            return bool((held[mine] > 0).all() and (held[~mine] == 0).all())
        case "load.requests":
            held = state.running + state.waiting
        case "load.context":
            held = state.used
        case "load.kv_pressure":
            return bool((state.used[mine] >= FULL * state.capacity[mine]).all() and (state.waiting[mine] > 0).all())
        case _:
            return True
    others = float(held[~mine].mean()) if not mine.all() else 0.0
    return bool(held[mine].min(initial=np.inf) >= CLEAR * max(others, 1.0))


def measure_growth(world: LedgerWorld, since_s: float | None = None) -> float:
    """Measure by how much a step is longer than without the faults, from a moment on.

    Both run the same requests. Of independent engines the slowest is taken.
    """
    begin_s = max(0.0, world.seconds - SCRAPE_GAP_S) if since_s is None else since_s
    faulty, even = (_mean_step(it, begin_s) for it in (world, replace(world, faults=())))
    return faulty / even - 1


def _mean_step(world: LedgerWorld, begin_s: float) -> float:
    first = last = None
    for tick in simulate_ledger(world):
        if tick.state is None:
            continue
        if first is None and tick.seconds >= begin_s - 1e-9:
            first = tick
        last = tick
    if first is None or last is None or first.state is None or last.state is None or first is last:
        raise ValueError("the world shows too little for a mean step")
    now, before = last.state.counts.by_rank, first.state.counts.by_rank
    batches = now["batches"] - before["batches"]
    busy_s = last.seconds - first.seconds - (now["idle_s"] - before["idle_s"])
    return float(np.max(busy_s / np.maximum(1.0, batches)))


def write_ledger_world(
    world: LedgerWorld, folder: Path, *, name: str = "world", seconds: Sequence[float] = ()
) -> list[str]:
    """Write pages of some moments as files.

    Args:
        world: the world; the polls nearest to the moments are written.
        folder: where to; made if it is not there.
        name: of the target.
        seconds: moments; the end and 15 s before it where none are given.

    Returns:
        Inputs for the command, `NAME@SECONDS=PATH`, in order of time.
    """
    moments = sorted(seconds) or [world.seconds - SCRAPE_GAP_S, world.seconds]
    folder.mkdir(parents=True, exist_ok=True)
    inputs = []
    for tick in simulate_ledger(world):
        if not moments or tick.seconds < moments[0] - world.interval_s / 2:
            continue
        moments.pop(0)
        for page, body in tick.pages.items():
            suffix = "json" if page == "loads" else "prom"
            path = folder / f"{page}-{round(tick.seconds):06d}.{suffix}"
            path.write_bytes(body)
            inputs.append(f"{name}@{tick.seconds:g}={path}")
    return inputs


def _fault(kind: Trouble, ranks: tuple[int, ...], size: float, start_s: float = 0.0) -> tuple[LedgerFault, ...]:
    return (LedgerFault(kind, ranks, size, start_s),)


_SGLANG = LedgerWorld()
_OLDER = replace(_SGLANG, version="0.5.12", dp_attention=False)
_VLLM = LedgerWorld(engine="vllm", version="0.33.0", base_s=0.013, capacity_tokens=260_000)
_DENSE = replace(_VLLM, lockstep=False)
_QUIET = replace(_SGLANG, rate_s=0.4, warm=False, seconds=240.0)

LEDGER_WORLDS: dict[str, LedgerWorld] = {
    "healthy": replace(_SGLANG, seed=1),
    "healthy_least_requests": replace(_SGLANG, seed=2, policy="least_requests"),
    "healthy_least_tokens": replace(_SGLANG, seed=3, policy="least_tokens", length_spread=1.0),
    "healthy_long_tail": replace(_SGLANG, seed=4, length_spread=1.1, rate_s=12.0),
    "healthy_small_counts": replace(_SGLANG, seed=5, rate_s=2.0, output_tokens=120),
    "healthy_almost_nobody": replace(_QUIET, seed=6),
    "healthy_burst": replace(_SGLANG, seed=7, bursts_hour=60.0, burst_factor=3.0),
    "healthy_cold": replace(_SGLANG, seed=8, warm=False),
    "healthy_restart": replace(_SGLANG, seed=9, restarts=(Restart(60.0, 20.0),)),
    "healthy_probes_only": replace(_SGLANG, seed=10, rate_s=0.0, probes_s=5.0, warm=False),
    "healthy_speculating": replace(_SGLANG, seed=11, accept_tokens=2.6),
    "healthy_switch_off": replace(_SGLANG, seed=12, dp_attention=False),
    "healthy_older": replace(_OLDER, seed=13),
    "healthy_experts": replace(_SGLANG, seed=14, expert_counts=True),
    "healthy_attention_tp": replace(_SGLANG, seed=15, attention_tp=2),
    "healthy_nodes": replace(_SGLANG, seed=16, ranks=16, nodes=2, rate_s=44.0),
    "healthy_hiccups": replace(_SGLANG, seed=17, hiccups_hour=900.0),
    "requests": replace(_SGLANG, seed=21, faults=_fault("requests", (3,), 0.35)),
    "requests_two": replace(_SGLANG, seed=22, faults=_fault("requests", (1, 6), 0.45)),
    "requests_mild": replace(_SGLANG, seed=23, faults=_fault("requests", (4,), 0.15)),
    "requests_onset": replace(_SGLANG, seed=24, faults=_fault("requests", (5,), 0.4, 60.0)),
    "requests_switch_off": replace(_SGLANG, seed=25, dp_attention=False, faults=_fault("requests", (3,), 0.35)),
    "requests_older": replace(_OLDER, seed=26, faults=_fault("requests", (3,), 0.35)),
    "requests_oldest": replace(_OLDER, seed=27, version="0.5.9", faults=_fault("requests", (0,), 0.35)),
    "requests_attention_tp": replace(_SGLANG, seed=28, attention_tp=2, faults=_fault("requests", (3,), 0.35)),
    "context": replace(_SGLANG, seed=31, policy="least_requests", faults=_fault("context", (5,), 0.6)),
    "context_older": replace(_OLDER, seed=32, policy="least_requests", faults=_fault("context", (2,), 0.6)),
    "prefill": replace(_SGLANG, seed=33, faults=_fault("prefill", (1,), 0.5)),
    "cache": replace(
        _SGLANG, seed=34, hit_ratio=0.8, prompt_tokens=3000, rate_s=16.0, faults=_fault("cache", (2,), 0.0)
    ),
    "kv_pressure": replace(_SGLANG, seed=35, capacity_tokens=100_000, faults=_fault("kv_pressure", (4,), 0.35)),
    "speculation": replace(_SGLANG, seed=36, accept_tokens=2.8, faults=_fault("speculation", (4,), 1.3)),
    "idle_but_one": replace(_SGLANG, seed=37, rate_s=4.0, warm=False, faults=_fault("idle", (2,), 1.0)),
    "idle_half": replace(_SGLANG, seed=38, warm=False, rate_s=14.0, faults=_fault("idle", (0, 1, 2, 3), 1.0)),
    "host": replace(_SGLANG, seed=41, faults=_fault("host", (6,), 0.008)),
    "host_first": replace(_SGLANG, seed=42, faults=_fault("host", (0,), 0.008)),
    "host_local_broadcast": replace(_SGLANG, seed=43, control_broadcast=False, faults=_fault("host", (3,), 0.006)),
    "host_mild": replace(_SGLANG, seed=44, faults=_fault("host", (2,), 0.003)),
    "host_sixteen": replace(_SGLANG, seed=45, ranks=16, nodes=2, rate_s=44.0, faults=_fault("host", (10,), 0.008)),
    "gpu": replace(_SGLANG, seed=46, faults=_fault("gpu", (6,), 1.5)),
    "uniform": replace(_SGLANG, seed=47, faults=_fault("uniform", (), 1.5, 60.0)),
    "expert": replace(_SGLANG, seed=48, expert_counts=True, faults=_fault("expert", (5,), 2.0)),
    "stale": replace(_SGLANG, seed=49, faults=_fault("stale", (4,), 0.0, 60.0)),
    "vllm_healthy": replace(_VLLM, seed=51),
    "vllm_several_servers": replace(_VLLM, seed=52, api_servers=8),
    "vllm_requests": replace(_VLLM, seed=53, faults=_fault("requests", (3,), 0.4)),
    "vllm_requests_external": replace(_VLLM, seed=54, external_lb=True, faults=_fault("requests", (3,), 0.4)),
    "vllm_context": replace(_VLLM, seed=55, policy="least_requests", faults=_fault("context", (5,), 0.5)),
    "vllm_idle_half": replace(_VLLM, seed=56, warm=False, rate_s=14.0, faults=_fault("idle", (0, 1, 2, 3), 1.0)),
    "vllm_gpu": replace(_VLLM, seed=57, faults=_fault("gpu", (6,), 1.6)),
    "vllm_kv_pressure": replace(_VLLM, seed=58, capacity_tokens=90_000, faults=_fault("kv_pressure", (1,), 0.35)),
    "vllm_prefill": replace(_VLLM, seed=59, faults=_fault("prefill", (1,), 0.5)),
    "vllm_cache": replace(
        _VLLM, seed=60, hit_ratio=0.8, prompt_tokens=3000, rate_s=16.0, faults=_fault("cache", (7,), 0.0)
    ),
    "dense_healthy": replace(_DENSE, seed=61),
    "dense_gpu": replace(_DENSE, seed=62, faults=_fault("gpu", (6,), 1.6)),
    "dense_requests": replace(_DENSE, seed=63, faults=_fault("requests", (0,), 0.4)),
}


_POLICIES: tuple[Policy, ...] = ("round_robin", "least_requests", "least_tokens")


def day_world(seed: int, *, engine: str = "sglang") -> LedgerWorld:
    """Draw a healthy day of one poll a second, with a dead night, bursts, a crash, a rolling update and lost polls."""
    draw = np.random.default_rng([seed, 41])
    base = _VLLM if engine == "vllm" else _SGLANG
    crash_s = float(draw.uniform(4, 20) * 3600)
    update_s = float((crash_s + draw.uniform(2, 3) * 3600) % DAY_S)
    return replace(
        base,
        seed=seed,
        rate_s=float(draw.uniform(3, 9)),
        rhythm=0.98,
        start_hour=0.0,
        bursts_hour=2.0,
        policy=_POLICIES[int(draw.integers(len(_POLICIES)))],
        length_spread=float(draw.uniform(0.5, 1.0)),
        probes_s=20.0,
        failed_scrapes=0.003,
        seconds=DAY_S,
        slice_s=1.0,
        warm=False,
        restarts=(
            Restart(round(crash_s), float(draw.uniform(30, 120))),
            Restart(round(update_s), float(draw.uniform(30, 90)), ranks=int(draw.choice([6, 8, 16]))),
        ),
    )


_DAY_FAULTS: tuple[tuple[Trouble, float], ...] = (
    ("requests", 0.4),
    ("context", 0.6),
    ("prefill", 0.5),
    ("host", 0.008),
    ("stale", 0.0),
    ("idle", 1.0),
)


def faulty_day(seed: int, *, lasting_s: float = 600.0) -> LedgerWorld:
    """Draw a day with a fault of each kind in turn, during the busy hours and away from restarts."""
    draw = np.random.default_rng([seed, 42])
    world = day_world(seed)
    faults = []
    for position, (kind, size) in enumerate(_DAY_FAULTS):
        start_s = (9.0 + 1.8 * position) * 3600 + float(draw.uniform(0, 1200))
        faults.append(
            LedgerFault(kind, (int(draw.integers(world.ranks)),), size, round(start_s), round(start_s + lasting_s))
        )
    return replace(world, rate_s=max(world.rate_s, 8.0), restarts=(), faults=tuple(faults))
