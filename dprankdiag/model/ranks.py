"""Who is who: a rank and the evidence that it is one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Grade = Literal["sure", "likely", "assumed"]

LARGEST_RANK = 99_999
"""A number beyond it is no rank of any deployment, and to list all before it that are missing would fill the memory."""


@dataclass(frozen=True, slots=True)
class RankClaim:
    """One piece of evidence of which rank a process is.

    Attributes:
        source: "nccl", "mpi", "distributed-info", "thread-name", "environment", "process-name", "trace-label",
            "file-name", "order", "rank-map".
        grade: how much it can be trusted by itself.
        rank: global rank (position among all GPUs of the deployment); None if only axis positions are known.
        world: number of ranks, if the evidence says so.
        dp_rank, tp_rank, pp_rank, ep_rank: positions on the axes of parallelism; None where not said.
        text: what was found, quotable to the user; never an environment block.
    """

    source: str
    grade: Grade
    rank: int | None
    text: str
    world: int | None = None
    dp_rank: int | None = None
    tp_rank: int | None = None
    pp_rank: int | None = None
    ep_rank: int | None = None


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank of the deployment (DESIGN 4.2 `ranks`).

    Attributes:
        rank: unique with `engine`.
        level: "gpu" from traces, "dp_rank" from metrics.
        pid: process id; None if unknown.
        process: "name (pid N)"-style text for people.
        identified_by: source of the claim that won.
        work_ns, wait_ns, transfer_ns, idle_ns: time in the analysed steps; None until analysed.
    """

    engine: str
    rank: int
    level: str
    identified_by: str
    grade: Grade
    dp_rank: int | None = None
    tp_rank: int | None = None
    pp_rank: int | None = None
    ep_rank: int | None = None
    role: str = "unified"
    host: str | None = None
    device: int | None = None
    gpu: str | None = None
    pid: int | None = None
    process: str | None = None
    work_ns: int | None = None
    wait_ns: int | None = None
    transfer_ns: int | None = None
    idle_ns: int | None = None
