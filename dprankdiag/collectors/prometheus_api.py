"""Read engines' series back from Prometheus, or anything that speaks its HTTP API.

An answer holds samples of many engines and moments. Each engine (job and instance) at each moment becomes a page, as
the engine itself would have written it, and is read by the engine's own collector. What Prometheus adds to the labels
(pod, node, service ...) is left out, so that a target scraped twice is not counted twice.

Source: Prometheus 2.42 and 3.5 (`/api/v1/query_range`, `/api/v1/query`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

from dprankdiag.catalog.engine_series import load_series
from dprankdiag.collectors.base import Collector
from dprankdiag.collectors.decoding import decode_json
from dprankdiag.collectors.exposition import EOF
from dprankdiag.errors import DamagedInput, InputError, UsageError
from dprankdiag.model.ledgers import LedgerAnswer
from dprankdiag.units import NS_PER_S

MOMENTS_AT_ONCE = 32
"""Moments in one answer; of 320 ranks these are some 10 MB."""

BESIDE = (
    "eplb_gpu_physical_count_bucket", "eplb_balancedness_sum", "eplb_balancedness_count", "cache_config_info",
)  # fmt: skip
"""Series that collectors read beside those of the catalogue."""

LABELS = frozenset(
    {
        "ReplicaId", "block_size", "cache_dtype", "category", "dp_rank", "enable_prefix_caching", "engine",
        "engine_type", "finished_reason", "forward_mode", "forward_overlap", "gpu_memory_utilization", "kind",
        "kv_cache_size_tokens", "layer", "le", "mode", "model_name", "moe_ep_rank", "num_prefill_ranks", "position",
        "pp_rank", "priority", "rank_state", "reason", "source", "tp_rank",
    }
)  # fmt: skip
"""Labels that engines set themselves."""


@dataclass(frozen=True, slots=True)
class _Key:
    """What tells engines and moments apart."""

    engine: str
    target: str
    time_ns: int


class PrometheusApi:
    """Collects what a Prometheus server holds of engines.

    Args:
        collectors: that read the page of an engine, by its name.
    """

    interface = "prometheus-api"
    path = "/api/v1/query"

    def __init__(self, collectors: Mapping[str, Collector]) -> None:
        self._collectors = collectors

    def parse(self, body: bytes, where: str, taken_ns: int | None = None) -> tuple[LedgerAnswer, ...]:
        """Turn an answer into one for each engine and moment, moments ascending; see `Collector.parse`."""
        pages = _make_pages(_read_result(body, where), taken_ns)
        answers: list[LedgerAnswer] = []
        for key in sorted(pages, key=lambda key: (key.time_ns, key.engine, key.target)):
            lines = [line for name in sorted(pages[key]) for line in pages[key][name]]
            page = "\n".join([*lines, EOF, ""]).encode()
            spelling = _find_spelling(pages[key])
            try:
                told = self._collectors[key.engine].parse(page, f"{where} ({key.target})", key.time_ns)
            except InputError:
                continue  # series that no rank is behind
            answers.extend(replace(one, facts={**one.facts, "spelling": spelling}) for one in told)
        return tuple(answers)


def make_path(*, at_s: float) -> str:
    """Write the question for the latest samples."""
    return f"/api/v1/query?{urlencode({'query': make_selector(), 'time': f'{at_s:.3f}'})}"


def make_range_paths(*, start_s: float, end_s: float, step_s: float) -> Iterator[str]:
    """Write the questions for the samples of a span, each for so few moments that its answer stays small.

    Raises:
        UsageError: the span or the step is not positive.
    """
    if not (step_s > 0 and end_s > start_s):
        raise UsageError(f"expected a span and a step above 0, got {end_s - start_s:g} s and {step_s:g} s")
    for first in range(0, int((end_s - start_s) / step_s) + 1, MOMENTS_AT_ONCE):
        begin_s = start_s + first * step_s
        asked = {
            "query": make_selector(),
            "start": f"{begin_s:.3f}",
            "end": f"{min(end_s, begin_s + (MOMENTS_AT_ONCE - 1) * step_s):.3f}",
            "step": f"{step_s:.3f}",
        }
        yield f"/api/v1/query_range?{urlencode(asked)}"


def make_selector() -> str:
    """Write the selector of all series we read, in both spellings."""
    rows = (*load_series("sglang"), *load_series("vllm"))
    names = sorted({name for row in rows for name in row.names} | {*BESIDE})
    return f'{{__name__=~"(?:sglang|vllm|ray_vllm)[:_](?:{"|".join(names)})"}}'


def _read_result(body: bytes, where: str) -> list[Any]:
    told = decode_json(body, where)
    data = told.get("data") if isinstance(told, dict) else None
    if not isinstance(data, dict) or told.get("status") != "success":
        raise InputError("expected an answer of Prometheus' HTTP API", where=where)
    if data.get("resultType") not in ("vector", "matrix") or not isinstance(data.get("result"), list):
        raise InputError("expected samples of series from Prometheus", where=where)
    return list(data["result"])


def _make_pages(result: Iterable[Any], taken_ns: int | None) -> dict[_Key, dict[str, list[str]]]:
    """Write the lines of each engine's page at each moment, by series."""
    pages: dict[_Key, dict[str, list[str]]] = {}
    for one in result:
        try:
            labels, points = one["metric"], one.get("values") or [one["value"]]
            name = labels["__name__"]
            identity, target = _write_identity(name, labels), _name_target(labels)
            engine = "vllm" if "vllm" in name[:8] else "sglang"
            for stamp, value in points:
                key = _Key(engine, target, _read_time_ns(stamp, taken_ns))
                pages.setdefault(key, {}).setdefault(name, []).append(f"{identity} {value}")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DamagedInput("a series without name, labels or values", where="Prometheus") from error
    return pages


def _read_time_ns(stamp: Any, taken_ns: int | None) -> int:
    if isinstance(stamp, int | float) and math.isfinite(stamp):
        return round(stamp * 1000) * (NS_PER_S // 1000)
    if taken_ns is None:
        raise ValueError("no time")
    return taken_ns


def _write_identity(name: str, labels: Mapping[str, str]) -> str:
    kept = ",".join(f'{key}="{_escape(labels[key])}"' for key in sorted(labels) if key in LABELS)
    return f"{name}{{{kept}}}"


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _name_target(labels: Mapping[str, str]) -> str:
    return " ".join(labels[key] for key in ("namespace", "job", "instance") if key in labels) or "no instance"


def _find_spelling(names: Sequence[str] | Mapping[str, object]) -> str:
    marks = {":" if ":" in name else "_" for name in names}
    return "both" if len(marks) > 1 else "colon" if marks == {":"} else "underscore"
