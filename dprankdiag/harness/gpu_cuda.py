"""Streams of one CUDA GPU as the ranks of a deployment: their queues, and the collective that joins them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from dprankdiag.harness.gpu_layer import Layer, Rounds, fit_programs, fit_rounds
from dprankdiag.harness.gpu_streams import PATIENCE_S
from dprankdiag.harness.run_plan import Orders
from dprankdiag.harness.run_steps import GATHER

MOST_STREAMS = 32
"""Streams that a GPU serves without letting one wait for another that happens to share its queue.

Source: CUDA C++ programming guide, CUDA_DEVICE_MAX_CONNECTIONS (1 to 32).
"""

_SPIN_NS = 500
"""What a look at the counter takes at least: an atomic operation goes to the second-level cache and back."""

_COUNT = 1 << 19
"""Values that a rank brings to a collective, of two bytes each."""

_BLOCK, _WARPS = 8192, 16

_STAMPS = 4
"""Places for a collective's three stamps: Triton compiles a kernel anew for pointers that are not aligned to 16 bytes,
and compiled anew while another rank spins, it might never be loaded.

Source: Triton 3.9, specialisation of kernel arguments.
"""


def prepare_environment() -> None:
    """Set what CUDA reads before it starts.

    Streams must not share queues, and no kernel may be loaded while another one waits for it: loading can need the
    whole GPU to be idle.

    Source: CUDA C++ programming guide, lazy loading and concurrent execution.
    """
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = str(MOST_STREAMS)
    os.environ["CUDA_MODULE_LOADING"] = "EAGER"


def time_on_gpu(launch: Callable[[], None]) -> int:
    """Measure by events what a call makes the current stream do."""
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    launch()
    end.record()
    end.synchronize()
    elapsed_ms: float = start.elapsed_time(end)
    return round(elapsed_ms * 1e6)


class OneGpu:
    """The GPU that all ranks share.

    Args:
        ranks: streams.
        meetings: collectives of a rank in the longest run.

    Raises:
        ValueError: so many ranks do not fit.
    """

    def __init__(self, ranks: int, meetings: int) -> None:
        import torch

        from dprankdiag.harness import gpu_kernels

        if ranks >= MOST_STREAMS:
            raise ValueError(f"{ranks} ranks: streams of one GPU can be {MOST_STREAMS - 1} at most")
        self.kernels, self.ranks = gpu_kernels, ranks
        programs = fit_programs(torch.cuda.get_device_properties(0).multi_processor_count, ranks)
        self.arrived = torch.zeros(1, device="cuda", dtype=torch.int32)
        self.lost = torch.zeros(ranks, device="cuda", dtype=torch.int32)
        self.stamps = torch.zeros((ranks, meetings, _STAMPS), device="cuda", dtype=torch.int64)
        self.parts = torch.randn((2, ranks, _COUNT), device="cuda").to(torch.float16)
        self.queues = [CudaQueue(self, rank, Layer("cuda", programs)) for rank in range(ranks)]
        torch.cuda.synchronize()

    def warm_up(self, orders: Orders) -> Rounds:
        """Load every kernel while nobody waits for anybody, and find how often each part is to be done."""
        import torch

        for queue in self.queues:
            with torch.cuda.stream(queue.stream):
                queue.mark_rank()
                queue.layer.attend(1, 1, 1)
                queue.layer.route(1, 1)
                queue.layer.compute_experts(1, 1)
                queue.layer.sample(1)
                for operation in (GATHER, ""):
                    queue.launch_meeting(operation, 0, 1, target=0)
        torch.cuda.synchronize()
        rows = int(orders.requests[0]) * self.ranks
        first = self.queues[0]
        calls = first.layer.parts(held_tokens=int(orders.held_tokens[0]), rows=rows, share=1 / self.ranks)
        calls["transfer"] = lambda messages: first.launch_meeting(GATHER, 0, messages, target=0)
        rounds = fit_rounds(calls, time_on_gpu)
        self.reset()
        return rounds

    def reset(self) -> None:
        """Forget all meetings, while nobody is at one."""
        import torch

        torch.cuda.synchronize()
        for kept in (self.arrived, self.lost, self.stamps):
            kept.zero_()
        torch.cuda.synchronize()


class CudaQueue:
    """The stream of one rank."""

    def __init__(self, gpu: OneGpu, rank: int, layer: Layer) -> None:
        import torch

        self.gpu, self.rank, self.layer = gpu, rank, layer
        self.stream = torch.cuda.Stream()
        self._torch = torch
        self._got = torch.empty_like(gpu.parts[0])
        self._marked = torch.zeros(gpu.ranks, device="cuda", dtype=torch.int32)
        self._lost = torch.zeros(1, dtype=torch.int32).pin_memory()

    def mark_rank(self) -> None:
        """Launch the kernel that tells by its grid whose stream this is, and make it this thread's."""
        self._torch.cuda.set_stream(self.stream)
        self.gpu.kernels.mark_rank_kernel[(self.rank + 1,)](self._marked, num_warps=1)

    def attend(self, held_tokens: int, prompt_tokens: int, rounds: int) -> None:
        """Launch attention."""
        self.layer.attend(held_tokens, prompt_tokens, rounds)

    def route(self, rows: int, rounds: int) -> None:
        """Launch the router."""
        self.layer.route(rows, rounds)

    def compute_experts(self, rows: float, rounds: int) -> None:
        """Launch the experts."""
        self.layer.compute_experts(rows, rounds)

    def sample(self, requests: int) -> None:
        """Launch the sampler."""
        self.layer.sample(requests)

    def meet(self, operation: str, number: int, messages: int) -> None:
        """Launch a collective that all ranks have come to when each has come so often."""
        self.launch_meeting(operation, number, messages, target=self.gpu.ranks * (number + 1))

    def launch_meeting(self, operation: str, number: int, messages: int, *, target: int) -> None:
        """Launch a collective that goes on once the counter has reached its target."""
        gpu = self.gpu
        kernel = gpu.kernels.all_gather_spin_kernel if operation == GATHER else gpu.kernels.reduce_scatter_spin_kernel
        kernel[(1,)](
            gpu.arrived, gpu.lost, gpu.stamps[self.rank, number], gpu.parts[number % 2], self._got, self.rank,
            gpu.ranks, target, round(PATIENCE_S * 1e9 / _SPIN_NS), _COUNT, messages, STAMPED=True, BLOCK=_BLOCK,
            num_warps=_WARPS,
        )  # fmt: skip

    def pause(self, duration_ns: int) -> None:
        """Let the launching thread sleep."""
        time.sleep(duration_ns * 1e-9)

    def wait(self) -> bool:
        """Wait until all is done; False if a collective gave up."""
        self._lost.copy_(self.gpu.lost[self.rank : self.rank + 1], non_blocking=True)
        self.stream.synchronize()
        return not int(self._lost[0])

    def now_ns(self) -> int:
        """Tell the time of the launching thread."""
        return time.monotonic_ns()


def summarise_stamps(stamps: Any) -> list[dict[str, int]]:
    """Add up what the collectives themselves have stamped, by rank: what a profiler's trace must agree with.

    Args:
        stamps: `(ranks, meetings, 3 or more)` int64 array: when each came, was released, and had what it came for.
    """
    wait_ns, transfer_ns = (stamps[..., 1] - stamps[..., 0]).sum(axis=1), (stamps[..., 2] - stamps[..., 1]).sum(axis=1)
    last = stamps[..., 0].argmax(axis=0)
    return [
        {"rank": rank, "wait_ns": int(wait_ns[rank]), "transfer_ns": int(transfer_ns[rank]),
         "came_last": int((last == rank).sum()), "meetings": int(stamps.shape[1])}
        for rank in range(len(stamps))
    ]  # fmt: skip
