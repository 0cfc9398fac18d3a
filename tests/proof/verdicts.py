"""Short words for what a diagnosis says."""

from __future__ import annotations

from typing import Any

from dprankdiag.model.diagnosis import Diagnosis, Finding

Verdict = tuple[str, frozenset[tuple[str, tuple[int, ...], str]]]


def verdict(diagnosis: Diagnosis) -> Verdict:
    """Give the status, and cause, ranks and severity of what is warned of."""
    return diagnosis.status, frozenset((item.cause, item.ranks, item.severity) for item in warned(diagnosis))


def warned(diagnosis: Diagnosis) -> list[Finding]:
    """List the findings of warning or above."""
    return [finding for finding in diagnosis.findings if finding.severity != "info"]


def list_warned(said: dict[str, Any]) -> list[tuple[str, list[int]]]:
    """List cause and ranks of what an answer in JSON warns of."""
    return [(item["cause"], item["ranks"]) for item in said["findings"] if item["severity"] != "info"]


def class_of(finding: Finding) -> str:
    """Give the class of a finding's cause."""
    return finding.cause.split(".")[0]


def blamed(diagnosis: Diagnosis) -> set[int]:
    """Collect the ranks that any finding names, warned of or not."""
    return {rank for finding in diagnosis.findings for rank in finding.ranks}


def value_of(finding: Finding, name: str) -> float:
    """Take the first evidence of a name."""
    values = [item.value for item in finding.evidence if item.name == name and item.value is not None]
    assert values, f"{finding.cause} shows no {name}"
    return values[0]


def reasons_of(diagnosis: Diagnosis) -> str:
    """Join all words that say why something could not be judged."""
    said = [diagnosis.headline, *diagnosis.notes, *(abstention.reason for abstention in diagnosis.abstentions)]
    return "\n".join(said)


def waits_of(diagnosis: Diagnosis) -> dict[int, int]:
    """Give every rank's wait."""
    return {rank.rank: rank.wait_ns for rank in diagnosis.ranks if rank.wait_ns is not None}
