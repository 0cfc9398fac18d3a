"""The diagnosis as Markdown that can be pasted into an issue; nothing in a recording can become markup there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from dprankdiag.model.diagnosis import Diagnosis, Experiment, Finding
from dprankdiag.units import format_ns
from dprankdiag.views import words
from dprankdiag.views.base import DEFAULT_WIDTH, Tables
from dprankdiag.views.ledgers import LEGEND, list_ledger_rows
from dprankdiag.views.ledgers import TITLE as LEDGER_TITLE
from dprankdiag.views.printable import make_printable

MAX_RANK_ROWS = 64
"""Rank rows on the page; named ranks come first, the JSON has all. An issue holds some 65,000 characters."""

MAX_WHO_ROWS = 16
MAX_INPUTS = 64

_MARKUP = re.compile(r"[\\`*\[\]<>|~$#]|(?<![0-9A-Za-z])_|_(?![0-9A-Za-z])")
"""Characters that begin or end markup inside a line; an underscore within a word does not.

Source: GitHub Flavored Markdown specification 0.29, sections 2.4 and 6; `$` is GitHub's delimiter of formulas.
"""

_LINKED = re.compile(r"@(?=\w)|(?:#|GH-)(?=\d)|:(?=//)|(?<=www)\.|(?<=mailto):|(?<=xmpp):", re.IGNORECASE)
"""Where GitHub would make a mention, a reference or a link out of plain text; it does not across an invisible space."""

_LINE_START = re.compile(r"^(\s*)([+=:>-]|\d+[.)])")
_BREAK = "&#8203;"


def render(diagnosis: Diagnosis, tables: Tables, *, width: int = DEFAULT_WIDTH, color: bool = False) -> str:
    """Write the whole diagnosis; width and colour do not apply, and of the tables only what ledgers told is shown."""
    lines = [
        *_write_verdict(diagnosis),
        *(
            line
            for number, item in enumerate(diagnosis.findings, 1)
            for line in _write_finding(number, item, diagnosis)
        ),
        *_write_lost(diagnosis),
        *_write_ranks(diagnosis, tables),
        *_write_measured(diagnosis),
        *_write_inputs(diagnosis),
        *_write_abstentions(diagnosis),
        *_write_notes(diagnosis),
    ]
    return "\n".join(lines).strip("\n") + "\n"


def escape(text: str) -> str:
    """Make text that Markdown shows as it is inside a line: no markup, HTML, link, mention or formula."""
    plain = make_printable(text).replace("&", "&amp;")
    plain = _MARKUP.sub(lambda found: f"\\{found[0]}", plain)
    plain = _LINKED.sub(lambda found: f"{found[0]}{_BREAK}", plain)
    return plain.strip()


def escape_line(text: str) -> str:
    """Make text as `escape` does that begins a line or an item: no heading, quotation or list either."""
    return _LINE_START.sub(_escape_start, escape(text))


def _escape_start(found: re.Match[str]) -> str:
    mark = found[2]
    return f"{found[1]}\\{mark}" if len(mark) == 1 else f"{found[1]}{mark[:-1]}\\{mark[-1]}"


def quote_code(text: str) -> str:
    """Put text between as many backticks as it needs to be code as it is; not for table cells."""
    plain = make_printable(text).strip() or " "
    longest = max((len(run) for run in re.findall(r"`+", plain)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if longest or plain.isspace() else ""
    return f"{fence}{pad}{plain}{pad}{fence}"


def _write_verdict(diagnosis: Diagnosis) -> Iterator[str]:
    yield f"## {escape(diagnosis.headline or 'No headline.')}"
    yield ""
    yield " · ".join((f"**{diagnosis.status}**", *words.list_facts(diagnosis)))
    if meaning := words.STATUS_MEANING[diagnosis.status]:
        yield from ("", meaning)


def _write_findings(diagnosis: Diagnosis) -> Iterator[str]:
    for number, finding in enumerate(diagnosis.findings, 1):
        yield from _write_finding(number, finding, diagnosis)


def _write_finding(number: int, finding: Finding, diagnosis: Diagnosis) -> Iterator[str]:
    heading = f"{number}. {finding.severity}: {finding.cause}, {words.name_ranks(finding)}"
    yield from ("", f"### {escape(heading)}", "", escape_line(finding.summary), "")
    members = [rank for rank in diagnosis.ranks if rank.engine == finding.engine and rank.rank in finding.ranks]
    yield from _list_items("who", [words.describe_rank(rank) for rank in members[:MAX_WHO_ROWS]])
    yield from _list_items("when", [words.describe_pattern(finding, diagnosis.time.start_ns)])
    yield from _list_items("lost", [words.describe_loss(finding, diagnosis)])
    if finding.recoverable_ns is not None:
        yield from _list_items("recoverable", [format_ns(finding.recoverable_ns)])
    yield from _list_items("confidence", [f"{finding.confidence:.2f}"])
    if finding.evidence:
        rows = [(item.text, words.describe_measurement(item)) for item in finding.evidence]
        yield from ("", *_write_table(("evidence", "measured"), rows))
    others = [f"{other.cause} would need: {other.would_need}" for other in finding.alternatives]
    yield from ("", *_list_items("or else", others)) if others else ()
    yield from ("", "To do:", "") if finding.remedies else ()
    for position, remedy in enumerate(finding.remedies, 1):
        gain = words.describe_gain(remedy, diagnosis.interval_level)
        command = f" Try: {quote_code(remedy.command)}." if remedy.command else ""
        yield f"{position}. {_write_advice(remedy.text)}{command} {escape(gain)}".rstrip()
    yield from _write_experiments(finding.experiments)


def _write_experiments(experiments: Sequence[Experiment]) -> Iterator[str]:
    yield from ("", "To tell it from other causes:", "") if experiments else ()
    for experiment in experiments:
        command = f" Try: {quote_code(experiment.command)}." if experiment.command else ""
        yield f"- {escape_line(experiment.text)}{command}"
        yield from (f"  - If {escape(outcome.seen)}: {escape(outcome.means)}" for outcome in experiment.outcomes)


def _write_advice(text: str) -> str:
    """Write advice with its commands as code."""
    pieces = words.split_commands(text)
    if len(pieces) == 1 and not pieces[0][1]:
        return escape_line(text)
    # Escaping strips the blanks between the pieces.
    return "".join(
        quote_code(piece) if is_command else f"{_lead(piece)}{escape(piece)}{_lead(piece[::-1])}"
        for piece, is_command in pieces
    ).strip()


def _lead(text: str) -> str:
    return " " if text[:1].isspace() else ""


def _list_items(label: str, values: Sequence[str]) -> Iterator[str]:
    if len(values) == 1:
        yield f"- **{label}**: {escape(values[0])}"
    elif values:
        yield f"- **{label}**:"
        yield from (f"  - {escape_line(value)}" for value in values)


def _write_table(columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[str] = ()) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield f"|{'|'.join('---:' if column in numbers else '---' for column in columns)}|"
    yield from (f"| {' | '.join(escape(cell) for cell in row)} |" for row in rows)


def _write_lost(diagnosis: Diagnosis) -> Iterator[str]:
    yield from ("", "### Lost time", "")
    rows = words.list_lost_rows(diagnosis)
    if rows:
        yield from _write_table(words.LOST_COLUMNS, rows, numbers=("lost", "share"))
    else:
        yield words.explain_no_loss(diagnosis)


def _write_ranks(diagnosis: Diagnosis, tables: Tables) -> Iterator[str]:
    headings, told = list_ledger_rows(diagnosis, tables, MAX_RANK_ROWS)
    if told:
        yield from ("", f"### {LEDGER_TITLE}", "")
        yield from _write_table(headings, told, numbers=headings)
        yield from ("", LEGEND)
        if words.is_ledger(diagnosis):
            return
    yield from ("", "### Ranks", "")
    if not diagnosis.ranks:
        yield "None could be told apart."
        return
    named = words.find_named(diagnosis)
    shown = words.choose_ranks(diagnosis, MAX_RANK_ROWS)
    rows = [words.list_rank_cells(rank, (rank.engine, rank.rank) in named) for rank in shown]
    yield from _write_table(words.RANK_COLUMNS, rows, numbers=words.RANK_COLUMNS[:5])
    if len(shown) < len(diagnosis.ranks):
        yield from ("", f"and {len(diagnosis.ranks) - len(shown)} more; the JSON has all of them")
    if named and any(rank.wait_ns is not None for rank in diagnosis.ranks):
        yield from ("", escape_line(words.NAMED_RANKS))


def _write_measured(diagnosis: Diagnosis) -> Iterator[str]:
    yield from ("", "### What was measured", "")
    for label, value in words.list_measured(diagnosis):
        yield from _list_items(label, [value])


def _write_inputs(diagnosis: Diagnosis) -> Iterator[str]:
    yield from ("", "### Inputs", "")
    if not diagnosis.inputs:
        yield "None."
    for source in diagnosis.inputs[:MAX_INPUTS]:
        yield f"- {quote_code(source.path)}"
        yield from (f"  - {escape_line(text)}" for text in words.describe_source(source))
    if len(diagnosis.inputs) > MAX_INPUTS:
        yield f"- and {len(diagnosis.inputs) - MAX_INPUTS} more; the JSON has all of them"


def _write_abstentions(diagnosis: Diagnosis) -> Iterator[str]:
    if not diagnosis.abstentions:
        return
    yield from ("", "### What cannot be told", "")
    for causes, reason, command in words.join_abstentions(diagnosis.abstentions):
        yield f"- **{escape(causes)}**: {escape(reason)}"
        if command:
            yield f"  - get it with: {_write_advice(command)}"


def _write_notes(diagnosis: Diagnosis) -> Iterator[str]:
    if diagnosis.notes:
        yield from ("", "### Notes", "")
    yield from (f"- {escape_line(note)}" for note in diagnosis.notes)
