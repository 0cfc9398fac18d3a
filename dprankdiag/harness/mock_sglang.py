"""Serve what an SGLang engine would tell while a serving world runs.

    with MockSglang(outcome, describe_worker(worker), speed=10.0) as engine:
        ask(engine.url + "/v1/loads")

The world begins when the server does, runs `speed` times as fast as it was served, and ends idle: counters stand still,
gauges stay as they were last written, snapshots keep being renewed.

Source: SGLang 0.5.9 to 0.5.23, read in their packages and in what they answered.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Self

from dprankdiag.harness import ledger_sglang, ledger_sglang_loads
from dprankdiag.harness.fake_engine import Asked, Body, Endpoint, FakeEngine, Fault, Reply
from dprankdiag.harness.ledger_engine import PUBLISH_BATCHES, REPORT_STEPS, LedgerState
from dprankdiag.harness.ledger_sglang_loads import SECTIONS
from dprankdiag.harness.served_clock import WorldClock
from dprankdiag.harness.served_engine import ServedEngine
from dprankdiag.harness.served_ledger import ServedLedger
from dprankdiag.simulate.world_tables import Outcome

PAGE_TOKENS = 64

_SINCE_LOADS, _SINCE_SNAPSHOT, _UNTIL_GET_LOAD = (0, 5, 8), (0, 5, 13), (0, 5, 20)
_IGNORES_UNKNOWN = (0, 5, 11)


class MockSglang:
    """An engine on a port of this machine.

    Args:
        speed: seconds of the world in one second of the clock; the engine shows itself as that much faster.
        start_at_s: second of the world at which serving begins; what came before is counted.
        port: to listen at; 0 takes a free one.
        clock: UTC seconds.
        token: wanted as `Authorization: Bearer TOKEN`.
    """

    def __init__(
        self,
        outcome: Outcome,
        engine: ServedEngine,
        *,
        speed: float = 1.0,
        start_at_s: float = 0.0,
        port: int = 0,
        clock: Callable[[], float] = time.time,
        token: str | None = None,
        faults: Mapping[str, Fault] | None = None,
    ) -> None:
        self.engine = engine
        self._release = ledger_sglang.parse_version(engine.version)
        self._clock = WorldClock(clock, speed, start_at_s)
        self._ledger = ServedLedger(outcome, engine, speed, self._clock.epoch_s)
        self._server = FakeEngine(self._list_bodies(), faults=faults, token=token, clock=clock, port=port)

    @property
    def url(self) -> str:
        """Tell the address."""
        return self._server.url

    @property
    def port(self) -> int:
        """Tell the port."""
        return self._server.port

    def __enter__(self) -> Self:
        """Start to serve."""
        self._server.__enter__()
        return self

    def __exit__(self, *problem: object) -> None:
        """Stop to serve."""
        self._server.__exit__(*problem)

    def look(self) -> LedgerState:
        """Tell what there is to see now."""
        return self._ledger.advance(self._clock.now_ns())

    def _list_bodies(self) -> dict[str, Body]:
        bodies: dict[str, Body] = {
            "/metrics": Endpoint(lambda _: Reply(self._write_metrics())),
            "/health": b"",
            "/health_generate": b"",
            "/server_info": Endpoint(lambda _: Reply(self._write_info())),
            "/get_server_info": Endpoint(lambda _: Reply(self._write_info())),
        }
        if self._release >= _SINCE_LOADS:
            bodies["/v1/loads"] = Endpoint(self._answer_loads)
        if self._release <= _UNTIL_GET_LOAD:
            bodies["/get_load"] = Endpoint(lambda _: Reply(self._write_get_load()))
        return bodies

    def _write_metrics(self) -> bytes:
        return ledger_sglang.write_metrics(self.engine, self.look(), range(self.engine.ranks))

    def _write_get_load(self) -> bytes:
        return ledger_sglang_loads.write_get_load(self.engine, self.look())

    def _answer_loads(self, asked: Asked) -> Reply:
        wanted = asked.query.get("dp_rank")
        rank = None
        if wanted is not None:
            try:
                rank = int(wanted)
            except ValueError:
                return Reply(_refuse_rank(wanted), 422)
        sections = [name.strip() for name in asked.query.get("include", "all").split(",")]
        if unknown := [name for name in sections if name not in SECTIONS]:
            if self._release >= _SINCE_SNAPSHOT:
                return Reply(b"Internal Server Error", 500)
            if self._release < _IGNORES_UNKNOWN:
                return Reply(json.dumps({"detail": f"Invalid include: {', '.join(unknown)}"}).encode(), 400)
        is_page = asked.query.get("format") == "prometheus"
        write = ledger_sglang_loads.write_loads_page if is_page else ledger_sglang_loads.write_loads
        return Reply(write(self.engine, self.look(), sections, rank))

    def _write_info(self) -> bytes:
        return json.dumps(describe_server(self.engine), separators=(",", ":")).encode()


def describe_server(engine: ServedEngine) -> dict[str, Any]:
    """Describe an engine's configuration, by the keys that tell how its ranks work together."""
    together = engine.lockstep
    schedulers = engine.ranks * engine.attention_tp
    info: dict[str, Any] = {
        "model_path": ledger_sglang.MODEL,
        "served_model_name": ledger_sglang.MODEL,
        "version": engine.version,
        "tp_size": schedulers if together else engine.attention_tp,
        "pp_size": 1,
        "dp_size": engine.ranks,
        "ep_size": schedulers if together else 1,
        "enable_dp_attention": together,
        "nnodes": 1,
        "node_rank": 0,
        "load_balance_method": "round_robin",
        "moe_a2a_backend": "deepep" if together else "none",
        "deepep_mode": "auto",
        "enable_eplb": False,
        "ep_num_redundant_experts": 0,
        "expert_distribution_recorder_mode": None,
        "disaggregation_mode": {"unified": "null"}.get(engine.role, engine.role),
        "disable_cuda_graph": False,
        "disable_overlap_schedule": False,
        "disable_radix_cache": False,
        "enable_two_batch_overlap": False,
        "speculative_algorithm": "EAGLE" if engine.verify_width > 1 else None,
        "speculative_num_draft_tokens": engine.verify_width if engine.verify_width > 1 else None,
        "enable_metrics": True,
        "enable_metrics_for_all_schedulers": False,
        "decode_log_interval": REPORT_STEPS,
        "page_size": PAGE_TOKENS,
        "max_running_requests": engine.running_limit * engine.ranks,
        "max_total_num_tokens": engine.capacity_tokens[0],
        "schedule_policy": "fcfs",
        "scheduler_recv_interval": 1,
        "tokenizer_worker_num": 1,
        "enable_layerwise_nvtx_marker": False,
    }
    release = ledger_sglang.parse_version(engine.version)
    if release >= (0, 5, 13):
        info |= {"load_snapshot_publish_interval": PUBLISH_BATCHES}
    if release >= (0, 5, 11):
        info |= {"enable_dp_attention_local_control_broadcast": False}
    if release >= (0, 5, 22):
        info |= {
            "dp_size": 1 if together else engine.ranks,
            "attn_dp_size": engine.ranks if together else 1,
            "attn_cp_size": 1,
            "moe_dp_size": 1,
            "frontend": "python",
            "kv_events": None,
        }
    state = {**info, "world_size": schedulers, "effective_max_running_requests_per_dp": engine.running_limit}
    return {**info, "internal_states": [state] * engine.ranks}


def _refuse_rank(wanted: str) -> bytes:
    problem = {
        "type": "int_parsing",
        "loc": ["query", "dp_rank"],
        "msg": "Input should be a valid integer, unable to parse string as an integer",
        "input": wanted,
    }
    return json.dumps({"detail": [problem]}).encode()
