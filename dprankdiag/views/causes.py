"""The page of a cause and the list of causes, as text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Protocol

from dprankdiag.catalog.commands import ENGINES
from dprankdiag.views.base import DEFAULT_WIDTH
from dprankdiag.views.page import INDENT, Page

_HEADING = re.compile(r"\*{1,2}([^*]+)\*{1,2}[.:]?\s*(.*)$")


class RemedyEntry(Protocol):
    """What the catalogue offers against a cause."""

    @property
    def key(self) -> str: ...  # noqa: D102 (fields, named by themselves)
    @property
    def text(self) -> str: ...  # noqa: D102
    @property
    def source(self) -> str: ...  # noqa: D102


class CauseEntry(Protocol):
    """What the catalogue says of a cause."""

    @property
    def title(self) -> str: ...  # noqa: D102
    @property
    def says(self) -> str: ...  # noqa: D102
    @property
    def remedies(self) -> Sequence[RemedyEntry]: ...  # noqa: D102


def render_list(causes: Mapping[str, CauseEntry], *, width: int = DEFAULT_WIDTH, color: bool = False) -> str:
    """Write one line a cause, in the catalogue's order."""
    page = Page(width, color)
    label_width = max((len(name) for name in causes), default=0) + 1
    page.add_line("Causes (read one with: dprankdiag explain CAUSE)", style="bold")
    page.add_fields([(name, cause.says) for name, cause in causes.items()], label_width=label_width)
    return page.finish()


Commands = Mapping[str, Sequence[str]]
"""What to set or run for a remedy, by its key."""


def render_page(
    name: str,
    cause: CauseEntry,
    page_text: str,
    commands: Commands | None = None,
    *,
    width: int = DEFAULT_WIDTH,
    color: bool = False,
) -> str:
    """Write all that is known of a cause: what it says, its page if it has one, and its remedies.

    Each remedy is followed by what to set or run for it, and by its source.
    """
    page = Page(width, color)
    page.add_line(f"{name}: {cause.title}", style="bold")
    page.add_line(cause.says)
    if page_text:
        _write_page(page, page_text)
    else:
        page.add_blank()
        page.add_line("This cause is named in a diagnosis where another input shows it; it has no page of its own yet.")
    page.add_heading("Remedies")
    for remedy in cause.remedies:
        page.add_fields([("-", remedy.text)], label_width=1)
        page.add_fields([("", f"Try: {line}") for line in (commands or {}).get(remedy.key, ())], label_width=1)
        if remedy.source:
            page.add_fields([("", f"Source: {remedy.source}")], label_width=1)
    return page.finish()


def render_markdown(name: str, cause: CauseEntry, page_text: str, commands: Commands | None = None) -> str:
    """Write the page of a cause for the documentation; as `render_page`."""
    lines = [f"# {name}: {cause.title}", "", cause.says]
    for paragraph in page_text.split("\n\n")[1:]:
        for line in _join_lines(paragraph):
            heading, body = _split_heading(line)
            lines += ["", f"## {heading}"] if heading else []
            lines += ["", body] if body else []
    lines += ["", "## Remedies", ""]
    for remedy in cause.remedies:
        lines.append(f"- {remedy.text}" + (f" *({remedy.source})*" if remedy.source else ""))
        lines += [f"  - {_mark_code(line)}" for line in (commands or {}).get(remedy.key, ())]
    return "\n".join(lines) + "\n"


def _mark_code(line: str) -> str:
    """Write what can be typed as code, and whose it is before it."""
    whose, _, typed = line.rpartition(": ") if line.startswith(tuple(ENGINES.values())) else ("", "", line)
    return f"{whose}: `{typed}`" if whose else f"`{typed}`"


def _write_page(page: Page, text: str) -> None:
    """Write paragraphs; words between asterisks at the start of a line are a heading, a dash begins an item."""
    for paragraph in text.split("\n\n"):
        page.add_blank()
        for line in _join_lines(paragraph):
            heading, body = _split_heading(line)
            if heading:
                page.add_line(heading, style="bold")
            if body.startswith("- "):
                page.add_fields([("-", body[2:])], label_width=1)
            elif body:
                page.add_line(body, indent=INDENT)


def _split_heading(line: str) -> tuple[str, str]:
    """Part ``*Heading* text`` or ``*Heading*: text`` into heading and text."""
    match = _HEADING.match(line)
    if match is None:
        return "", line
    return match[1].rstrip(".:"), match[2][:1].upper() + match[2][1:]


def _join_lines(paragraph: str) -> list[str]:
    """Undo the source's line breaks, except before an item or a heading and after a heading that stands alone."""
    joined: list[str] = []
    for line in (raw.strip() for raw in paragraph.splitlines()):
        stands_alone = bool(joined) and _split_heading(joined[-1])[1] == ""
        if not joined or stands_alone or line.startswith("- ") or _HEADING.match(line):
            joined.append(line)
        else:
            joined[-1] = f"{joined[-1]} {line}"
    return joined
