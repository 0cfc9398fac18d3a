"""Ask a target for everything it may offer, and say what a diagnosis can and cannot rest on."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from dprankdiag.analysis.ledger_presence import list_gaps
from dprankdiag.catalog.checks import find_checks
from dprankdiag.classifiers.base import name_numbers
from dprankdiag.collectors.base import Collector
from dprankdiag.collectors.http import ACCEPT_JSON, ACCEPT_TEXT, Access, Fetcher, check_target, hide_credentials
from dprankdiag.errors import InputError
from dprankdiag.model.checkup import Checkup, Interface, InterfaceStatus
from dprankdiag.model.ledgers import EngineName, Fact, LedgerAnswer, NoData
from dprankdiag.pipelines.judgeable import judge_causes
from dprankdiag.pipelines.poll import COLLECTORS, INSTEAD

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


@dataclass(slots=True)
class Seen:
    """What the answers of one target add up to."""

    interfaces: list[Interface] = field(default_factory=list)
    answers: list[LedgerAnswer] = field(default_factory=list)

    @property
    def engine(self) -> EngineName | None:
        """Name the engine by what has answered."""
        return next((answer.engine for answer in self.answers), None)

    @property
    def model(self) -> str | None:
        """Name the served model."""
        return next((answer.model for answer in self.answers if answer.model), None)

    @property
    def ranks(self) -> tuple[int, ...]:
        """List the DP ranks seen."""
        return tuple(sorted({rank for answer in self.answers for rank in answer.ranks}))

    @property
    def facts(self) -> dict[str, Fact]:
        """Return what is told of the configuration, by the engine's own names."""
        return {name: value for answer in self.answers for name, value in answer.facts.items()}

    def has_answer(self, name: str) -> bool:
        """Tell whether an interface has answered."""
        return any(one.name == name and one.status == "answered" for one in self.interfaces)


def list_collectors() -> tuple[tuple[EngineName, Collector], ...]:
    """List what is asked of every target, both engines' numbers first."""
    every = [(engine, kind()) for engine, kinds in COLLECTORS.items() for kind, _ in kinds]
    return tuple(sorted(every, key=lambda item: item[1].path != "/metrics"))


class Doctor:
    """Asks over HTTP, with a clock to time the answers by.

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


class EngineDoctor(Doctor):
    """Examines engines."""

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
        for engine, collector in list_collectors():
            if seen.interfaces and seen.interfaces[-1].status == "unreachable":
                break
            replaced = seen.has_answer(INSTEAD.get(collector.interface, ""))
            if seen.engine in (None, engine) and not replaced:
                self._ask(base, collector, seen)
        return seen

    def _ask(self, base: str, collector: Collector, seen: Seen) -> None:
        name, began = collector.interface, self._now()
        accept = ACCEPT_TEXT if collector.path == "/metrics" else ACCEPT_JSON
        reply = self._fetcher.fetch(name, base, collector.path, accept)
        seconds = self._now() - began
        where = hide_credentials(f"{base}{collector.path}")
        if isinstance(reply, NoData):
            seen.interfaces.append(Interface(name, where, name_status(reply), seconds, None, reply.reason))
            return
        try:
            answers = collector.parse(reply.body, where, reply.received_ns)
        except InputError as error:
            seen.interfaces.append(Interface(name, where, "failed", seconds, None, error.what))
            return
        ranks = tuple(sorted({rank for answer in answers for rank in answer.ranks}))
        tells_ranks = bool(ranks) or any(answer.unlabelled for answer in answers)
        seen.interfaces.append(Interface(name, where, "answered", seconds, ranks if tells_ranks else None))
        seen.answers += answers


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
    known: dict[str, Fact] = {**seen.facts, "target": target}
    expected = count_expected_ranks(engine, known)
    ranks = {*seen.ranks, *elsewhere}
    missing = list_gaps(ranks, expected or 0) if ranks else ()
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


def count_expected_ranks(engine: EngineName | None, facts: Mapping[str, Fact]) -> int | None:
    """Count the DP ranks that the configuration announces; None if it is not told."""
    return _as_count(facts.get("data_parallel_size" if engine == "vllm" else "num_dp_ranks"))


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
