"""What targets offer and how they are set up, as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from dprankdiag.model.bundle import SCHEMA_VERSION, describe_tool, publish_value
from dprankdiag.model.checkup import LEVELS, Check, Checkup, Interface
from dprankdiag.units import NS_PER_S, format_ns
from dprankdiag.views import words
from dprankdiag.views.base import DEFAULT_WIDTH
from dprankdiag.views.json import write_json
from dprankdiag.views.page import INDENT, Page

_HEADINGS = {
    "problem": "Problems",
    "missing": "Missing: can be switched on",
    "note": "To know when reading the numbers",
    "ok": "As it should be",
}
_ANSWERS = (("can", "Can be judged"), ("needs", "Needs more"), ("cannot", "Not from the engine's numbers"))


def render_json(checkups: Sequence[Checkup], versions: Mapping[str, str]) -> str:
    """Write all checkups as one object."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "tool": describe_tool(),
        "versions": dict(versions),
        "targets": [_make_target(checkup) for checkup in checkups],
    }
    return write_json(publish_value(document))


def _make_target(checkup: Checkup) -> dict[str, Any]:
    return {**asdict(checkup), "is_reached": checkup.is_reached}


def render_text(
    checkups: Sequence[Checkup],
    versions: Mapping[str, str] | None = None,
    *,
    width: int = DEFAULT_WIDTH,
    color: bool = False,
) -> str:
    """Write a page: for each target what it is, what it offers, what to mend, and which causes can be judged."""
    page = Page(width, color)
    for number, checkup in enumerate(checkups):
        if number:
            page.add_blank()
        _write_target(page, checkup)
    if versions is not None:
        page.add_heading("Versions")
        page.add_fields(list(versions.items()), label_width=20)
    return page.finish()


def _write_target(page: Page, checkup: Checkup) -> None:
    page.add_line(_describe(checkup), style="bold")
    page.add_line(_sum_up(checkup))
    page.add_heading("Interfaces")
    rows = [_list_cells(interface) for interface in checkup.interfaces]
    page.add_table(("interface", "answer", "after", "what"), rows, numbers=("after",))
    for level in LEVELS:
        _write_checks(page, _HEADINGS[level], [check for check in checkup.checks if check.level == level])
    _write_causes(page, checkup)


def _describe(checkup: Checkup) -> str:
    if checkup.engine is None:
        return f"{checkup.target}: {'no engine that is known' if checkup.is_reached else 'nothing answered'}"
    name = {"sglang": "SGLang", "vllm": "vLLM"}[checkup.engine]
    parts = [" ".join(part for part in (name, checkup.version) if part), checkup.model or "model not told"]
    return f"{checkup.target}: {', '.join(parts)}, {_count_ranks(checkup)}"


def _count_ranks(checkup: Checkup) -> str:
    seen = words.count_of(len(checkup.ranks), "DP rank")
    if checkup.expected_ranks is None or checkup.expected_ranks == len(checkup.ranks):
        return seen
    return f"{len(checkup.ranks)} of {words.count_of(checkup.expected_ranks, 'DP rank')}"


def _sum_up(checkup: Checkup) -> str:
    number = {level: sum(check.level == level for check in checkup.checks) for level in LEVELS}
    counts = [
        words.count_of(number["problem"], "problem"),
        f"{number['missing']} missing",
        words.count_of(number["note"], "note"),
    ]
    judged = sum(cause.answer == "can" for cause in checkup.causes)
    told = [f"{judged} of {len(checkup.causes)} causes can be judged"] if checkup.causes else []
    return " | ".join((*counts, *told))


def _list_cells(interface: Interface) -> list[str]:
    what = interface.reason or ""
    if interface.ranks is not None:
        what = f"{words.format_ranks(interface.ranks)}" if interface.ranks else "no ranks"
    return [interface.name, interface.status, format_ns(interface.seconds * NS_PER_S), what]


def _write_checks(page: Page, heading: str, checks: Sequence[Check]) -> None:
    if not checks:
        return
    page.add_heading(heading)
    for check in checks:
        page.add_line(check.what, indent=INDENT)
        fields = [("why", check.why), *([("to do", check.todo)] if check.todo else [])]
        page.add_fields(fields, label_width=6)


def _write_causes(page: Page, checkup: Checkup) -> None:
    for answer, heading in _ANSWERS:
        causes = [cause for cause in checkup.causes if cause.answer == answer]
        if not causes:
            continue
        page.add_heading(heading)
        if answer == "cannot":
            page.add_line(", ".join(cause.cause for cause in causes), indent=INDENT)
        else:
            page.add_fields([(cause.cause, cause.text) for cause in causes], label_width=20)
        for command in dict.fromkeys(cause.get_it_with for cause in causes if cause.get_it_with):
            page.add_fields([("", f"get it with: {command}")], label_width=1)
