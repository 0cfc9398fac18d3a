"""Serve what an SGLang engine would tell while a serving world runs.

    with MockSglang(outcome, describe_worker(worker), speed=10.0) as engine:
        ask(engine.url + "/v1/loads")

Source: SGLang 0.5.9 to 0.5.23, read in their packages and in what they answered.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Self

from dprankdiag.harness import ledger_sglang, ledger_sglang_loads
from dprankdiag.harness.fake_engine import Asked, Body, Endpoint, Reply
from dprankdiag.harness.ledger_engine import PUBLISH_BATCHES, REPORT_STEPS
from dprankdiag.harness.ledger_sglang_loads import SECTIONS
from dprankdiag.harness.mock_engine import FAILED, MockEngine, fail_if_refused
from dprankdiag.harness.mock_profile import name_sglang
from dprankdiag.harness.mock_publish import LoadPublisher
from dprankdiag.harness.served_engine import ServedEngine
from dprankdiag.simulate.world_tables import Outcome

PAGE_TOKENS = 64

_SINCE_LOADS, _SINCE_SNAPSHOT, _UNTIL_GET_LOAD = (0, 5, 8), (0, 5, 13), (0, 5, 20)
_IGNORES_UNKNOWN = (0, 5, 11)

_OF_THE_SERVER = ("version", "max_total_num_tokens", "frontend", "kv_events")
"""Keys of the configuration that ranks do not repeat."""


class MockSglang(MockEngine):
    """An SGLang engine; see `MockEngine`.

    Args:
        load_port: rank r publishes its load at this port + r (0.5.19 and later); none for no messages.
        snapshot_file: where the load snapshots lie in shared memory (0.5.16 and later); none for no file.
    """

    def __init__(
        self,
        outcome: Outcome,
        engine: ServedEngine,
        *,
        load_port: int | None = None,
        snapshot_file: Path | None = None,
        **rest: Any,
    ) -> None:
        self._load_port = load_port
        super().__init__(outcome, engine, **rest)
        self._publisher: LoadPublisher | None = None
        if load_port is not None or snapshot_file is not None:
            self._publisher = LoadPublisher(engine, self.look, load_port, snapshot_file)

    def __enter__(self) -> Self:
        """Start to serve and to publish."""
        super().__enter__()
        if self._publisher is not None:
            self._publisher.__enter__()
        return self

    def __exit__(self, *problem: object) -> None:
        """Stop to publish and to serve."""
        if self._publisher is not None:
            self._publisher.__exit__(*problem)
        super().__exit__(*problem)

    def list_bodies(self) -> dict[str, Body]:
        """List what is served, by path."""
        metrics = Endpoint(lambda _: Reply(self._write_metrics()))
        bodies: dict[str, Body] = {
            "/metrics": metrics,
            "/metrics/": metrics,
            "/health": b"",
            "/health_generate": b"",
            "/server_info": Endpoint(lambda _: Reply(self._write_info())),
            "/get_server_info": Endpoint(lambda _: Reply(self._write_info())),
        }
        if self._release >= _SINCE_LOADS:
            bodies["/v1/loads"] = Endpoint(self._answer_loads)
        if self._release <= _UNTIL_GET_LOAD:
            bodies["/get_load"] = Endpoint(lambda _: Reply(self._write_get_load()))
        if self.profiler is not None:
            bodies["/start_profile"] = Endpoint(fail_if_refused(self._start_profile), ("GET", "POST"))
            bodies["/stop_profile"] = Endpoint(fail_if_refused(self._stop_profile), ("GET", "POST"))
        return bodies

    @property
    def _release(self) -> tuple[int, ...]:
        return ledger_sglang.parse_version(self.engine.version)

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
                return FAILED
            if self._release < _IGNORES_UNKNOWN:
                return Reply(json.dumps({"detail": f"Invalid include: {', '.join(unknown)}"}).encode(), 400)
        is_page = asked.query.get("format") == "prometheus"
        write = ledger_sglang_loads.write_loads_page if is_page else ledger_sglang_loads.write_loads
        return Reply(write(self.engine, self.look(), sections, rank))

    def _start_profile(self, asked: Asked) -> Reply:
        """Begin to profile; with a number of steps, write them."""
        profiler = self.profiler
        if profiler is None or profiler.is_running:
            return FAILED
        told = json.loads(asked.body) if asked.body else {}
        folder = Path(told.get("output_dir") or os.environ.get("SGLANG_TORCH_PROFILER_DIR", "/tmp"))
        profile_id = told.get("profile_id") or str(self.clock.utc_s())
        name = name_sglang(self.engine, profile_id, told.get("profile_prefix") or "")
        first = max(self.find_next_step(), int(told.get("start_step") or 0))
        if told.get("num_steps"):
            last = min(first + int(told["num_steps"]), self.ledger.count_steps())
            profiler.write(first, last - first, folder, name)
        else:
            profiler.start(first, folder, name)
        return Reply(b"Start profiling.\n")

    def _stop_profile(self, asked: Asked) -> Reply:
        if self.profiler is None or not self.profiler.is_running:
            return FAILED
        self.profiler.stop(self.find_next_step())
        return Reply(b"Stop profiling. This will take some time.\n")

    def _write_info(self) -> bytes:
        return json.dumps(describe_server(self.engine, self._load_port), separators=(",", ":")).encode()


def describe_server(engine: ServedEngine, load_port: int | None = None) -> dict[str, Any]:
    """Describe an engine's configuration, by the keys that tell how its ranks work together.

    Args:
        load_port: of the first rank's messages; none where it sends none.
    """
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
        "moe_a2a_backend": "deepep" if together else "none",
        "enable_eplb": False,
        "ep_num_redundant_experts": 0,
        "expert_distribution_recorder_mode": None,
        "disaggregation_mode": {"unified": "null"}.get(engine.role, engine.role),
        "disable_overlap_schedule": False,
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
        **engine.settings,
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
            "kv_events": _describe_events(engine, load_port),
        }
    own = {key: value for key, value in info.items() if key not in _OF_THE_SERVER}
    state = {**own, "world_size": schedulers, "effective_max_running_requests_per_dp": engine.running_limit}
    return {**info, "internal_states": [state] * engine.ranks}


def _describe_events(engine: ServedEngine, load_port: int | None) -> dict[str, Any] | None:
    if load_port is None:
        return None
    return {
        "publisher": "zmq",
        "endpoint_host": "*",
        "endpoint_port_base": load_port - engine.ranks,
        "topic": "kv-events",
        "block_size": PAGE_TOKENS,
        "dp_size": engine.ranks,
        "load_endpoint_port_base": load_port,
        "load_topic": "load",
    }


def _refuse_rank(wanted: str) -> bytes:
    problem = {
        "type": "int_parsing",
        "loc": ["query", "dp_rank"],
        "msg": "Input should be a valid integer, unable to parse string as an integer",
        "input": wanted,
    }
    return json.dumps({"detail": [problem]}).encode()
