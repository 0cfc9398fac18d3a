"""What each router believed as it sent a request on, and what was true: dispatches on one time line, and their sums.

A request passes up to three ledgers: a gateway's of whole engines, that of the router inside one (SGLang's controller,
vLLM's front end) of its ranks, and the scheduler's of the rank itself. True are the requests that a rank has, those
that were sent to it and have not ended, and the tokens that its scheduler holds and has queued. Times are ns since the
record's beginning. An error is what was believed less what was true: below 0 a rank was believed too idle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

KIND: Final = "dprankdiag.ledgers"
SCHEMA_VERSION = 1

Reason = Literal["policy", "pinned", "probe"]
Role = Literal["prefill", "decode"]
Measure = Literal["requests", "tokens"]


@dataclass(frozen=True, slots=True)
class Belief:
    """A choice, and what its router believed of what it chose.

    Attributes:
        chosen: the worker, or the rank within its worker.
        reason: what chose: the policy, the request itself, or the turn of the health checks.
        requests, tokens: believed of it; none where the router does not look at them or was not told.
        age_ns: since the rank wrote that; none where the router goes by its own counts alone.
        requests_error, tokens_error: believed less true; none where nothing is believed.
        better: the lowest that is best by the truth, where the choice is not as good; else none.
        regret: by how much the choice is worse than that, in what the policy compares; none where that is unknown or no
            policy chose.
    """

    chosen: int
    reason: Reason
    requests: int | None
    tokens: int | None
    age_ns: int | None
    requests_error: int | None
    tokens_error: int | None
    better: int | None
    regret: float | None


@dataclass(frozen=True, slots=True)
class RankLoad:
    """What the scheduler of a rank counts, and what the rank has.

    Attributes:
        running, waiting: requests, as the scheduler counts them.
        tokens: held and queued.
        uncached_tokens: of prompts still to compute.
        requests: that the rank has; none where that is unknown.
    """

    running: int
    waiting: int
    tokens: int
    uncached_tokens: int
    requests: int | None

    @property
    def requests_error(self) -> int | None:
        """Give what the scheduler counts less what the rank has."""
        return None if self.requests is None else self.running + self.waiting - self.requests


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A request that was sent to a rank.

    Attributes:
        time_ns: when.
        request: its number.
        role: of the engine, where prompts and outputs are computed by different ones.
        worker, rank: where it went, ranks within their worker.
        gateway: what the gateway believed of the worker; none without a gateway.
        router: what the worker's own router believed of the rank.
        scheduler: the rank's load then, without this request.
    """

    time_ns: int
    request: int
    role: Role | None
    worker: int
    rank: int
    gateway: Belief | None
    router: Belief
    scheduler: RankLoad


@dataclass(frozen=True, slots=True)
class LedgerTotals:
    """What a ledger was worth.

    Ages and errors are those of what was chosen, over the choices of the policy; errors without sign. A scheduler
    chooses nothing: its own count is taken as requests come.

    Attributes:
        ledger: whose, in words.
        compares: what its policy compares, in words; none where it compares no loads.
        choices: of whatever reason.
        demanded: of these, not the policy's.
        median_age_ns, worst_age_ns: none where no rank's word was used.
        median_requests_error, worst_requests_error, median_tokens_error, worst_tokens_error: none where not believed.
        judged: choices whose regret is known.
        otherwise: of these, where another is better by the truth.
        regret: the sum over all judged, in what the policy compares; none without any.
    """

    ledger: str
    compares: str | None
    choices: int
    demanded: int
    median_age_ns: int | None
    worst_age_ns: int | None
    median_requests_error: int | None
    worst_requests_error: int | None
    median_tokens_error: int | None
    worst_tokens_error: int | None
    judged: int
    otherwise: int
    regret: float | None


@dataclass(frozen=True, slots=True)
class Line:
    """Values over time, one for each moment; none where nothing is believed."""

    time_ns: tuple[int, ...]
    value: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Track:
    """How full a worker or rank was, and was believed to be.

    Attributes:
        ledger: whose belief, as in the totals.
        worker: whose ranks; none where whole workers are chosen.
        choice: the rank, or the worker.
        measure: what the values count.
        believed: at each choice of the ledger, whatever was chosen.
        true: from each moment to the next.
        chosen_ns: when this was chosen.
    """

    ledger: str
    worker: int | None
    choice: int
    measure: Measure
    believed: Line
    true: Line
    chosen_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LedgerRun:
    """What was dispatched in one deployment, and what its ledgers were worth.

    Attributes:
        name: of the deployment, in words.
        router: what the router inside a worker is called.
        waiting_ratio: part of the time of all ranks that they waited for the slowest of their step; none if untold.
    """

    name: str
    router: str
    waiting_ratio: float | None
    totals: tuple[LedgerTotals, ...]
    dispatches: tuple[Dispatch, ...]
    tracks: tuple[Track, ...]


@dataclass(frozen=True, slots=True)
class LedgerRecord:
    """Dispatches of one or more deployments that serve the same requests.

    Attributes:
        kind: says of a file what it holds.
        title, why, cure: what it is a record of, in words; empty where unknown.
        runs: as it is first.
    """

    kind: Literal["dprankdiag.ledgers"]
    schema_version: int
    name: str
    title: str
    why: str
    cure: str
    runs: tuple[LedgerRun, ...]
