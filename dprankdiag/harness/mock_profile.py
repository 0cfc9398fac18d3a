"""Let a mock's profiler write the steps of its world, under the names that engines give to their files.

An engine writes a trace once its last step is over. Here the world knows what is to come, so that the files are there
when the request that starts (with a number of steps) or stops profiling is answered; an engine that has no steps left
writes none.

Source: names of SGLang 0.5.23 (`profile_id-TP-DP-EP`) and vLLM 0.33.0 (`dp_pp_tp_dcp_ep_rank`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from dprankdiag.harness.served_engine import ServedEngine

WriteTrace = Callable[[int, int, Path], Sequence[Path]]
"""Writes so many steps from a step of the world on into a folder; returns the files, one a rank in order of ranks."""

Name = Callable[[int], str]
"""Gives the file name of a rank."""


class Profiler:
    """Starts and stops; writes what ran in between.

    Args:
        write: makes the traces.
        ranks: whose traces are kept; the others belong to other ports of the engine.
    """

    def __init__(self, write: WriteTrace, ranks: Sequence[int]) -> None:
        self._write, self._ranks = write, ranks
        self._running: tuple[int, Path, Name] | None = None

    @property
    def is_running(self) -> bool:
        """Tell whether it was started and not stopped."""
        return self._running is not None

    def start(self, step: int, folder: Path, name: Name) -> None:
        """Remember where to begin."""
        self._running = (step, folder, name)

    def stop(self, step: int) -> list[Path]:
        """Write what ran from the start up to a step, that step not included."""
        if self._running is None:
            raise ValueError("expected profiling to be under way")
        first, folder, name = self._running
        self._running = None
        return self.write(first, step - first, folder, name)

    def write(self, first: int, count: int, folder: Path, name: Name) -> list[Path]:
        """Write steps; none for none."""
        if count <= 0:
            return []
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".writing-") as passing:
            made = self._write(first, count, Path(passing))
            return [made[rank].rename(folder / name(rank)) for rank in self._ranks]


def name_sglang(engine: ServedEngine, profile_id: str, prefix: str = "") -> Name:
    """Give SGLang's names: a part for each dimension of more than one."""

    def name(rank: int) -> str:
        scheduler = rank * engine.attention_tp
        parts = [*([prefix] if prefix else []), profile_id, f"TP-{scheduler if engine.lockstep else 0}"]
        if engine.ranks > 1:
            parts.append(f"DP-{rank}")
            parts += [f"EP-{scheduler}"] if engine.lockstep else []
        return "-".join(parts) + ".trace.json.gz"

    return name


def name_vllm(engine: ServedEngine, at_ns: int) -> Name:
    """Give vLLM's names; those of a dense model's engines tell no data-parallel rank, but differ in their moments."""

    def name(rank: int) -> str:
        who = f"dp{rank}_pp0_tp0_dcp0_ep{rank}_rank0" if engine.lockstep else "rank0"
        return f"{who}.{at_ns + rank}.pt.trace.json.gz"

    return name
