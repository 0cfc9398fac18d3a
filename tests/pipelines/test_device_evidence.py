"""GPUs and hosts beside findings: matched by labels that tell, never a finding, and never a name that is assumed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from dprankdiag.collectors.http import Access
from dprankdiag.model.devices import Devices
from dprankdiag.model.diagnosis import Diagnosis, Evidence
from dprankdiag.pipelines.device_sites import find_gpu_pod, find_sites
from dprankdiag.pipelines.snapshots import diagnose_ledger_files
from dprankdiag.pipelines.stored import Span
from dprankdiag.pipelines.stored_span import StoredQuestion, read_servers
from tests.e2e.live_pages import Page, read_page
from tests.stored import START_S, SmallPrometheus

SLOW = 6
MINUTES = 20

Place = Callable[[int], dict[str, str]]


def two_pods(rank: int) -> dict[str, str]:
    """Four ranks a pod."""
    node = "ab"[rank // 4]
    return {"instance": f"10.1.0.{1 + rank // 4}:30000", "pod": f"sg-{node}", "namespace": "prod", "job": "e"}


def a_pod_each(rank: int) -> dict[str, str]:
    return {"instance": f"10.1.0.{rank}:8000", "pod": f"p{rank}", "namespace": "prod", "job": "e"}


def diagnose(server: SmallPrometheus, select: tuple[object, ...] = ()) -> Diagnosis:
    question = StoredQuestion(("prometheus+http://p:9090",), Span(60.0 * MINUTES))
    return diagnose_ledger_files(read_servers(question, Access(reply_s=60.0), transport=server.transport()))[0]


def list_device_evidence(diagnosis: Diagnosis) -> list[Evidence]:
    return [item for finding in diagnosis.findings for item in finding.evidence if item.name.startswith("device")]


def scrape(server: SmallPrometheus, page: Page, place: Place, pick: Callable[[str], int | None]) -> None:
    """Store a page each minute, every rank under the target that it is shown by."""
    for minute in range(MINUTES + 1):
        lines: dict[int, list[str]] = {}
        for line in page.render(15.0 + 60.0 * minute).splitlines():
            rank = pick(line)
            if rank is not None and "_bucket{" not in line:
                lines.setdefault(rank, []).append(line)
        for rank, mine in lines.items():
            server.scrape("\n".join(mine) + "\n", START_S - 60.0 * (MINUTES - minute), **place(rank))


def add_gpus(server: SmallPrometheus, gpus: Iterable[dict[str, str]], clock: Callable[[dict[str, str]], float]) -> None:
    for labels in gpus:
        text = ",".join(f'{name}="{value}"' for name, value in labels.items())
        for minute in range(MINUTES + 1):
            page = f"DCGM_FI_DEV_SM_CLOCK{{{text}}} {clock(labels)}\n"
            at_s = START_S - 60.0 * (MINUTES - minute)
            server.scrape(page, at_s, job="dcgm", instance="10.2.0.1:9400", pod="dcgm-x", namespace="gpu-operator")


def rank_of(label: str) -> Callable[[str], int | None]:
    def find(line: str) -> int | None:
        _, mark, rest = line.partition(f'{label}="')
        return int(rest.partition('"')[0]) if mark else None

    return find


@pytest.fixture
def sglang(fixtures: Path) -> Page:
    folder = fixtures / "sglang-0.5.23" / "single-slow-rank"
    return read_page(folder / "metrics_t0.prom", folder / "metrics_t1.prom")


@pytest.fixture
def vllm(fixtures: Path) -> Page:
    folder = fixtures / "vllm-0.33.0" / "dense-slow-gpu"
    return read_page(folder / "scrape1.prom", folder / "scrape2.prom")


def gpus_of_pods() -> list[dict[str, str]]:
    return [
        {"gpu": str(gpu), "UUID": f"GPU-{node}{gpu}", "Hostname": node, "exported_pod": f"sg-{node}",
         "exported_namespace": "prod"}
        for node in "ab"
        for gpu in range(4)
    ]  # fmt: skip


def test_a_gpu_of_a_pod_of_one_rank_is_the_ranks_own(vllm: Page) -> None:
    server = SmallPrometheus()
    scrape(server, vllm, a_pod_each, rank_of("engine"))
    gpus = [
        {"gpu": "0", "UUID": f"GPU-{rank}", "exported_pod": f"p{rank}", "exported_namespace": "prod"}
        for rank in range(8)
    ]
    add_gpus(server, gpus, lambda labels: 1200.0 if labels["UUID"] == f"GPU-{SLOW}" else 1755.0)
    diagnosis = diagnose(server)
    assert [(finding.cause, finding.ranks) for finding in diagnosis.findings] == [("single_point.unknown", (SLOW,))]
    (told,) = list_device_evidence(diagnosis)
    assert (told.name, told.samples) == ("device_reading_ratio", 7)
    assert told.value == pytest.approx(1200 / 1755)
    assert told.text == (
        "GPU 0 of 10.2.0.1:9400 (GPU-6), of rank 6: SM clock 1200 MHz, others 1755; would speak for single_point.gpu"
    )


def test_of_a_pod_of_several_ranks_nobody_is_said_to_own_a_gpu(sglang: Page) -> None:
    server = SmallPrometheus()
    scrape(server, sglang, two_pods, rank_of("dp_rank"))
    add_gpus(server, gpus_of_pods(), lambda labels: 1200.0 if labels["UUID"] == "GPU-b2" else 1755.0)
    diagnosis = diagnose(server)
    assert [(finding.cause, finding.ranks) for finding in diagnosis.findings] == [("single_point.host", (SLOW,))]
    (told,) = list_device_evidence(diagnosis)
    assert "(GPU-b2), where rank 6 runs: SM clock 1200 MHz" in told.text
    assert told.text.endswith("whose it is, is not told")


def test_a_gpu_of_another_pod_is_no_evidence(sglang: Page) -> None:
    server = SmallPrometheus()
    scrape(server, sglang, two_pods, rank_of("dp_rank"))
    add_gpus(server, gpus_of_pods(), lambda labels: 1200.0 if labels["UUID"] == "GPU-a2" else 1755.0)
    assert list_device_evidence(diagnose(server)) == []


def test_gpus_alone_make_no_finding(fixtures: Path) -> None:
    folder = fixtures / "sglang-0.5.23" / "balanced"
    server = SmallPrometheus()
    page = read_page(folder / "metrics_t0.prom", folder / "metrics_t1.prom")
    scrape(server, page, two_pods, rank_of("dp_rank"))
    add_gpus(server, gpus_of_pods(), lambda labels: 600.0 if labels["UUID"] == "GPU-b2" else 1755.0)
    diagnosis = diagnose(server)
    assert diagnosis.findings == ()


def test_nothing_is_asked_for_where_no_exporter_is_stored(sglang: Page) -> None:
    server = SmallPrometheus()
    scrape(server, sglang, two_pods, rank_of("dp_rank"))
    assert list_device_evidence(diagnose(server)) == []
    assert sum("DCGM" in query["query"] for _, query in server.asked) == 1


def add_hosts(server: SmallPrometheus, load: Callable[[int], float]) -> None:
    """Store a host for each pod of one rank, and where pods run."""
    for minute in range(MINUTES + 1):
        at_s = START_S - 60.0 * (MINUTES - minute)
        for rank in range(8):
            cpus = "".join(f'node_cpu_seconds_total{{cpu="{cpu}",mode="idle"}} {60 * minute}\n' for cpu in range(4))
            server.scrape(f"node_load1 {load(rank)}\n{cpus}", at_s, job="node", instance=f"n{rank}")
            info = f'kube_pod_info{{node="n{rank}",exported_pod="p{rank}",exported_namespace="prod"}} 1\n'
            server.scrape(info, at_s, job="ksm", instance="ksm:8080", namespace="monitoring", pod="ksm-0")


def test_a_host_is_found_by_the_node_of_the_pod(vllm: Page) -> None:
    server = SmallPrometheus()
    scrape(server, vllm, a_pod_each, rank_of("engine"))
    add_hosts(server, lambda rank: 40.0 if rank == SLOW else 4.0)
    (told,) = list_device_evidence(diagnose(server))
    assert told.text == (
        "host n6, of rank 6: load of the host 10 a processor, others 1; would speak for single_point.host"
    )


def test_hosts_alike_are_no_support_and_say_nothing_of_causes_they_cannot_judge(vllm: Page) -> None:
    server = SmallPrometheus()
    scrape(server, vllm, a_pod_each, rank_of("engine"))
    add_hosts(server, lambda rank: 4.0)
    assert list_device_evidence(diagnose(server)) == []


def test_what_is_alike_on_all_hosts_speaks_against_a_host(sglang: Page) -> None:
    server = SmallPrometheus()
    scrape(server, sglang, a_pod_each, rank_of("dp_rank"))
    add_hosts(server, lambda rank: 4.0)
    (told,) = list_device_evidence(diagnose(server))
    assert told.name == "device_readings_alike"
    assert told.text == "as those of its peers, and so no support: load of the host of rank 6"


def test_a_port_of_vllm_that_shows_several_ranks_places_none_of_them() -> None:
    site = {"__name__": "vllm:num_requests_running", "job": "v", "instance": "10.0.0.1:8000", "pod": "p"}
    devices = Devices((), tuple({**site, "engine": str(rank)} for rank in range(2)))
    both = {rank: {("v", "10.0.0.1:8000")} for rank in range(2)}
    assert find_sites(devices, both) == {}
    assert find_sites(devices, {0: both[0]})[0].is_alone


def test_a_loopback_address_is_every_hosts() -> None:
    site = {"job": "s", "instance": "127.0.0.1:30000", "dp_rank": "0"}
    assert find_sites(Devices((), (site,)), {0: {("s", "127.0.0.1:30000")}})[0].hosts == frozenset()


def test_a_rank_that_two_processes_show_has_no_place() -> None:
    sites = tuple({"job": "s", "instance": f"10.0.0.{host}:1", "dp_rank": "0"} for host in (1, 2))
    assert find_sites(Devices((), sites), {0: {("s", "10.0.0.1:1"), ("s", "10.0.0.2:1")}}) == {}


def test_hosts_of_two_clusters_with_one_address_are_two() -> None:
    (west, east) = (
        find_sites(Devices((), ({"cluster": name, "job": "s", "instance": "10.0.0.1:1", "dp_rank": "0"},)),
                   {0: {(f"{name}/s", "10.0.0.1:1")}})[0]
        for name in ("west", "east")
    )  # fmt: skip
    assert not west.hosts & east.hosts


def test_the_pod_of_a_gpu_is_that_of_its_user() -> None:
    labels = {"pod": "dcgm-x", "namespace": "gpu", "exported_pod": "p", "exported_namespace": "prod"}
    assert find_gpu_pod(labels) == ("", "pod", "prod/p")
    assert find_gpu_pod({"pod": "p", "namespace": "prod"}) == ("", "pod", "prod/p")
    assert find_gpu_pod({"gpu": "0"}) is None
