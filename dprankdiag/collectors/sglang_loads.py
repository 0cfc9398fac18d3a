"""Read SGLang's `/v1/loads` in its JSON and Prometheus formats, and the `/get_load` that came before it.

Numbers are read from the schedulers' own state when they publish, also on idle ranks. `gen_throughput` and
`cache_hit_rate` are copies of gauges of `/metrics` (0 without `--enable-metrics`) and are not used.

Source: sglang 0.5.23, 0.5.18, 0.5.12, 0.5.9.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dprankdiag.catalog.engine_series import load_series
from dprankdiag.collectors.decoding import decode_json, read_stamp_ns
from dprankdiag.collectors.exposition import WHOLE, PageReader, Series
from dprankdiag.collectors.load_rows import flatten_load, read_loads, read_role
from dprankdiag.collectors.series import read_rank
from dprankdiag.errors import InputError
from dprankdiag.model.ledgers import Fact, LedgerAnswer

TOLD = ("version", "dp_rank_count", "accelerator", "num_accelerators")
"""Keys beside the loads that become facts."""


class SglangLoads:
    """Collects `/v1/loads` of SGLang."""

    interface = "sglang-loads"
    path = "/v1/loads"

    def __init__(self) -> None:
        wanted = frozenset(name for row in load_series("sglang_loads") for name in row.names)
        self._reader = PageReader[tuple[int, str]](("sglang_", "sglang:"), wanted, _place)

    def parse(self, body: bytes, where: str, taken_ns: int | None = None) -> tuple[LedgerAnswer, ...]:
        """Turn a load answer of either format into one answer; see `Collector.parse`."""
        if not body.lstrip().startswith(b"{") or body.lstrip().startswith(b'{"sglang'):
            return (self._parse_page(body, where, taken_ns),)
        told = decode_json(body, where)
        if not isinstance(told, dict) or not isinstance(told.get("loads"), list):
            raise InputError("expected an answer of /v1/loads, with a list 'loads'", where=where)
        loads = {load["dp_rank"]: load for load in told["loads"] if _is_load(load)}
        roles = {read_role(load) for load in loads.values()}
        role = roles.pop() if len(roles) == 1 else None
        values, warnings = read_loads({rank: flatten_load(load) for rank, load in loads.items()}, role)
        if len(loads) < len(told["loads"]):
            warnings = (
                *warnings,
                f"passed over: {len(told['loads']) - len(loads)} loads told twice or without dp_rank",
            )
        return (
            LedgerAnswer(
                interface=self.interface,
                where=where,
                engine="sglang",
                role=role,
                taken_ns=read_stamp_ns(told.get("timestamp")) or taken_ns,
                ranks=tuple(sorted(loads)),
                values=values,
                facts=_read_facts(told),
                warnings=warnings,
            ),
        )

    def _parse_page(self, body: bytes, where: str, taken_ns: int | None) -> LedgerAnswer:
        page = self._reader.read(body, where)
        by_rank: dict[int, dict[str, float]] = {}
        for (rank, name), value in page:
            by_rank.setdefault(rank, {})[name] = value
        if not by_rank:
            raise InputError("expected an answer of /v1/loads; no series has the label dp_rank alone", where=where)
        values, warnings = read_loads(by_rank, None)
        return LedgerAnswer(
            interface=self.interface,
            where=where,
            engine="sglang",
            taken_ns=taken_ns,
            ranks=tuple(sorted(by_rank)),
            values=values,
            warnings=(*page.warnings, *warnings),
        )


class SglangGetLoad:
    """Collects `/get_load`, which SGLang offered until 0.5.20."""

    interface = "sglang-get-load"
    path = "/get_load"

    def parse(self, body: bytes, where: str, taken_ns: int | None = None) -> tuple[LedgerAnswer, ...]:
        """Turn a list of loads, or the one number of releases before 0.5.3, into one answer; see `Collector.parse`."""
        told = decode_json(body, where)
        if isinstance(told, dict) and isinstance(told.get("load"), int):
            # Releases before 0.5.3 ask the first scheduler only.
            told = [{"dp_rank": 0, "num_tokens": told["load"]}]
        if not isinstance(told, list) or not all(_is_load(load) for load in told):
            raise InputError("expected an answer of /get_load: a list of loads with dp_rank", where=where)
        values, warnings = read_loads({load["dp_rank"]: _rename(flatten_load(load)) for load in told}, None)
        ranks = tuple(sorted({load["dp_rank"] for load in told}))
        return (
            LedgerAnswer(
                interface=self.interface,
                where=where,
                engine="sglang",
                taken_ns=taken_ns,
                ranks=ranks,
                values=values,
                warnings=warnings,
            ),
        )


def _place(series: Series) -> tuple[tuple[int, str], int] | None:
    rank = read_rank(series.labels.get("dp_rank"))
    return ((rank, series.name), WHOLE) if rank is not None and len(series.labels) == 1 else None


def _is_load(load: Any) -> bool:
    rank = load.get("dp_rank") if isinstance(load, dict) else None
    return isinstance(rank, int) and not isinstance(rank, bool) and rank >= 0


def _read_facts(told: Mapping[str, Any]) -> dict[str, Fact]:
    return {name: told[name] for name in TOLD if isinstance(told.get(name), str | int)}


def _rename(leaves: Mapping[str, float]) -> dict[str, float]:
    """Give the leaves of `/get_load` the names of `/v1/loads`; `num_reqs` holds running and waiting requests."""
    named: dict[str, float] = {}
    if "num_reqs" in leaves and "num_waiting_reqs" in leaves:
        named["num_waiting_reqs"] = leaves["num_waiting_reqs"]
        named["num_running_reqs"] = leaves["num_reqs"] - leaves["num_waiting_reqs"]
    if "num_tokens" in leaves:
        named["num_total_tokens"] = leaves["num_tokens"]
    if "num_pending_tokens" in leaves:
        named["num_waiting_uncached_tokens"] = leaves["num_pending_tokens"]
    return named
