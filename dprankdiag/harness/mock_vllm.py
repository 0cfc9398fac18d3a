"""Serve what a vLLM deployment would tell while a serving world runs.

    with MockVllm(outcome, describe_worker(worker)) as engine:
        ask(engine.url + "/metrics")

One port shows all engines (internal balancing, by one API server or several), those of a node (hybrid) or one
(external): see `split_ports`.

Source: vLLM 0.33.0, read in its package and in what its own code wrote.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from dprankdiag.harness import ledger_vllm
from dprankdiag.harness.fake_engine import Asked, Body, Endpoint, Reply
from dprankdiag.harness.mock_engine import MockEngine, fail_if_refused
from dprankdiag.harness.mock_profile import name_vllm
from dprankdiag.harness.served_engine import ServedEngine
from dprankdiag.simulate.world_tables import Outcome


class MockVllm(MockEngine):
    """A port of a vLLM deployment.

    Args:
        dev_mode: `/server_info` is there.
        profile_dir: where its profiler was told to write.
    """

    def __init__(
        self,
        outcome: Outcome,
        engine: ServedEngine,
        *,
        dev_mode: bool = False,
        profile_dir: Path | None = None,
        **rest: Any,
    ) -> None:
        self._dev_mode = dev_mode
        self._profile_dir = profile_dir
        super().__init__(outcome, engine, **rest)

    def list_bodies(self) -> dict[str, Body]:
        """List what is served, by path."""
        metrics = Endpoint(lambda _: Reply(ledger_vllm.write_metrics(self.engine, self.look(), self.engine.engines)))
        bodies: dict[str, Body] = {
            "/metrics": metrics,
            "/metrics/": metrics,
            "/health": b"",
            "/version": _encode({"version": self.engine.version}),
            # 0 for ever, unless an engine is told to count
            "/load": _encode({"server_load": 0}),
        }
        if self._dev_mode:
            bodies["/server_info"] = _encode({"vllm_config": describe_config(self.engine)})
        if self.profiler is not None and self._profile_dir is not None:
            bodies["/start_profile"] = Endpoint(fail_if_refused(self._start_profile), ("POST",))
            bodies["/stop_profile"] = Endpoint(fail_if_refused(self._stop_profile), ("POST",))
        return bodies

    def _start_profile(self, asked: Asked) -> Reply:
        if self.profiler is not None and self._profile_dir is not None:
            self.profiler.start(
                self.find_next_step(), self._profile_dir, name_vllm(self.engine, round(self.clock.utc_s() * 1e9))
            )
        return Reply(b"")

    def _stop_profile(self, asked: Asked) -> Reply:
        if self.profiler is not None and self.profiler.is_running:
            self.profiler.stop(self.find_next_step())
        return Reply(b"")


def split_ports(engine: ServedEngine, engines_per_port: int = 1) -> list[ServedEngine]:
    """Describe the ports of a deployment behind an external balancer (one engine each) or on several nodes."""
    firsts = range(0, engine.ranks, engines_per_port)
    return [
        replace(engine, first_engine=first, shown_engines=min(engines_per_port, engine.ranks - first))
        for first in firsts
    ]


def open_ports(outcome: Outcome, ports: Sequence[ServedEngine], **rest: Any) -> tuple[list[MockVllm], ExitStack]:
    """Make and start one mock a port, all of one time; close the stack to stop them."""
    stack, mocks = ExitStack(), list[MockVllm]()
    for port in ports:
        mock = MockVllm(outcome, port, beside=mocks[0] if mocks else None, **rest)
        started: AbstractContextManager[MockVllm] = mock
        mocks.append(stack.enter_context(started))
    return mocks, stack


def describe_config(engine: ServedEngine) -> dict[str, Any]:
    """Describe how the engines work together."""
    shown = len(engine.engines)
    return {
        "parallel_config": {
            "data_parallel_size": engine.ranks,
            "data_parallel_size_local": shown,
            "data_parallel_rank": engine.first_engine,
            "data_parallel_external_lb": shown == 1 and engine.ranks > 1,
            "data_parallel_hybrid_lb": 1 < shown < engine.ranks,
            "data_parallel_backend": "mp",
            "tensor_parallel_size": 1,
            "pipeline_parallel_size": 1,
            "enable_expert_parallel": engine.lockstep,
            "all2all_backend": "allgather_reducescatter",
            "enable_eplb": False,
            "dp_sync_interval": 16,
        }
    }


def _encode(answer: Any) -> bytes:
    return json.dumps(answer, separators=(",", ":")).encode()
