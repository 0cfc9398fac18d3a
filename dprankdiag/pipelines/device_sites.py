"""Find which GPUs and hosts a rank runs on, by labels that really tell; what is only likely is not matched.

A pod that shows one rank runs that rank on all its GPUs. Of a pod or host with several ranks it is known which GPUs are
there, not which is whose: an engine exports no device number, and its order need not be the driver's. A host is found
by the node that kube-state-metrics names, by a node label that both carry, or by an address that both are scraped at;
not by a loopback address, which every host has. A port of vLLM that shows several ranks may speak for engines of other
hosts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address

from dprankdiag.model.devices import Devices, Labels

Key = tuple[str, str, str]
"""Cluster, kind (pod, node, address), and name."""

_NODE_LABELS = ("node", "nodename", "node_name", "kubernetes_node", "Hostname", "hostname")


@dataclass(frozen=True, slots=True)
class Site:
    """Where a rank runs.

    Attributes:
        pod: of the rank; None where it is not labelled.
        hosts: what names its host; empty where nothing does.
        is_alone: no other rank is shown by the pod.
    """

    pod: Key | None
    hosts: frozenset[Key]
    is_alone: bool


def find_sites(devices: Devices, targets: Mapping[int, Iterable[tuple[str, str]]]) -> dict[int, Site]:
    """Find the site of each rank of an engine; ranks whose place no label tells, or several do, are left out.

    Args:
        targets: rank → deployment (cluster/namespace/job) and instance of each process that shows it.
    """
    nodes = _name_nodes(devices.pods)
    sites: dict[int, Site] = {}
    shown: dict[tuple[str, str], set[int]] = {}
    for rank, processes in targets.items():
        for process in processes:
            shown.setdefault(process, set()).add(rank)
    for rank, processes in targets.items():
        found = {process: labels for process in processes if (labels := _find_labels(devices.sites, process, rank))}
        if len(found) != 1:
            continue
        ((process, labels),) = found.items()
        if labels["__engine__"] == "vllm" and len(shown[process]) > 1:
            continue
        cluster = labels.get("cluster", "")
        pod = _name_pod(labels, cluster)
        hosts = _name_hosts(labels, cluster) | (nodes.get(pod, frozenset()) if pod else frozenset())
        sites[rank] = Site(pod, frozenset(hosts), len(shown[process]) == 1)
    return sites


def find_gpu_pod(labels: Labels) -> Key | None:
    """Name the pod that uses a GPU: the exporter's own pod is none of an engine's and matches nothing."""
    if "exported_pod" in labels:
        labels = {**labels, "pod": labels["exported_pod"], "namespace": labels.get("exported_namespace", "")}
    return _name_pod(labels, labels.get("cluster", ""))


def find_hosts(labels: Labels, devices: Devices) -> frozenset[Key]:
    """Name the host that an exporter speaks of, in all ways that labels tell."""
    cluster = labels.get("cluster", "")
    hosts = set(_name_hosts(labels, cluster))
    instance = labels.get("instance", "")
    for host in devices.hosts:
        if host.get("instance") == instance and host.get("cluster", "") == cluster and host.get("nodename"):
            hosts.add((cluster, "node", host["nodename"]))
    if ":" not in instance and instance and not _is_address(instance):
        hosts.add((cluster, "node", instance))
    return frozenset(hosts)


def _find_labels(sites: Sequence[Labels], process: tuple[str, str], rank: int) -> dict[str, str] | None:
    """Find the labels under which a process shows a rank."""
    place, instance = process
    for labels in sites:
        mine = "/".join(labels[name] for name in ("cluster", "namespace", "job") if labels.get(name))
        number = labels.get("dp_rank") or labels.get("exported_engine") or labels.get("engine")
        if (mine, labels.get("instance", "")) == (place, instance) and number == str(rank):
            return {**labels, "__engine__": "sglang" if "dp_rank" in labels else "vllm"}
    return None


def _name_pod(labels: Labels, cluster: str) -> Key | None:
    pod = labels.get("pod")
    return (cluster, "pod", f"{labels.get('namespace', '')}/{pod}") if pod else None


def _name_hosts(labels: Labels, cluster: str) -> frozenset[Key]:
    names = {(cluster, "node", labels[name]) for name in _NODE_LABELS if labels.get(name)}
    host = labels.get("instance", "").rpartition(":")[0].strip("[]") or labels.get("instance", "")
    if _is_address(host) and not ip_address(host).is_loopback:
        names.add((cluster, "address", host))
    return frozenset(names)


def _name_nodes(pods: Iterable[Labels]) -> dict[Key, frozenset[Key]]:
    nodes: dict[Key, frozenset[Key]] = {}
    for labels in pods:
        cluster = labels.get("cluster", "")
        named = {**labels, "pod": labels.get("exported_pod", labels.get("pod", ""))}
        named["namespace"] = labels.get("exported_namespace", labels.get("namespace", ""))
        pod = _name_pod(named, cluster)
        if pod is not None:
            keys = {(cluster, "node", labels["node"])} if labels.get("node") else set()
            keys |= {(cluster, "address", labels["host_ip"])} if labels.get("host_ip") else set()
            nodes[pod] = nodes.get(pod, frozenset()) | keys
    return nodes


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
