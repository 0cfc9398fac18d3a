"""From what engines told of their load over time to requests that can be served again.

Counters tell how many requests came to each rank between two looks, and how many prompt tokens and generated tokens
they had together; not which had how many. Two readings bound the truth: all of one look alike, or one with nearly
everything. Requests of a rank are taken to end in the order in which they came, which keeps their sums.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dprankdiag.errors import InputError
from dprankdiag.model.ledgers import FloatArray, Ledger
from dprankdiag.model.request_log import LogFacts, LoggedRequest, RequestLog
from dprankdiag.units import NS_PER_S

Reading = Literal["alike", "one_long"]
"""How the tokens of requests that came between two looks are dealt to them."""

ARRIVALS = ("admitted_requests", "first_tokens")
"""Counters of requests that came, the first that is told is taken."""


def make_ledger_log(ledgers: Sequence[Ledger], reading: Reading, path: str) -> RequestLog:
    """Make the log of requests that the counters of engines are the sums of; the engines behind one gateway.

    Raises:
        InputError: counters tell of no requests, or engines hand requests on to each other.
    """
    if not ledgers:
        raise InputError("tells of no engine", where=path, mend="record /metrics of the engine with dprankdiag record")
    if any(ledger.role in ("prefill", "decode") for ledger in ledgers):
        what = "counters of engines that hand requests on do not tell which request is which"
        raise InputError(what, where=path, mend="give a request log with prefill_rank and rank")
    if len({(ledger.engine, len(ledger.ranks)) for ledger in ledgers}) > 1:
        raise InputError("holds engines that are not alike", where=path, mend="give those of one deployment")
    dealt = [deal_requests(ledger, worker, reading) for worker, ledger in enumerate(ledgers)]
    requests = sorted((one for each in dealt for one in each), key=lambda one: one.arrival_ns)
    if not requests:
        raise InputError("no request came while it was recorded", where=path, mend="record while requests come")
    return RequestLog(path, read_log_facts(ledgers), tuple(requests), {})


def read_log_facts(ledgers: Sequence[Ledger]) -> LogFacts:
    """Read what the engines of one deployment tell of themselves; what they do not tell is None."""
    first = ledgers[0]
    policy = first.facts.get("load_balance_method")
    chunk = first.facts.get("chunked_prefill_size")
    return LogFacts(
        engine=first.engine,
        version=None if first.facts.get("version") is None else str(first.facts["version"]),
        policy=None if policy is None else "round_robin" if policy == "auto" else str(policy),
        workers=len(ledgers),
        ranks=len(first.ranks),
        gpus=_count_gpus(ledgers),
        capacity_tokens=_find_capacity(first),
        chunk_tokens=chunk if isinstance(chunk, int) and not isinstance(chunk, bool) and chunk > 0 else None,
    )


def _count_gpus(ledgers: Sequence[Ledger]) -> int | None:
    """Count the GPUs of all engines, where they say how many are behind a rank."""
    told = [ledger.facts.get("num_accelerators") for ledger in ledgers]
    counts = [count for count in told if isinstance(count, int) and not isinstance(count, bool)]
    if len(counts) < len(ledgers):
        return None
    return sum(count * len(ledger.ranks) for count, ledger in zip(counts, ledgers, strict=True))


def _find_capacity(ledger: Ledger) -> int | None:
    for name in ("load_capacity_tokens", "capacity_tokens"):
        if name in ledger.values:
            told = ledger.values[name][np.isfinite(ledger.values[name])]
            if len(told) and np.median(told) > 0:
                return int(np.median(told))
    return None


@dataclass(slots=True)
class _Open:
    """A request that has not ended yet."""

    arrival_ns: int
    prompt: float
    cached: float
    generated: float


@dataclass(frozen=True, slots=True)
class _Ahead:
    """Prompt tokens that were counted before the request they are of, which came when the first of them were."""

    came_ns: int
    prompt: float
    cached: float


def _add(ahead: _Ahead | None, now_ns: int, prompt: float, cached: float) -> _Ahead:
    if ahead is None:
        return _Ahead(now_ns, prompt, cached)
    return _Ahead(ahead.came_ns, ahead.prompt + prompt, ahead.cached + cached)


def deal_requests(ledger: Ledger, worker: int, reading: Reading) -> list[LoggedRequest]:
    """Make the requests that an engine's counters are the sums of, in order of arrival.

    Raises:
        InputError: nothing counts arrivals, prompt tokens or generated tokens, or no moments are told.
    """
    name = next((one for one in ARRIVALS if one in ledger.values), None)
    lacked = [one for one in ("prompt_tokens", "decode_tokens") if one not in ledger.values]
    if name is None:
        lacked.append(ARRIVALS[0])
    if ledger.seconds is None or ledger.n_moments < 2:
        lacked = ["two moments"]
    if name is None or lacked:
        mend = "record /metrics of the engine (SGLang: --enable-metrics) for longer than one look"
        raise InputError(f"tells of no requests: {', '.join(lacked)} not told", where=ledger.name, mend=mend)
    least = _find_least(ledger, name)
    requests: list[LoggedRequest] = []
    for place, rank in enumerate(ledger.ranks):
        requests += _deal_rank(ledger, name, place, rank, worker, reading, least)
    return sorted(requests, key=lambda request: (request.arrival_ns, request.rank or 0))


def _grow(ledger: Ledger, name: str) -> FloatArray:
    """Give the growth of a counter between looks, `(moments - 1, ranks)`; 0 where it fell or nobody tells.

    A counter that is not shown yet, by a rank whose page shows others, has counted nothing.
    """
    if name not in ledger.values:
        return np.zeros((ledger.n_moments - 1, len(ledger.ranks)))
    values = ledger.values[name]
    told = np.isfinite(values)
    page = [field for field in ledger.values if not field.startswith(("load_", "pass_"))]
    shown = np.any([np.isfinite(ledger.values[field]) for field in page], axis=0)
    unseen = ~np.maximum.accumulate(told, axis=0) & shown
    grown = np.diff(np.where(unseen, 0.0, values), axis=0)
    return np.where(np.isfinite(grown), np.maximum(grown, 0.0), 0.0)


def _find_least(ledger: Ledger, name: str) -> float:
    """Find the shortest prompt that there is reason to believe in: the least mean of a rank between two looks."""
    came, prompts = _grow(ledger, name), _grow(ledger, "prompt_tokens")
    means = prompts[came > 0] / came[came > 0]
    return float(np.quantile(means[means > 0], 0.1)) if (means > 0).any() else 1.0


def _deal_rank(
    ledger: Ledger, name: str, place: int, rank: int, worker: int, reading: Reading, least: float
) -> Iterator[LoggedRequest]:
    """Follow one rank from look to look."""
    seconds = ledger.seconds if ledger.seconds is not None else np.zeros(ledger.n_moments)
    moments = (ledger.start_ns or 0) + np.rint(seconds * NS_PER_S).astype(np.int64)
    counters = (name, "prompt_tokens", "decode_tokens", "cached_tokens")
    came, prompts, tokens, cached = (_grow(ledger, one)[:, place] for one in counters)
    inside = _count_inside(ledger, place)
    running = _levels(ledger, ("load_running_requests", "running_requests"), place)
    waited_ns = _tell_waits(ledger, name, place)
    # vLLM counts the first token of a request among those that it generates; SGLang does not.
    first = 0.0 if ledger.engine == "vllm" else 1.0
    open_requests: list[_Open] = []
    ahead: _Ahead | None = None
    for look in range(len(came)):
        begin, end = int(moments[look]), int(moments[look + 1])
        new = round(float(came[look]))
        prompt, found = float(prompts[look]), float(cached[look])
        if new:
            if ahead is not None:
                prompt, found = prompt + ahead.prompt, found + ahead.cached
            waited = int(waited_ns[look])
            times = [] if ahead is None else [ahead.came_ns]
            times += _space(new - len(times), begin, end, waited)
            ahead = None
            open_requests += _open(times, prompt, found, first, reading, least)
        elif prompt > 0 and inside[look + 1] > len(open_requests):
            # A long prompt is counted chunk by chunk, and its request not before the last chunk.
            ahead = _add(ahead, (begin + end) // 2, prompt, found)
        elif prompt > 0 and open_requests:
            open_requests[-1].prompt += prompt
            open_requests[-1].cached += found
        elif prompt > 0:
            ahead = _add(ahead, (begin + end) // 2, prompt, found)
        _generate(open_requests, float(tokens[look]), max(running[look], running[look + 1]))
        while len(open_requests) > max(inside[look + 1], 0):
            yield _close(open_requests.pop(0), worker, rank)
    for one in open_requests:
        yield _close(one, worker, rank)


def _tell_waits(ledger: Ledger, name: str, place: int) -> FloatArray:
    """Tell how long before they were counted requests came on the mean, `(moments - 1,)` ns."""
    count, total_s = _grow(ledger, name)[:, place], _grow(ledger, "first_token_s")[:, place]
    if name != "first_tokens":
        return np.zeros(len(count))
    waited: FloatArray = np.divide(total_s, count, out=np.zeros(len(count)), where=count > 0) * NS_PER_S
    return waited


def _count_inside(ledger: Ledger, place: int) -> list[int]:
    running = _levels(ledger, ("load_running_requests", "running_requests"), place)
    waiting = _levels(ledger, ("load_waiting_requests", "waiting_requests"), place)
    return [round(ran + waited) for ran, waited in zip(running, waiting, strict=True)]


def _levels(ledger: Ledger, names: Sequence[str], place: int) -> list[float]:
    values = next((ledger.values[name] for name in names if name in ledger.values), None)
    if values is None:
        raise InputError(f"does not tell {names[-1]}", where=ledger.name, mend="record /metrics or /v1/loads")
    return [float(value) for value in np.nan_to_num(values[:, place])]


def _space(new: int, begin_ns: int, end_ns: int, waited_ns: int) -> list[int]:
    """Space requests that were counted between two looks evenly, as long before as they waited for being counted."""
    return [begin_ns + (end_ns - begin_ns) * (2 * number + 1) // (2 * new) - waited_ns for number in range(new)]


def _open(
    times: Sequence[int], prompt: float, cached: float, first: float, reading: Reading, least: float
) -> Iterator[_Open]:
    """Begin requests that came between two looks.

    Args:
        first: tokens that each has generated beside those that are counted.
    """
    new = len(times)
    shares = np.full(new, prompt / new)
    if reading == "one_long" and new > 1:
        short = min(least, prompt / new)
        shares = np.full(new, short)
        shares[new // 2] = prompt - short * (new - 1)
    for at_ns, share in zip(times, shares.tolist(), strict=True):
        yield _Open(at_ns, max(share, 1.0), cached * share / prompt if prompt > 0 else 0.0, first)


def _generate(open_requests: Sequence[_Open], tokens: float, running: float) -> None:
    """Deal generated tokens to those that run, which are the oldest."""
    count = min(len(open_requests), max(round(running), 1))
    for one in open_requests[:count]:
        one.generated += tokens / count


def _close(one: _Open, worker: int, rank: int) -> LoggedRequest:
    return LoggedRequest(
        one.arrival_ns,
        round(one.prompt),
        max(round(one.generated), 1),
        cached_tokens=round(one.cached),
        worker=worker,
        rank=rank,
    )
