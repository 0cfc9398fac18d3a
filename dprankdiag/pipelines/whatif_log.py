"""From a log of requests to a case that can be served again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from dprankdiag.errors import InputError
from dprankdiag.model.ledgers import Ledger
from dprankdiag.model.request_log import LogFacts, LoggedRequest, RequestLog
from dprankdiag.model.whatif import Origin, Unpriced
from dprankdiag.pipelines.whatif import Case, measure_observed
from dprankdiag.pipelines.whatif_windows import list_windows
from dprankdiag.readers.request_log import REQUEST_LOG
from dprankdiag.simulate.base import FloatArray, IntArray
from dprankdiag.simulate.cost_fit import fit_requests
from dprankdiag.simulate.cost_times import Observed
from dprankdiag.simulate.cost_windows import WINDOW_ERROR
from dprankdiag.simulate.replay import Site, list_traffic
from dprankdiag.units import format_ratio

DEALT_ERROR = 0.005
"""What counted time is off by where requests are dealt from counters, as a share: who was served when is not exact."""

MOST_CACHED = 0.1
"""Share of prompt tokens found in caches from where on it matters who computes which prompt."""

MOST_REQUESTS = 4_000
"""Requests that are served again; of a longer log the first ones."""


def make_log_case(log: RequestLog, ledgers: Sequence[Ledger] = (), kind: str = REQUEST_LOG) -> Case:
    """Fit the costs to a log and make what is served again of it.

    Args:
        ledgers: what the engines told of themselves meanwhile, by their number in the log.
        kind: what the requests were read from.

    Raises:
        InputError: the log does not say which engine or which ranks served.
    """
    requests = log.requests[:MOST_REQUESTS]
    site = _find_site(log, requests)
    traffic = list_traffic(_shift(requests), log.facts.block_tokens)
    unplaced = [request for request in requests if request.rank is None]
    windows = [
        window
        for worker, ledger in enumerate(ledgers)
        for window in list_windows(ledger, worker, requests[0].arrival_ns, site.lockstep)
    ]
    observed = replace(
        _observe(requests, traffic.logged),
        windows=tuple(windows),
        window_error_ratio=WINDOW_ERROR if kind == REQUEST_LOG else DEALT_ERROR,
    )
    fit = None if unplaced else fit_requests(site, traffic, observed)
    # vLLM has one policy inside an engine, and no flag for it.
    policy = log.facts.policy or ("score" if site.engine == "vllm" else None)
    gpus = log.facts.gpus or site.workers * site.ranks + site.decoders * site.decode_ranks
    origin = Origin(
        (log.path,),
        kind,
        site.engine,
        log.facts.version,
        None if policy is None else f"policy.{policy}",
        site.workers,
        site.ranks,
        gpus,
        len(requests),
        requests[-1].arrival_ns - requests[0].arrival_ns,
    )
    arrival, first, end = (_column(requests, name) for name in ("arrival_ns", "first_ns", "end_ns"))
    outputs = np.array([request.output_tokens for request in requests], float)
    return Case(
        origin,
        site,
        traffic,
        fit,
        _describe_observed(requests, bool(windows)),
        policy,
        measure_observed(arrival - arrival[0], first, end, outputs),
        has_prefixes=any(request.prefix is not None for request in requests),
        unpriced=tuple(_list_unpriced(requests, unplaced)),
        notes=tuple(_list_notes(log, requests)),
        gateway=log.facts.gateway,
        doubt=None if kind == REQUEST_LOG else _doubt_caches(requests),
    )


def _doubt_caches(requests: Sequence[LoggedRequest]) -> Unpriced | None:
    """Doubt counters where caches save much: which prompts begin alike decides what another policy computes."""
    cached = sum(request.cached_tokens or 0 for request in requests)
    share = cached / max(sum(request.prompt_tokens for request in requests), 1)
    if share < MOST_CACHED:
        return None
    reason = (
        f"{format_ratio(share)} of the prompts came from caches, and counters do not tell which prompts begin alike"
    )
    return Unpriced(
        "gain_ratio", reason, ("prefix",), "give a log of requests with ids of each prompt's leading blocks"
    )


def _describe_observed(requests: Sequence[LoggedRequest], counted: bool) -> str:
    times = "the times to the first and to the last token of each request"
    steps = "the steps that engines counted, and their time"
    if all(request.end_ns is None and request.first_ns is None for request in requests):
        return steps
    return f"{times}, and {steps}" if counted else times


def _find_site(log: RequestLog, requests: Sequence[LoggedRequest]) -> Site:
    facts: LogFacts = log.facts
    if facts.engine is None:
        mend = 'give --engine sglang or vllm, or a first line such as {"engine": "sglang", "ranks": 8}'
        raise InputError("does not say which engine served", where=log.path, mend=mend)
    apart = any(request.prefill_rank is not None for request in requests)
    seen_ranks = [request.prefill_rank if apart else request.rank for request in requests]
    ranks = facts.ranks or 1 + max((rank for rank in seen_ranks if rank is not None), default=-1)
    if ranks == 0:
        mend = "give --ranks N, or a column rank"
        raise InputError("does not say how many ranks served", where=log.path, mend=mend)
    front = [(request.prefill_worker or 0) if apart else request.worker for request in requests]
    workers = facts.workers or 1 + max(front)
    beyond = max((rank for rank in seen_ranks if rank is not None), default=0)
    if beyond >= ranks or max(front) >= workers:
        raise InputError(
            f"rank {beyond} or engine {max(front)} is not among {workers} engines of {ranks} ranks",
            where=log.path,
            mend="leave ranks and workers out of the first line, or mend them",
        )
    back = [request for request in requests if apart]
    return Site(
        facts.engine,
        workers,
        ranks,
        decoders=1 + max(request.worker for request in back) - workers if apart else 0,
        decode_ranks=1 + max(request.rank or 0 for request in back) if apart else 0,
        capacity_tokens=facts.capacity_tokens,
        chunk_tokens=facts.chunk_tokens,
        lockstep=facts.lockstep,
    )


def _shift(requests: Sequence[LoggedRequest]) -> list[LoggedRequest]:
    """Let the log begin at 0."""
    begin_ns = requests[0].arrival_ns
    return [replace(request, arrival_ns=request.arrival_ns - begin_ns) for request in requests]


def _observe(requests: Sequence[LoggedRequest], logged: IntArray) -> Observed:
    def mark(name: str) -> IntArray:
        told = [getattr(requests[place], name) for place in logged.tolist()]
        return np.array([-1 if one is None else one for one in told], np.int64)

    return Observed(mark("first_ns"), mark("end_ns"))


def _column(requests: Sequence[LoggedRequest], name: str) -> FloatArray:
    told = [getattr(request, name) for request in requests]
    return np.array([np.nan if one is None else one for one in told], float)


def _list_unpriced(requests: Sequence[LoggedRequest], unplaced: Sequence[LoggedRequest]) -> Iterator[Unpriced]:
    if unplaced:
        yield Unpriced(
            "gain_ratio",
            f"{len(unplaced)} of {len(requests)} requests do not say which rank served them",
            ("rank",),
            "log the DP rank of each request (SGLang: meta_info.dp_rank of the answer)",
        )
    if all(request.prefix is None for request in requests):
        yield Unpriced(
            "gateway.cache_aware",
            "nothing tells which prompts begin alike, so that no policy can be judged by what is cached",
            ("prefix",),
            "log ids of each prompt's leading blocks (a hash of all tokens until the end of the block)",
        )
    if all(request.pinned is None for request in requests):
        yield Unpriced(
            "policy+unpinned",
            "nothing tells which requests demanded their rank; all are taken to have been placed by a policy",
            ("pinned",),
            "log whether the client sent routed_dp_rank or X-data-parallel-rank",
        )


def _list_notes(log: RequestLog, requests: Sequence[LoggedRequest]) -> Iterator[str]:
    if len(log.requests) > len(requests):
        yield f"the first {len(requests):,} of {len(log.requests):,} requests were served again"
    for reason, count in log.skipped.items():
        yield f"{count} requests left out: {reason}"
    if log.facts.gpus is None:
        yield "one GPU a rank is assumed; say it with --gpus"
    if log.facts.version is None:
        yield "the engine's release is not told; its newest rules are taken"
    if log.facts.capacity_tokens is None:
        yield "the size of the KV pools is not told; they are taken to be never full"
    if any(request.cached_tokens for request in requests) and all(request.prefix is None for request in requests):
        yield "cached tokens are taken to be of one beginning that all prompts share"
