"""Start ranks that meet by `torch.distributed`, in an interpreter that has torch, and collect what they did."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from dprankdiag.harness import torch_start
from dprankdiag.harness.run_plan import Orders
from dprankdiag.harness.run_record import Ran
from dprankdiag.harness.torch_rank import ROWS, STAMPS, TRACE, Job

_START_S, _RUN_S = 120.0, 120.0
"""How long torch may take to start, and each run at most."""


def run_torch(
    runs: Sequence[Sequence[Orders]],
    folder: Path,
    *,
    executor: str,
    python: str,
    profile: bool,
    kept: Sequence[bool],
) -> list[Ran]:
    """Start a process for each rank, or one for all streams; let it go through all runs, and collect what each was.

    Args:
        runs: by run, the orders of every rank.
        folder: where the ranks write.
        executor: gloo, nccl or single-gpu.
        python: an interpreter that has torch and numpy.
        profile: let the torch profiler watch.
        kept: by run, whether its trace is wanted.

    Raises:
        OSError: a rank failed, or did not end in time.
    """
    ranks = len(runs[0])
    with tempfile.TemporaryDirectory(prefix="dprankdiag-") as meeting:
        rendezvous = Path(meeting, "rendezvous").as_uri()
        job = pack_job(runs, folder, executor=executor, rendezvous=rendezvous, profile=profile, kept=kept)
        path = Path(meeting, "job.json")
        path.write_text(json.dumps(asdict(job)), "utf-8")
        processes = 1 if executor == "single-gpu" else ranks
        limit_s = _START_S + _RUN_S * len(runs)
        _run_ranks([python, torch_start.__file__, str(path)], processes, Path(meeting), limit_s)
    return collect(folder, len(runs), ranks)


def pack_job(
    runs: Sequence[Sequence[Orders]],
    folder: Path,
    *,
    executor: str,
    rendezvous: str,
    profile: bool,
    kept: Sequence[bool],
) -> Job:
    """Write down what the ranks are to do."""
    packed = [[own.pack() for own in orders] for orders in runs]
    return Job(str(folder.resolve()), executor, rendezvous, profile, list(kept), packed)


def collect(folder: Path, runs: int, ranks: int) -> list[Ran]:
    """Read what the ranks wrote of each run."""
    return [_collect_run(folder / str(number), ranks) for number in range(runs)]


def _collect_run(folder: Path, ranks: int) -> Ran:
    told = [json.loads((folder / ROWS.format(rank=rank)).read_text("utf-8")) for rank in range(ranks)]
    traces = [folder / TRACE.format(rank=rank) for rank in range(ranks)]
    rows = tuple([(start, end, text, value) for start, end, text, value in it["rows"]] for it in told)
    stamps = folder / STAMPS
    return Ran(
        rows,
        tuple(it["pid"] for it in told),
        tuple(path for path in traces if path.exists()),
        tuple(json.loads(stamps.read_text("utf-8"))) if stamps.exists() else (),
    )


def _run_ranks(command: Sequence[str], ranks: int, folder: Path, limit_s: float) -> None:
    with ExitStack() as stack:
        errors = [stack.enter_context((folder / f"error-{rank}").open("w+")) for rank in range(ranks)]
        processes = []
        for rank in range(ranks):
            told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
            environment = os.environ | {name: str(value) for name, value in told.items()}
            process = subprocess.Popen(command, env=environment, stderr=errors[rank], stdin=subprocess.DEVNULL)
            stack.callback(_end, process)
            processes.append(process)
        end = time.monotonic() + limit_s
        while any(process.poll() is None for process in processes):
            if time.monotonic() > end:
                raise TimeoutError(f"the ranks did not end within {limit_s:.0f} s")
            if any(process.poll() for process in processes):
                break
            time.sleep(0.05)
        failed = [rank for rank, process in enumerate(processes) if process.poll()]
        if failed:
            errors[failed[0]].seek(0)
            last = errors[failed[0]].read().strip().splitlines()[-1:]
            raise ConnectionError(f"rank {failed[0]} failed: {''.join(last) or 'it said nothing'}")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
