"""From a ledger to a diagnosis: what the numbers of two moments or more carry, and what they cannot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from dprankdiag.analysis.ledger_loads import FEWEST_A_RANK
from dprankdiag.analysis.ledger_view import LedgerView, view_ledger
from dprankdiag.analysis.ledger_window import FEWEST_TO_MEND, LedgerWindow
from dprankdiag.catalog.causes import load_causes
from dprankdiag.classifiers import BY_LEDGERS
from dprankdiag.classifiers.base import name_numbers
from dprankdiag.classifiers.ledgers import tell_chance
from dprankdiag.model.claims import UntimedClaim
from dprankdiag.model.diagnosis import Abstention, Diagnosis, Finding, Severity, TimeAccount
from dprankdiag.model.ledgers import Ledger
from dprankdiag.model.ranks import Rank
from dprankdiag.pipelines.pricing import CRITICAL, WARNING
from dprankdiag.pipelines.untimed import NO_TIME, abstain_by_input, conclude_untimed, make_finding
from dprankdiag.units import NS_PER_S

MOST_CONFIDENT = 0.8
"""Metrics alone carry no more (DESIGN 3)."""

NOT_PRICED = "load and waits as counted: what they cost shows in a trace"
BOUND = "bound"

NOT_SHOWN = (
    "single_point.gpu",
    "single_point.link",
    "single_point.host",
    "load.cache",
    "load.speculation",
    "structural.expert",
    "structural.dispatch",
    "structural.layout",
    "communication.fabric",
    "uniform.slow",
    "stall.absent",
)
"""One cause for each question that a ledger leaves open."""

_DP_ATTENTION_WITH = "SGLANG_ENABLE_METRICS_DP_ATTENTION=1 beside --enable-metrics (SGLang >= 0.5.22)"


def view_whole(ledger: Ledger, expect_ranks: int | None = None) -> LedgerView:
    """View a ledger from its first moment to its last.

    Args:
        expect_ranks: how many DP ranks there should be.
    """
    return view_ledger(LedgerWindow(ledger, 0, max(ledger.n_moments - 1, 0)), expect_ranks)


def diagnose_view(seen: LedgerView, lasting: Sequence[Finding] = ()) -> Diagnosis:
    """Judge a ledger over a window.

    Args:
        lasting: what was found from moment to moment within it.
    """
    claims, abstentions = judge_view(seen)
    return conclude_ledger(seen, [*lasting, *_add(claims, seen, lasting)], abstentions)


def _add(claims: Sequence[UntimedClaim], seen: LedgerView, lasting: Sequence[Finding]) -> Iterator[Finding]:
    """Price what the whole shows and no part of it did."""
    told = {(finding.cause, finding.ranks) for finding in lasting}
    told |= {(finding.cause.split(".")[0], finding.ranks) for finding in lasting if finding.cause.startswith("load.")}
    for claim in claims:
        kin = claim.cause.split(".")[0]
        if (claim.cause, claim.ranks) not in told and (kin, claim.ranks) not in told:
            yield price_claim(claim, seen)


@lru_cache(maxsize=8)
def judge_view(seen: LedgerView) -> tuple[tuple[UntimedClaim, ...], tuple[Abstention, ...]]:
    """Ask every classifier that judges ledgers; a tick asks for claims first and for abstentions when it is told."""
    said = [item for classifier in BY_LEDGERS for item in classifier.judge_ledger(seen)]
    claims = tuple(item for item in said if isinstance(item, UntimedClaim))
    return claims, tuple(item for item in said if isinstance(item, Abstention))


def price_claim(claim: UntimedClaim, seen: LedgerView) -> Finding:
    """Make a finding; a loss is an upper bound, from waits alone."""
    elapsed_s = seen.window.elapsed_s
    known = claim.lost_ratio is not None and elapsed_s is not None
    finding = make_finding(claim, BOUND if known else NOT_PRICED, MOST_CONFIDENT)
    lost_ns = round((claim.lost_ratio or 0.0) * (elapsed_s or 0.0) * NS_PER_S) if known else None
    return replace(
        finding,
        engine=seen.window.ledger.name,
        layers=claim.layers,
        severity=rate_claim(claim),
        lost_ns=lost_ns,
        lost_ratio=claim.lost_ratio if known else None,
    )


def rate_claim(claim: UntimedClaim) -> Severity:
    """Rate by what is lost at most, else by how uneven the work is, else by the catalogue (DESIGN 3)."""
    if claim.lost_ratio is not None:
        return "critical" if claim.lost_ratio >= CRITICAL else "warning" if claim.lost_ratio >= WARNING else "info"
    if claim.severity is not None:
        return claim.severity
    cause = load_causes()[claim.cause]
    limit = cause.warning_work_ratio
    if limit is not None and claim.work_ratio is not None and claim.work_ratio >= limit:
        return "warning"
    return cause.default_severity


_ORDER: tuple[Severity, ...] = ("critical", "warning", "info")


def conclude_ledger(
    seen: LedgerView,
    findings: Sequence[Finding],
    abstentions: Sequence[Abstention],
) -> Diagnosis:
    """Make the diagnosis of a ledger from its findings, the gravest first."""
    ledger = seen.window.ledger
    ordered = sorted(findings, key=lambda item: (_ORDER.index(item.severity), -(item.lost_ns or 0), -item.confidence))
    said = {item.cause for item in abstentions}
    found = {item.cause for item in ordered}
    rest = [cause for cause in NOT_SHOWN if cause not in said and not _is_judged(cause, seen)]
    kind = "metrics" if any(name.endswith("-metrics") for name in ledger.interfaces) else "ledger"
    return conclude_untimed(
        ordered,
        _tell_suspects(seen, abstentions) or tell_even(seen),
        ledger.sources,
        tuple(
            Rank(ledger.name, rank, "dp_rank", "label", "sure", dp_rank=rank) for rank in _list_ranks(ledger, ordered)
        ),
        (
            *(item for item in abstentions if item.cause not in found),
            *_not_enabled(seen),
            *abstain_by_input(kind, rest, ordered),
        ),
        tuple(_notes(seen)),
        _time(seen),
    )


def _is_judged(cause: str, seen: LedgerView) -> bool:
    """Tell what this ledger did show, whatever others of its kind do not."""
    if cause == "single_point.host":
        return seen.waits is not None
    return cause == "structural.expert" and seen.experts is not None


def _list_ranks(ledger: Ledger, findings: Sequence[Finding]) -> tuple[int, ...]:
    """List the ranks told, and those that only expert counts name."""
    return tuple(sorted({*ledger.ranks, *(rank for finding in findings for rank in finding.ranks)}))


def tell_even(seen: LedgerView) -> str:
    """Say what was compared where nothing stands out, and what does not show."""
    if seen.reason is not None:
        return f"Cannot tell which rank is slow: {seen.reason}"
    if seen.rows is None and seen.work is None and seen.computed is None:
        return "Cannot tell which rank is slow: neither requests nor tokens are told"
    if seen.rows is not None and seen.requests < FEWEST_A_RANK * len(seen.ranks):
        count = f"{seen.requests:.3g} on {len(seen.ranks)} ranks"
        return f"Cannot tell which rank is slow: too few requests to compare loads ({count})"
    restarted = _list_restarted(seen)
    doubts = [f"{name_numbers(seen.missing)} told nothing"] if seen.missing else []
    doubts += [f"{name_numbers(restarted)} restarted, so that what they did is not known"] if restarted else []
    told = len(set(seen.ranks) - set(seen.missing) - set(restarted))
    if doubts:
        rest = f"; the {told} others have even load" if told > 1 else ""
        return f"Cannot tell which rank is slow: {' and '.join(doubts)}{rest}"
    if chance := tell_chance(seen):
        return f"Load uneven, but not beyond chance; speed not visible: {chance}"
    waits = " and no host is late at step borders" if seen.waits is not None and seen.waits.has_control else ""
    return (
        f"Load even; speed not visible: the {told} ranks have even load{waits}; how fast each GPU is, such "
        "numbers do not show in lockstep"
    )


def _list_restarted(seen: LedgerView) -> tuple[int, ...]:
    """List ranks whose counters fell within a window of so few moments that their growth is not known."""
    window = seen.window
    if window.last - window.first + 1 >= FEWEST_TO_MEND:
        return ()
    return seen.names_of(window.restarted)


def _tell_suspects(seen: LedgerView, abstentions: Sequence[Abstention]) -> str | None:
    """Say that somebody is late where it cannot be told who."""
    if seen.waits is None or seen.waits.low is None or seen.waits.has_control:
        return None
    reasons = [item.reason for item in abstentions if item.cause == "single_point.host"]
    return f"Cannot tell which rank is slow: {reasons[0]}" if reasons else None


def _not_enabled(seen: LedgerView) -> Iterator[Abstention]:
    """Say that DP attention counters are there and stand at zero: not enabled is not balanced."""
    values = seen.window.ledger.values
    told = values.get("active_steps")
    if told is None or np.nansum(told) > 0 or seen.reason is not None:
        return
    text = "the dp_attention series are all zero: not enabled, or no step counted; this is not the same as balanced"
    yield Abstention("load.unknown", text, ("dp_attention_*",), _DP_ATTENTION_WITH)


def _notes(seen: LedgerView) -> Iterator[str]:
    ledger = seen.window.ledger
    yield from ledger.notes
    if not ledger.ranks:
        return
    if not seen.window.has_growth:
        yield "only one moment is told: counters need two"
    elif ledger.seconds is None:
        yield "no answer tells the seconds between moments: shares and means per step are judged, rates are not"
    if seen.missing:
        names = name_numbers(seen.missing)
        yield f"{names}: should be there, told nothing; a missing rank is a suspect, not a healthy one"
    for name, table in (("load answers", "load_running_requests"), ("metrics", "running_requests")):
        if silent := _find_silent(ledger, table):
            yield f"{name_numbers(silent)}: no number in the {name}, although other ranks have one"
    if seen.frozen.any():
        frozen = name_numbers(seen.names_of(seen.frozen))
        yield f"{frozen}: gauges kept from earlier work while its counters stand still: idle, not stuck"
    if ledger.restarted.any() and not ledger.swinging:
        fell = seen.names_of(np.asarray(ledger.restarted.any(axis=0)))
        kept = "not known what was done" if _list_restarted(seen) else "what is counted since is used"
        yield f"{name_numbers(fell)}: counters fell: restarted; {kept}"
    stages = ledger.facts.get("pp_size_seen")
    if isinstance(stages, int) and stages > 1:
        yield "pipeline stages: request counts of one poll show only the micro-batch in work; several polls are needed"


def _find_silent(ledger: Ledger, name: str) -> tuple[int, ...]:
    table = ledger.values.get(name)
    if table is None:
        return ()
    silent = np.asarray(np.isnan(table).all(axis=0))
    return tuple(rank for rank, quiet in zip(ledger.ranks, silent, strict=True) if quiet)


def _time(seen: LedgerView) -> TimeAccount:
    window = seen.window
    span = window.span_ns
    steps = window.steps
    clock = "none" if span is None else "utc" if window.ledger.start_ns is not None else "given"
    return replace(
        NO_TIME,
        clock=clock,
        start_ns=None if span is None else span[0],
        end_ns=None if span is None else span[1],
        steps=0 if steps is None else round(steps),
    )
