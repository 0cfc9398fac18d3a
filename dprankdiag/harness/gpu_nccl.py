"""A rank with a GPU of its own, which meets the others by NCCL, and their hosts by gloo."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import astuple, dataclass

import numpy as np

from dprankdiag.harness.cpu_collectives import Gloo
from dprankdiag.harness.gpu_cuda import time_on_gpu
from dprankdiag.harness.gpu_layer import Layer, Rounds, Timer, fit_rounds
from dprankdiag.harness.run_plan import Orders

BACKENDS = "cpu:gloo,cuda:nccl"

_COLLECTIVES = (("all_gather_single", "all_gather_into_tensor"), ("reduce_scatter_single", "reduce_scatter_tensor"))
"""By their newer names (torch 2.13) and those before."""

_COUNT = 1 << 21
"""Values that a rank brings to a collective in one message, of two bytes each."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """Where a rank computes: as torch names it, the work of a layer there, what waits for it and what times it."""

    device: str
    layer: Layer
    wait: Callable[[], None]
    timer: Timer


def find_gpu() -> Gpu:
    """Take the GPU of this process, the whole of it."""
    import torch

    processors = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
    return Gpu("cuda", Layer("cuda", processors), torch.cuda.synchronize, time_on_gpu)


class NcclDevice:
    """A whole GPU, and NCCL's collectives among those of all ranks.

    Args:
        group: of all ranks, over both backends.
        ranks: how many.
        most_messages: that a collective moves in any run.
        gpu: where it computes; None for the GPU of this process.
    """

    def __init__(self, group: Gloo, ranks: int, most_messages: int, gpu: Gpu | None = None) -> None:
        import torch
        import torch.distributed as distributed

        self._gpu, self._group, self._ranks = gpu or find_gpu(), group, ranks
        self._gather, self._scatter = (
            getattr(distributed, names[0], None) or getattr(distributed, names[1]) for names in _COLLECTIVES
        )
        self.layer, device = self._gpu.layer, self._gpu.device
        self._rounds, self._most = Rounds(1, 1, 1), most_messages
        most = _COUNT * most_messages
        self._own = torch.randn(most, device=device).to(torch.float16)
        self._all = torch.empty(most * ranks, device=device, dtype=torch.float16)
        self._back = torch.empty_like(self._own)

    def warm_up(self, orders: Orders) -> None:
        """Load every kernel, open NCCL's connections, and agree with all ranks how often each part is to be done."""
        self.layer.attend(1, 1, 1)
        self.layer.sample(1)
        for messages in (1, self._most):
            self.gather(messages)
            self.scatter(messages)
        self._gpu.wait()
        rows = int(orders.requests[0]) * self._ranks
        calls = self.layer.parts(held_tokens=int(orders.held_tokens[0]), rows=rows, share=1 / self._ranks)
        found = fit_rounds(calls, self._gpu.timer)
        first = self._group.all_gather(np.array(astuple(found), float))[0]
        self._rounds = Rounds(*(int(rounds) for rounds in first))

    def announce(self, rows: int) -> int:
        """Gather the rows of all ranks, on the hosts."""
        return int(self._group.all_gather(np.array([rows], float)).sum())

    def dally(self, duration_ns: int) -> None:
        """Sleep."""
        if duration_ns > 0:
            time.sleep(duration_ns * 1e-9)

    def attend(self, requests: int, held_tokens: int, prompt_tokens: int, slowness: float) -> None:
        """Launch attention."""
        self.layer.attend(held_tokens, prompt_tokens, self._rounds.slow("attention", slowness))

    def gather(self, messages: int) -> None:
        """Launch an all-gather of so many messages at once."""
        count = _COUNT * messages
        self._gather(self._all[: count * self._ranks], self._own[:count])

    def route(self, rows: int, slowness: float) -> None:
        """Launch the router."""
        self.layer.route(rows, self._rounds.slow("router", slowness))

    def compute_experts(self, rows: float, slowness: float) -> None:
        """Launch the experts."""
        self.layer.compute_experts(rows, self._rounds.slow("experts", slowness))

    def scatter(self, messages: int) -> None:
        """Launch a reduce-scatter of so many messages at once."""
        count = _COUNT * messages
        self._scatter(self._back[:count], self._all[: count * self._ranks])

    def finish(self, requests: int) -> None:
        """Sample, and wait for the GPU."""
        self.layer.sample(requests)
        self._gpu.wait()
