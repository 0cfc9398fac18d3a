"""A small load whose ranks are uneven, as a log of requests, and what-ifs made of hand-written numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dprankdiag.model.whatif import Figure, Option, Origin, Service, WhatIf
from dprankdiag.simulate.base import Part, Request
from dprankdiag.simulate.costs import FittedCosts
from dprankdiag.simulate.engine import serve
from dprankdiag.simulate.routers.sglang import SglangController
from dprankdiag.simulate.scheduler import SglangRules
from dprankdiag.simulate.workers import Worker

COSTS = FittedCosts((4e6, 1e6, 0.0, 300.0, 2_000.0, 0.0, 0.0))


def serve_uneven(count: int = 64, seed: int = 4) -> list[dict[str, Any]]:
    """Let most requests demand rank 0 of four, and tell what became of them, a row each."""
    generator = np.random.default_rng(seed)
    arrivals = np.cumsum(generator.exponential(20e6, count)).astype(int).tolist()
    prompts, outputs = (generator.integers(*span, count).tolist() for span in ((500, 9_000), (30, 150)))
    pins = [0 if number % 4 else None for number in range(count)]
    requests = [
        Request(number, at, (Part(number + 1, prompt),), output, pinned_rank=pin)
        for number, (at, prompt, output, pin) in enumerate(zip(arrivals, prompts, outputs, pins, strict=True))
    ]
    worker = Worker((SglangRules(1_000_000),) * 4, SglangController(4, "round_robin"), COSTS)
    table = serve(requests, [worker]).requests
    return [
        {
            "arrival_s": int(table["arrival_ns"][row]) / 1e9,
            "input_tokens": int(table["prompt_tokens"][row]),
            "output_tokens": int(table["output_tokens"][row]),
            "rank": int(table["rank"][row]),
            "pinned": requests[int(table["request"][row])].pinned_rank is not None,
            "ttft_s": int(table["first_ns"][row] - table["arrival_ns"][row]) / 1e9,
            "e2e_s": int(table["end_ns"][row] - table["arrival_ns"][row]) / 1e9,
        }
        for row in range(count)
    ]


def write_log(path: Path, rows: Sequence[dict[str, Any]], **facts: Any) -> Path:
    told = {"engine": "sglang", "ranks": 4, "capacity_tokens": 1_000_000, **facts}
    path.write_text("".join(f"{json.dumps(row)}\n" for row in (told, *rows)))
    return path


def option(key: str, gain: float | None, low: float | None = None, high: float | None = None, **rest: Any) -> Option:
    interval = None if low is None or high is None else (low, high)
    served = Service(step_p50_ns=Figure(2e7, (1.9e7, 2.1e7)))
    plain: dict[str, Any] = {"title": f"as {key}", "command": f"--set {key}", "basis": "replayed", **rest}
    return Option(key, "policy", gain_ratio=Figure(gain, interval), gain_of="request_time", served=served, **plain)


def result(*options: Option, **rest: Any) -> WhatIf:
    plain: dict[str, Any] = {
        "verdict": "cannot_tell",
        "headline": "",
        "source": Origin(("run.jsonl",), "request-log", "sglang", "0.5.23", None, 1, 8, 8, 40, 3_000_000_000),
        "measured": Service(first_token_p50_ns=Figure(3e7)),
        "replayed": Service(imbalance_ratio=Figure(2.0, (1.9, 2.1))),
        "best": (),
        "options": options,
        "fit": None,
        "abstentions": (),
        "notes": (),
    }
    return WhatIf(**{**plain, **rest})
