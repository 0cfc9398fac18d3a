"""From claims without steps to a diagnosis: no time is lost that could be told, so severity is the catalogue's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from dprankdiag.catalog.causes import load_causes
from dprankdiag.catalog.identifiability import load_identifiability
from dprankdiag.model.claims import UntimedClaim
from dprankdiag.model.diagnosis import (
    Abstention,
    Diagnosis,
    Finding,
    Lost,
    Status,
    StepTime,
    TimeAccount,
    TimeWindow,
)
from dprankdiag.model.ranks import Rank
from dprankdiag.model.sources import Source
from dprankdiag.pipelines.remedies import NO_STEPS, list_remedies

ENGINE = "default"
_TITLES = {
    "matrix": "a matrix",
    "flight-recorder": "a flight recorder",
    "metrics": "metrics",
    "ledger": "load answers",
}
NO_LOSS = Lost(None, None, None, (), None, None, None)
NO_TIME = TimeAccount("none", None, None, 0, {}, 0, None, None, None)
LEAST_CONFIDENCE = 0.05


def make_finding(claim: UntimedClaim, basis: str, most: float) -> Finding:
    """Say all that is known of a claim but what it costs.

    Args:
        basis: what it was found by, in place of a loss.
        most: confidence is never above.
    """
    cause = load_causes()[claim.cause]
    start_ns, end_ns = claim.span_ns or (0, 0)
    return Finding(
        "",
        claim.cause,
        ENGINE,
        claim.ranks,
        None,
        claim.who,
        "steady",
        cause.default_severity,
        None,
        None,
        None,
        None,
        basis,
        None,
        min(max(claim.support, LEAST_CONFIDENCE), most),
        TimeWindow(start_ns, end_ns),
        None,
        None,
        claim.summary,
        claim.evidence,
        claim.alternatives,
        list_remedies(cause, NO_STEPS),
    )


def conclude_untimed(
    findings: Sequence[Finding],
    even: str,
    sources: tuple[Source, ...],
    ranks: tuple[Rank, ...],
    abstentions: tuple[Abstention, ...],
    notes: tuple[str, ...],
    time: TimeAccount = NO_TIME,
) -> Diagnosis:
    """Make the diagnosis; where no time can be told, even ranks are no proof of health (DESIGN 3).

    Args:
        findings: in the order they shall have.
        even: headline where there is no finding.
    """
    numbered = tuple(_number(findings))
    status: Status = "findings" if any(item.severity != "info" for item in numbered) else "inconclusive"
    more = f" (and {len(numbered) - 1} more)" if len(numbered) > 1 else ""
    headline = numbered[0].summary + more if numbered else even
    return Diagnosis(
        status, headline, sources, ranks, time, StepTime(None, None), NO_LOSS, numbered, abstentions, notes
    )


def _number(findings: Sequence[Finding]) -> Iterator[Finding]:
    for number, finding in enumerate(findings, 1):
        yield replace(finding, id=f"f{number}")


def abstain_by_input(kind: str, causes: Sequence[str], found: Sequence[Finding]) -> Iterator[Abstention]:
    """Say of causes what this kind of input lacks to show them; one that was found is not among them.

    Args:
        kind: an input of `catalog/identifiability.toml`.
    """
    said = {finding.cause for finding in found}
    for cause in causes:
        ability = load_identifiability()[cause][kind]
        if cause not in said and ability.answer != "can":
            text = f"{_TITLES.get(kind, kind)} cannot show it" if ability.text == "cannot" else ability.text
            yield Abstention(cause, text, (), ability.get_it_with)
