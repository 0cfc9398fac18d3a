"""A what-if as the command saves it: one policy that gains, one that may not, a bound, and what is in use."""

from __future__ import annotations

from typing import Any

from dprankdiag.model.whatif import UNKNOWN, CostFit, Figure, Option, Origin, Service, Unpriced, WhatIf

SERVED = Service(
    imbalance_ratio=Figure(1.2, (1.1, 1.3)),
    waiting_ratio=Figure(0.08, None),
    step_p50_ns=Figure(7_500_000, (7_400_000, 7_600_000)),
    first_token_p50_ns=Figure(45_000_000, None),
    generation_tok_s=Figure(15_750.0, None),
    gpu_hours_day=Figure(142.6, (140.0, 150.0)),
)


def option(key: str, **told: Any) -> Option:
    known: dict[str, Any] = {
        "kind": "policy",
        "title": f"the rank by {key}",
        "command": None,
        "gain_ratio": UNKNOWN,
        "gain_of": "request_time",
        "served": Service(),
        "basis": "replayed",
    }
    return Option(key, **(known | told))


def make_whatif(**changes: Any) -> WhatIf:
    """Make a what-if; changes are fields of it."""
    best = option(
        "policy.total_tokens",
        command="--load-balance-method total_tokens",
        gain_ratio=Figure(0.26, (0.2, 0.3)),
        served=SERVED,
    )
    known: dict[str, Any] = {
        "verdict": "better",
        "headline": "The rank with the fewest tokens would save 26 % of the requests' time",
        "source": Origin(("day.jsonl",), "request-log", "sglang", "0.5.23", None, 1, 8, 8, 160, 3 * 10**9),
        "measured": Service(token_p50_ns=Figure(11_500_000, None)),
        "replayed": Service(imbalance_ratio=Figure(4.8, None)),
        "best": (best.key,),
        "options": (
            best,
            option("policy.total_requests", gain_ratio=Figure(0.01, (-0.02, 0.04)), command="--x total_requests"),
            option("load.even", kind="load", gain_ratio=Figure(None, (0.0, 0.4)), basis="bound"),
            option("layout.other", kind="layout", reasons=("its steps were not recorded",)),
            option("policy.round_robin", gain_ratio=Figure(0.0, None), is_current=True),
        ),
        "fit": CostFit("the times of requests", 320, 0.002, {"row_ns": Figure(67_000.0, (0.0, 70_000.0))}),
        "abstentions": (Unpriced("experts", "no counts were given", (), "--experts FILE"),),
        "notes": ("one GPU a rank is assumed",),
    }
    return WhatIf(**(known | changes))
