"""Ask a target for everything it may offer, and say what a diagnosis can and cannot rest on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dprankdiag.catalog.checks import find_checks, list_wanted_facts
from dprankdiag.collectors.base import Collector
from dprankdiag.collectors.http import ACCEPT_JSON, ACCEPT_TEXT, Access, Fetcher, check_target
from dprankdiag.collectors.sglang_loads import SglangGetLoad, SglangLoads
from dprankdiag.collectors.sglang_metrics import SglangMetrics
from dprankdiag.collectors.vllm_metrics import VllmMetrics
from dprankdiag.errors import InputError
from dprankdiag.model.checkup import Checkup, Interface, InterfaceStatus
from dprankdiag.model.ledgers import EngineName, Fact, LedgerAnswer, NoData
from dprankdiag.pipelines.judgeable import judge_causes
from dprankdiag.pipelines.switches import read_switches

DP_ATTENTION = (
    "scheduled_tokens",
    "imbalance_tokens",
    "scheduled_pairs",
    "imbalance_pairs",
    "active_steps",
    "idle_steps",
    "sync_wait_s",
    "sync_waits",
)
"""Fields that are there, at zero, when they are not counted."""


@dataclass(frozen=True, slots=True)
class Question:
    """An interface to ask for.

    Attributes:
        collector: reads the numbers; None where the answer holds switches only.
        engine: whose interface it is; None where several have it.
    """

    name: str
    path: str
    engine: EngineName | None
    collector: Collector | None = None


@dataclass(slots=True)
class _Seen:
    """What the answers of one target add up to."""

    interfaces: list[Interface] = field(default_factory=list)
    answers: list[LedgerAnswer] = field(default_factory=list)
    switches: dict[str, Fact] = field(default_factory=dict)
    switches_of: dict[str, EngineName] = field(default_factory=dict)


def list_questions() -> tuple[Question, ...]:
    """List what is asked of every target: numbers first, then load answers, then switches."""
    return (
        Question("sglang-metrics", "/metrics", "sglang", SglangMetrics()),
        Question("vllm-metrics", "/metrics", "vllm", VllmMetrics()),
        Question("sglang-loads", "/v1/loads", "sglang", SglangLoads()),
        Question("sglang-get-load", "/get_load", "sglang", SglangGetLoad()),
        Question("sglang-server-info", "/server_info", "sglang"),
        Question("vllm-version", "/version", "vllm"),
        Question("vllm-server-info", "/server_info?config_format=json", "vllm"),
    )


class Doctor:
    """Examines targets.

    Args:
        transport: stands in for the network.
        now: seconds that only grow.
    """

    def __init__(
        self, access: Access | None = None, *, transport: Any = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._fetcher = Fetcher(access, transport=transport)
        self._now = now

    def close(self) -> None:
        """Close all connections."""
        self._fetcher.close()

    def examine(self, targets: Sequence[str]) -> tuple[Checkup, ...]:
        """Ask all targets at once; answers come in their order."""
        bases = [check_target(target) for target in targets]
        with ThreadPoolExecutor(min(16, max(1, len(bases)))) as pool:
            return tuple(pool.map(self._examine_one, bases))

    def _examine_one(self, base: str) -> Checkup:
        seen = _Seen()
        for question in list_questions():
            if not _is_of_other_engine(question, seen):
                self._ask(base, question, seen)
        return sum_up(base, seen.interfaces, seen.answers, seen.switches, seen.switches_of)

    def _ask(self, base: str, question: Question, seen: _Seen) -> None:
        began = self._now()
        accept = ACCEPT_TEXT if question.path == "/metrics" else ACCEPT_JSON
        reply = self._fetcher.fetch(question.name, base, question.path, accept)
        seconds = self._now() - began
        where = f"{base}{question.path.partition('?')[0]}"
        if isinstance(reply, NoData):
            seen.interfaces.append(Interface(question.name, where, _name_status(reply), seconds, None, reply.reason))
            return
        try:
            answers = question.collector.parse(reply.body, where, reply.received_ns) if question.collector else ()
            switches = read_switches(reply.body, list_wanted_facts()) if question.collector is None else {}
        except InputError as error:
            seen.interfaces.append(Interface(question.name, where, "failed", seconds, None, error.what))
            return
        ranks = tuple(sorted({rank for answer in answers for rank in answer.ranks})) if question.collector else None
        seen.interfaces.append(Interface(question.name, where, "answered", seconds, ranks))
        seen.answers += answers
        if switches:
            seen.switches = {**switches, **seen.switches}
            seen.switches_of[question.name] = question.engine or "sglang"


def _is_of_other_engine(question: Question, seen: _Seen) -> bool:
    """Tell whether what has answered rules an interface out; no engine's page holds another's."""
    engine = _find_engine(seen.answers, seen.switches_of)
    return engine is not None and question.engine is not None and question.engine != engine


def _find_engine(answers: Iterable[LedgerAnswer], switches_of: Mapping[str, EngineName]) -> EngineName | None:
    return next((answer.engine for answer in answers), None) or next(iter(switches_of.values()), None)


def _name_status(reply: NoData) -> InterfaceStatus:
    if reply.absent:
        return "absent"
    if "token" in reply.reason:
        return "refused"
    return "slow" if "in time" in reply.reason or "longer than" in reply.reason else "failed"


def sum_up(
    target: str,
    interfaces: Sequence[Interface],
    answers: Sequence[LedgerAnswer],
    switches: Mapping[str, Fact],
    switches_of: Mapping[str, EngineName],
) -> Checkup:
    """Make the checkup of one target from what was asked and told; pure."""
    engine = _find_engine(answers, switches_of)
    shown = [one for one in interfaces if engine is None or one.name.startswith(engine)]
    told = {name: value for answer in answers for name, value in answer.facts.items()}
    known: dict[str, Fact] = {**told, **switches, "target": target}
    ranks = tuple(sorted({rank for answer in answers for rank in answer.ranks}))
    expected = count_expected_ranks(engine, switches)
    missing = _find_missing(ranks, expected)
    known |= _derive_facts(engine, shown, answers, switches)
    known |= {"ranks_seen": len(ranks), "ranks_missing": len(missing), "missing_ranks": list_ranks(missing)}
    known |= {"ranks_expected": expected} if expected is not None else {}
    return Checkup(
        target=target,
        engine=engine,
        version=_as_text(known.get("version")),
        model=next((answer.model for answer in answers if answer.model), _as_text(switches.get("served_model_name"))),
        ranks=ranks,
        expected_ranks=expected,
        missing_ranks=missing,
        interfaces=tuple(shown),
        checks=find_checks(known) if answers or switches else (),
        causes=judge_causes(engine, list_told_fields(answers)),
        facts=dict(sorted(known.items())),
    )


def _derive_facts(
    engine: EngineName | None,
    interfaces: Sequence[Interface],
    answers: Sequence[LedgerAnswer],
    switches: Mapping[str, Fact],
) -> dict[str, Fact]:
    status = {one.name: one.status for one in interfaces}
    facts: dict[str, Fact] = {
        "any_refused": "refused" in status.values(),
        "any_slow": "slow" in status.values(),
        "unlabelled": any(answer.unlabelled for answer in answers),
        "stamped": any("load_stamp_s" in answer.values for answer in answers),
    }
    if engine is not None:
        named = {"metrics": f"{engine}-metrics", "loads": "sglang-loads", "config": f"{engine}-server-info"}
        facts |= {"engine": engine} | {name: status[key] for name, key in named.items() if key in status}
    lockstep = _keeps_step(engine, switches)
    return facts | ({} if lockstep is None else {"keeps_step": lockstep})


def _keeps_step(engine: EngineName | None, switches: Mapping[str, Fact]) -> bool | None:
    """Tell whether all ranks meet in each layer; None if nothing tells.

    Source: sglang 0.5.22 tells attn_dp_size, earlier releases enable_dp_attention; vLLM does not tell.
    """
    if engine != "sglang":
        return None
    width = switches.get("attn_dp_size")
    if isinstance(width, int):
        return width > 1
    enabled = switches.get("enable_dp_attention")
    return bool(enabled) and _as_count(switches.get("dp_size")) != 1 if enabled is not None else None


def count_expected_ranks(engine: EngineName | None, switches: Mapping[str, Fact]) -> int | None:
    """Count the DP ranks that the configuration announces; None if it is not told.

    Source: sglang 0.5.23 (dp_size × attn_dp_size; the first is 1 under DP attention), vLLM 0.33.0.
    """
    if engine == "vllm":
        return _as_count(switches.get("data_parallel_size"))
    replicas = _as_count(switches.get("dp_size"))
    return None if replicas is None else replicas * (_as_count(switches.get("attn_dp_size")) or 1)


def _find_missing(ranks: Sequence[int], expected: int | None) -> tuple[int, ...]:
    """List ranks that should be there; where nothing tells how many, those below the highest seen."""
    if not ranks:
        return ()
    return tuple(sorted(set(range(max(expected or 0, ranks[-1] + 1))) - set(ranks)))


def list_told_fields(answers: Iterable[LedgerAnswer]) -> frozenset[str]:
    """Name the fields that some rank tells and that are really counted."""
    told: set[str] = set()
    for answer in answers:
        names = {name for name, values in answer.values.items() if not np.isnan(values).all()}
        told |= names - (set(DP_ATTENTION) if answer.facts.get("dp_attention_steps_seen") is False else set())
        told |= {"expert_tokens"} if answer.expert_tokens is not None else set()
    return frozenset(told)


def list_ranks(ranks: Sequence[int]) -> str:
    """Write ranks with runs drawn together, such as "0-3, 7"."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _as_count(value: Fact | None) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _as_text(value: Fact | None) -> str | None:
    return None if value is None else str(value)
