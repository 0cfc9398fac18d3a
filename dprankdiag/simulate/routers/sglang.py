"""Route as SGLang's data-parallel controller does: a budget of requests and tokens, refreshed from load snapshots.

The budget spans every rank, also one that is not active; round robin goes over active ranks only, and rooms over all
slots. A rank is overwritten when its snapshot is another than the last one read, and then what was sent to it since
the rank wrote that snapshot is forgotten, whether or not the rank had received it. Output length plays no role.

Source: sglang 0.5.23, `managers/data_parallel_controller.py`, as run for tests/payloads/sglang-0.5.23/dp-budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from dprankdiag.errors import UsageError
from dprankdiag.simulate.base import Load, Request
from dprankdiag.simulate.decisions import Decision, DecisionLog, Measure, Reason

Policy = Literal["auto", "round_robin", "follow_bootstrap_room", "total_requests", "total_tokens"]
Role = Literal["unified", "prefill", "decode"]

REFRESH_NS = 20_000_000
PUBLISH_STEPS = 15
"""Batches between two snapshots of a busy rank (`--load-snapshot-publish-interval`)."""


@dataclass(frozen=True, slots=True)
class Budget:
    """How a release keeps its budget.

    Attributes:
        refresh_ns: snapshots are read before a dispatch, at most this often.
        skips_equal_stamps: a snapshot that was read before changes nothing.
        counts_requests: a pick adds one request to the rank.
        counts_tokens: a pick adds the prompt's length to the rank.
    """

    refresh_ns: int = REFRESH_NS
    skips_equal_stamps: bool = True
    counts_requests: bool = True
    counts_tokens: bool = True


SINCE_0_5_13 = Budget()
SINCE_0_5_11 = Budget(refresh_ns=0)
"""Reports are pushed and taken when they come: each is read once, and there is no throttle."""
SINCE_0_5_8 = Budget(refresh_ns=0, counts_tokens=False)
"""As 0.5.11, but the length of a prompt is not counted: by tokens a burst goes to one rank until the next report."""
REFRESH_EVERY_DISPATCH = Budget(refresh_ns=0, skips_equal_stamps=False)
"""No release: what the throttle and the comparison of stamps are there to prevent. A pick is forgotten at the next."""


def worst_age_ns(publish_ns: int, budget: Budget = SINCE_0_5_13, *, burst_ns: int = 0) -> int:
    """Give the greatest age of a belief about a rank that publishes every `publish_ns`, ns.

    A snapshot may be read just before its successor is written, and is believed until the first dispatch after the
    throttle has passed. A rank that publishes every 15 steps of 30 ms is believed for up to 470 ms. The requests of one
    message are placed without reading again, which adds the time that placing them takes.
    """
    return publish_ns + budget.refresh_ns + burst_ns


def count_requests(load: Load) -> tuple[float, ...]:
    """Give what `total_requests` compares."""
    return (load.running + load.waiting,)


def count_tokens(load: Load) -> tuple[float, ...]:
    """Give what `total_tokens` compares."""
    return load.total_tokens, load.running + load.waiting


MEASURES: dict[str, Measure] = {"total_requests": count_requests, "total_tokens": count_tokens}


class SglangController:
    """Choose ranks as the controller of one engine does; a `Router`.

    Attributes:
        policy: as resolved, never `auto`.
        budget: how it keeps its ledger.
        requests, tokens: the budget, `n_ranks` numbers each.
    """

    def __init__(
        self,
        n_ranks: int,
        policy: Policy = "auto",
        *,
        role: Role = "unified",
        budget: Budget = SINCE_0_5_13,
        active: Sequence[bool] | None = None,
        keep: bool = True,
    ) -> None:
        self.policy = resolve_policy(policy, role)
        self.requests = [0] * n_ranks
        self.tokens = [0] * n_ranks
        self._log = DecisionLog(keep)
        self.budget = budget
        self._active = [rank for rank in range(n_ranks) if active is None or active[rank]]
        self._looks = self.policy in MEASURES
        self._board: Sequence[Load | None] = [None] * n_ranks
        self._observed_ns = 0
        self._read: list[Load | None] = [None] * n_ranks
        self._stamps: tuple[int | None, ...] = (None,) * n_ranks
        self._refreshed_ns: int | None = None
        self._turn = 0
        self._probe_turn = 0

    @property
    def decisions(self) -> list[Decision]:
        """Give the decisions in order; none are there unless they are kept."""
        return self._log.read()

    @property
    def measure(self) -> Measure | None:
        """Give what the policy compares; none where it looks at no load."""
        return MEASURES.get(self.policy)

    def observe(self, now_ns: int, loads: Sequence[Load | None]) -> None:
        """Take the board of snapshots as it hangs now; it is read at a dispatch."""
        self._board = loads
        self._observed_ns = now_ns

    def place(self, now_ns: int, request: Request) -> int:
        """Choose the rank of a request and count it.

        Raises:
            UsageError: the request demands a rank that does not exist or is not active, brings no room where rooms
                decide, or there is no active rank.
        """
        looks = self._looks
        if looks and self._is_due(now_ns):
            self._read, self.requests, self.tokens = self._read_board()
            self._stamps = tuple([None if read is None else read.stamp_ns for read in self._read])
            self._refreshed_ns = now_ns
        reason: Reason = "pinned" if request.pinned_rank is not None else "probe" if request.probe else "policy"
        rank = self._choose(request, reason)
        if self._log.keeps:
            requests, tokens = (tuple(self.requests), tuple(self.tokens)) if looks else (None, None)
            self._log.note(now_ns, request, rank, reason, requests, tokens, self._stamps)
        if looks and reason == "policy":
            self._count(rank, request)
        return rank

    def release(self, now_ns: int, request: Request, rank: int) -> None:
        """Do nothing: the controller learns of ended requests from the snapshots."""

    def believed(self) -> list[Load | None]:
        """Give what a request would be placed by if one came when the ranks were last observed.

        Picks that are counted appear as waiting requests. None for a rank of which nothing was read, and so for all
        where the policy looks at no load.
        """
        ledger = self._read, self.requests, self.tokens
        if self._looks and self._is_due(self._observed_ns):
            ledger = self._read_board()
        return [
            None if read is None else replace(read, waiting=requests - read.running, total_tokens=tokens)
            for read, requests, tokens in zip(*ledger, strict=True)
        ]

    def _is_due(self, now_ns: int) -> bool:
        return self._refreshed_ns is None or now_ns - self._refreshed_ns >= self.budget.refresh_ns

    def _read_board(self) -> tuple[list[Load | None], list[int], list[int]]:
        """Give what is known of each rank, its requests and its tokens, as they are after reading the board."""
        reads, requests, tokens = list(self._read), list(self.requests), list(self.tokens)
        for rank, load in enumerate(self._board):
            if load is None:
                continue
            read = reads[rank]
            if self.budget.skips_equal_stamps and read is not None and load.stamp_ns == read.stamp_ns:
                continue
            reads[rank] = load
            requests[rank] = load.running + load.waiting
            tokens[rank] = load.total_tokens
        return reads, requests, tokens

    def _choose(self, request: Request, reason: Reason) -> int:
        if request.pinned_rank is not None:
            return self._take_pinned(request.pinned_rank)
        if reason == "probe":
            return self._take_probe_turn()
        if self.policy == "total_requests":
            return self.requests.index(min(self.requests))
        if self.policy == "total_tokens":
            return self._find_fewest_tokens()
        if self.policy == "round_robin":
            return self._take_turn()
        return take_room(request, len(self.requests))

    def _find_fewest_tokens(self) -> int:
        least = min(self.tokens)
        if self.tokens.count(least) == 1:
            return self.tokens.index(least)
        equal = [rank for rank, tokens in enumerate(self.tokens) if tokens == least]
        return min(equal, key=self.requests.__getitem__)

    def _take_turn(self) -> int:
        self._need_active()
        rank = self._active[self._turn]
        self._turn = (self._turn + 1) % len(self._active)
        return rank

    def _take_probe_turn(self) -> int:
        self._need_active()
        rank = self._active[self._probe_turn]
        self._probe_turn = (self._probe_turn + 1) % len(self._active)
        return rank

    def _need_active(self) -> None:
        if not self._active:
            raise UsageError("a request came while no rank is active")

    def _take_pinned(self, rank: int) -> int:
        if rank not in self._active:
            raise UsageError(f"rank {rank} is demanded, which is none of the active ranks {self._active}")
        return rank

    def _count(self, rank: int, request: Request) -> None:
        if self.budget.counts_requests:
            self.requests[rank] += 1
        if self.budget.counts_tokens and self.policy == "total_tokens":
            self.tokens[rank] += request.prompt_tokens


def resolve_policy(policy: Policy, role: Role) -> Policy:
    """Give the policy that `auto` stands for: rooms for prefill, else round robin.

    Source: sglang 0.5.23, `server_args.py` (`load_balance_method`).
    """
    if policy != "auto":
        return policy
    return "follow_bootstrap_room" if role == "prefill" else "round_robin"


def take_room(request: Request, n_slots: int) -> int:
    """Give the slot of a request's room: its number modulo all slots, whoever serves them.

    A slot that is not active is not skipped: the request goes where nobody answers.

    Raises:
        UsageError: it has no room.
    """
    if request.bootstrap_room is None:
        raise UsageError(f"request {request.number} has no room; send it through the gateway of prefill and decode")
    return request.bootstrap_room % n_slots
