"""Read what the exporters of GPUs (DCGM) and hosts (node_exporter) stored, from the Prometheus that stores the engines.

Source: Prometheus' HTTP API; names of series and labels as in catalog/device_series.toml; `kube_pod_info` of
kube-state-metrics (docs/metrics/workload/pod-metrics.md), `node_uname_info` of node_exporter (collector/uname.go).
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlencode

from dprankdiag.catalog.device_series import DeviceRow, load_device_series
from dprankdiag.collectors.prometheus_select import Matcher, write_selector
from dprankdiag.collectors.prometheus_series import StoredSeries
from dprankdiag.model.devices import DeviceSeries

MOST_MOMENTS = 120
LEAST_REACH_S = 120.0
"""A reading counts for so long at least: exporters are scraped once a minute at most places."""

NO_NUMBER = 0x7FFFFFF0
"""From here on DCGM's numbers mean that it has none. Source: DCGM dcgmlib/dcgm_structs.h (blank values)."""

_SITES = "(?:sglang|vllm)[:_](?:num_running_reqs|num_requests_running)"


def make_presence_path(at_s: float, span_s: float, matchers: tuple[Matcher, ...]) -> str:
    """Write the question which series there are at all."""
    names = "|".join(sorted({name for row in load_device_series() for name in row.series}))
    chosen = write_selector(names, matchers)
    return _make_path(f"count by (__name__) (last_over_time({chosen}[{_ms(span_s)}]))", at_s)


def make_place_paths(at_s: float, span_s: float, matchers: tuple[Matcher, ...]) -> Iterator[tuple[str, str]]:
    """Write the questions for what tells where ranks run, each with its name."""
    for name, series in (("sites", _SITES), ("pods", "kube_pod_info"), ("hosts", "node_uname_info")):
        yield name, _make_path(f"last_over_time({write_selector(series, matchers)}[{_ms(span_s)}])", at_s)
    idle = write_selector("node_cpu_seconds_total", (*matchers, Matcher("mode", "=", "idle")))
    yield "processors", _make_path(f"count without (cpu, mode) (last_over_time({idle}[{_ms(span_s)}]))", at_s)


def make_reading_path(row: DeviceRow, start_s: float, end_s: float, matchers: tuple[Matcher, ...]) -> str:
    """Write the question for one reading over a span."""
    step_s = max(15.0, (end_s - start_s) / MOST_MOMENTS)
    asked = (*matchers, *(Matcher(name, "=", value) for name, value in row.labels.items()))
    inner = f"last_over_time({write_selector('|'.join(row.series), asked)}[{_ms(max(LEAST_REACH_S, step_s))}])"
    query = f"sum without ({', '.join(row.fold)}) ({inner})" if row.fold or len(row.series) > 1 else inner
    if row.reads == "bits":
        query = inner  # the same bits under two names are not twice as many
    span = {"start": f"{start_s:.3f}", "end": f"{end_s:.3f}", "step": f"{step_s:.3f}"}
    return f"/api/v1/query_range?{urlencode({'query': query, **span})}"


def read_present(series: tuple[StoredSeries, ...]) -> frozenset[str]:
    """Read which series there are."""
    return frozenset(one.name for one in series)


def read_readings(row: DeviceRow, series: tuple[StoredSeries, ...]) -> tuple[DeviceSeries, ...]:
    """Read the series of one reading; what DCGM had no number for is left out."""
    told = []
    for one in series:
        points = tuple((at_ns, float(text)) for at_ns, text in one.points)
        known = tuple((at_ns, value) for at_ns, value in points if 0 <= value < NO_NUMBER or row.of == "host")
        told += [DeviceSeries(row.reading, one.labels, known)] if known else []
    return tuple(told)


def _make_path(query: str, at_s: float) -> str:
    return f"/api/v1/query?{urlencode({'query': query, 'time': f'{at_s:.3f}'})}"


def _ms(seconds: float) -> str:
    return f"{max(1, round(seconds * 1000))}ms"
