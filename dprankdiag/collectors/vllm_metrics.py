"""Read vLLM's `/metrics`.

Rank = label `engine`, the number of the engine over the whole deployment; a port shows one engine (external balancing),
those of a node (hybrid) or all. With several API servers the page is added up over their processes: sums are right, but
each iteration is counted several times.

Source: vllm 0.33.0, 0.22.1, 0.11.2; names are rows of `engine_series.toml`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dprankdiag.catalog.engine_series import load_series
from dprankdiag.collectors.exposition import WHOLE, Page, PageReader, Series
from dprankdiag.collectors.series import Group, Place, SeriesTable, find_end, read_rank
from dprankdiag.errors import InputError
from dprankdiag.model.ledgers import Fact, LedgerAnswer

PREFIXES = ("vllm:", "vllm_", "ray_vllm_", "ray_vllm:")
CONFIG = "cache_config_info"
TOLD = ("block_size", "cache_dtype", "enable_prefix_caching", "gpu_memory_utilization", "kv_cache_size_tokens")
"""Labels of the cache configuration that become facts."""


class VllmMetrics:
    """Collects `/metrics` of vLLM."""

    interface = "vllm-metrics"
    path = "/metrics"

    def __init__(self) -> None:
        self._table = SeriesTable(load_series("vllm"))
        self._reader = PageReader[Place](PREFIXES, frozenset(self._table.named) | {CONFIG}, self._place)

    def parse(self, body: bytes, where: str, taken_ns: int | None = None) -> tuple[LedgerAnswer, ...]:
        """Turn a page into one answer for each model and replica; see `Collector.parse`."""
        page = self._reader.read(body, where)
        configs = {place.rank: dict(place.told) for place, _ in page if place.name == CONFIG}
        groups = page.split(lambda place: None if place.name == CONFIG else place.group)
        groups.pop(None, None)
        if not groups:
            raise InputError(
                "holds no series of a vLLM engine", where=where, mend="start it without --disable-log-stats"
            )
        is_shared = b"\nprocess_" not in body and b"_created{" not in body
        return tuple(
            self._answer(group, mine, where, taken_ns, configs, is_shared)
            for group, mine in groups.items()
            if group is not None
        )

    def _place(self, series: Series) -> tuple[Place, int] | None:
        labels = series.labels
        rank = read_rank(labels.get("engine"))
        if series.name == CONFIG:
            told = tuple((name, labels[name]) for name in TOLD if name in labels)
            return Place(CONFIG, (None, None), rank, (0, 0), (), told), WHOLE
        if "model_name" not in labels:
            return None
        group = (labels["model_name"], labels.get("ReplicaId"))
        return Place(series.name, group, rank, (0, 0), self._table.find_rows(series.name, labels)), WHOLE

    def _answer(
        self,
        group: Group,
        page: Page[Place],
        where: str,
        taken_ns: int | None,
        configs: Mapping[int | None, Mapping[str, str]],
        is_shared: bool,
    ) -> LedgerAnswer:
        gathered = self._table.gather(page, 0)
        ranks = {rank: gathered[rank][0, 0] for rank in sorted(gathered)}
        values = self._table.read(ranks, find_end(page))
        capacity = np.array([_read_capacity(configs.get(rank, {})) for rank in ranks])
        if not np.isnan(capacity).all():
            values["capacity_tokens"] = capacity
        return LedgerAnswer(
            interface=self.interface,
            where=where,
            engine="vllm",
            model=group[0],
            taken_ns=taken_ns,
            ranks=tuple(ranks),
            values=values,
            facts=_read_facts(page, group[1], configs, is_shared),
            unlabelled=not ranks,
            warnings=page.warnings,
        )


def _read_capacity(config: Mapping[str, str]) -> float:
    """Read the tokens of an engine's pool; the number of blocks beside it is that of all engines of the process."""
    text = config.get("kv_cache_size_tokens", "")
    return float(text) if text.isascii() and text.isdigit() else np.nan


def _read_facts(
    page: Page[Place], replica: str | None, configs: Mapping[int | None, Mapping[str, str]], is_shared: bool
) -> dict[str, Fact]:
    spelled = {prefix[-1] for prefix in page.prefixes}
    facts: dict[str, Fact] = {
        "spelling": "both" if len(spelled) > 1 else "colon" if spelled == {":"} else "underscore",
    }
    if "iteration_tokens_total_count" in page.names:
        facts["multiprocess"] = is_shared
    if replica is not None:
        facts["replica"] = replica
    facts.update(next(iter(configs.values()), {}))
    return facts
