"""Serve logged requests again: by those who served them, or by whom another policy would choose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dprankdiag.model.ledgers import EngineName
from dprankdiag.model.request_log import LoggedRequest
from dprankdiag.simulate.base import Costs, IntArray, Load, Part, Request, Router
from dprankdiag.simulate.disaggregation import DecodeRules, PrefillRules
from dprankdiag.simulate.engine import serve
from dprankdiag.simulate.lockstep_vllm import VllmMeeting
from dprankdiag.simulate.ranks import Pace, RankRules
from dprankdiag.simulate.scheduler import SglangRules
from dprankdiag.simulate.vllm_scheduler import VllmRules
from dprankdiag.simulate.waves import WaveRules
from dprankdiag.simulate.workers import VLLM_PUBLISHING, Worker
from dprankdiag.simulate.world_tables import Outcome

ROOMY_TOKENS = 1 << 40
"""A pool that is never full, where nobody says how large it is."""

WHOLE_CACHE_TOKENS = 256
"""Length of the blocks that stand for cached tokens of which nobody says with whom they are shared."""


@dataclass(frozen=True, slots=True)
class Site:
    """Who serves.

    Attributes:
        workers, ranks: engines, and DP ranks of each; with decoders they compute prompts only.
        decoders, decode_ranks: engines that only decode, and ranks of each; 0 where there are none.
        capacity_tokens: KV tokens of a rank's pool; None where nobody says.
        chunk_tokens: prompt tokens a step at most; None for the engine's default.
        lockstep: the ranks of an engine step together.
    """

    engine: EngineName
    workers: int
    ranks: int
    decoders: int = 0
    decode_ranks: int = 0
    capacity_tokens: int | None = None
    chunk_tokens: int | None = None
    lockstep: bool = True

    def group_of(self, worker: int, rank: int) -> tuple[int, int]:
        """Name the group of a rank: its worker and first rank."""
        return worker, 0 if self.lockstep else rank


@dataclass(frozen=True, slots=True, eq=False)
class Traffic:
    """Requests to be served again, numbered in the order in which they are listed.

    Attributes:
        requests: as the engine takes them; those that demanded a rank still do.
        logged: the place in the log of each, `(n,)`.
        worker, rank: who served each, `(n,)`; -1 where nobody says.
        prefill_worker, prefill_rank: who computed its prompt, where another engine did.
    """

    requests: tuple[Request, ...]
    logged: IntArray
    worker: IntArray
    rank: IntArray
    prefill_worker: IntArray
    prefill_rank: IntArray

    @property
    def is_placed(self) -> bool:
        """Tell whether the log says of every request who served it."""
        return bool((self.rank >= 0).all())

    @property
    def pins(self) -> int:
        """Count the requests that demanded a rank."""
        return sum(request.pinned_rank is not None for request in self.requests)


def list_traffic(logged: Sequence[LoggedRequest], block_tokens: int) -> Traffic:
    """Make requests of logged ones.

    A request of a session that came after the answer before follows that answer, after as long a pause. Cached tokens
    of which no prefix tells are taken to be of one beginning that all prompts share.
    """
    order, follows, thinks, starts = _find_followers(logged)
    numbers: dict[int | None, int | None] = {place: number for number, place in enumerate(order)}
    requests = [
        Request(
            number,
            starts[place],
            _split(logged[place], place, block_tokens),
            max(logged[place].output_tokens, 1),
            pinned_rank=logged[place].rank if logged[place].pinned else None,
            bootstrap_room=logged[place].room,
            follows=numbers.get(follows[place]),
            think_ns=thinks[place],
        )
        for number, place in enumerate(order)
    ]
    columns = [
        [logged[place].worker for place in order],
        [_mark(logged[place].rank) for place in order],
        [_mark(logged[place].prefill_worker) for place in order],
        [_mark(logged[place].prefill_rank) for place in order],
    ]
    return Traffic(tuple(requests), np.array(order, np.int64), *(np.array(column, np.int64) for column in columns))


def _mark(number: int | None) -> int:
    return -1 if number is None else number


def _find_followers(
    logged: Sequence[LoggedRequest],
) -> tuple[list[int], list[int | None], list[int], list[int]]:
    """Find what each request follows, its pause, and its earliest arrival; and an order by that."""
    follows: list[int | None] = [None] * len(logged)
    thinks, starts = [0] * len(logged), [request.arrival_ns for request in logged]
    before: dict[str, int] = {}
    for place, request in enumerate(logged):
        if request.session is None:
            continue
        last = before.get(request.session)
        if last is not None and logged[last].end_ns is not None:
            pause_ns = request.arrival_ns - logged[last].arrival_ns - (logged[last].end_ns or 0)
            if pause_ns >= 0:
                follows[place], thinks[place], starts[place] = last, pause_ns, starts[last]
        before[request.session] = place
    return sorted(range(len(logged)), key=lambda place: (starts[place], place)), follows, thinks, starts


def _split(request: LoggedRequest, place: int, block_tokens: int) -> tuple[Part, ...]:
    """Cut a prompt into blocks that others may share and a rest of its own."""
    ids: Sequence[int | str]
    if request.prefix is not None:
        ids, size = request.prefix, block_tokens
    else:
        size = WHOLE_CACHE_TOKENS
        ids = range((request.cached_tokens or 0) // size)
    parts, left = [], request.prompt_tokens
    for block in ids:
        tokens = min(size, left)
        if tokens:
            # Of two prompts that end within one block, only equal lengths are known to hold equal tokens.
            parts.append(Part(_number_block(block, tokens), tokens))
        left -= tokens
    if left > 0 or not parts:
        parts.append(Part(-place - 1, max(left, 1)))
    return tuple(parts)


def _number_block(block: int | str, tokens: int) -> int:
    """Number a block, alike in every process (the hash of a text is not)."""
    if isinstance(block, str):
        block = int.from_bytes(block.encode()[:64], "big")
    return (block * 1_048_583 + tokens) * 2 + 1


class FollowRecord:
    """Place each request where it was served; a `Router`.

    Args:
        places: by the request's number.
    """

    def __init__(self, places: IntArray, choices: int) -> None:
        self._places = places
        self._choices = choices

    def observe(self, now_ns: int, loads: Sequence[Load | None]) -> None:
        """Look at nothing."""

    def place(self, now_ns: int, request: Request) -> int:
        """Give the place it was served at."""
        return int(self._places[request.number])

    def release(self, now_ns: int, request: Request, rank: int) -> None:
        """Count nothing."""

    def believed(self) -> list[Load | None]:
        """Believe nothing."""
        return [None] * self._choices


MakeRouter = Callable[[int], Router]
"""Makes a router of so many choices."""


@dataclass(frozen=True, slots=True)
class Choosers:
    """Who chooses; what is None follows the record.

    Attributes:
        rank: among the ranks of an engine (those that compute prompts, where others decode).
        gateway: among several engines.
        decode_rank: among the ranks of an engine that only decodes.
        lifts_pins: ranks that clients demanded are not heeded.
    """

    rank: MakeRouter | None = None
    gateway: MakeRouter | None = None
    decode_rank: MakeRouter | None = None
    lifts_pins: bool = False


AS_RECORDED = Choosers()


def serve_again(
    site: Site,
    traffic: Traffic,
    choosers: Choosers,
    costs: Costs,
    back_costs: Costs | None = None,
    pace: Pace | None = None,
) -> Outcome:
    """Serve all requests with the choosers given.

    Args:
        back_costs: of engines that only decode; `costs` if not given.
        pace: of all engines but those; see `Worker`.
    """
    apart = site.decoders > 0
    own_rank, own_worker = (traffic.prefill_rank, traffic.prefill_worker) if apart else (traffic.rank, traffic.worker)
    requests = traffic.requests
    if choosers.lifts_pins or choosers is AS_RECORDED:
        requests = tuple(replace(request, pinned_rank=None) for request in requests)

    def choose(make: MakeRouter | None, places: IntArray, choices: int) -> Router:
        return FollowRecord(places, choices) if make is None else make(choices)

    role = "front" if apart else "both"
    workers = [
        replace(_make_worker(site, site.ranks, choose(choosers.rank, own_rank, site.ranks), costs, role), pace=pace)
        for _ in range(site.workers)
    ]
    gateway = choose(choosers.gateway, own_worker, site.workers) if site.workers > 1 else None
    decoders = [
        _make_worker(
            site,
            site.decode_ranks,
            choose(choosers.decode_rank, traffic.rank, site.decode_ranks),
            back_costs or costs,
            "back",
        )
        for _ in range(site.decoders)
    ]
    back = FollowRecord(traffic.worker - site.workers, site.decoders) if site.decoders > 1 else None
    return serve(requests, workers, gateway, decoders, back)


def _make_worker(site: Site, ranks: int, router: Router, costs: Costs, role: str) -> Worker:
    capacity = site.capacity_tokens or ROOMY_TOKENS
    if site.engine == "vllm":
        rules = (
            VllmRules(capacity) if site.chunk_tokens is None else VllmRules(capacity, budget_tokens=site.chunk_tokens)
        )
        waves = WaveRules() if site.lockstep else None
        return Worker((rules,) * ranks, router, costs, VllmMeeting(), site.lockstep, VLLM_PUBLISHING, waves)
    base = SglangRules(capacity)
    if site.chunk_tokens is not None:
        base = replace(base, chunk_tokens=site.chunk_tokens)
    chosen: RankRules = base
    if role != "both":
        chosen = PrefillRules(base) if role == "front" else DecodeRules(base)
    return Worker((chosen,) * ranks, router, costs, lockstep=site.lockstep)
