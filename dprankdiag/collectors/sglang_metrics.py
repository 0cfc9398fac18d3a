"""Read SGLang's `/metrics`.

Rank = label `dp_rank`, which is absent where the engine has one rank (no data-parallel controller). With attention-TP
several processes of a rank write the same series; only the first one counts steps and gauges, the others show zeros or,
with `--enable-metrics-for-all-schedulers`, copies. So the lowest pipeline rank and in it the lowest tensor rank is
taken, and nothing is ever added up over processes.

Source: sglang 0.5.23 and 0.5.9; labels and gates differ by release, names are rows of `engine_series.toml`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dprankdiag.catalog.engine_series import load_series
from dprankdiag.collectors.exposition import WHOLE, Page, PageReader, Series
from dprankdiag.collectors.series import Copy, Group, Place, RankSamples, SeriesTable, find_end, read_rank
from dprankdiag.errors import InputError
from dprankdiag.model.ledgers import Fact, FloatArray, LedgerAnswer, Role

PREFIXES = ("sglang:", "sglang_")
ROLES: Mapping[str | None, Role] = {"unified": "unified", "prefill": "prefill", "decode": "decode"}
SPLIT_BY_PREFILL = "num_prefill_ranks"
NOBODY: Group = (None, None)
HEAT_MAP = "eplb_gpu_physical_count_bucket"
BALANCEDNESS = ("eplb_balancedness_sum", "eplb_balancedness_count")

GATES: Mapping[str, tuple[str, ...]] = {
    "has_dp_attention": ("dp_attention_tokens_total",),
    "has_stages": ("scheduler_stage_seconds_total",),
    "has_device_timer": ("forward_execution_seconds_total", "gpu_execution_seconds_total"),
    "has_realtime_tokens": ("realtime_tokens_total",),
    "has_dp_cooperation": ("dp_cooperation_realtime_tokens_total",),
    "has_expert_counts": (HEAT_MAP,),
    "has_gauges": ("num_running_reqs",),
}
"""Fact → series that show what the engine was told to count."""


class SglangMetrics:
    """Collects `/metrics` of SGLang."""

    interface = "sglang-metrics"
    path = "/metrics"

    def __init__(self) -> None:
        self._table = SeriesTable(load_series("sglang"))
        wanted = frozenset(self._table.named) | {HEAT_MAP, *BALANCEDNESS}
        self._reader = PageReader[Place](PREFIXES, wanted, self._place)

    def parse(self, body: bytes, where: str, taken_ns: int | None = None) -> tuple[LedgerAnswer, ...]:
        """Turn a page into one answer for each model and role; see `Collector.parse`."""
        page = self._reader.read(body, where)
        groups = page.split(lambda place: place.group)
        heat = groups.pop(NOBODY, None)
        if not groups:
            _refuse(page, where, heat is not None)
            groups = {NOBODY: page.take_none()}
        experts, warnings = _read_heat(heat) if heat is not None and len(groups) == 1 else (None, ())
        return tuple(self._answer(group, mine, where, taken_ns, experts, warnings) for group, mine in groups.items())

    def _place(self, series: Series) -> tuple[Place, int] | None:
        labels = series.labels
        if labels.get("priority"):
            return None
        if series.name == HEAT_MAP:
            bound = labels.get("le", "")
            return Place(HEAT_MAP, NOBODY, read_rank(labels.get("layer")), (_read_bound(bound), 0), ()), WHOLE
        if "model_name" not in labels:
            return None
        prefilling = read_rank(labels.get(SPLIT_BY_PREFILL))
        place = Place(
            name=series.name,
            group=(labels["model_name"], labels.get("engine_type")),
            rank=None if series.name in BALANCEDNESS else read_rank(labels.get("dp_rank")),
            copy=(read_rank(labels.get("pp_rank")) or 0, read_rank(labels.get("tp_rank")) or 0),
            rows=self._table.find_rows(series.name, labels),
        )
        return place, WHOLE if prefilling is None else prefilling

    def _answer(
        self,
        group: Group,
        page: Page[Place],
        where: str,
        taken_ns: int | None,
        experts: FloatArray | None,
        warnings: tuple[str, ...],
    ) -> LedgerAnswer:
        gathered = self._table.gather(page, _count_ranks(page))
        ranks = _pick_speakers(gathered)
        values = self._table.read(ranks, find_end(page))
        lost = {place.name for place in page.places if place.rank is None} - {*BALANCEDNESS}
        if ranks and lost:
            warnings = (*warnings, f"{len(lost)} series of some processes carry no dp_rank and were passed over")
        if away := sorted(set(gathered) - set(ranks)):
            warnings = (*warnings, f"ranks {', '.join(map(str, away))} speak on the page of another node")
        return LedgerAnswer(
            interface=self.interface,
            where=where,
            engine="sglang",
            model=group[0],
            role=ROLES.get(group[1]),
            taken_ns=taken_ns,
            ranks=tuple(ranks),
            values=values,
            expert_tokens=experts,
            facts=_read_facts(page, gathered, values),
            unlabelled=not ranks and bool(lost),
            warnings=(*page.warnings, *warnings),
        )


def _pick_speakers(gathered: Mapping[int, Mapping[Copy, RankSamples]]) -> dict[int, RankSamples]:
    """Pick the process that speaks for each rank; leave out ranks whose first process is not on the page.

    Tensor ranks of a rank follow each other, so that its first is rank × width under attention-DP, and 0 where ranks
    are replicas. Where a rank is spread over nodes, those that come after show zeros.
    """
    first = {rank: min(copies) for rank, copies in gathered.items()}
    width = max((sum(stage == first[rank][0] for stage, _ in copies) for rank, copies in gathered.items()), default=1)
    return {rank: gathered[rank][first[rank]] for rank in sorted(gathered) if first[rank][1] in (0, rank * width)}


def _count_ranks(page: Page[Place]) -> int:
    """Count the ranks of the engine, of which a page shows those of one node."""
    highest = max((place.rank for place in page.places if place.rank is not None), default=-1)
    return max(highest + 1, int(page.parts.max(initial=0)))


def _read_facts(
    page: Page[Place],
    gathered: Mapping[int, Mapping[Copy, RankSamples]],
    values: Mapping[str, FloatArray],
) -> dict[str, Fact]:
    facts: dict[str, Fact] = {gate: not set(names).isdisjoint(page.names) for gate, names in GATES.items()}
    spelled = sorted(page.prefixes)
    facts["spelling"] = "both" if len(spelled) > 1 else "colon" if spelled[0].endswith(":") else "underscore"
    copies = [place.copy for place in page.places]
    facts["pp_size_seen"] = len({stage for stage, _ in copies}) or 1
    facts["tp_ranks_seen"] = len({tensor for _, tensor in copies})
    facts["copies_per_rank"] = max((len(one) for one in gathered.values()), default=0)
    if facts["has_dp_attention"]:
        steps = [values[name] for name in ("active_steps", "idle_steps") if name in values]
        facts["dp_attention_steps_seen"] = any(bool(np.nansum(one) > 0) for one in steps)
    for name in BALANCEDNESS:
        told = [value for place, value in page if place.name == name] if name in page.names else []
        if told:
            facts[name] = float(sum(told))
    return facts


def _refuse(page: Page[Place], where: str, has_heat: bool) -> None:
    """Refuse a page on which no engine speaks."""
    if not has_heat and "num_waiting_reqs" in page.names:
        raise InputError("expected a /metrics page; this is an answer of /v1/loads", where=where)
    if not has_heat:
        raise InputError("holds no series of an SGLang scheduler", where=where, mend="start it with --enable-metrics")


def _read_bound(text: str) -> int:
    """Read a bucket's bound, which is a GPU's number; -1 for the last bucket, which repeats the one before."""
    try:
        bound = float(text)
    except ValueError:
        return -1
    return int(bound) if 0 <= bound < 1e6 else -1


def _read_heat(page: Page[Place]) -> tuple[FloatArray | None, tuple[str, ...]]:
    """Read tokens by layer and GPU out of a histogram whose buckets are GPUs.

    Source: sglang 0.5.23 (`eplb_gpu_physical_count`: tokens of GPU i = bucket i less bucket i - 1).
    """
    layers: dict[int, dict[int, float]] = {}
    for place, value in page:
        if place.rank is not None and place.copy[0] >= 0:
            layers.setdefault(place.rank, {})[place.copy[0]] = value
    if not layers:
        return None, ()
    n_gpus = max(len(one) for one in layers.values())
    whole = [layer for layer in sorted(layers) if sorted(layers[layer]) == list(range(n_gpus))]
    warnings = (f"{len(layers) - len(whole)} layers lack experts' GPUs",) if len(whole) < len(layers) else ()
    if not whole:
        return None, warnings
    cumulative: np.ndarray[Any, np.dtype[np.float64]] = np.array(
        [[layers[layer][gpu] for gpu in range(n_gpus)] for layer in whole]
    )
    return np.diff(cumulative, axis=1, prepend=0.0), warnings
