"""Pair the findings of two diagnoses: what is new, what is gone, what stayed, what moved to other ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from dprankdiag.model.comparison import Presence
from dprankdiag.model.diagnosis import Diagnosis, Finding, Severity

SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")
LOWER_RUNGS = ("unknown", "late")


@dataclass(frozen=True, slots=True)
class CausePair:
    """Findings of one cause on the same ranks, before and after; one of the two may be empty.

    Attributes:
        unjudged: why the empty side could not have shown the cause; None if it could.
    """

    before: tuple[Finding, ...]
    after: tuple[Finding, ...]
    unjudged: str | None = None

    @property
    def presence(self) -> Presence:
        """Tell new, gone, stayed and moved apart."""
        if not self.before:
            return "new"
        if not self.after:
            return "gone"
        return "stayed" if ranks_of(self.before) == ranks_of(self.after) else "moved"


def ranks_of(findings: Sequence[Finding]) -> tuple[int, ...]:
    """List the ranks that findings name."""
    return tuple(sorted({rank for finding in findings for rank in finding.ranks}))


def severity_of(findings: Sequence[Finding]) -> Severity | None:
    """Return the highest severity; None of no findings."""
    return max((finding.severity for finding in findings), key=SEVERITIES.index, default=None)


def numbers_of(findings: Sequence[Finding]) -> list[int]:
    """List the numbers of findings, 1 for f1."""
    return [int(finding.id.removeprefix("f")) for finding in findings]


def match_causes(before: Diagnosis, after: Diagnosis, engines: Mapping[str, str]) -> list[CausePair]:
    """Pair findings: of the same cause and ranks, then of a higher rung on the same ranks, then of the cause alone.

    Args:
        engines: name of an engine before to its name after.

    Returns:
        Pairs, the costliest first as the later diagnosis has them, then what is gone.
    """
    old = _merge([replace(item, engine=engines.get(item.engine, item.engine)) for item in before.findings])
    new = _merge(after.findings)
    partner: dict[int, int] = {}
    for fits in (_is_same, _is_other_rung, _is_same_cause):
        _extend(partner, old, new, fits)
    pairs = [CausePair(old[partner[k]] if k in partner else (), found) for k, found in enumerate(new)]
    pairs += [CausePair(found, ()) for place, found in enumerate(old) if place not in partner.values()]
    return [_say_unjudged(pair, before, after) for pair in pairs]


def _merge(findings: Sequence[Finding]) -> list[tuple[Finding, ...]]:
    """Join the findings of one cause on the same ranks (in several parts of the recording)."""
    merged: dict[tuple[str, str, tuple[int, ...]], list[Finding]] = {}
    for finding in findings:
        merged.setdefault((finding.engine, finding.cause, finding.ranks), []).append(finding)
    return [tuple(found) for found in merged.values()]


def _extend(
    partner: dict[int, int],
    old: Sequence[tuple[Finding, ...]],
    new: Sequence[tuple[Finding, ...]],
    fits: Callable[[Finding, Finding], bool],
) -> None:
    """Give every later finding without a partner the first free earlier one that fits."""
    for mine in range(len(new)):
        if mine not in partner:
            free = (place for place in range(len(old)) if place not in partner.values())
            place = next((place for place in free if fits(old[place][0], new[mine][0])), None)
            if place is not None:
                partner[mine] = place


def _is_same(old: Finding, new: Finding) -> bool:
    return (old.engine, old.cause, old.ranks) == (new.engine, new.cause, new.ranks)


def _is_other_rung(old: Finding, new: Finding) -> bool:
    """Tell whether one of two findings on the same ranks only says less than the other."""
    (old_class, old_name), (new_class, new_name) = old.cause.split("."), new.cause.split(".")
    lower = (old_name in LOWER_RUNGS, new_name in LOWER_RUNGS)
    alike = old_class == new_class or "unclassified" in (old_class, new_class)
    return (old.engine, old.ranks) == (new.engine, new.ranks) and bool(old.ranks) and alike and lower[0] != lower[1]


def _is_same_cause(old: Finding, new: Finding) -> bool:
    return (old.engine, old.cause) == (new.engine, new.cause)


def _say_unjudged(pair: CausePair, before: Diagnosis, after: Diagnosis) -> CausePair:
    if pair.before and pair.after:
        return pair
    cause = (pair.after or pair.before)[0].cause
    silent = after if pair.before else before
    reason = next((item.reason for item in silent.abstentions if item.cause == cause), None)
    return replace(pair, unjudged=reason)
