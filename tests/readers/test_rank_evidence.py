from __future__ import annotations

from pathlib import Path

import pytest

from dprankdiag.model.ranks import RankClaim
from dprankdiag.readers.launch_arguments import expect_ranks
from dprankdiag.readers.nsys_sqlite import read
from dprankdiag.readers.rank_evidence import read_environment, read_file_name, read_nccl_payloads, read_title
from tests.readers.builders import ExportBuilder, global_tid


def title(name: str) -> RankClaim | None:
    return read_title(name, "thread-name", may_be_cut=False)


@pytest.mark.parametrize(
    "name, rank, axes",
    [
        ("sglang::scheduler_DP2_TP5_EP5", 5, (2, 5, None, 5)),
        ("sglang::scheduler_TP3", 3, (None, 3, None, None)),
        ("sglang::scheduler_DP3", 3, (3, None, None, None)),
        ("sglang::scheduler_DP1_PP1_ATTN_CP7_MOE_DP9_TP0_EP0", None, (1, 0, 1, 0)),
        ("VLLM::Worker_DP3_EP3", 3, (3, None, None, 3)),
        ("VLLM::Worker_TP12", 12, (None, 12, None, None)),
        ("VLLM::Worker_DP1_TP0_EP2", None, (1, 0, None, 2)),
        ("VLLM::EngineCore_DP4", 4, (4, None, None, None)),
    ],
)
def test_titles_of_engines_give_rank_and_axes(
    name: str, rank: int | None, axes: tuple[int | None, int | None, int | None, int | None]
) -> None:
    claim = title(name)
    assert claim is not None
    assert claim.rank == rank
    assert (claim.dp_rank, claim.tp_rank, claim.pp_rank, claim.ep_rank) == axes
    assert claim.grade == "sure"


@pytest.mark.parametrize(
    "name", ["python3", "sglang::schedul", "VLLM::Worker", "VLLM::Worker_DP", "sglang::detokenizer"]
)
def test_titles_without_a_rank_claim_nothing(name: str) -> None:
    assert title(name) is None


def test_a_title_of_fifteen_bytes_may_be_cut_and_is_not_trusted() -> None:
    assert len("V::Worker_DP1_T") == 15
    name = "VM::Worker_DP12"
    assert read_title(name, "process-name", may_be_cut=True) is None
    claim = read_title(name, "thread-name", may_be_cut=False)
    assert claim is not None
    assert claim.rank == 12


def test_mpi_and_nccl_threads_name_the_rank() -> None:
    mpi, nccl = title("MPI Rank 7"), title("NCCL Progress [3/16]: 0xab")
    assert mpi is not None
    assert (mpi.source, mpi.rank) == ("mpi", 7)
    assert nccl is not None
    assert (nccl.source, nccl.rank, nccl.world) == ("nccl", 3, 16)


def test_an_environment_is_sure_only_with_the_world_size() -> None:
    assert read_environment({"RANK": "3", "WORLD_SIZE": "8"}) == RankClaim(
        "environment", "sure", 3, "RANK=3 at launch", world=8
    )
    for environment in ({"RANK": "3"}, {"SLURM_PROCID": "3"}, {"RANK": "9", "WORLD_SIZE": "8"}):
        claim = read_environment(environment)
        assert claim is not None
        assert claim.grade == "likely"
    assert read_environment({"RANK": "three", "LOCAL_RANK": "1", "PASSWORD": "3"}) is None


def test_a_file_name_is_likely_unless_it_names_two_ranks() -> None:
    claim = read_file_name("run_rank-12.sqlite")
    assert claim is not None
    assert (claim.rank, claim.grade) == (12, "likely")
    assert read_file_name("rank1_of_rank2.sqlite") is None
    assert read_file_name("report1.sqlite") is None


def test_the_largest_communicator_names_the_rank() -> None:
    payloads = [
        {"No. of ranks": 2, "Rank": 1, "CUDA device": 0},
        {"init": [{"No. of ranks": 8, "Rank": 5, "CUDA device": 0}]},
        {"No. of ranks": 8, "Rank": 6, "CUDA device": 1},
        {"No. of ranks": 4, "Rank": 9},
    ]
    claim = read_nccl_payloads(payloads, None)
    assert claim is not None
    assert (claim.rank, claim.world, claim.grade) == (5, 8, "sure")
    other = read_nccl_payloads(payloads, 1)
    assert other is not None
    assert other.rank == 6


@pytest.mark.parametrize(
    "command, arguments, ranks",
    [
        ("torchrun", ["--nnodes=2", "--nproc_per_node=4", "train.py", "--tp", "2"], 8),
        ("python3", ["-m", "sglang.launch_server", "--tp", "8", "--enable-dp-attention", "--dp", "8"], 8),
        ("sglang", ["serve", "--tp-size", "16", "--attn-dp-size", "8"], 16),
        ("python3", ["-m", "sglang.launch_server", "--tp", "2", "--dp", "3"], 6),
        ("vllm", ["serve", "m", "--data-parallel-size=4", "--tensor-parallel-size", "2"], 8),
        ("mpirun", ["-np", "4", "./app"], 4),
        ("./app", ["-n", "4"], None),
        ("./app", ["--dp", "2", "--tp", "2"], None),
        ("vllm", ["serve", "--tp", "auto"], None),
        ("", [], None),
    ],
)
def test_plain_command_lines_announce_their_ranks(command: str, arguments: list[str], ranks: int | None) -> None:
    assert expect_ranks(command, arguments) == ranks


def test_the_environment_of_a_single_process_counts_and_nothing_else_of_it_is_kept(tmp_path: Path) -> None:
    with ExportBuilder(tmp_path / "a.sqlite") as export:
        export.kernel(5, 1, 2)
        export.facts(
            "META_DATA_CAPTURE",
            [
                ("PROCESS_0:ENVIRONMENT_VARIABLE", 'RANK="3"'),
                ("PROCESS_0:ENVIRONMENT_VARIABLE", 'WORLD_SIZE="8"'),
                ("PROCESS_0:ENVIRONMENT_VARIABLE", 'API_TOKEN="hush"'),
                ("PROCESS_0:COMMAND", "vllm"),
                ("PROCESS_0:ARGUMENT_0", "--api-key"),
                ("PROCESS_0:ARGUMENT_1", "hush"),
                ("PROCESS_0:ARGUMENT_2", "--tp=8"),
                ("CUDA_GRAPH_TRACE_OPTIONS:MODE", "Node"),
            ],
        )
    reading = read(tmp_path / "a.sqlite")
    assert reading.actors[0].claims == (RankClaim("environment", "sure", 3, "RANK=3 at launch", world=8),)
    assert (reading.capture.graph_mode, reading.capture.expected_ranks) == ("node", 8)
    assert reading.capture.options == {"CUDA_GRAPH_TRACE_OPTIONS:MODE": "Node"}
    assert "hush" not in repr(reading)


def test_an_old_export_keeps_the_environment_in_one_nul_joined_text(tmp_path: Path) -> None:
    with ExportBuilder(tmp_path / "a.sqlite") as export:
        export.kernel(5, 1, 2)
        export.facts("TARGET_INFO_SYSTEM_ENV", {"DeviceEnvironment": "A=1\0SLURM_PROCID=6\0TOKEN=hush\nPMI_SIZE=9"})
    reading = read(tmp_path / "a.sqlite")
    assert [(claim.rank, claim.grade) for claim in reading.actors[0].claims] == [(6, "likely")]
    assert "hush" not in repr(reading)


def test_the_environment_says_nothing_where_several_processes_ran(tmp_path: Path) -> None:
    with ExportBuilder(tmp_path / "rank3.sqlite") as export:
        export.kernel(5, 1, 2)
        export.kernel(6, 1, 2)
        export.facts("META_DATA_CAPTURE", {"PROCESS_0:ENVIRONMENT_VARIABLE": 'RANK="3"'})
    assert all(actor.claims == () for actor in read(tmp_path / "rank3.sqlite").actors)


def test_nccl_payloads_of_an_export_outrank_thread_names(tmp_path: Path) -> None:
    with ExportBuilder(tmp_path / "a.sqlite") as export:
        for pid, rank in ((5, 1), (6, 0)):
            export.kernel(pid, 1, 2)
            text = f'{{"No. of ranks": 2, "Rank": {rank}, "CUDA device": 0}}'
            more = {"jsonText": text} if pid == 5 else {"jsonTextId": export.text(text)}
            export.range(pid, 0, 1, "ncclCommInitRank", domainId=1, **more)
            export.thread_name(pid, f"sglang::scheduler_TP{rank}")
    for actor, rank in zip(read(tmp_path / "a.sqlite").actors, (1, 0), strict=True):
        assert [(claim.source, claim.rank) for claim in actor.claims[:2]] == [("nccl", rank), ("thread-name", rank)]


def test_ranks_recorded_by_the_mpi_tracer_are_sure(tmp_path: Path) -> None:
    with ExportBuilder(tmp_path / "a.sqlite") as export:
        export.kernel(5, 1, 2)
        export.add("MPI_RANKS", globalTid=global_tid(5, 9), rank=4)
    claim = read(tmp_path / "a.sqlite").actors[0].claims[0]
    assert (claim.source, claim.rank, claim.grade) == ("mpi", 4, "sure")


def test_the_gpu_behind_an_ordinal_comes_from_the_device_map(tmp_path: Path) -> None:
    with ExportBuilder(tmp_path / "a.sqlite") as export:
        for pid, gpu in ((5, 3), (6, 2)):
            export.kernel(pid, 1, 2)
            export.add("TARGET_INFO_CUDA_DEVICE", gpuId=gpu, cudaId=0, pid=pid)
            export.add("TARGET_INFO_GPU", id=gpu, cuDevice=3 - gpu, uuid=f"uuid-{gpu}", busLocation="0000:01")
    assert [actor.gpu for actor in read(tmp_path / "a.sqlite").actors] == ["uuid-3", "uuid-2"]


def test_an_ordinal_that_two_processes_share_names_no_gpu(tmp_path: Path) -> None:
    with ExportBuilder(tmp_path / "a.sqlite") as export:
        for pid in (5, 6):
            export.kernel(pid, 1, 2)
        export.add("TARGET_INFO_GPU", id=0, cuDevice=0, uuid="uuid-0")
    assert [actor.gpu for actor in read(tmp_path / "a.sqlite").actors] == [None, None]
