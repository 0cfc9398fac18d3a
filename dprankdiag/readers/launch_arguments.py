"""Tell from a program's command line how many ranks it starts, where that is plain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

# Source: sglang@v0.5.23 python/sglang/srt/server_args.py; vllm@v0.33.0 vllm/engine/arg_utils.py;
# pytorch torch/distributed/run.py; mpirun(1), srun(1).
_FLAGS = {
    "tp": ("--tp", "--tp-size", "--tensor-parallel-size", "-tp"),
    "dp": ("--dp", "--dp-size", "--data-parallel-size", "-dp"),
    "attn_dp": ("--attn-dp-size",),
    "pp": ("--pp", "--pp-size", "--pipeline-parallel-size", "-pp"),
    "local": ("--nproc-per-node", "--nproc_per_node"),
    "nodes": ("--nnodes",),
    "mpi": ("-np", "-n", "--np", "--ntasks"),
}
_MPI_LAUNCHERS = ("mpirun", "mpiexec", "srun", "orterun", "prun")


def expect_ranks(command: str, arguments: Sequence[str]) -> int | None:
    """Return the number of ranks that a command line announces, None where it does not say plainly.

    Args:
        command: the program started.
        arguments: its arguments in order.
    """
    sizes = _find_sizes(arguments)
    program = command.rsplit("/", 1)[-1]
    if "local" in sizes:
        return sizes["local"] * sizes.get("nodes", 1)
    if program in _MPI_LAUNCHERS:
        return sizes.get("mpi")
    text = " ".join((command, *arguments)).lower()
    if "attn_dp" in sizes or ("--enable-dp-attention" in arguments and "sglang" in text):
        # attention ranks share the tensor-parallel group, they do not multiply it
        return max(sizes.get("tp", 1), sizes.get("attn_dp", 1)) * sizes.get("pp", 1) if sizes else None
    parallel = {axis: sizes[axis] for axis in ("dp", "tp", "pp") if axis in sizes}
    if not parallel or (len(parallel) > 1 and "vllm" not in text and "sglang" not in text):
        return None
    return prod(parallel.values())


def _find_sizes(arguments: Sequence[str]) -> Mapping[str, int]:
    sizes: dict[str, int] = {}
    for position, argument in enumerate(arguments):
        flag, joined, value = argument.partition("=")
        if not joined:
            value = arguments[position + 1] if position + 1 < len(arguments) else ""
        for axis, flags in _FLAGS.items():
            if flag in flags and value.isdecimal() and 0 < int(value) < 1_000_000:
                sizes[axis] = int(value)
    return sizes
