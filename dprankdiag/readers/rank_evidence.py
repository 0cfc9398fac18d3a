"""Turn names, environments and payloads into claims of which rank a process is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from dprankdiag.model.ranks import Grade, RankClaim

# A kernel-side process name holds 15 bytes, so a name of just that length may have lost its rank.
# Source: proc_pid_comm(5), TASK_COMM_LEN.
_COMM_BYTES = 15
_AXES = re.compile(r"_(ATTN_CP|MOE_DP|PCP|DCP|DP|PP|TP|EP)(\d+)")
# Source: sglang@v0.5.23 python/sglang/srt/managers/scheduler.py (process title).
_SGLANG = re.compile(r"sglang::scheduler((?:_[A-Z_]+?\d+)+)$")
# Source: vllm@v0.33.0 vllm/v1/executor/multiproc_executor.py and vllm/v1/engine/core.py (process titles).
_VLLM = re.compile(r"(?:\w+::)?(?:Worker|EngineCore)((?:_[A-Z]+\d+)+)$")
_MPI_THREAD = re.compile(r"MPI Rank (\d+)$")
_NCCL_THREAD = re.compile(r"NCCL Progress.*\[(\d+)/(\d+)\]")
_FILE_RANK = re.compile(r"rank[_-]?(\d+)", re.IGNORECASE)
# Source: sglang@v0.5.23 python/sglang/srt/managers/scheduler_profiler_mixin.py (names of trace files) and
# python/sglang/srt/utils/profile_merger.py (labels of a merged trace).
_SGLANG_FILE = re.compile(r"-TP-(\d+)((?:-(?:DP|PP|EP)-\d+)*)(?:-[A-Za-z]+)?(?=\.)")
_LABEL_AXES = re.compile(r"(TP|DP|PP|EP)-?(\d+)")
# Source: vllm@v0.33.0 vllm/profiler/wrapper.py (trace names); the rank is the one inside the replica.
_VLLM_FILE = re.compile(r"(?:^|_)dp(\d+)_pp(\d+)_tp(\d+)(?:_dcp\d+)?(?:_ep(\d+))?_rank\d+\.")
_GLOBAL_RANK_KEYS = (
    "RANK",
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PMI_RANK",
    "MV2_COMM_WORLD_RANK",
    "PALS_RANKID",
    "SLURM_PROCID",
)
ENVIRONMENT_KEYS = frozenset((*_GLOBAL_RANK_KEYS, "WORLD_SIZE"))


def read_title(name: str, source: str, *, may_be_cut: bool) -> RankClaim | None:
    """Read the rank out of a process title or thread name.

    With attention data parallelism SGLang's TP position is the GPU's place among all; vLLM's ranks need the sizes of
    the axes, so only the axes are claimed unless DP or TP stands alone.

    Args:
        name: the name.
        source: where it was found ("thread-name" or "process-name").
        may_be_cut: the name may come from a field of 15 bytes.
    """
    if may_be_cut and len(name.encode()) == _COMM_BYTES:
        return None
    if match := _MPI_THREAD.fullmatch(name):
        return RankClaim("mpi", "sure", int(match[1]), f'thread named "{name}"')
    if match := _NCCL_THREAD.match(name):
        return RankClaim("nccl", "sure", int(match[1]), f'thread named "{name}"', world=int(match[2]))
    match = _SGLANG.fullmatch(name) or _VLLM.fullmatch(name)
    if not match:
        return None
    axes = {axis: int(number) for axis, number in _AXES.findall(match[1])}
    if not axes.keys() & {"DP", "TP", "PP"}:
        return None
    return RankClaim(
        source,
        "sure",
        _place(axes, is_sglang=name.startswith("sglang")),
        f'named "{name}"',
        dp_rank=axes.get("DP"),
        tp_rank=axes.get("TP"),
        pp_rank=axes.get("PP"),
        ep_rank=axes.get("EP"),
    )


def _place(axes: Mapping[str, int], *, is_sglang: bool) -> int | None:
    if "PP" in axes:
        return None
    if is_sglang:
        return axes.get("TP", axes.get("DP"))
    return None if {"DP", "TP"} <= axes.keys() else axes.get("DP", axes.get("TP"))


def read_environment(environment: Mapping[str, str]) -> RankClaim | None:
    """Read the rank out of allow-listed variables; anything but whole numbers is ignored."""
    numbers = {key: int(text) for key, text in environment.items() if key in ENVIRONMENT_KEYS and text.isdecimal()}
    for key in _GLOBAL_RANK_KEYS:
        if key in numbers:
            world = numbers.get("WORLD_SIZE") if key == "RANK" else None
            grade: Grade = "sure" if world is not None and numbers[key] < world else "likely"
            return RankClaim("environment", grade, numbers[key], f"{key}={numbers[key]} at launch", world=world)
    return None


def read_file_name(name: str) -> RankClaim | None:
    """Read the rank out of a file name such as ``run_rank-3.sqlite``."""
    found = _FILE_RANK.findall(name)
    if len(set(found)) != 1:
        return None
    return RankClaim("file-name", "likely", int(found[0]), f'file named "{name}"')


def read_torch_name(name: str) -> RankClaim | None:
    """Read the axes of parallelism out of the name that SGLang or vLLM gives a rank's torch trace.

    vLLM's ``rank`` counts inside a replica and is no rank of the deployment, so only its axes are claimed.
    """
    if match := _VLLM_FILE.search(name):
        dp, pp, tp = (int(match[k]) for k in (1, 2, 3))
        ep = int(match[4]) if match[4] else None
        text = f'file named "{name}"'
        return RankClaim("file-name", "likely", None, text, dp_rank=dp, tp_rank=tp, pp_rank=pp, ep_rank=ep)
    if match := _SGLANG_FILE.search(name):
        return _claim_axes(f"TP-{match[1]}{match[2]}", "file-name", f'file named "{name}"')
    return None


def read_torch_label(label: str) -> RankClaim | None:
    """Read the axes out of the label ``[TP03-DP03]`` that SGLang's merged trace puts before process ids."""
    return _claim_axes(label, "trace-label", f"processes labelled {label}")


def _claim_axes(text: str, source: str, said: str) -> RankClaim | None:
    axes = {axis: int(number) for axis, number in _LABEL_AXES.findall(text)}
    if "TP" not in axes:
        return None
    return RankClaim(
        source,
        "likely",
        _place(axes, is_sglang=True),
        said,
        dp_rank=axes.get("DP"),
        tp_rank=axes["TP"],
        pp_rank=axes.get("PP"),
        ep_rank=axes.get("EP"),
    )


def read_nccl_payloads(payloads: Iterable[Any], device: int | None) -> RankClaim | None:
    """Read the rank in the largest communicator that a process initialised, of one device if payloads name it.

    Args:
        payloads: parsed JSON payloads of one process in time order.
        device: CUDA ordinal of the actor; None takes any.
    """
    best: tuple[int, int] | None = None
    for found in (found for payload in payloads for found in _find_inits(payload)):
        world, rank, where = found
        if (device is None or where is None or where == device) and (best is None or world > best[0]):
            best = (world, rank)
    if best is None:
        return None
    world, rank = best
    return RankClaim("nccl", "sure", rank, f"NCCL initialised rank {rank} of {world}", world=world)


def _find_inits(payload: Any) -> Iterable[tuple[int, int, int | None]]:
    if isinstance(payload, list):
        for item in payload:
            yield from _find_inits(item)
    elif isinstance(payload, dict):
        world, rank, device = (payload.get(key) for key in ("No. of ranks", "Rank", "CUDA device"))
        if isinstance(world, int) and isinstance(rank, int) and 0 <= rank < world:
            yield world, rank, device if isinstance(device, int) else None
        for value in payload.values():
            yield from _find_inits(value)
