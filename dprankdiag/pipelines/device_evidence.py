"""Set what GPUs and hosts tell beside findings about a single rank: it supports them or speaks against them.

A reading is never a finding: a hot GPU may be fast enough, and a host under load may have processors to spare. Where it
is not told which GPU is the rank's, what stands out on its host is said as that and not as the rank's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dprankdiag.analysis.device_spread import FEWEST_PEERS, stands_out, sum_up
from dprankdiag.catalog.device_series import DeviceRow, load_device_series
from dprankdiag.model.devices import Devices, DeviceSeries
from dprankdiag.model.diagnosis import Diagnosis, Evidence, Finding
from dprankdiag.model.ledgers import STORED_IN, STORED_INSTANCE, LedgerFile
from dprankdiag.pipelines.device_sites import Key, Site, find_gpu_pod, find_hosts, find_sites

CLASS = "single_point."
_EVER = (0, 2**63 - 1)

Targets = Mapping[int, set[tuple[str, str]]]


@dataclass(frozen=True, slots=True)
class _Device:
    """A GPU or host with its number in a window.

    Attributes:
        name: for people.
        pod, hosts: where it is.
    """

    name: str
    pod: Key | None
    hosts: frozenset[Key]
    value: float


def attach_devices(diagnosis: Diagnosis, files: Sequence[LedgerFile], names: Mapping[str, str]) -> Diagnosis:
    """Set readings of devices beside the findings about single ranks.

    Args:
        names: place of an engine → its name in the diagnosis.
    """
    findings = list(diagnosis.findings)
    for file in files:
        if file.devices is None:
            continue
        for engine, targets in _list_targets(file, names).items():
            sites = find_sites(file.devices, targets)
            for place, finding in enumerate(findings):
                if finding.engine == engine and finding.cause.startswith(CLASS):
                    told = tuple(list_evidence(finding, file.devices, sites))
                    findings[place] = replace(finding, evidence=(*finding.evidence, *told))
    return replace(diagnosis, findings=tuple(findings))


def _list_targets(file: LedgerFile, names: Mapping[str, str]) -> dict[str, dict[int, set[tuple[str, str]]]]:
    """List by engine and rank which processes show it."""
    told: dict[str, dict[int, set[tuple[str, str]]]] = {}
    for answer, place in zip(file.answers, file.places, strict=True):
        engine = names.get(place)
        if engine is not None and answer.interface.endswith("-metrics"):
            process = (str(answer.facts[STORED_IN]), str(answer.facts[STORED_INSTANCE]))
            for rank in answer.ranks:
                told.setdefault(engine, {}).setdefault(rank, set()).add(process)
    return told


def list_evidence(finding: Finding, devices: Devices, sites: Mapping[int, Site]) -> Iterator[Evidence]:
    """List what devices tell of the ranks of a finding, held against the devices of the engine's other ranks."""
    alike: list[str] = []
    others = [site for rank, site in sites.items() if rank not in finding.ranks]
    for row in load_device_series():
        told = _measure(row, devices, sites, _find_window(finding))
        for rank in finding.ranks:
            site = sites.get(rank)
            if site is None or not told:
                continue
            own, is_sure = _choose_own(row, told, site)
            peers = [one for one in told if one not in own and any(_is_at(one, other) for other in others)]
            said = list(_judge(row, rank, own, is_sure, peers, finding.cause))
            yield from said
            if own and not said and len(peers) >= FEWEST_PEERS and finding.cause in row.causes:
                alike.append(f"{row.reading} of rank {rank}")
    if alike:
        words = f"as those of its peers, and so no support: {', '.join(dict.fromkeys(alike))}"
        yield Evidence("device_readings_alike", float(len(alike)), "count", words)


def _find_window(finding: Finding) -> tuple[int, int]:
    window = finding.window
    return (window.start_ns, window.end_ns) if window.end_ns > window.start_ns else _EVER


def _measure(row: DeviceRow, devices: Devices, sites: Mapping[int, Site], window: tuple[int, int]) -> list[_Device]:
    """Measure the devices that are where some rank of the engine is."""
    near = {key for site in sites.values() for key in (*site.hosts, *((site.pod,) if site.pod else ()))}
    told: dict[str, _Device] = {}
    for series in devices.series:
        if series.reading != row.reading:
            continue
        pod = find_gpu_pod(series.labels) if row.of == "gpu" else None
        hosts = find_hosts(series.labels, devices)
        if not near.intersection((*hosts, *((pod,) if pod else ()))):
            continue
        value = sum_up(row, series, window, (devices.processors or {}).get(series.labels.get("instance", "")))
        if value is not None:
            told[_name_device(row, series)] = _Device(_name_device(row, series), pod, hosts, value)
    return list(told.values())


def _name_device(row: DeviceRow, series: DeviceSeries) -> str:
    labels = series.labels
    if row.of == "host":
        return f"host {labels.get('nodename') or labels.get('node') or labels.get('instance', '')}"
    host = labels.get("Hostname") or labels.get("node") or labels.get("instance", "")
    uuid = f" ({labels['UUID']})" if labels.get("UUID") else ""
    return f"GPU {labels.get('gpu', '?')} of {host}{uuid}"


def _choose_own(row: DeviceRow, told: Sequence[_Device], site: Site) -> tuple[list[_Device], bool]:
    """Choose the devices of a rank; and tell whether they are surely its own.

    Its pod's GPUs, where the pod shows no other rank; else those of its pod or host, one of which is its own. A host is
    surely its host.
    """
    if row.of == "host":
        return [one for one in told if one.hosts & site.hosts], True
    in_pod = [one for one in told if site.pod is not None and one.pod == site.pod]
    if in_pod:
        return in_pod, site.is_alone
    return [one for one in told if one.hosts & site.hosts], False


def _is_at(device: _Device, site: Site) -> bool:
    """Tell whether a device is in the pod of a rank, or of no pod and on its host."""
    if device.pod is not None and site.pod is not None:
        return device.pod == site.pod
    return bool(device.hosts & site.hosts)


def _judge(
    row: DeviceRow, rank: int, own: Sequence[_Device], is_sure: bool, peers: Sequence[_Device], cause: str
) -> Iterator[Evidence]:
    """Say which of a rank's devices stand out."""
    for device in own:
        rest = [one.value for one in (*peers, *(() if is_sure else own)) if one is not device]
        if not stands_out(row, device.value, rest):
            continue
        middle = float(np.median(rest))
        verdict = "supports it" if cause in row.causes else f"would speak for {row.causes[0]}"
        verdict = verdict if is_sure else "whose it is, is not told"
        what = f"{device.name}, of rank {rank}" if is_sure else f"{device.name}, where rank {rank} runs"
        words = f"{what}: {row.reading} {device.value:.4g} {row.unit}, others {middle:.4g}; {verdict}"
        if row.reads == "bits":
            yield Evidence("device_throttled_ratio", device.value, "ratio", words, middle, len(rest))
        elif row.reads in ("growth", "event"):
            yield Evidence("device_errors", device.value, "count", words, middle, len(rest))
        else:
            ratio = device.value / middle if middle else None
            yield Evidence("device_reading_ratio", ratio, "ratio", words, 1.0, len(rest))
