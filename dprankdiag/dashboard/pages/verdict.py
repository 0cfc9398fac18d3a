"""The verdict: who gates the service, why, what it costs and what to do; or why nobody does or nothing can be told."""

from __future__ import annotations

from dash import dcc, html
from dash.development.base_component import Component

from dprankdiag.dashboard.elements import make_elements
from dprankdiag.dashboard.pages.base import (
    RECORD_ALL,
    Elements,
    Page,
    choose_definitions,
    list_definitions,
    show_panel,
    show_words,
    show_words_of,
)
from dprankdiag.dashboard.pages.waiting import find_group, find_worst_step
from dprankdiag.dashboard.places import Place, write_address
from dprankdiag.dashboard.provider import Snapshot
from dprankdiag.model.diagnosis import Diagnosis, Finding
from dprankdiag.views.cards import (
    write_abstentions,
    write_finding,
    write_inputs,
    write_measured,
    write_notes,
    write_verdict,
)
from dprankdiag.views.panels import make_lost_panel, make_ranks_panel
from dprankdiag.views.words import is_ledger

MEANINGS = {
    "lost": "Wall time that the replay of the measured steps wins without the fault.",
    "share": "Lost time over the time of all analysed steps.",
    "confidence": "How often cause and ranks come out the same when steps are drawn anew, fitted on known worlds.",
    "recoverable": "Wall time that the best remedy wins back in the replay.",
    "jitter": "What random noise costs; it stands beside the total and is no part of it.",
    "healthy": "The ranks are even. It says nothing about what all ranks do alike.",
    "uniform": "All ranks are alike and slow.",
    "cannot tell": "What was given cannot carry a verdict; what would is named.",
}

BOUNDS = (
    "What engines tell of themselves can bound what a finding costs, and its card says so, but it does not account for "
    f"all lost time. A recording of all ranks does: {RECORD_ALL} prints the calls that make one."
)


def render(snapshot: Snapshot, place: Place) -> Elements:
    """Show the headline, the findings, the account of lost time, and what cannot be told."""
    diagnosis = snapshot.diagnosis
    titles = list_definitions()
    untold = show_words_of("untold", make_elements(write_abstentions(diagnosis), titles))
    undecided = diagnosis.status == "inconclusive"
    parts: Elements = [show_words_of("verdict", make_elements(write_verdict(diagnosis)))]
    parts += [untold] if undecided else []
    parts.append(show_words_of("findings", _show_findings(snapshot, titles)))
    reason = BOUNDS if is_ledger(diagnosis) else None
    parts.append(show_panel(make_lost_panel(diagnosis), reason=reason, meanings=MEANINGS))
    if not is_ledger(diagnosis):
        parts.append(show_panel(make_ranks_panel(diagnosis), open_table=True))
    facts = make_elements(write_measured(diagnosis)) + make_elements(write_inputs(diagnosis))
    parts.append(show_words_of("facts", facts))
    parts += [] if undecided else [untold]
    parts.append(show_words_of("notes", make_elements(write_notes(diagnosis))))
    parts.append(show_words(MEANINGS | choose_definitions(_list_names(diagnosis))))
    return parts


def _show_findings(snapshot: Snapshot, titles: dict[str, str]) -> Elements:
    diagnosis = snapshot.diagnosis
    if not diagnosis.findings:
        return []
    parts: Elements = [html.H2("Findings")]
    for number, finding in enumerate(diagnosis.findings, 1):
        (card,) = make_elements(write_finding(number, finding, diagnosis), titles)
        card.children.append(_show_ways(snapshot, finding))
        parts.append(card)
    return [html.Section(parts)]


def _show_ways(snapshot: Snapshot, finding: Finding) -> Component:
    """Lead from a finding to where it can be seen."""
    rank = finding.ranks[0] if len(finding.ranks) == 1 else None
    if is_ledger(snapshot.diagnosis):
        ways = [("what each rank tells", Place("/ledger")), ("who waits", Place("/waiting"))]
    else:
        group = find_group(snapshot, finding)
        step = None if group is None else find_worst_step(snapshot, group, finding.window)
        ways = [
            ("who waits", Place("/waiting")),
            ("who gates whom", Place("/blame")),
            ("layer by layer", Place("/layers")),
        ]
        if step is not None:
            ways.insert(0, (f"step {step} on the timeline", Place("/timeline", group, step, rank)))
    links = [part for text, place in ways for part in (" · ", dcc.Link(text, href=write_address(place)))]
    return html.P(["See it: ", *links[1:]])


def _list_names(diagnosis: Diagnosis) -> list[str]:
    causes = [finding.cause for finding in diagnosis.findings]
    return causes + [item.name for finding in diagnosis.findings for item in finding.evidence]


PAGE = Page("/", "Verdict", render)
