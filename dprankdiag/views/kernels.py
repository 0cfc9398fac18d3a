"""What a trace holds by kernel family, as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from dprankdiag.model.bundle import SCHEMA_VERSION, describe_tool, publish_value
from dprankdiag.units import format_ns, format_ratio
from dprankdiag.views import words
from dprankdiag.views.base import DEFAULT_WIDTH
from dprankdiag.views.json import write_json
from dprankdiag.views.page import INDENT, Page

UNKNOWN_FAMILY = "other"
MAX_NAMES = 25
"""Names shown in a list of the page; the JSON has all."""


class KernelNameRow(Protocol):
    """One kernel name of a trace: how often it ran, how long in all, and on which ranks."""

    @property
    def family(self) -> str: ...  # noqa: D102 (fields, named by themselves)
    @property
    def operation(self) -> str: ...  # noqa: D102
    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def calls(self) -> int: ...  # noqa: D102
    @property
    def total_ns(self) -> int: ...  # noqa: D102
    @property
    def share_ratio(self) -> float: ...  # noqa: D102
    @property
    def ranks(self) -> Any: ...  # noqa: D102


def sum_families(rows: Sequence[KernelNameRow]) -> list[dict[str, Any]]:
    """Add up names by family, the longest first; the sums close with those of the names."""
    sums: dict[str, dict[str, Any]] = {}
    for row in rows:
        entry = sums.setdefault(
            row.family, {"family": row.family, "names": 0, "calls": 0, "total_ns": 0, "share_ratio": 0.0}
        )
        entry["names"] += 1
        entry["calls"] += row.calls
        entry["total_ns"] += row.total_ns
        entry["share_ratio"] += row.share_ratio
    return sorted(sums.values(), key=lambda entry: (-entry["total_ns"], entry["family"]))


def render_json(path: str, rows: Sequence[KernelNameRow]) -> str:
    """Write families and names as one object."""
    names = [
        {
            "family": row.family,
            "operation": row.operation or None,
            "name": row.name,
            "calls": row.calls,
            "total_ns": row.total_ns,
            "share_ratio": row.share_ratio,
            "ranks": row.ranks,
        }
        for row in _sort_names(rows)
    ]
    document = {
        "schema_version": SCHEMA_VERSION,
        "tool": describe_tool(),
        "path": path,
        "total_ns": sum(row.total_ns for row in rows),
        "calls": sum(row.calls for row in rows),
        "families": sum_families(rows),
        "names": names,
    }
    return write_json(publish_value(document))


def render_text(path: str, rows: Sequence[KernelNameRow], *, width: int = DEFAULT_WIDTH, color: bool = False) -> str:
    """Write families, the longest names, and the names that no pattern knows."""
    page = Page(width, color)
    calls, total_ns = sum(row.calls for row in rows), sum(row.total_ns for row in rows)
    counts = f"{words.count_of(calls, 'kernel')} of {words.count_of(len(rows), 'name')}"
    page.add_line(f"{path}: {counts}, {format_ns(total_ns)} in all", style="bold")
    if not rows:
        page.add_line("No kernel was recorded.")
        return page.finish()
    page.add_heading("Families")
    families = [
        [entry["family"], str(entry["names"]), str(entry["calls"]), *_measure(entry["total_ns"], entry["share_ratio"])]
        for entry in sum_families(rows)
    ]
    page.add_table(("family", "names", "calls", "time", "share"), families, numbers=("names", "calls", "time", "share"))
    _write_unknown(page, [row for row in _sort_names(rows) if row.family == UNKNOWN_FAMILY])
    _write_names(page, "Longest names", _sort_names(rows))
    return page.finish()


def _write_unknown(page: Page, unknown: list[KernelNameRow]) -> None:
    if not unknown:
        page.add_blank()
        page.add_line("Every name is known.")
        return
    share = sum(row.share_ratio for row in unknown)
    _write_names(page, f"Names that no pattern knows ({format_ratio(share)} of the time)", unknown)
    page.add_line("Teach them with --patterns FILE (TOML).", indent=INDENT)


def _write_names(page: Page, heading: str, rows: list[KernelNameRow]) -> None:
    page.add_heading(heading)
    cells = [
        [*_measure(row.total_ns, row.share_ratio), str(row.calls), _label(row), row.name] for row in rows[:MAX_NAMES]
    ]
    page.add_table(("time", "share", "calls", "family", "name"), cells, numbers=("time", "share", "calls"))
    if len(rows) > MAX_NAMES:
        page.add_line(f"and {len(rows) - MAX_NAMES} more; --format json has all of them", indent=INDENT)


def _measure(total_ns: int, share: float) -> tuple[str, str]:
    return format_ns(total_ns), format_ratio(share)


def _label(row: KernelNameRow) -> str:
    return f"{row.family}/{row.operation}" if row.operation and row.operation != row.family else row.family


def _sort_names(rows: Sequence[KernelNameRow]) -> list[KernelNameRow]:
    return sorted(rows, key=lambda row: (-row.total_ns, row.family, row.name))
