"""A host process that launches late."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from dprankdiag.analysis.ledger_loads import find_excess, find_load
from dprankdiag.analysis.ledger_signals import Waits
from dprankdiag.analysis.ledger_view import LEAST_COST, LedgerView
from dprankdiag.analysis.observations import Observations
from dprankdiag.analysis.skews import Skews
from dprankdiag.analysis.statistics import BoolArray, FloatArray, peer_median
from dprankdiag.classifiers.base import (
    members,
    name_culprits,
    name_numbers,
    period_of,
    ranks_of,
    show_culprits,
    unseen_member,
    when_of,
    who_of,
)
from dprankdiag.classifiers.idle_time import undo_lateness, undo_stalls
from dprankdiag.classifiers.ledgers import show_s, sureness
from dprankdiag.model.claims import Claim, UntimedClaim
from dprankdiag.model.diagnosis import Abstention, Alternative, Evidence
from dprankdiag.units import format_ns, format_ratio

_ALTERNATIVES = (
    Alternative("single_point.gpu", "longer kernels at equal work instead of idle gaps"),
    Alternative("load.unknown", "more attention work on that rank in the same steps"),
)


class SinglePointHost:
    """A host process that launches late.

    *What you see*: one GPU stands idle while its next kernel has not been launched yet; the other ranks wait for it
    in the following collective. Kernels take the same time everywhere.

    *Why it happens*: the process lost its CPU (preemption, a noisy neighbour, no pinning), runs on the far NUMA
    node, collects garbage, compiles, logs, or waits on a lock or a blocking call that the others do not make.

    *How we tell it apart*: idle time counts as the host's from the moment the GPU had nothing left to do until the
    launching call returned. Single stalls are steps far above the rank's own habit and its peers; steady lateness
    is a level outside what the peers scatter. Most ranks of a group are called late if two or more launch in time
    and wait for the others as long as those stand idle. Without launch calls in the recording the idle time is only
    an upper bound and is priced as such. Idle time that all ranks share at a step border is a meeting of the CPUs
    and nobody's fault here. In SGLang's ledger: the late rank is the one that waits least at the border of steps, in
    the gather and for the control broadcast before it taken together, at loads that are even. Without the broadcast
    wait a late rank 0 is not seen, and a rank that sits behind a late one in the broadcast tree looks late as well.

    *What to do*: pin the process to cores of the GPU's NUMA node, look at what the CPU did in the stalls (OS calls,
    scheduler rows, annotated ranges), move garbage collection and logging out of the step, isolate the cores.
    """

    cause = "single_point.host"

    def judge(self, seen: Observations, skews: Skews) -> Iterator[Claim | Abstention]:
        """Claim stalls of each rank, and steady lateness outside the peers' scatter."""
        found = bool(skews.stalls or skews.host)
        if (reason := seen.abilities.uneven or (unseen_member(seen) if found else None)) is not None:
            yield Abstention(self.cause, reason)
            return
        yield from self._judge_stalls(seen, skews)
        yield from self._judge_steady(seen, skews)
        if seen.abilities.has_kernels and not seen.abilities.has_launches:
            yield Abstention(
                self.cause,
                "without launch calls idle time cannot be told apart from other waits; only a bound is given",
                ("CUPTI_ACTIVITY_KIND_RUNTIME",),
                "nsys profile -t cuda,nvtx,osrt -o trace COMMAND",
            )

    def _judge_stalls(self, seen: Observations, skews: Skews) -> Iterator[Claim]:
        component, idle, basis = _idle(seen)
        expected = np.median(peer_median(idle), axis=0)
        for standout in skews.stalls:
            ranks, marks = members(standout.mask), standout.marks
            stalls = idle[marks]
            typical, usual = float(np.median(stalls)), float(np.mean(expected[list(ranks)]))
            longest = f"longest {format_ns(float(stalls.max()))}"
            text = f"idle {format_ns(typical)} in such a step ({longest}), {format_ns(usual)} in others"
            evidence = [
                Evidence("stalls", float(len(stalls)), "count", f"{len(stalls)} stalls in {seen.n_steps} steps"),
                Evidence("stall_ns", typical, "ns", text, usual, len(stalls)),
                *_inside(seen, marks),
                *_system_calls(seen, marks, typical),
                *show_culprits(seen, ranks, standout.steps),
                *_waiting_in_all(seen, ranks),
            ]
            yield Claim(
                self.cause,
                ranks_of(standout),
                standout.steps,
                who_of(standout),
                when_of(seen, standout),
                f"{name_culprits(seen, standout)}: the host stalls {_times(stalls)}",
                tuple(evidence),
                _ALTERNATIVES,
                (undo_stalls(seen, component, marks),),
                basis,
                period_ns=period_of(seen, standout),
            )

    def _judge_steady(self, seen: Observations, skews: Skews) -> Iterator[Claim]:
        component, _, basis = _idle(seen)
        stalled = np.zeros((seen.n_steps, seen.n_ranks), bool)
        for stall in skews.stalls:
            stalled |= stall.marks
        for standout in skews.host:
            ranks = members(standout.mask)
            steps = standout.steps
            late = float(np.mean(standout.levels[standout.mask]))
            evidence = [
                Evidence(
                    "idle_before_launch_ns",
                    late,
                    "ns",
                    f"idle {format_ns(late)} a step before its launches, the others {format_ns(standout.centre)}",
                    standout.centre,
                    int(steps.sum()),
                ),
                *show_culprits(seen, ranks, steps),
            ]
            turns = ", now one latest and now another" if standout.in_turn else ""
            yield Claim(
                self.cause,
                ranks,
                steps,
                who_of(standout),
                when_of(seen, standout),
                f"{seen.names_of(ranks)}{turns}: the host launches late, {format_ns(late - standout.centre)} a step",
                tuple(evidence),
                _ALTERNATIVES,
                (undo_lateness(seen, component, standout, stalled),),
                basis,
                spread_ns=standout.spread,
            )

    def judge_ledger(self, seen: LedgerView) -> Iterator[UntimedClaim | Abstention]:
        """Claim the ranks that wait least at step borders, if their load does not explain it."""
        if seen.reason is not None or seen.window.ledger.engine != "sglang":
            return
        waits = seen.waits
        if waits is None:
            yield Abstention(self.cause, "waits at step borders are not told", _WAIT_SERIES, _WAITS_WITH)
            return
        if waits.low is not None and not _is_loaded(seen, waits.low.mask):
            suspects = seen.names_of(waits.low.mask)
            unseen = sorted({*seen.missing, *seen.names_of(np.isnan(waits.per_step_s))})
            if unseen:
                text = f"{name_numbers(unseen)}: waits not told, and the slowest may be one that is not seen"
                yield Abstention(self.cause, text, ("all ranks",), "/metrics of every node twice")
                return
            if seen.window.growth("scheduled_pairs") is None and seen.computed is None:
                text = "ranks wait unevenly at step borders; what each of them computed is not told, which may be why"
                yield Abstention(self.cause, text, ("dp_attention_pairs_total",), _WAITS_WITH)
                return
            if not waits.has_control and len(suspects) > 1:
                yield Abstention(self.cause, _suspects(suspects), ("scheduler_stage_seconds_total",), _CONTROL_WITH)
                return
            excess = find_excess(seen, waits.low.mask)
            # So much more load makes a step longer by so much at most.
            if excess is not None and (waits.cost_ratio is None or excess - 1.0 >= waits.cost_ratio):
                why = f"{excess:.2f} × the load of any other may be why"
                text = f"{name_numbers(suspects)}: the others wait for it at step borders, and {why}"
                yield Abstention(self.cause, text, ("more requests",), "watch for longer, or record a trace")
                return
            if waits.cost_ratio is None or waits.cost_ratio >= LEAST_COST:
                yield _claim_late(self.cause, seen, waits, suspects)
                return
        if not waits.has_control:
            text = "the wait for the control broadcast is not told: a late rank 0 would not show"
            yield Abstention(self.cause, text, ("scheduler_stage_seconds_total",), _CONTROL_WITH)


def _times(stalls_ns: FloatArray) -> str:
    typical = format_ns(float(np.median(stalls_ns)))
    return f"once, for {typical}" if len(stalls_ns) == 1 else f"{len(stalls_ns)} times, for {typical} each"


def _idle(seen: Observations) -> tuple[str, FloatArray, str]:
    """Return the component that holds host lateness, its sums, and how good a price from it is."""
    if seen.abilities.has_launches:
        return "host", seen.sums["host"] - seen.sums["inherited"], "replayed"
    return "rest", np.maximum(seen.sums["rest"], 0.0), "bound"


def _inside(seen: Observations, stalls: BoolArray) -> Iterator[Evidence]:
    """Name the annotated range that occurs in stalls and nowhere else, where such ranges were recorded."""
    spans = seen.ranges
    if spans is None:
        return
    first = np.searchsorted(seen.end_ns, spans.start_ns, side="right")
    stop = np.searchsorted(seen.start_ns, spans.end_ns, side="left")
    before = np.vstack([np.zeros((1, seen.n_ranks), np.int64), np.cumsum(stalls, axis=0)])
    in_stall = before[np.maximum(stop, first), spans.rank] > before[first, spans.rank]
    names, which = np.unique(spans.name, return_inverse=True)
    elsewhere = np.bincount(which, ~in_stall, minlength=len(names))
    time_ns = np.bincount(which, spans.end_ns - spans.start_ns, minlength=len(names))
    only = np.flatnonzero((elsewhere == 0) & (2 * time_ns > seen.median_step_ns))
    if len(only):
        best = int(only[np.argmax(time_ns[only])])
        text = f"range “{names[best]}” occurs only in these steps"
        yield Evidence("stall_ns", float(time_ns[best]), "ns", text)


def _system_calls(seen: Observations, marks: BoolArray, typical_ns: float) -> Iterator[Evidence]:
    """Name the system call that a thread of the process spent the stalls in, where one fits them and little else.

    Threads that always sit in some wait (watchdogs, pollers) fit every step and say nothing.
    """
    calls = seen.os_calls
    if calls is None:
        return
    duration = calls.end_ns - calls.start_ns
    alike = np.flatnonzero((duration >= 0.5 * typical_ns) & (duration <= 1.5 * typical_ns))
    step = np.searchsorted(seen.start_ns, calls.end_ns[alike], side="right") - 1
    in_stall = (step >= 0) & marks[np.maximum(step, 0), calls.rank[alike]]
    stalls = int(marks.sum())
    for name, count in Counter(calls.name[alike][in_stall].tolist()).most_common(1):
        everywhere = int((calls.name[alike] == name).sum())
        if 2 * count >= stalls and everywhere <= 2 * count:
            longest = float(duration[alike][in_stall].max())
            text = f"a thread of the process was in {name} in {min(count, stalls)} of the {stalls} stalls"
            yield Evidence("os_call_ns", longest, "ns", text, None, count)


def _waiting_in_all(seen: Observations, ranks: tuple[int, ...]) -> Iterator[Evidence]:
    others = [position for position in range(seen.n_ranks) if position not in ranks]
    if others:
        total = float(seen.sums["wait"][:, others].sum(axis=0).mean())
        yield Evidence(
            "peers_wait_ns",
            total,
            "ns",
            f"the others wait {format_ns(total)} in all steps together",
            None,
            seen.n_steps,
        )


_WAIT_SERIES = ("dp_attention_sync_wait_seconds", "scheduler_stage_seconds_total")
_WAITS_WITH = (
    "SGLANG_ENABLE_METRICS_DP_ATTENTION=1 with --enable-metrics (SGLang >= 0.5.22), /metrics of every node twice"
)
_CONTROL_WITH = "SGLang >= 0.5.20 with --enable-metrics: scheduler_stage_seconds_total by rank"


def _is_loaded(seen: LedgerView, mask: BoolArray) -> bool:
    """Tell whether some of the ranks have more load than others: that is why these wait for them."""
    load = find_load(seen)
    return load is not None and bool((load.mask & mask).any())


def _suspects(ranks: tuple[int, ...]) -> str:
    return (
        f"{name_numbers(ranks)} wait least in the gather: one of them is late and the others may only sit behind it in "
        "the control broadcast, whose wait is not told"
    )


def _claim_late(cause: str, seen: LedgerView, waits: Waits, ranks: tuple[int, ...]) -> UntimedClaim:
    assert waits.low is not None
    mask, per_step = waits.low.mask, waits.per_step_s
    own, usual = float(np.nanmean(per_step[mask])), float(np.nanmedian(per_step[~mask]))
    text = f"waits {show_s(own)} at a step border, the others {show_s(usual)}"
    steps = seen.window.steps
    count = None if steps is None else round(steps)
    cost = "" if waits.cost_ratio is None else f"; costs at most {format_ratio(waits.cost_ratio)} of the time"
    return UntimedClaim(
        cause,
        ranks,
        "one" if len(ranks) == 1 else "group",
        f"{name_numbers(ranks)}: the others wait for its host: it {text}, at even load{cost}",
        (Evidence("border_wait_ns", own * 1e9, "ns", text, usual * 1e9, count),),
        (
            Alternative(
                "single_point.gpu", "kernels of equal work that take longer: a host may wait for its GPU (a trace)"
            ),
            Alternative("load.unknown", "more attention work on that rank"),
        ),
        sureness(waits.low.score),
        seen.window.span_ns,
        lost_ratio=waits.cost_ratio,
    )
