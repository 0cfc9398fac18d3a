"""What one rank of a GPU run computes in a layer: sizes, buffers, and the launch of each part on the current stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

GROUPS, HEADS, WIDTH, HELD = 4, 64, 128, 8192
"""Attention: head groups, heads in each, values a token has, and tokens kept; what goes beyond is read again.

All ranks' tokens stay in the GPU's cache, so that streams of one GPU hold each other up as little as can be.
"""

DEPTH, EXPERTS, EXPERT_WIDTH, ROUTER_WIDTH, MOST_ROWS = 1024, 2, 1024, 256, 4096
"""Rows as they go through router and experts, and how many are kept."""

_TILES = {"BLOCK_ROWS": 32, "BLOCK_COLUMNS": 64, "BLOCK_DEPTH": 64}
"""Tiles of few rows, so that what experts take follows their rows."""

_TOKENS = 64
_ATTENTION_WARPS, _WARPS = 8, 4

TARGET_NS: Mapping[str, int] = {"attention": 1_500_000, "router": 400_000, "experts": 1_200_000, "transfer": 150_000}
"""How long each part of a healthy layer is to take: so much longer than its launch, of some 30 µs, that the hosts keep
ahead of the GPU though the threads of four ranks share one interpreter."""

MOST_ROUNDS = 4096
_TRIES, _MORE = 3, 8


class Timer(Protocol):
    """Measures what a call makes the GPU do, in nanoseconds."""

    def __call__(self, launch: Callable[[], None]) -> int:
        """Run a call and wait for the GPU."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """How often each part is done on every rank alike, so that it takes about as long as it should on this GPU."""

    attention: int
    router: int
    experts: int
    transfer: int = 1

    def slow(self, part: str, slowness: float) -> int:
        """Repeat a part for a rank that is slow."""
        rounds: int = getattr(self, part)
        return max(1, round(rounds * slowness))


def fit_programs(processors: int, ranks: int) -> int:
    """Share the processors of one GPU among ranks, with one left for each rank's collective: programs of each.

    Every collective must be on the GPU at the same time as all the work of those that it waits for, or it waits for
    ever.

    Raises:
        ValueError: too few processors.
    """
    programs = (processors - ranks) // ranks
    if programs < 1:
        raise ValueError(f"{ranks} ranks do not fit on a GPU of {processors} processors")
    return programs


def count_prompt_visits(prompt_tokens: int) -> int:
    """Count how many tokens those of a prompt attend to: each to all before it."""
    return prompt_tokens * (prompt_tokens + 1) // 2


class Layer:
    """The buffers and launches of one rank; every call returns at once.

    Args:
        device: where buffers are, as torch names it.
        programs: of each kernel.
        small: sizes that a processor can interpret, for tests without a GPU.
    """

    def __init__(self, device: str, programs: int, *, small: bool = False) -> None:
        import torch

        from dprankdiag.harness import gpu_kernels

        shrink = 8 if small else 1
        self._kernels, self.programs = gpu_kernels, programs
        self.heads, self.width, self.depth = HEADS // min(shrink, 4), WIDTH // shrink, DEPTH // shrink
        self.tokens, self.held, self.most_rows = _TOKENS // min(shrink, 4), HELD // shrink**2, MOST_ROWS // shrink
        self.tiles = {name: max(16, size // shrink) for name, size in _TILES.items()}
        self.router_width, expert_width = ROUTER_WIDTH // shrink, EXPERT_WIDTH // shrink
        kind = torch.float32 if small else torch.float16

        def draw(*shape: int) -> Any:
            return torch.randn(shape, device=device, dtype=kind) / shape[-1] ** 0.5

        self.query, self.cache = draw(GROUPS, self.heads, self.width), draw(self.held, self.width)
        self.attended = torch.zeros((programs, *self.query.shape), device=device, dtype=kind)
        self.rows = draw(self.most_rows, self.depth)
        self.gate, self.weights = draw(1, self.depth, self.router_width), draw(EXPERTS, self.depth, expert_width)
        self.scores = torch.zeros((self.most_rows, self.router_width), device=device, dtype=kind)
        self.chosen = torch.zeros(self.most_rows, device=device, dtype=torch.int32)
        self.made = torch.zeros((self.most_rows, expert_width), device=device, dtype=kind)

    def attend(self, held_tokens: int, prompt_tokens: int, rounds: int) -> None:
        """Attend to what the requests hold, and to a part of a prompt in a kernel of its own."""
        for kernel, tokens in (
            (self._kernels.decode_attention_kernel, held_tokens),
            (self._kernels.prefill_attention_kernel, count_prompt_visits(prompt_tokens)),
        ):
            if tokens:
                kernel[(self.programs,)](
                    self.query, self.cache, self.attended, tokens, self.held, rounds, GROUPS=GROUPS, HEADS=self.heads,
                    WIDTH=self.width, BLOCK=self.tokens, num_warps=_ATTENTION_WARPS,
                )  # fmt: skip

    def route(self, rows: int, rounds: int) -> None:
        """Score all rows."""
        self._multiply(self._kernels.router_gate_kernel, self.gate, self.scores, rows, rounds)

    def compute_experts(self, rows: float, rounds: int) -> None:
        """Run the experts over the rows routed to them."""
        self._multiply(self._kernels.fused_moe_kernel, self.weights, self.made, round(rows), rounds)

    def sample(self, requests: int) -> None:
        """Choose a token for each request."""
        self._kernels.argmax_sampling_kernel[(self.programs,)](
            self.scores, self.chosen, requests, self.most_rows, WIDTH=self.router_width, num_warps=_WARPS
        )

    def parts(self, *, held_tokens: int, rows: int, share: float) -> dict[str, Callable[[int], None]]:
        """Give calls that do so many rounds of each part as a healthy rank has it.

        Args:
            held_tokens: of the rank.
            rows: that all ranks bring.
            share: of them, at the rank's experts.
        """
        return {
            "attention": lambda rounds: self.attend(held_tokens, 0, rounds),
            "router": lambda rounds: self.route(rows, rounds),
            "experts": lambda rounds: self.compute_experts(share * rows, rounds),
        }

    def _multiply(self, kernel: Any, weights: Any, out: Any, count: int, rounds: int) -> None:
        experts, depth, width = weights.shape
        kernel[(self.programs,)](
            self.rows, weights, out, count, self.most_rows, rounds, EXPERTS=experts, DEPTH=depth, WIDTH=width,
            num_warps=_WARPS, **self.tiles,
        )  # fmt: skip


def fit_rounds(calls: Mapping[str, Callable[[int], None]], timer: Timer) -> Rounds:
    """Measure how long a round of each part takes, and how many of them take its target.

    Args:
        calls: by part, what does so many rounds of it on a healthy rank.
        timer: measures on the GPU.
    """
    return Rounds(**{part: _fit(timer, call, TARGET_NS[part]) for part, call in calls.items()})


def _fit(timer: Timer, call: Callable[[int], None], target_ns: int) -> int:
    call(1)  # compiled and loaded before it is measured
    few, many = (min(timer(partial(call, rounds)) for _ in range(_TRIES)) for rounds in (1, 1 + _MORE))
    return min(MOST_ROUNDS, max(1, round(_MORE * target_ns / max(many - few, 1))))
