"""Ask a Prometheus server for what other exporters tell of the GPUs and hosts of the engines it stores."""

from __future__ import annotations

from dprankdiag.catalog.device_series import load_device_series
from dprankdiag.collectors import prometheus_devices as questions
from dprankdiag.collectors.prometheus_series import StoredSeries
from dprankdiag.model.devices import Devices, DeviceSeries
from dprankdiag.pipelines.stored import StoredEngines

_CLUSTER = "cluster"


def read_devices(server: StoredEngines, start_s: float, end_s: float) -> Devices | None:
    """Read what there is of devices in a span; None where there is nothing.

    Of the labels that the user chose engines by only the cluster can hold for other exporters: a namespace or a pod is
    the exporter's own there.
    """
    matchers = tuple(matcher for matcher in server.matchers if matcher.label == _CLUSTER)
    span_s = end_s - start_s
    present = questions.read_present(server.ask_series(questions.make_presence_path(end_s, span_s, matchers)))
    readings: list[DeviceSeries] = []
    for row in load_device_series():
        if present.intersection(row.series):
            told = server.ask_series(questions.make_reading_path(row, start_s, end_s, matchers))
            readings += questions.read_readings(row, told)
    if not readings:
        return None
    places: dict[str, tuple[StoredSeries, ...]] = {}
    for name, path in questions.make_place_paths(end_s, span_s, matchers):
        places[name] = server.ask_series(path)
    return Devices(
        tuple(readings),
        tuple(one.labels for one in places["sites"]),
        tuple(one.labels for one in places["pods"]),
        tuple(one.labels for one in places["hosts"]),
        {one.labels.get("instance", ""): float(one.points[-1][1]) for one in places["processors"]},
    )
