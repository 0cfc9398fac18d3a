"""What changed between two recordings, as figures with their words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from dprankdiag.model.comparison import CauseChange, Change, Comparison, EngineChange
from dprankdiag.units import format_ns, format_ratio
from dprankdiag.views import words
from dprankdiag.views.comparison import STEP_PARTS, list_sections, name_direction
from dprankdiag.views.figures.base import choose_unit
from dprankdiag.views.figures.intervals import Bar, Sense
from dprankdiag.views.panels import Panel

SENSES: dict[Sense, str] = {"better": "better", "worse": "worse", "neither": "no significant change, or not judged"}


def make_change_panels(comparison: Comparison) -> Iterator[Panel]:
    """Show by how much the mean step and what each cause costs changed, with intervals; shares where times may not be.

    Where the work of the two differs, only the share of the time that a cause costs is judged.
    """
    title = "What a step takes more or less"
    times = [pair for engine in comparison.engines for pair in _list_times(comparison, engine)]
    times += [(_name_cause(comparison, cause), cause.lost_ns) for cause in comparison.causes]
    known = [(name, change) for name, change in times if change.difference is not None]
    if not known:
        why = "; ".join(
            dict.fromkeys([*comparison.reasons, *(text for it in comparison.engines for text in it.reasons)])
        )
        yield Panel("changes", title, "", missing=f"No times can be compared: {why or comparison.headline}.")
        return
    size, unit = choose_unit(max(abs(end) for _, change in known for end in _list_ends(change)))
    says = _say(comparison)
    if any(change.direction is None for _, change in known):
        says += " Grey ones without a verdict are not judged: the notes say why."
    yield _draw("changes", title, says, comparison, known, f"change a step ({unit})", size, format_ns)
    shares = [(_name_cause(comparison, cause), cause.lost_ratio) for cause in comparison.causes]
    judged = [(name, share) for name, share in shares if share.difference is not None and share.direction is not None]
    if judged:
        title = "What share of the time each cause costs more or less"
        axis = "change of the share of the time (%)"
        yield _draw("shares", title, _say(comparison), comparison, judged, axis, 0.01, format_ratio)


def _say(comparison: Comparison) -> str:
    level = format_ratio(comparison.interval_level)
    return f"Less is better. Bars reach over the {level} interval of each change."


def _draw(
    key: str,
    title: str,
    says: str,
    comparison: Comparison,
    changes: Sequence[tuple[str, Change]],
    axis: str,
    size: float,
    write: Callable[[float | None], str],
) -> Panel:
    from dprankdiag.views.figures.intervals import draw_intervals

    level = format_ratio(comparison.interval_level)
    columns = ("what", "before", "after", "change", f"{level} interval", "verdict")
    bars, rows = [], []
    for name, change in changes:
        low, high = change.interval or (None, None)
        bounds = words.ABSENT if low is None or high is None else f"{write(low)} to {write(high)}"
        cells = (write(change.before), write(change.after), write(change.difference), bounds, name_direction(change))
        least, most = (None if bound is None else bound / size for bound in (low, high))
        text = f"{cells[0]} before, {cells[1]} after; {level} interval of the change: {bounds}"
        bars.append(Bar(name, (change.difference or 0.0) / size, least, most, _judge(change), text))
        rows.append((name, *cells))
    return Panel(key, title, says, draw_intervals(bars, axis, SENSES), "", columns, rows, columns[1:5])


def _list_times(comparison: Comparison, engine: EngineChange) -> Iterator[tuple[str, Change]]:
    of = f" of {engine.engine} {words.format_ranks(engine.ranks)}" if len(comparison.engines) > 1 else ""
    yield f"mean step{of}", engine.step_ns
    yield f"transfers{of}", engine.transfer_ns


def _name_cause(comparison: Comparison, change: CauseChange) -> str:
    ranks = change.after_ranks or change.before_ranks
    who = f"{'rank' if len(ranks) == 1 else 'ranks'} {words.format_ranks(ranks)}" if ranks else "no rank named"
    of = f" of {change.engine}" if len(comparison.engines) > 1 else ""
    return f"{change.cause}, {who}{of}: {change.presence}"


def _list_ends(change: Change) -> Iterator[float]:
    yield change.difference or 0.0
    yield from change.interval or ()


def _judge(change: Change) -> Sense:
    return change.direction if change.direction in ("better", "worse") else "neither"


def make_account_panels(comparison: Comparison) -> Iterator[Panel]:
    """Show what the mean step of each group consists of, before and after."""
    sections = [section for section in list_sections(comparison) if section.subject == STEP_PARTS]
    told = [engine for engine in comparison.engines if engine.account and not engine.reasons]
    for number, (engine, section) in enumerate(zip(told, sections, strict=True)):
        from dprankdiag.views.figures.account import draw_account

        says = (
            "Each bar is as long as the mean step, the kinds of step in the same mix on both sides. Even ranks: what "
            "the step would take without any lost time; the other parts add up to what is lost."
        )
        figure, rows = draw_account(engine.account), section.rows
        yield Panel(f"account-{number}", section.heading, says, figure, "", section.columns, rows, section.numbers)
