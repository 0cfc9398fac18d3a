"""A comparison as text, Markdown and JSON: the verdict first, then times, causes and what they rest on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dprankdiag.model.bundle import describe_tool, publish_value
from dprankdiag.model.comparison import (
    CauseChange,
    Change,
    ComparedSide,
    Comparison,
    EngineChange,
    KindChange,
    StepGain,
)
from dprankdiag.units import format_ns, format_ratio
from dprankdiag.views import words
from dprankdiag.views.base import DEFAULT_WIDTH
from dprankdiag.views.json import write_json
from dprankdiag.views.page import Page
from dprankdiag.views.printable import make_printable

SCHEMA_VERSION = 1
"""Raised when a published field of the comparison changes its meaning; new fields leave it alone."""

_TOP_KEYS = (
    "verdict",
    "headline",
    "before",
    "after",
    "reasons",
    "engines",
    "causes",
    "notes",
    "interval_level",
    "significance",
    "bets",
)
_BET_COLUMNS = ("remedy", "against", "predicted", "measured", "verdict")
_BATCH = (("requests", "requests"), ("held_tokens", "KV tokens"), ("prefill_tokens", "prompt tokens"))


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page: a table, lines, or both; columns in `numbers` are aligned right."""

    heading: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    numbers: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    subject: str = ""
    """Of what there is a figure besides: its name."""


STEP_PARTS = "step parts"


def render(comparison: Comparison, format_name: str, *, width: int = DEFAULT_WIDTH, color: bool = False) -> str:
    """Write a comparison as text, JSON or Markdown; width and colour are for text."""
    if format_name == "json":
        return write_json(make_document(comparison))
    if format_name == "markdown":
        return _render_markdown(comparison)
    return _render_text(comparison, width, color)


def make_document(comparison: Comparison) -> dict[str, Any]:
    """Write a comparison as one object of the published schema, numbers as published."""
    plain = _round_times(asdict(comparison))
    for cause, change in zip(plain["causes"], comparison.causes, strict=True):
        cause["direction"] = change.direction
    body = {key: publish_value(plain[key]) for key in _TOP_KEYS}
    return {"schema_version": SCHEMA_VERSION, "tool": describe_tool(), **body}


def _round_times(value: Any, *, is_time: bool = False) -> Any:
    """Make times whole: numbers under a key that ends in ``_ns``; a chance is none."""
    if isinstance(value, dict):
        return {
            key: _round_times(item, is_time=str(key).endswith("_ns") or (is_time and key != "chance"))
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_round_times(item, is_time=is_time) for item in value]
    return round(value) if is_time and isinstance(value, float) and math.isfinite(value) else value


def list_sections(comparison: Comparison) -> list[Section]:
    """List all that is said about a comparison below its headline."""
    return list(_list_sections(comparison))


def list_facts(comparison: Comparison) -> list[str]:
    """List what stands beside the headline: verdict, ranks, steps, states."""
    return _list_facts(comparison)


def _render_text(comparison: Comparison, width: int, color: bool) -> str:
    page = Page(width, color)
    page.add_line(comparison.headline, style="bold")
    page.add_line(" | ".join(_list_facts(comparison)))
    for section in _list_sections(comparison):
        page.add_heading(section.heading)
        if section.rows:
            page.add_table(section.columns, section.rows, numbers=section.numbers)
        if section.lines:
            page.add_fields([("-", line) for line in section.lines], label_width=1)
    return page.finish()


def _render_markdown(comparison: Comparison) -> str:
    lines = [f"# {_escape(comparison.headline)}", "", _escape("; ".join(_list_facts(comparison)))]
    for section in _list_sections(comparison):
        lines += ["", f"## {_escape(section.heading)}", ""]
        if section.rows:
            lines.append(_write_row(section.columns))
            lines.append(_write_row(["---:" if name in section.numbers else "---" for name in section.columns]))
            lines += [_write_row([_escape(cell) for cell in row]) for row in section.rows]
            lines += [""] if section.lines else []
        lines += [f"- {_escape(line)}" for line in section.lines]
    return "\n".join(lines) + "\n"


def _write_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escape(text: str) -> str:
    """Keep what Markdown and HTML would read as their own from being read so."""
    plain = make_printable(text)
    return "".join(f"\\{letter}" if letter in "\\`*_[]<>|#~" else letter for letter in plain)


def _list_facts(comparison: Comparison) -> list[str]:
    before, after = comparison.before, comparison.after
    ranks = f"{before.ranks} ranks before, {after.ranks} after"
    if before.ranks == after.ranks:
        ranks = words.count_of(after.ranks, "rank")
    return [
        f"verdict: {comparison.verdict.replace('_', ' ')}",
        ranks,
        f"{before.steps} steps before, {after.steps} after",
        f"status {before.status} before, {after.status} after",
    ]


def _list_sections(comparison: Comparison) -> Iterator[Section]:
    if comparison.reasons:
        yield Section("What cannot be compared", lines=comparison.reasons)
    several = len(comparison.engines) > 1
    for engine in comparison.engines:
        yield from _list_engine_sections(
            engine,
            f" of {engine.engine} {words.format_ranks(engine.ranks)}" if several else "",
            comparison.interval_level,
        )
    yield _list_causes(comparison)
    if comparison.bets:
        yield _list_bets(comparison)
    for when, side in (("Before", comparison.before), ("After", comparison.after)):
        yield Section(when, lines=tuple(_describe_side(side)))
    if comparison.notes:
        yield Section("Notes", lines=comparison.notes)


def _list_engine_sections(engine: EngineChange, of: str, level: float) -> Iterator[Section]:
    if engine.reasons:
        yield Section(f"What cannot be compared{of}", lines=engine.reasons)
        return
    numbers = ("before", "after", "change", "share")
    rows = [(f"{kind.kind} ({kind.before_steps}, {kind.after_steps})", kind.step_ns) for kind in engine.kinds]
    rows += [("all, in one mix", engine.step_ns)] if len(rows) > 1 else []
    cells = tuple((name, *_list_cells(change)) for name, change in rows)
    lines = [f"{name}: {text}" for name, change in rows for text in _describe_interval(change, level)]
    lines += _list_batches(engine.kinds)
    lines += _list_shared(engine)
    yield Section(f"Mean step{of}", ("steps", *numbers, "verdict"), cells, numbers, tuple(lines))
    if engine.account:
        heading, parts = f"What the mean step{of} consists of", tuple(_list_parts(engine))
        yield Section(heading, ("part", *numbers[:3]), parts, numbers[:3], subject=STEP_PARTS)


def _list_shared(engine: EngineChange) -> Iterator[str]:
    """Say what all ranks have in common: the speed of equal work, and transfers."""
    speed, transfer = engine.speed, engine.transfer_ns
    if speed.after is not None:
        yield f"equal work of all ranks takes {speed.after:.3f} × as long as before: {name_direction(speed)}"
    if transfer.before is not None:
        times = f"{format_ns(transfer.after)} a step, {format_ns(transfer.before)} before"
        yield f"transfers take {times}: {name_direction(transfer)}"


def _list_cells(change: Change) -> tuple[str, ...]:
    """Write a change of a time: before, after, difference, its share, and what it means."""
    share = words.ABSENT
    if change.difference is not None and change.before:
        share = _sign_ratio(change.difference / change.before)
    return format_ns(change.before), format_ns(change.after), _sign(change.difference), share, name_direction(change)


def _list_parts(engine: EngineChange) -> Iterator[tuple[str, ...]]:
    parts = [(row.name, row.before_ns, row.after_ns) for row in engine.account]
    parts.append(("step", sum(row.before_ns for row in engine.account), sum(row.after_ns for row in engine.account)))
    for name, before, after in parts:
        yield name, format_ns(before), format_ns(after), _sign(after - before)


def _sign(difference_ns: float | None) -> str:
    if difference_ns is None:
        return words.ABSENT
    return f"+{format_ns(difference_ns)}" if difference_ns > 0 else format_ns(difference_ns)


def _sign_ratio(ratio: float) -> str:
    return f"+{format_ratio(ratio)}" if ratio > 0 else format_ratio(ratio)


def name_direction(change: Change) -> str:
    """Say what a change means."""
    if change.direction is None:
        return "not judged"
    return "no significant change" if change.direction == "unchanged" else change.direction


def _describe_interval(change: Change, level: float) -> Iterator[str]:
    if change.interval is not None:
        low, high = change.interval
        yield f"{format_ratio(level)} interval of the change: {_sign(low)} to {_sign(high)}"


def _list_batches(kinds: Sequence[KindChange]) -> Iterator[str]:
    for kind in kinds:
        told = [
            f"{getattr(kind.before_batch, field):.0f} {noun} before, {getattr(kind.after_batch, field):.0f} after"
            for field, noun in _BATCH
            if getattr(kind.before_batch, field) is not None and getattr(kind.after_batch, field) is not None
        ]
        if told:
            yield f"{kind.kind} steps of all ranks together hold {'; '.join(told)}"


def _list_causes(comparison: Comparison) -> Section:
    if not comparison.causes:
        return Section("Causes", lines=("None was found, neither before nor after.",))
    lines = [_describe_cause(change, comparison.interval_level) for change in comparison.causes]
    return Section("Causes", lines=tuple(lines))


def _describe_cause(change: CauseChange, level: float) -> str:
    time, share = change.lost_ns, change.lost_ratio
    parts = [f"{change.summary}; {change.before_severity or 'none'} before, {change.after_severity or 'none'} after"]
    if time.difference is not None:
        parts.append(f"{_sign(time.difference)} a step" + _say_direction(time))
    if time.direction is not None and time.interval is not None:
        parts += _describe_interval(time, level)
    if share.before is not None and share.after is not None:
        shares = f"{format_ratio(share.before)} of the time before, {format_ratio(share.after)} after"
        parts.append(shares + _say_direction(share))
    if share.direction is not None and share.interval is not None:
        low, high = share.interval
        parts.append(f"{format_ratio(level)} interval of the change: {_sign_ratio(low)} to {_sign_ratio(high)}")
    return "; ".join(parts)


def _list_bets(comparison: Comparison) -> Section:
    """Hold what remedies were predicted to gain against what was gained."""
    rows = tuple(
        (
            bet.remedy,
            f"{bet.cause} ({', '.join(bet.findings)})",
            _write_gain(bet.predicted),
            _write_gain(bet.measured),
            bet.verdict.replace("_", " "),
        )
        for bet in comparison.bets
    )
    lines = [f"{bet.remedy}: {bet.reason}" for bet in comparison.bets if bet.reason]
    if not all(bet.is_stated for bet in comparison.bets):
        lines.append("the best remedy of each finding is taken to have been tried; say which was with --tried")
    return Section("Bets: predicted gain against measured gain", _BET_COLUMNS, rows, _BET_COLUMNS[2:4], tuple(lines))


def _write_gain(gain: StepGain) -> str:
    if gain.ratio is None:
        return words.ABSENT
    bounds = " ({} to {})".format(*map(format_ratio, gain.interval)) if gain.interval is not None else ""
    return f"{format_ratio(gain.ratio)}{bounds}"


def _say_direction(change: Change) -> str:
    return "" if change.direction is None else f", {name_direction(change)}"


def _describe_side(side: ComparedSide) -> Iterator[str]:
    yield ", ".join(side.paths) or "no input"
    yield f"{side.status}: {side.headline}"
