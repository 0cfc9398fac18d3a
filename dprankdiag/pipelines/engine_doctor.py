"""Ask a target for everything it may offer, and say what a diagnosis can and cannot rest on."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from dprankdiag.catalog.checks import find_checks, list_wanted_facts
from dprankdiag.classifiers.base import name_numbers
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

if TYPE_CHECKING:
    import httpx

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
class Seen:
    """What the answers of one target add up to.

    Attributes:
        switches: what it says of its configuration.
        configured: the engine whose configuration that is.
    """

    interfaces: list[Interface] = field(default_factory=list)
    answers: list[LedgerAnswer] = field(default_factory=list)
    switches: dict[str, Fact] = field(default_factory=dict)
    configured: EngineName | None = None

    @property
    def answered(self) -> list[Interface]:
        """List the interfaces that answered."""
        return [one for one in self.interfaces if one.status == "answered"]

    @property
    def engine(self) -> EngineName | None:
        """Name the engine by what has answered."""
        return next((answer.engine for answer in self.answers), self.configured)

    @property
    def model(self) -> str | None:
        """Name the served model."""
        told = self.switches.get("served_model_name")
        return next((answer.model for answer in self.answers if answer.model), None if told is None else str(told))

    @property
    def ranks(self) -> tuple[int, ...]:
        """List the DP ranks seen."""
        return tuple(sorted({rank for answer in self.answers for rank in answer.ranks}))


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


class EngineDoctor:
    """Examines engines.

    Args:
        transport: stands in for the network.
        now: seconds that only grow.
    """

    def __init__(
        self,
        access: Access | None = None,
        *,
        transport: httpx.BaseTransport | None = None,
        now: Callable[[], float] = time.monotonic,
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
            seen = list(pool.map(self._ask_all, bases))
        return tuple(
            sum_up(base, one, _list_ranks_elsewhere(one, [other for other in seen if other is not one]))
            for base, one in zip(bases, seen, strict=True)
        )

    def _ask_all(self, base: str) -> Seen:
        seen = Seen()
        for question in list_questions():
            if seen.interfaces and seen.interfaces[-1].status == "unreachable":
                break
            if not _is_ruled_out(question, seen):
                self._ask(base, question, seen)
        return seen

    def _ask(self, base: str, question: Question, seen: Seen) -> None:
        began = self._now()
        accept = ACCEPT_TEXT if question.path == "/metrics" else ACCEPT_JSON
        reply = self._fetcher.fetch(question.name, base, question.path, accept)
        seconds = self._now() - began
        where = f"{base}{question.path.partition('?')[0]}"
        if isinstance(reply, NoData):
            seen.interfaces.append(Interface(question.name, where, name_status(reply), seconds, None, reply.reason))
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
            seen.configured = seen.configured or question.engine


def _is_ruled_out(question: Question, seen: Seen) -> bool:
    """Tell whether what has answered rules an interface out: it is another engine's, or has a successor."""
    if question.name == "sglang-get-load" and any(one.name == "sglang-loads" for one in seen.answered):
        return True
    return seen.engine is not None and question.engine != seen.engine


def _list_ranks_elsewhere(one: Seen, others: Iterable[Seen]) -> set[int]:
    """List the ranks of the same engine that other targets show: other nodes or ports of it share no rank with this."""
    mine = [other for other in others if (other.engine, other.model) == (one.engine, one.model)]
    return {rank for other in mine if not set(other.ranks) & set(one.ranks) for rank in other.ranks}


def name_status(reply: NoData) -> InterfaceStatus:
    """Name what became of asking."""
    if reply.absent:
        return "absent"
    if "token" in reply.reason:
        return "refused"
    if "in time" in reply.reason or "longer than" in reply.reason:
        return "slow"
    return "unreachable" if "cannot be reached" in reply.reason else "failed"


def sum_up(target: str, seen: Seen, elsewhere: Collection[int] = ()) -> Checkup:
    """Make the checkup of one target from what was asked and told; pure.

    Args:
        elsewhere: ranks of the same engine that other targets show.
    """
    engine = seen.engine
    shown = [one for one in seen.interfaces if engine is None or one.name.startswith(engine)]
    told = {name: value for answer in seen.answers for name, value in answer.facts.items()}
    expected = count_expected_ranks(engine, seen.switches)
    missing = find_missing(sorted({*seen.ranks, *elsewhere}), expected)
    known: dict[str, Fact] = {**told, **seen.switches, "target": target}
    known |= _derive_facts(engine, shown, seen.answers, known)
    known |= {"ranks_seen": len(seen.ranks), "ranks_missing": len(missing), "missing_ranks": name_numbers(missing)}
    known |= {"ranks": expected or len(seen.ranks)} if expected or seen.ranks else {}
    return Checkup(
        target=target,
        engine=engine,
        version=str(known["version"]) if "version" in known else None,
        model=seen.model,
        ranks=seen.ranks,
        expected_ranks=expected,
        missing_ranks=missing,
        interfaces=tuple(shown),
        checks=find_checks(known),
        causes=judge_causes(engine, list_told_fields(seen.answers)) if engine is not None else (),
        facts=dict(sorted(known.items())),
    )


def _derive_facts(
    engine: EngineName | None,
    interfaces: Sequence[Interface],
    answers: Sequence[LedgerAnswer],
    known: Mapping[str, Fact],
) -> dict[str, Fact]:
    status = {one.name: one.status for one in interfaces}
    facts: dict[str, Fact] = {
        "any_refused": "refused" in status.values(),
        "any_slow": "slow" in status.values(),
        "unlabelled": any(answer.unlabelled for answer in answers),
        "stamped": any("load_stamp_s" in answer.values for answer in answers),
    }
    for name, other in (("metrics", "loads"), ("loads", "metrics")):
        lacking = _list_lacking(interfaces, f"sglang-{name}", f"sglang-{other}")
        facts |= {f"{name}_missing": name_numbers(lacking)} if lacking else {}
    if engine is not None:
        named = {"metrics": f"{engine}-metrics", "loads": "sglang-loads", "config": f"{engine}-server-info"}
        facts |= {"engine": engine} | {name: status[key] for name, key in named.items() if key in status}
    lockstep = _keeps_step(engine, known)
    return facts | ({} if lockstep is None else {"keeps_step": lockstep})


def _list_lacking(interfaces: Sequence[Interface], name: str, other: str) -> list[int]:
    """List ranks that one interface lacks and another tells of; none if either did not answer."""
    told = {one.name: set(one.ranks) for one in interfaces if one.status == "answered" and one.ranks}
    return sorted(told[other] - told[name]) if name in told and other in told else []


def _keeps_step(engine: EngineName | None, known: Mapping[str, Fact]) -> bool | None:
    """Tell whether all ranks meet in each layer; None if nothing tells.

    Source: sglang 0.5.22 tells attn_dp_size, earlier releases enable_dp_attention, and steps are counted only where
    ranks meet; vLLM does not tell.
    """
    if engine != "sglang":
        return None
    if known.get("dp_attention_steps_seen") is True:
        return True
    width = known.get("attn_dp_size")
    if isinstance(width, int):
        return width > 1
    enabled = known.get("enable_dp_attention")
    return bool(enabled) and _as_count(known.get("dp_size")) != 1 if enabled is not None else None


def count_expected_ranks(engine: EngineName | None, switches: Mapping[str, Fact]) -> int | None:
    """Count the DP ranks that the configuration announces; None if it is not told.

    Source: sglang 0.5.23 (dp_size × attn_dp_size; the first is 1 under DP attention), vLLM 0.33.0.
    """
    if engine == "vllm":
        return _as_count(switches.get("data_parallel_size"))
    replicas = _as_count(switches.get("dp_size"))
    return None if replicas is None else replicas * (_as_count(switches.get("attn_dp_size")) or 1)


def find_missing(ranks: Sequence[int], expected: int | None) -> tuple[int, ...]:
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


def _as_count(value: Fact | None) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
