"""The parts of the HTML page that are words: verdict, findings, inputs, what cannot be told."""

from __future__ import annotations

from collections.abc import Sequence

from dprankdiag.model.diagnosis import Diagnosis, Experiment, Finding, Remedy
from dprankdiag.units import format_ns
from dprankdiag.views import words
from dprankdiag.views.markup import Markup, join, tag

MAX_WHO_ROWS = 16
"""Ranks of one finding described in full; the heading names all."""


def write_verdict(diagnosis: Diagnosis) -> Markup:
    """Write the headline, the status and what it means."""
    status = "cannot tell" if diagnosis.status == "inconclusive" else diagnosis.status
    facts = [tag("span", status, class_=f"status {diagnosis.status}")]
    facts += [tag("span", fact) for fact in words.list_facts(diagnosis)]
    meaning = words.STATUS_MEANING[diagnosis.status]
    return tag(
        "header",
        tag("h1", diagnosis.headline or "No headline."),
        tag("p", *facts, class_="facts"),
        tag("p", meaning) if meaning else "",
        class_=f"verdict {diagnosis.status}",
    )


def write_finding(number: int, finding: Finding, diagnosis: Diagnosis) -> Markup:
    """Write the card of a finding."""
    members = [rank for rank in diagnosis.ranks if rank.engine == finding.engine and rank.rank in finding.ranks]
    who = [words.describe_rank(rank) for rank in members[:MAX_WHO_ROWS]] or [words.name_ranks(finding)]
    facts = [("who", who), ("when", [words.describe_pattern(finding, diagnosis.time.start_ns)])]
    facts.append(("lost", [words.describe_loss(finding, diagnosis)]))
    if finding.recoverable_ns is not None:
        facts.append(("recoverable", [format_ns(finding.recoverable_ns)]))
    facts.append(("confidence", [f"{finding.confidence:.2f}"]))
    rows = [
        (
            item.text,
            words.format_value(item.value, item.unit),
            words.format_value(item.expected, item.unit),
            words.ABSENT if item.samples is None else str(item.samples),
            tag("code", item.name),
        )
        for item in finding.evidence
    ]
    columns = ("evidence", "measured", "expected", "samples", "name")
    others = [tag("li", tag("code", other.cause), f" would need: {other.would_need}") for other in finding.alternatives]
    remedies = [_write_remedy(remedy, diagnosis.interval_level) for remedy in finding.remedies]
    experiments = [_write_experiment(item) for item in finding.experiments]
    heading = (
        tag("span", finding.severity, class_=f"severity {finding.severity}"),
        f" {number}. {words.name_ranks(finding)}: {finding.cause}",
    )
    return tag(
        "article",
        tag("h3", *heading, id=finding.id),
        tag("p", finding.summary, class_="summary"),
        write_fields(facts),
        write_table("Evidence", columns, rows, columns[1:4]) if rows else "",
        join(tag("h4", "What else it could be"), tag("ul", *others)) if others else "",
        join(tag("h4", "What to do"), tag("ol", *remedies)) if remedies else "",
        join(tag("h4", "What would tell it from other causes"), tag("ul", *experiments)) if experiments else "",
        tag("p", "More about this cause: ", write_command(f"dprankdiag explain {finding.cause}")),
        class_=f"card {finding.severity}",
        aria_labelledby=finding.id,
    )


def _write_remedy(remedy: Remedy, level: float) -> Markup:
    gain = words.describe_gain(remedy, level)
    command = join(" Try: ", write_command(remedy.command)) if remedy.command else ""
    return tag("li", _write_advice(remedy.text), command, tag("strong", f" {gain}") if gain else "")


def _write_experiment(experiment: Experiment) -> Markup:
    command = join(" Try: ", write_command(experiment.command)) if experiment.command else ""
    outcomes = [tag("li", f"If {outcome.seen}: {outcome.means}") for outcome in experiment.outcomes]
    return tag("li", _write_advice(experiment.text), command, tag("ul", *outcomes))


def _write_advice(text: str) -> Markup:
    """Write advice with its commands ready to copy."""
    return join(*(write_command(piece) if is_command else piece for piece, is_command in words.split_commands(text)))


def write_command(command: str) -> Markup:
    """Write a command with a button that copies it."""
    button = tag("button", "copy", type="button", class_="copy", aria_label=f"copy {command}")
    # A word of its own element is not broken at its hyphens where the line ends.
    code = Markup(" ".join(tag("span", word) for word in command.split()))
    return tag("span", tag("code", code), button, class_="command")


def write_fields(fields: Sequence[tuple[str, Sequence[str]]]) -> Markup:
    """Write labels with their values."""
    return tag("dl", *(join(tag("dt", label), *(tag("dd", value) for value in values)) for label, values in fields))


def write_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[str] = ()
) -> Markup:
    """Write a table that scrolls by itself; the columns in `numbers` are aligned right."""
    classes = ["number" if column in numbers else None for column in columns]
    head = [tag("th", column, scope="col", class_=kind) for column, kind in zip(columns, classes, strict=True)]
    body = [tag("tr", *(tag("td", cell, class_=kind) for cell, kind in zip(row, classes, strict=True))) for row in rows]
    table = tag("table", tag("thead", tag("tr", *head)), tag("tbody", *body))
    return tag("div", table, class_="scroll", tabindex="0", role="group", aria_label=f"{title}: table")


def write_measured(diagnosis: Diagnosis) -> Markup:
    """Write what was measured."""
    fields = [(label, [value]) for label, value in words.list_measured(diagnosis)]
    return tag("section", tag("h2", "What was measured"), write_fields(fields))


def write_inputs(diagnosis: Diagnosis) -> Markup:
    """Write each input with what it lacked."""
    items = [
        tag("li", tag("code", source.path), tag("ul", *(tag("li", text) for text in words.describe_source(source))))
        for source in diagnosis.inputs
    ]
    return tag("section", tag("h2", "Inputs"), tag("ul", *items) if items else tag("p", "None."))


def write_abstentions(diagnosis: Diagnosis) -> Markup:
    """Write what could not be judged, why, and how to get it; nothing if all could be."""
    items = []
    for causes, reason, command in words.join_abstentions(diagnosis.abstentions):
        advice = tag("p", "Get it with: ", _write_advice(command)) if command else ""
        items.append(tag("li", tag("strong", causes), f": {reason}", advice))
    if not items:
        return Markup("")
    return tag("section", tag("h2", "What cannot be told"), tag("ul", *items, class_="untold"), class_="card untold")


def write_notes(diagnosis: Diagnosis) -> Markup:
    """Write the notes; nothing if there are none."""
    if not diagnosis.notes:
        return Markup("")
    return tag("section", tag("h2", "Notes"), tag("ul", *(tag("li", note) for note in diagnosis.notes)))
