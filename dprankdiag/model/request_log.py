"""What a log tells of the requests that a deployment served: when they came, how long they were, who served them."""

from __future__ import annotations

from dataclasses import dataclass

from dprankdiag.model.ledgers import EngineName


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """One request.

    Attributes:
        arrival_ns: since the epoch, or since any moment common to the log.
        prompt_tokens, output_tokens: how many.
        cached_tokens: of the prompt, found in the prefix cache; None if not told.
        first_ns, end_ns: from the arrival to the first and the last token; None if not told.
        worker: engine that served it, from 0.
        rank: DP rank in that engine; None if not told.
        prefill_worker, prefill_rank: who computed its prompt, where another engine did.
        pinned: the client demanded the rank; None if not told.
        session: of requests of one client, each of which awaits the answer before; None if not told.
        prefix: ids of the prompt's leading blocks, equal where tokens are equal; None if not told.
        room: of a prefill and its decode; None if not told.
    """

    arrival_ns: int
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None = None
    first_ns: int | None = None
    end_ns: int | None = None
    worker: int = 0
    rank: int | None = None
    prefill_worker: int | None = None
    prefill_rank: int | None = None
    pinned: bool | None = None
    session: str | None = None
    prefix: tuple[int | str, ...] | None = None
    room: int | None = None


@dataclass(frozen=True, slots=True)
class LogFacts:
    """What a log, or the user, says of the deployment; None where nobody says.

    Attributes:
        policy: of the ranks inside an engine, as its flag calls it.
        gateway: policy in front of several engines.
        workers: engines (those that compute prompts, where others decode).
        ranks: DP ranks of an engine.
        gpus: of all engines.
        chunk_tokens: prompt tokens a step and rank at most.
        capacity_tokens: KV tokens that a rank's pool holds.
        block_tokens: of the blocks that prefix ids stand for.
        lockstep: ranks of an engine step together.
    """

    engine: EngineName | None = None
    version: str | None = None
    policy: str | None = None
    gateway: str | None = None
    workers: int | None = None
    ranks: int | None = None
    gpus: int | None = None
    chunk_tokens: int | None = None
    capacity_tokens: int | None = None
    block_tokens: int = 512
    lockstep: bool = True


@dataclass(frozen=True, slots=True)
class RequestLog:
    """A log of requests, in order of arrival.

    Attributes:
        skipped: lines that tell of no request that was served, by reason.
    """

    path: str
    facts: LogFacts
    requests: tuple[LoggedRequest, ...]
    skipped: dict[str, int]
