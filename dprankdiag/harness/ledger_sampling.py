"""Draw deployments by chance: what is served by what, who asks, and what is wrong, if anything."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dprankdiag.harness.ledger_world import LedgerFault, LedgerWorld, Policy, Trouble

HEALTHY_SHARE = 0.4

_SIZES = (2, 4, 8, 8, 8, 16, 32)
_POLICIES: tuple[Policy, ...] = ("round_robin", "least_requests", "least_tokens")
_VERSIONS = ("0.5.23", "0.5.23", "0.5.23", "0.5.18", "0.5.12", "0.5.9")
_TROUBLES: tuple[Trouble, ...] = (
    "requests",
    "context",
    "prefill",
    "cache",
    "kv_pressure",
    "speculation",
    "idle",
    "host",
    "gpu",
    "expert",
    "stale",
    "uniform",
)


def sample_ledger(seed: int, *, healthy: bool | None = None) -> LedgerWorld:
    """Draw a world of two minutes, whose last quarter of a minute is judged.

    Args:
        seed: the same seed draws the same world.
        healthy: whether something is wrong; None to let chance decide.
    """
    draw = np.random.default_rng([seed, 51])
    world = _draw_deployment(seed, draw)
    sick = not healthy if healthy is not None else draw.random() >= HEALTHY_SHARE
    if not sick:
        return replace(world, bursts_hour=float(draw.choice([0.0, 0.0, 40.0])))
    kind = _TROUBLES[int(draw.integers(len(_TROUBLES)))]
    if kind == "speculation" and world.engine == "vllm":  # whose pages of drafts are not simulated
        kind = "requests"
    return _break(world, kind, draw)


ONSET_S = 90.0
"""When the faults of `sample_onset` begin."""

_SUDDEN: tuple[tuple[Trouble, float], ...] = (
    ("requests", 0.4),
    ("context", 0.7),
    ("prefill", 0.6),
    ("host", 0.008),
    ("idle", 1.0),
    ("cache", 0.0),
    ("stale", 0.0),
)


def sample_onset(seed: int) -> LedgerWorld:
    """Draw a world of three minutes in which a fault begins half-way, and polls are a second apart."""
    draw = np.random.default_rng([seed, 61])
    kind, size = _SUDDEN[seed % len(_SUDDEN)]
    known = kind == "cache"
    world = LedgerWorld(
        seed=seed,
        rate_s=float(draw.uniform(12, 28)),
        prompt_tokens=3000 if known else 1200,
        hit_ratio=0.8 if known else 0.4,
        policy="least_requests" if kind == "context" else "round_robin",
        seconds=2 * ONSET_S,
    )
    return _with(world, kind, (int(draw.integers(world.ranks)),), size, ONSET_S)


def _draw_deployment(seed: int, draw: np.random.Generator) -> LedgerWorld:
    ranks = int(draw.choice(_SIZES))
    vllm = bool(draw.random() < 0.35)
    lockstep = not vllm or bool(draw.random() < 0.7)
    version = "0.33.0" if vllm else _VERSIONS[int(draw.integers(len(_VERSIONS)))]
    servers = int(draw.choice([1, ranks]))
    return LedgerWorld(
        seed=seed,
        ranks=ranks,
        engine="vllm" if vllm else "sglang",
        version=version,
        dp_attention=bool(draw.random() < 0.8),
        control_broadcast=bool(draw.random() < 0.7),
        attention_tp=int(draw.choice([1, 1, 1, 2])),
        loads=bool(draw.random() < 0.7),
        lockstep=lockstep,
        api_servers=servers,
        external_lb=servers == 1 and lockstep and bool(draw.random() < 0.4),
        rate_s=ranks * float(draw.choice([0.1, 0.5, 1.5, 3.0])),
        prompt_tokens=int(draw.choice([400, 1200, 3000])),
        output_tokens=int(draw.choice([80, 220, 400])),
        length_spread=float(draw.uniform(0.3, 1.0)),
        hit_ratio=float(draw.uniform(0.1, 0.7)),
        policy=_POLICIES[int(draw.integers(len(_POLICIES)))],
        base_s=float(draw.uniform(0.010, 0.030)),
        host_s=float(draw.uniform(1e-4, 5e-4)),
        noise=float(draw.uniform(0.01, 0.06)),
        warm=bool(draw.random() < 0.8),
    )


def _break(world: LedgerWorld, kind: Trouble, draw: np.random.Generator) -> LedgerWorld:
    """Let something go wrong, on a world in which it can."""
    culprit = (int(draw.integers(world.ranks)),)
    even = 1 / world.ranks
    busy = max(world.rate_s, 1.5 * world.ranks)
    match kind:
        case "requests":
            share = even + (1 - even) * float(draw.uniform(0.1, 0.4))
            return _with(replace(world, rate_s=busy), kind, culprit, share)
        case "context":
            return _with(replace(world, rate_s=busy, policy="least_requests"), kind, culprit, draw.uniform(0.3, 0.7))
        case "prefill":
            return _with(replace(world, rate_s=busy), kind, culprit, float(draw.uniform(0.3, 0.7)))
        case "cache":
            known = replace(world, rate_s=busy, hit_ratio=0.8, prompt_tokens=3000, warm=True)
            return _with(known, kind, culprit, float(draw.uniform(0.0, 0.2)))
        case "kv_pressure":
            return _with(replace(world, rate_s=busy, capacity_tokens=100_000), kind, culprit, draw.uniform(0.2, 0.4))
        case "speculation":
            return _with(replace(world, rate_s=busy, accept_tokens=2.8), kind, culprit, float(draw.uniform(1.1, 1.6)))
        case "idle":
            keep = tuple(range(max(1, world.ranks // 2)))
            return _with(replace(world, rate_s=1.5 * len(keep), warm=False), kind, keep, 1.0)
        case "host":
            return _with(replace(world, rate_s=busy), kind, culprit, world.base_s * float(draw.uniform(0.1, 0.6)))
        case "gpu":
            return _with(replace(world, rate_s=busy), kind, culprit, float(draw.uniform(1.1, 1.8)))
        case "uniform":
            return _with(world, kind, (), float(draw.uniform(1.2, 1.8)), start_s=60.0)
        case "expert":
            return _with(replace(world, rate_s=busy, expert_counts=True), kind, culprit, draw.uniform(1.5, 2.5))
        case "stale":
            return _with(replace(world, rate_s=busy, loads=True), kind, culprit, 0.0, start_s=60.0)


def _with(world: LedgerWorld, kind: Trouble, ranks: tuple[int, ...], size: float, start_s: float = 0.0) -> LedgerWorld:
    return replace(world, faults=(LedgerFault(kind, ranks, float(size), start_s),))
