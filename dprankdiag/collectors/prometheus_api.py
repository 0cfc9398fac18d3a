"""Read engines' series back from Prometheus, or anything that speaks its HTTP API.

An answer holds samples of many engines and moments. Each engine (a process that was scraped) at each moment becomes a
page, as the engine itself would have written it, and is read by the engine's own collector.

Samples are asked for as they were scraped, with a range after the selector: a question for values on a grid
(`query_range`) repeats the last sample for five minutes, so that a target that was not scraped would look like a rank
that stands still. Where a span holds more scrapes than are needed, the last sample of each scrape interval is asked for
on a grid, with the same effect.

Source: Prometheus 2.42 and 3.5 (`/api/v1/query_range`, `/api/v1/query`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from urllib.parse import urlencode

from dprankdiag.catalog.engine_series import load_series
from dprankdiag.collectors.base import Collector
from dprankdiag.collectors.exposition import EOF
from dprankdiag.collectors.prometheus_select import Matcher, write_selector
from dprankdiag.collectors.prometheus_series import Process, StoredSeries, join_copies, read_told
from dprankdiag.errors import InputError, UsageError
from dprankdiag.model.ledgers import STORED_IN, STORED_INSTANCE, LedgerAnswer

MOMENTS_AT_ONCE = 32
"""Moments in one answer; of 320 ranks these are some 10 MB."""

EXTENT_PARTS = 500
"""Parts of a long span of which it is asked whether they hold anything."""

_SMALL = "(?:sglang|vllm)[:_](?:num_running_reqs|num_requests_running)"
"""Series that every engine shows, a few of each."""

REACH_SHARE = 1.5
"""On a grid the last sample of so many scrape intervals counts: one late scrape is no gap, two missing ones are."""

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


class PrometheusApi:
    """Collects what a Prometheus server holds of engines.

    Args:
        collectors: that read the page of an engine, by its name; "sglang-loads" reads its load answers.
    """

    interface = "prometheus-api"
    path = "/api/v1/query"

    def __init__(self, collectors: Mapping[str, Collector]) -> None:
        self._collectors = collectors

    def parse(self, body: bytes, where: str, taken_ns: int | None = None) -> tuple[LedgerAnswer, ...]:
        """Turn an answer into one for each engine and moment, moments ascending; see `Collector.parse`."""
        told = read_told(body, where, taken_ns)
        processes, copies = join_copies([one for one in told.series if _find_engine(one.name)], LABELS)
        answers = [
            answer for process, series in processes.items() for answer in self._read_process(process, series, where)
        ]
        warnings = (*(f"the server says: {text}" for text in told.warnings), *copies)
        return tuple(
            replace(answer, warnings=(*answer.warnings, *warnings))
            for answer in sorted(answers, key=lambda one: (one.taken_ns or 0, one.engine, one.where))
        )

    def _read_process(self, process: Process, series: Sequence[StoredSeries], where: str) -> Iterator[LedgerAnswer]:
        for reader in sorted({_find_reader(one) for one in series}):
            mine = [one for one in series if _find_reader(one) == reader]
            for time_ns, pages in sorted(_make_pages(mine).items()):
                lines = [line for name in sorted(pages) for line in pages[name]]
                page = "\n".join([*lines, EOF, ""]).encode()
                try:
                    told = self._collectors[reader].parse(page, f"{where} ({process})", time_ns)
                except InputError:
                    continue  # series that no rank is behind
                facts = {
                    "spelling": _find_spelling(pages),
                    STORED_IN: "/".join(part for part in process.place if part),
                    STORED_INSTANCE: process.instance,
                }
                yield from (replace(one, facts={**one.facts, **facts}) for one in told)


def make_path(*, reach_s: float, at_s: float | None = None, matchers: tuple[Matcher, ...] = ()) -> str:
    """Write the question for the samples of the last seconds, as they were scraped.

    Args:
        at_s: the end, UTC epoch seconds; now by the server's clock if not given.
    """
    asked = {"query": f"{make_selector(matchers)}[{_write_ms(reach_s)}]"}
    return f"/api/v1/query?{urlencode(asked | ({} if at_s is None else {'time': f'{at_s:.3f}'}))}"


def make_range_paths(
    *,
    start_s: float,
    end_s: float,
    step_s: float,
    scrape_s: float,
    matchers: tuple[Matcher, ...] = (),
    moments: int = MOMENTS_AT_ONCE,
) -> Iterator[str]:
    """Write the questions for a span, each for so few moments that its answer stays small.

    Args:
        step_s: between moments; where it is not above the scrape interval, every sample is asked for.
        scrape_s: scrape interval.

    Raises:
        UsageError: the span or the step is not positive.
    """
    if not (step_s > 0 and scrape_s > 0 and end_s > start_s):
        raise UsageError(f"expected a span and a step above 0, got {end_s - start_s:g} s and {step_s:g} s")
    reach_s = moments * max(step_s, scrape_s)
    count = max(1, -(-round((end_s - start_s) * 1000) // round(reach_s * 1000)))
    for number in range(count):
        first_s = start_s + number * reach_s
        last_s = min(end_s, first_s + reach_s)
        if step_s <= scrape_s:
            # One millisecond less: the same sample is not told twice.
            yield make_path(reach_s=last_s - first_s - 0.001, at_s=last_s, matchers=matchers)
        else:
            yield _make_grid_path(first_s + step_s, last_s, step_s, scrape_s, matchers)


def _make_grid_path(
    first_s: float, last_s: float, step_s: float, scrape_s: float, matchers: tuple[Matcher, ...]
) -> str:
    reach = _write_ms(REACH_SHARE * scrape_s)
    asked = {
        "query": f"last_over_time({make_selector(matchers)}[{reach}])",
        "start": f"{min(first_s, last_s):.3f}",
        "end": f"{last_s:.3f}",
        "step": f"{step_s:.3f}",
    }
    return f"/api/v1/query_range?{urlencode(asked)}"


def make_extent_path(*, start_s: float, end_s: float, matchers: tuple[Matcher, ...] = ()) -> str:
    """Write the question in which parts of a span engines were scraped at all."""
    step_s = max((end_s - start_s) / EXTENT_PARTS, 1.0)
    query = f"count(last_over_time({write_selector(_SMALL, matchers)}[{_write_ms(step_s)}]))"
    asked = {"query": query, "start": f"{start_s:.3f}", "end": f"{end_s:.3f}", "step": f"{step_s:.3f}"}
    return f"/api/v1/query_range?{urlencode(asked)}"


def make_rhythm_path(*, reach_s: float, at_s: float | None = None, matchers: tuple[Matcher, ...] = ()) -> str:
    """Write the question for the samples of one small series of each engine: how often it is scraped."""
    asked = {"query": f"{write_selector(_SMALL, matchers)}[{_write_ms(reach_s)}]"}
    return f"/api/v1/query?{urlencode(asked | ({} if at_s is None else {'time': f'{at_s:.3f}'}))}"


def make_selector(matchers: tuple[Matcher, ...] = ()) -> str:
    """Write the selector of all series we read, in both spellings."""
    rows = (*load_series("sglang"), *load_series("vllm"), *load_series("sglang_loads"))
    names = sorted({name for row in rows for name in row.names} | {*BESIDE})
    return write_selector(f"(?:sglang|vllm|ray_vllm)[:_](?:{'|'.join(names)})", matchers)


def _write_ms(seconds: float) -> str:
    return f"{max(1, round(seconds * 1000))}ms"


def _find_engine(name: str) -> str:
    """Find whose series this is; "" if of no engine."""
    found = re.match(r"(?:ray_)?(sglang|vllm)[:_]", name)
    return found[1] if found else ""


def _find_reader(series: StoredSeries) -> str:
    """Find what reads a series: load answers of SGLang carry the rank alone, as its pages never do."""
    engine = _find_engine(series.name)
    return "sglang-loads" if engine == "sglang" and series.labels.keys() == {"dp_rank"} else engine


def _make_pages(series: Sequence[StoredSeries]) -> dict[int, dict[str, list[str]]]:
    """Write the lines of an engine's page at each moment, by series."""
    pages: dict[int, dict[str, list[str]]] = {}
    for one in series:
        identity = _write_identity(one.name, one.labels)
        for time_ns, value in one.points:
            pages.setdefault(time_ns, {}).setdefault(one.name, []).append(f"{identity} {value}")
    return pages


def _write_identity(name: str, labels: Mapping[str, str]) -> str:
    kept = ",".join(f'{key}="{_escape(labels[key])}"' for key in sorted(labels))
    return f"{name}{{{kept}}}"


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _find_spelling(names: Mapping[str, object]) -> str:
    marks = {":" if ":" in name else "_" for name in names}
    return "both" if len(marks) > 1 else "colon" if marks == {":"} else "underscore"
