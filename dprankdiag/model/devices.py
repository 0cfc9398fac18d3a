"""What other exporters stored of GPUs and hosts, and which ranks ran where as far as labels tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class DeviceSeries:
    """One reading of one GPU or host.

    Attributes:
        reading: row of catalog/device_series.toml.
        points: moment (UTC epoch ns) and value, moments ascending.
    """

    reading: str
    labels: Labels
    points: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Devices:
    """What one server stores of devices.

    Attributes:
        series: readings.
        sites: labels of one series of each rank, the rank among them.
        pods: labels of pods, with the node each runs on.
        hosts: labels of hosts, with the name each calls itself.
        processors: instance of a host → its processors.
    """

    series: tuple[DeviceSeries, ...]
    sites: tuple[Labels, ...]
    pods: tuple[Labels, ...] = ()
    hosts: tuple[Labels, ...] = ()
    processors: Mapping[str, float] | None = None
