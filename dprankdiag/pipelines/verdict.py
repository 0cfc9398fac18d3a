"""From accounts to one diagnosis: status, headline, the account of lost time, abstentions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dprankdiag.analysis.observations import Observations
from dprankdiag.analysis.observe import Observed
from dprankdiag.catalog.identifiability import load_identifiability, load_inputs
from dprankdiag.classifiers import ALL
from dprankdiag.classifiers.base import name_numbers, say_unrecorded
from dprankdiag.model.diagnosis import (
    Abstention,
    CauseLoss,
    Diagnosis,
    Finding,
    Interval,
    Lost,
    Status,
    StepTime,
    TimeAccount,
)
from dprankdiag.model.ranks import Rank
from dprankdiag.model.results import WORK
from dprankdiag.model.schema import count_rows
from dprankdiag.model.sources import Trace
from dprankdiag.pipelines.pricing import WARNING, Account
from dprankdiag.units import format_ns, format_ratio

IntArray = np.ndarray[Any, np.dtype[np.int64]]

FEWEST_STEPS = 8
FEWEST_MATCHED = 0.8
ALL_TRACES = (
    "profile all ranks at once (POST /start_profile with activities CPU and GPU), then: dprankdiag analyze FOLDER"
)

MOST_LOCAL = 0.6
"""Of calls sent and received in halves, half wait for nobody; if more do, waits go unseen."""

JUDGED = frozenset(classifier.cause for classifier in ALL)
NAME_THEM = "dprankdiag kernels TRACE shows the names nobody knows; name them with --patterns"
CLASSES = ("single_point.unknown", "load.unknown", "structural.unknown", "communication.unknown")


@dataclass(frozen=True, slots=True)
class Part:
    """What was found in one trace."""

    trace: Trace
    observed: Observed
    accounts: tuple[Account, ...]
    abstentions: tuple[Abstention, ...]


def conclude(part: Part) -> Diagnosis:
    """Make the diagnosis of one trace."""
    findings = _number([finding for account in part.accounts for finding in account.findings])
    lost = _lost(part, findings)
    abstentions = tuple(_abstain(part, findings))
    reasons = list(part.observed.reasons) + list(_hiding(part))
    status = _status(findings, lost, reasons)
    return Diagnosis(
        status,
        _headline(status, findings, reasons, part),
        part.trace.sources,
        _rank_times(part),
        _time(part),
        _step(part, findings),
        lost,
        findings,
        abstentions,
        tuple(_notes(part, reasons)),
    )


def _number(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    ordered = sorted(findings, key=lambda item: (-(item.lost_ns or 0), item.cause, item.ranks, item.window.start_ns))
    return tuple(replace(item, id=f"f{number}") for number, item in enumerate(ordered, 1))


def _status(findings: Sequence[Finding], lost: Lost, reasons: Sequence[str]) -> Status:
    if any(finding.severity in ("critical", "warning") for finding in findings):
        return "findings"
    if any(finding.cause == "uniform.slow" for finding in findings):
        return "uniform"
    if reasons or lost.interval is None or lost.interval[1] >= WARNING:
        return "inconclusive"
    return "healthy"


def _hiding(part: Part) -> Iterator[str]:
    """Say what could hide a skew of three per cent (DESIGN 3, healthy)."""
    if not part.observed.groups:
        return
    steps = sum(group.n_steps for group in part.observed.groups)
    if steps < FEWEST_STEPS:
        yield f"only {steps} comparable steps were recorded"
    if part.trace.missing_ranks:
        yield say_unrecorded(part.trace.missing_ranks)
    for source in part.trace.sources:
        if source.status == "partial":
            yield f"{source.path} could be read only in part"
    if (beyond := _left_out_ratio(part)) >= WARNING:
        yield f"steps that could not be compared may hide skew that costs up to {format_ratio(beyond)} of the time"
    ratio = part.observed.matched_ratio
    if ratio is not None and ratio < FEWEST_MATCHED:
        yield f"only {format_ratio(ratio)} of the collective calls could be matched between the ranks"
    if part.observed.local_ratio > MOST_LOCAL:
        share = format_ratio(part.observed.local_ratio)
        yield f"{share} of the communication calls seem to wait for nobody, so that little of what waits is seen"
    if any(group.abilities.whole_graphs for group in part.observed.groups):
        yield "CUDA graphs were recorded whole: what happens between the collectives inside them is not visible"
    unplaced = max(group.abilities.unplaced_ratio for group in part.observed.groups)
    if unplaced >= WARNING:
        yield f"ranks stand still {format_ratio(unplaced)} of the time for overlapped collectives, each step elsewhere"
    yield from _doubted(part)
    yield from _parted(part)
    yield from _unseen(part)
    uneven = {group.abilities.uneven for group in part.observed.groups if group.abilities.uneven}
    yield from sorted(uneven)
    for account in part.accounts:
        if account.replay_error is not None and account.total_ns is None:
            error = format_ratio(account.replay_error)
            yield f"steps predicted from their neighbours miss by {error}, so no lost time is given"
        if account.spike_ratio >= WARNING:
            share = format_ratio(account.spike_ratio)
            yield f"single steps take {share} of the time beyond the usual, and nothing shows why"
        if account.hidden_ratio >= WARNING:
            yield (
                f"ranks differ systematically by {format_ratio(account.hidden_ratio)} of the time, "
                "within what the ranks scatter among themselves"
            )


def _doubted(part: Part) -> Iterator[str]:
    """Say what late exits cannot be told from the fitted clocks."""
    for group in part.observed.groups:
        ratio, (ranks, late_ns) = group.abilities.clock_doubt_ratio, group.abilities.clock_doubt
        if ratio >= WARNING:
            yield (
                f"{group.names_of(ranks)}: leaving each meeting up to {format_ns(late_ns)} later or earlier than the "
                f"others, {format_ratio(ratio)} of the time, cannot be told from the clocks, which were fitted to the "
                "ends of meetings"
            )


def _parted(part: Part) -> Iterator[str]:
    """Say that ranks of one engine meet in groups apart, or nobody, while their clocks are not known to agree.

    Calls of one meeting that lie apart on wrong clocks look like those of several groups.
    """
    if part.observed.alignment.clock in ("session", "boot"):
        return
    engines = Counter(group.engine for group in part.observed.groups)
    seen = {(rank.engine, rank.rank) for group in part.observed.groups for rank in group.ranks}
    alone = [part.trace.ranks[rank] for rank in part.observed.alignment.unaligned]
    for engine, groups in sorted(engines.items()):
        left = [rank.rank for rank in alone if rank.engine == engine and (engine, rank.rank) not in seen]
        if groups > 1 or left:
            who = (
                f"ranks meet in {groups} groups apart" if groups > 1 else f"{name_numbers(left)}: compared with nobody"
            )
            yield f"{who}, and clocks may be why: lateness between them would not be seen"


def _unseen(part: Part) -> Iterator[str]:
    """Say that GPUs did work of which the recording holds no kernels, or no names: a table or rows of it are gone."""
    unseen = part.observed.unseen
    if unseen is None:
        return
    if unseen.bare:
        bare = [part.trace.ranks[rank].rank for rank in unseen.bare]
        yield f"{name_numbers(bare)}: the GPU was used, and none of its kernels can be read from the recording"
    if unseen.unnamed_ratio >= WARNING:
        yield f"kernels that take {format_ratio(unseen.unnamed_ratio)} of the GPU time have no name in the recording"


def _left_out_ratio(part: Part) -> float:
    """Return the share of the time that skew may cost in the steps left out, beyond what it does in those compared.

    That is at most what they take longer than these, and what their most idle rank stands still longer.
    """
    groups = part.observed.groups
    if not part.observed.left_out.count or len(groups) != 1:
        return 0.0
    group = groups[0]
    span = float(group.end_ns[-1] - group.start_ns[0])
    left = span - float(group.duration_ns.sum()) - part.observed.left_out.count * group.median_step_ns
    return min(max(left, 0.0), part.observed.left_out.hidden_ns) / span


def _headline(status: Status, findings: Sequence[Finding], reasons: Sequence[str], part: Part) -> str:
    if status == "findings":
        worst = findings[0] if findings[0].lost_ns is not None else next(f for f in findings if f.severity != "info")
        more = sum(finding.severity != "info" for finding in findings) - 1
        return worst.summary + (f" (and {more} more)" if more > 0 else "")
    if status == "uniform":
        slow = next(finding for finding in findings if finding.cause == "uniform.slow")
        return f"No rank stands out, but all ranks alike are slow: {slow.summary}"
    if status == "healthy":
        steps = sum(group.n_steps for group in part.observed.groups)
        return describe_even(steps, _count_ranks(part))
    if reasons or not findings:
        return "Cannot tell which rank is slow: " + (
            reasons[0] if reasons else "the ranks are not compared well enough"
        )
    return f"Nothing that calls for action, and not surely healthy either: {findings[0].summary}"


def describe_even(steps: int, ranks: int) -> str:
    """Say that the ranks are even, and how much was compared."""
    return f"No rank holds the others back: {steps} steps compared on {ranks} ranks"


def _count_ranks(part: Part) -> int:
    return sum(group.n_ranks for group in part.observed.groups)


def _is_priced(part: Part, findings: Sequence[Finding]) -> bool:
    """Tell whether lost time can be given: the replay is good, and no unseen member may be the one that costs it."""
    unseen = bool(part.trace.missing_ranks) and not findings
    return bool(part.accounts) and not unseen and all(account.total_ns is not None for account in part.accounts)


def _lost(part: Part, findings: Sequence[Finding]) -> Lost:
    accounts = part.accounts
    if not _is_priced(part, findings):
        return Lost(None, None, None, (), None, None, None)
    wall = sum(float(account.measured_ns.sum()) for account in accounts)
    total = sum(account.total_ns or 0 for account in accounts)
    by_cause: Counter[str] = Counter()
    for finding in findings:
        if finding.lost_ns is not None:
            by_cause[finding.cause] += finding.lost_ns
    causes = tuple(CauseLoss(cause, lost, lost / wall) for cause, lost in sorted(by_cause.items(), key=lambda i: -i[1]))
    gpu = sum(
        (account.total_ns or 0) * group.n_ranks for account, group in zip(accounts, part.observed.groups, strict=True)
    )
    unexplained = total - sum(item.lost_ns or 0 for item in causes)
    jitter = sum(account.jitter_ns or 0 for account in accounts)
    return Lost(total, total / wall, _interval(accounts, wall), causes, unexplained, jitter, gpu)


def _interval(accounts: Sequence[Account], wall: float) -> Interval:
    """Join the groups' intervals; what stays below every threshold widens the upper end."""
    low = high = 0.0
    for account in accounts:
        weight = float(account.measured_ns.sum()) / wall
        bounds = account.interval or (0.0, 0.0)
        low += weight * bounds[0]
        high += weight * (bounds[1] + (account.hidden_ratio if not account.findings else 0.0))
    return max(low, 0.0), max(high, 0.0)


def _step(part: Part, findings: Sequence[Finding]) -> StepTime:
    if not part.accounts:
        return StepTime(None, None)
    measured = np.concatenate([account.measured_ns for account in part.accounts])
    balanced = np.concatenate([account.balanced_ns for account in part.accounts])
    trusted = _is_priced(part, findings)
    return StepTime(round(float(np.median(measured))), round(float(np.median(balanced))) if trusted else None)


def _time(part: Part) -> TimeAccount:
    groups = part.observed.groups
    kinds: Counter[str] = Counter()
    for group in groups:
        for grid in group.grids:
            kinds[grid.kind] += len(grid.number)
    errors = [account.replay_error for account in part.accounts if account.replay_error is not None]
    return TimeAccount(
        part.observed.alignment.clock,
        min((int(group.start_ns[0]) for group in groups), default=None),
        max((int(group.end_ns[-1]) for group in groups), default=None),
        sum(group.n_steps for group in groups),
        dict(sorted(kinds.items())),
        part.observed.meetings,
        part.observed.matched_ratio,
        part.observed.alignment.residual_ns,
        max(errors) if errors else None,
    )


def _rank_times(part: Part) -> tuple[Rank, ...]:
    """Give every rank its time in the analysed steps; work, wait, transfer and idle add up to it."""
    times: dict[tuple[str, int], Rank] = {}
    for group in part.observed.groups:
        summed = _sum_times(group)
        for position, rank in enumerate(group.ranks):
            times[rank.engine, rank.rank] = _with_times(summed, position, rank)
    return tuple(times.get((rank.engine, rank.rank), rank) for rank in part.trace.ranks)


def _sum_times(group: Observations) -> dict[str, IntArray]:
    """Add up the times of every rank over all steps, `(n_ranks,)` each."""
    names = ("segment", "work", "wait", "transfer", "for_hosts")
    sums = {name: np.zeros(group.n_ranks, np.int64) for name in names}
    for grid in group.grids:
        busy = sum(grid.components[name] for name in WORK)
        sums["work"] += np.minimum(busy, np.maximum(grid.segment, 0)).sum(axis=(0, 1))
        sums["segment"] += grid.segment.sum(axis=(0, 1))
        sums["wait"] += grid.wait.sum(axis=(0, 1))
        sums["for_hosts"] += grid.inherited_ns.sum(axis=0)
        sums["transfer"] += grid.own_transfer.sum(axis=(0, 1))
    return sums


def _with_times(sums: dict[str, IntArray], position: int, rank: Rank) -> Rank:
    """Give a rank its times; idle time in which its host waited for the hosts of others is waiting."""
    own = {name: int(values[position]) for name, values in sums.items()}
    idle = max(own["segment"] - own["work"] - own["for_hosts"], 0)
    waited = own["wait"] + own["for_hosts"]
    return replace(rank, work_ns=own["work"], wait_ns=waited, transfer_ns=own["transfer"], idle_ns=idle)


def _abstain(part: Part, findings: Sequence[Finding]) -> Iterator[Abstention]:
    """List what could not be judged, each cause once; a cause that was found does not abstain."""
    whole = count_rows(part.trace.tables["graph_replays"]) > 0
    said = {finding.cause for finding in findings}
    for abstention in (*(_hidden_in_graphs() if whole else ()), *part.abstentions):
        if abstention.cause not in said:
            said.add(abstention.cause)
            yield abstention
    if not part.observed.groups and part.observed.reasons:
        recapture = load_inputs()["trace-graph" if whole else "trace-kernels-calls"].get_it_with
        if {source.kind for source in part.trace.sources} == {"torch-json"}:
            recapture = ALL_TRACES
        if not whole and _has_unknown_collectives(part):
            recapture = NAME_THEM
        for cause in CLASSES:
            if cause not in said:
                yield Abstention(cause, part.observed.reasons[0], _lacked(part), recapture)


def _has_unknown_collectives(part: Part) -> bool:
    """Tell whether several ranks ran kernels and none of these is known to be a collective."""
    kernels = sum(source.kernels for source in part.trace.sources)
    return kernels > 0 and len(part.trace.ranks) > 1 and part.observed.calls == 0


def _hidden_in_graphs() -> Iterator[Abstention]:
    """Say of each cause that whole-graph rows cannot show what would."""
    for cause, abilities in load_identifiability().items():
        ability = abilities["trace-graph"]
        if ability.answer != "can" and cause in JUDGED:
            yield Abstention(
                cause, ability.text or ability.answer, ("kernels inside CUDA graphs",), ability.get_it_with
            )


def _lacked(part: Part) -> tuple[str, ...]:
    lacked = {name for source in part.trace.sources for name in source.lacked}
    return tuple(sorted(lacked))


def _notes(part: Part, reasons: Sequence[str]) -> Iterator[str]:
    yield from part.trace.notes
    yield from reasons
    for capture in part.trace.captures:
        yield from (f"the profiler says: {text}" for text in capture.diagnostics[:3])
    for refusal in part.observed.refusals:
        if part.observed.groups:
            yield f"{refusal.channel}: {refusal.reason}"
    if left := part.observed.left_out.count:
        count = "1 step" if left == 1 else f"{left} steps"
        yield f"{count} of rare or incomplete kinds left out"
    for group in part.observed.groups:
        if group.basis == "meeting":
            yield "no step borders show: every collective stands for itself"
        if group.n_ranks == 2:
            yield "two ranks have no spread of their own: only clear differences are claimed"
    if part.observed.alignment.unaligned:
        names = ", ".join(str(part.trace.ranks[rank].rank) for rank in part.observed.alignment.unaligned)
        yield f"rank {names}: its clock could not be aligned on collectives"
    residual = part.observed.alignment.residual_ns
    if residual is not None:
        yield f"clocks were aligned on the ends of collectives, to {format_ns(residual)}"
