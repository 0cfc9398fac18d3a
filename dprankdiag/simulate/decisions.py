"""Say how old and how wrong a ledger was at each decision that was made with it, and what that changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from dprankdiag.simulate.base import Load, Request, Router

Reason = Literal["policy", "pinned", "probe"]

Measure = Callable[[Load], tuple[float, ...]]
"""What a policy compares: of ranks with these loads it takes one with the smallest."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Where a request was sent, and what the router believed just before.

    Attributes:
        at_ns: when it was made.
        request: the request's number.
        rank: the choice.
        reason: what chose: the policy, the request itself, or the turn of the health checks.
        requests: believed running and waiting requests of each rank, none for a rank that the router does not see; none
            where it does not look at them.
        tokens: believed tokens of each rank, likewise.
        stamps_ns: when each rank wrote what is believed of it; none for what the router counts by itself.
    """

    at_ns: int
    request: int
    rank: int
    reason: Reason
    requests: tuple[int | None, ...] | None
    tokens: tuple[int | None, ...] | None
    stamps_ns: tuple[int | None, ...]


class DecisionLog:
    """Keep decisions as they are made, at little cost, and give them as values when asked."""

    def __init__(self, keep: bool = True) -> None:
        self.keeps = keep
        self._rows: list[tuple[Any, ...]] = []

    def note(
        self,
        at_ns: int,
        request: Request,
        rank: int,
        reason: Reason,
        requests: tuple[int | None, ...] | None,
        tokens: tuple[int | None, ...] | None,
        stamps_ns: tuple[int | None, ...],
    ) -> None:
        """Write a decision down; see `Decision`."""
        self._rows.append((at_ns, request.number, rank, reason, requests, tokens, stamps_ns))

    def read(self) -> list[Decision]:
        """Give all decisions in order."""
        return [Decision(*row) for row in self._rows]


class AccountableRouter(Router, Protocol):
    """A router that can be judged afterwards, as all in `simulate.routers`."""

    @property
    def decisions(self) -> list[Decision]:
        """Give the decisions in order; none are there unless they are kept."""

    @property
    def measure(self) -> Measure | None:
        """Give what its policy compares of loads; none where it looks at none."""


@dataclass(frozen=True, slots=True)
class LedgerError:
    """How a ledger and the truth differed at a decision.

    Attributes:
        ledger: whose: `gateway`, `controller`, a front end.
        at_ns, request, rank: of the decision.
        age_ns: of what was believed of each rank, none where no rank's word was used.
        requests_error: believed less true requests of each rank; none where not believed, or the truth is unknown.
        tokens_error: the same of `total_tokens`.
        better_rank: the lowest rank that is best by the truth among those the router sees, where the choice is not as
            good; else none.
        regret: by how much the choice is worse than the best by the truth, in what the policy compares first; 0 where
            it stands; none where no policy chose or the truth of a rank is unknown.
    """

    ledger: str
    at_ns: int
    request: int
    rank: int
    age_ns: tuple[int | None, ...]
    requests_error: tuple[int | None, ...] | None
    tokens_error: tuple[int | None, ...] | None
    better_rank: int | None
    regret: float | None


@dataclass(frozen=True, slots=True)
class LedgerSummary:
    """What a ledger was worth over all decisions.

    Attributes:
        ledger: whose.
        decisions: how many.
        median_age_ns, oldest_age_ns: of what was believed of a rank; none where no rank's word was used.
        largest_requests_error, largest_tokens_error: of a rank, without sign; none where not believed.
        judged: decisions whose regret is known.
        regretted: of these, where another rank was better by the truth.
        mean_regret: over all judged, in what the policy compares first; none without any.
    """

    ledger: str
    decisions: int
    median_age_ns: int | None
    oldest_age_ns: int | None
    largest_requests_error: int | None
    largest_tokens_error: int | None
    judged: int
    regretted: int
    mean_regret: float | None


def judge_decisions(
    ledger: str,
    decisions: Iterable[Decision],
    truths: Iterable[Sequence[Load | None]],
    measure: Measure | None,
) -> list[LedgerError]:
    """Compare what was believed at each decision with the loads as they were.

    A choice that ties with the best is no mistake: how a policy breaks ties is not a matter of what it knows.

    Args:
        ledger: its name, as it will be shown.
        decisions: of one router, in any order.
        truths: for each decision the load of every rank of the router at that time, requests on their way to it
            included; none where unknown.
        measure: what the policy compares; none for a policy that looks at no load.

    Raises:
        ValueError: `decisions` and `truths` differ in number.
    """
    return [_judge(ledger, *pair, measure) for pair in zip(decisions, truths, strict=True)]


def summarize_errors(ledger: str, errors: Sequence[LedgerError]) -> LedgerSummary:
    """Sum up the errors of one ledger."""
    ages = sorted(age for error in errors for age in error.age_ns if age is not None)
    regrets = [error.regret for error in errors if error.regret is not None]
    return LedgerSummary(
        ledger,
        len(errors),
        ages[len(ages) // 2] if ages else None,
        ages[-1] if ages else None,
        _find_largest(error.requests_error for error in errors),
        _find_largest(error.tokens_error for error in errors),
        len(regrets),
        sum(error.better_rank is not None for error in errors),
        sum(regrets) / len(regrets) if regrets else None,
    )


def _find_largest(errors: Iterable[tuple[int | None, ...] | None]) -> int | None:
    sizes = [abs(error) for each in errors if each is not None for error in each if error is not None]
    return max(sizes, default=None)


def _judge(ledger: str, decision: Decision, truth: Sequence[Load | None], measure: Measure | None) -> LedgerError:
    better, regret = None, None
    if measure is not None and decision.reason == "policy":
        better, regret = _regret(decision, truth, measure)
    return LedgerError(
        ledger,
        decision.at_ns,
        decision.request,
        decision.rank,
        tuple(None if stamp is None else decision.at_ns - stamp for stamp in decision.stamps_ns),
        _subtract(decision.requests, [None if load is None else load.running + load.waiting for load in truth]),
        _subtract(decision.tokens, [None if load is None else load.total_tokens for load in truth]),
        better,
        regret,
    )


def _subtract(believed: Sequence[int | None] | None, true: Sequence[int | None]) -> tuple[int | None, ...] | None:
    if believed is None:
        return None
    pairs = zip(believed, true, strict=True)
    return tuple(None if own is None or there is None else own - there for own, there in pairs)


def _regret(decision: Decision, truth: Sequence[Load | None], measure: Measure) -> tuple[int | None, float | None]:
    seen = [rank for rank in range(len(truth)) if decision.requests is None or decision.requests[rank] is not None]
    loads = {rank: truth[rank] for rank in seen}
    measures = {rank: measure(load) for rank, load in loads.items() if load is not None}
    if len(measures) < len(seen) or decision.rank not in measures:
        return None, None
    best = min(measures, key=measures.__getitem__)
    if measures[decision.rank] == measures[best]:
        return None, 0.0
    return best, float(measures[decision.rank][0] - measures[best][0])
