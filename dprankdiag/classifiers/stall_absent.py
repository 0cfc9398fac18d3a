"""A rank that never comes to a collective its peers wait in."""

from __future__ import annotations

from collections.abc import Iterator

from dprankdiag.analysis.absences import FlightView, Stall
from dprankdiag.classifiers.base import count_ranks, name_numbers
from dprankdiag.model.claims import UntimedClaim
from dprankdiag.model.diagnosis import Abstention, Alternative, Evidence
from dprankdiag.units import NS_PER_S, format_ns

LONG_NS = 10 * NS_PER_S
"""A call this old while others go on is no step of a running deployment."""

SURE, LIKELY, FAIR, UNSURE = 0.99, 0.9, 0.8, 0.5
MISSING = 0.6
MOST_MISSING = 0.5


class StallAbsent:
    """A rank never comes to a collective its peers wait in, and the deployment hangs.

    *What you see*: no rank makes progress; GPUs show full use, because they spin in a collective; after minutes a
    watchdog gives up on all ranks but one.

    *Why it happens*: a process that died or hangs outside collectives, a rank that takes another branch (no tokens, an
    exception, an early return), or groups entered in different orders.

    *How we tell it apart*: Flight Recorder dumps number the collectives of each process group. The farthest one that
    somebody waits in is the front; whoever has not come to it is absent, be it one rank or all but two: ranks that are
    ahead are never at fault. A rank that is behind because it waits in another group passes the blame on. A rank
    without a dump is a suspect. Where all have come and none goes on, nobody is named: the collective itself does not
    end. One call of difference is also what a running deployment looks like, the more so if most ranks are behind a
    few; dumps taken twice tell them apart.

    *What to do*: take the stacks of the absent rank before anything is restarted, and read its log from the time of its
    last collective on.
    """

    cause = "stall.absent"

    def judge_dumps(self, seen: FlightView) -> Iterator[UntimedClaim | Abstention]:
        """Claim the ranks that never came; abstain where somebody waits and nobody can be named."""
        if not seen.stalls:
            return
        if seen.absent:
            yield self._claim_absent(seen)
        elif any(_is_suspect(stall) for stall in seen.stalls):
            yield self._claim_missing(seen)
        else:
            yield Abstention(self.cause, _explain(seen))

    def _claim_absent(self, seen: FlightView) -> UntimedClaim:
        stall = next(stall for stall in seen.stalls if set(stall.behind) & set(seen.absent))
        call = _name_call(stall)
        ranks = name_numbers(seen.absent)
        has = "has" if len(seen.absent) == 1 else "have"
        where = f"{stall.calls_behind} behind" if stall.calls_behind else "not on the GPU"
        beside = f"; {name_numbers(seen.inherited)} behind only by waiting elsewhere" if seen.inherited else ""
        beside += "; one call apart is also normal while running" if _may_run(stall, seen) else ""
        return UntimedClaim(
            self.cause,
            seen.absent,
            "one" if len(seen.absent) == 1 else "group",
            f"{ranks} {has} not come to {call}, in which {count_ranks(stall.waiting)} wait ({where}){beside}",
            tuple(_list_evidence(stall, len(seen.absent), seen.last_ns)),
            (Alternative("communication.fabric", "all ranks in the same call, which does not end"),),
            _support(stall, seen),
            _span(stall, seen),
        )

    def _claim_missing(self, seen: FlightView) -> UntimedClaim:
        stall = next(stall for stall in seen.stalls if _is_suspect(stall))
        return UntimedClaim(
            self.cause,
            stall.unseen,
            "one" if len(stall.unseen) == 1 else "group",
            f"{name_numbers(stall.unseen)} left no dump that tells, and {count_ranks(stall.waiting)} wait in "
            f"{_name_call(stall)}: suspected",
            tuple(_list_evidence(stall, len(stall.unseen), seen.last_ns)),
            (Alternative("communication.fabric", "a dump of the missing rank in the same call"),),
            MISSING,
            _span(stall, seen),
        )


def _is_suspect(stall: Stall) -> bool:
    """Tell whether few enough members left no dump for a missing one to mean something."""
    members = len(stall.waiting) + len(stall.behind) + len(stall.unseen)
    return not stall.behind and 0 < len(stall.unseen) < MOST_MISSING * members


def _explain(seen: FlightView) -> str:
    stall = seen.stalls[0]
    if stall.unseen:
        return (
            f"{count_ranks(stall.waiting)} wait in {_name_call(stall)}, and {count_ranks(stall.unseen)} of its group "
            "left no dump: give the dumps of all ranks"
        )
    if seen.inherited:
        return f"{name_numbers(seen.inherited)} wait for each other in different groups: entered in different orders"
    odd = f"; {seen.mismatches[0]}" if seen.mismatches else ""
    return (
        f"all {len(stall.waiting)} ranks are in {_name_call(stall)} together: nobody is absent, the call itself does "
        f"not end{odd}"
    )


def _name_call(stall: Stall) -> str:
    name = f" ({stall.name})" if stall.name else ""
    return f"call {stall.sequence} of group {stall.group}{name}"


def _list_evidence(stall: Stall, absent: int, last_ns: int | None) -> Iterator[Evidence]:
    waiting = len(stall.waiting)
    yield Evidence(
        "waiting_ranks", float(waiting), "count", f"{count_ranks(stall.waiting)} wait in {_name_call(stall)}"
    )
    yield Evidence("absent_ranks", float(absent), "count", f"{absent} of the group have not come to it", 0.0)
    if stall.behind:
        behind = stall.calls_behind
        yield Evidence("calls_behind", float(behind), "count", f"up to {behind} collective calls behind", 0.0)
    if stall.timed_out:
        text = f"{stall.timed_out} of the waiting ranks gave the call up"
        yield Evidence("timed_out_ranks", float(stall.timed_out), "count", text, 0.0)
    if stall.since_ns is not None and last_ns is not None and (age := last_ns - stall.since_ns) >= LONG_NS:
        yield Evidence(
            "pending_ns", float(age), "ns", f"waited in for {format_ns(age)} up to the last event of any dump"
        )


def _may_run(stall: Stall, seen: FlightView) -> bool:
    """Tell what a running deployment may look like: one call apart, nothing given up, nothing old."""
    return stall.calls_behind == 1 and not stall.timed_out and not _is_old(stall, seen)


def _is_old(stall: Stall, seen: FlightView) -> bool:
    return stall.since_ns is not None and seen.last_ns is not None and seen.last_ns - stall.since_ns >= LONG_NS


def _support(stall: Stall, seen: FlightView) -> float:
    if stall.timed_out or _is_old(stall, seen):
        return SURE
    if not _may_run(stall, seen):
        return LIKELY
    return UNSURE if len(stall.behind) > len(stall.waiting) else FAIR


def _span(stall: Stall, seen: FlightView) -> tuple[int, int] | None:
    if stall.since_ns is None or seen.last_ns is None:
        return None
    return stall.since_ns, max(seen.last_ns, stall.since_ns)
