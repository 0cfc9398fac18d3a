"""What other policies would have made of a load, as text, Markdown and JSON: what helps first, then its grounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from dprankdiag.model.bundle import describe_tool, publish_value
from dprankdiag.model.whatif import SCHEMA_VERSION, Figure, Option, Service, Unpriced, WhatIf
from dprankdiag.units import NS_PER_S, format_ns, format_ratio
from dprankdiag.views import words
from dprankdiag.views.base import DEFAULT_WIDTH
from dprankdiag.views.json import write_json
from dprankdiag.views.page import Page
from dprankdiag.views.printable import make_printable

_STEPS = ("option", "saves", "imbalance", "waits", "step p50", "step p99", "GPU-h/day")
_SERVICE = ("option", "TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99", "tok/s")
_VERDICTS = {
    "better": "one option gains most",
    "tied": "several options gain as much",
    "none_better": "none gains",
    "cannot_tell": "cannot tell",
}


def render(result: WhatIf, format_name: str, *, width: int = DEFAULT_WIDTH, color: bool = False) -> str:
    """Write a what-if as text, JSON or Markdown; width and colour are for text."""
    if format_name == "json":
        return write_json(make_document(result))
    if format_name == "markdown":
        return _render_markdown(result)
    return _render_text(result, width, color)


def list_facts(result: WhatIf) -> list[str]:
    """List what stands beside the headline."""
    return list(_list_facts(result))


def list_sections(result: WhatIf) -> list[tuple[str, Sequence[str]]]:
    """List what a what-if rests on, what it cannot tell, and its notes, each with its heading."""
    return list(_list_sections(result))


def make_document(result: WhatIf) -> dict[str, Any]:
    """Write a what-if as one object, numbers as published; times are whole ns."""
    plain = _round_times(asdict(result))
    return {"schema_version": SCHEMA_VERSION, "tool": describe_tool(), **publish_value(plain)}


def _round_times(value: Any, *, is_time: bool = False) -> Any:
    """Make durations whole; what a unit of work costs stays as it is."""
    if isinstance(value, dict):
        return {
            key: item if key == "terms" else _round_times(item, is_time=is_time or str(key).endswith("_ns"))
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_round_times(item, is_time=is_time) for item in value]
    return round(value) if is_time and isinstance(value, float) else value


def _render_text(result: WhatIf, width: int, color: bool) -> str:
    page = Page(width, color)
    page.add_line(result.headline, style="bold")
    page.add_line(" | ".join(_list_facts(result)))
    if result.options:
        page.add_heading(f"Options, by the time that {_who_saves(result)} save ({_level(result)} intervals)")
    for option in result.options:
        if _is_told(option, result):
            page.add_line(f"{option.key}: {_describe_gain(option, result)}", indent=3)
            fields = [("", option.title), *([("set", option.command)] if option.command else [])]
            page.add_fields([*fields, *(("", reason) for reason in option.reasons)], label_width=3)
    rest = [option.key for option in result.options if not _is_told(option, result)]
    if rest:
        page.add_line(f"no gain: {', '.join(rest)}", indent=3)
    for heading, columns, rows in _list_tables(result):
        page.add_heading(heading)
        page.add_table(columns, rows, numbers=columns[1:])
    for heading, lines in _list_sections(result):
        page.add_heading(heading)
        page.add_fields([("-", line) for line in lines], label_width=1)
    return page.finish()


def _render_markdown(result: WhatIf) -> str:
    lines = [f"# {_escape(result.headline)}", "", _escape("; ".join(_list_facts(result)))]
    if result.options:
        lines += ["", f"## Options, by the time that {_who_saves(result)} save ({_level(result)} intervals)", ""]
        lines += ["| option | saves | what | set |", "|---|---:|---|---|"]
        lines += [
            f"| `{option.key}` | {_escape(_describe_gain(option, result))} | {_escape(option.title)} | "
            f"{_escape(option.command or '-')} |"
            for option in result.options
        ]
    for heading, columns, rows in _list_tables(result):
        lines += ["", f"## {heading}", "", f"| {' | '.join(columns)} |", "|---|" + "---:|" * (len(columns) - 1)]
        lines += [f"| {' | '.join(_escape(cell) for cell in row)} |" for row in rows]
    for heading, told in _list_sections(result):
        lines += ["", f"## {heading}", "", *(f"- {_escape(line)}" for line in told)]
    return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    """Keep what Markdown and HTML would read as their own from being read so."""
    return "".join(f"\\{letter}" if letter in "\\`*_[]<>|#~" else letter for letter in make_printable(text))


def _who_saves(result: WhatIf) -> str:
    return "steps" if all(option.gain_of == "step_time" for option in result.options) else "requests"


def _level(result: WhatIf) -> str:
    return format_ratio(result.interval_level)


def _list_facts(result: WhatIf) -> Iterator[str]:
    source = result.source
    yield _VERDICTS[result.verdict]
    name = {"sglang": "SGLang", "vllm": "vLLM"}.get(source.engine or "", "engine not told")
    yield " ".join(part for part in (name, source.version) if part)
    if source.workers is not None and source.ranks is not None:
        ranks = words.count_of(source.ranks, "rank")
        yield ranks if source.workers == 1 else f"{words.count_of(source.workers, 'engine')} of {ranks}"
    if source.requests is not None:
        span = f" in {source.span_ns / NS_PER_S:.0f} s" if source.span_ns is not None else ""
        yield f"{words.count_of(source.requests, 'request')}{span}"


def _describe_gain(option: Option, result: WhatIf) -> str:
    value, interval = option.gain_ratio.value, option.gain_ratio.interval
    current = " (in use)" if option.is_current else ""
    if value is None and interval is None:
        return f"not told{current}"
    low, high = interval or (None, None)
    ends = (format_ratio(low), format_ratio(high))
    told = f"between {' and '.join(ends)}" if value is None else f"saves {format_ratio(value)} ({' to '.join(ends)})"
    alike = ", as good as the first" if option.key in result.best[1:] else ""
    return f"{told}{alike}{current}"


def _is_told(option: Option, result: WhatIf) -> bool:
    """Tell whether an option is worth lines of its own: it may gain, or nobody knows."""
    value, interval = option.gain_ratio.value, option.gain_ratio.interval
    if value is None or interval is None:
        return True
    return option.key in result.best or value > _NOTHING or interval[1] > _SOMETHING


_NOTHING, _SOMETHING = 0.002, 0.03
"""Gains that are not worth a line: none, and none that is sure to be below what a warning is given for."""


def _list_tables(result: WhatIf) -> Iterator[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
    """List the tables: heading, columns, rows."""
    runs = [("measured", Figure(), result.measured)] if result.measured != Service() else []
    if result.replayed is not None:
        runs.append(("served again", Figure(), result.replayed))
    runs += [
        (option.key, option.gain_ratio, option.served)
        for option in result.options
        if option.is_current or _is_told(option, result)
    ]
    if runs:
        yield "What each makes of the steps", _STEPS, [_list_step_cells(*run) for run in runs]
        told = [_list_service_cells(name, served) for name, _, served in runs]
        if any(cell != words.ABSENT for row in told for cell in row[1:]):
            yield "What requests see of it", _SERVICE, told


def _list_step_cells(name: str, gain: Figure, served: Service) -> tuple[str, ...]:
    return (
        name,
        format_ratio(gain.value),
        _write(served.imbalance_ratio, "{:.2f}"),
        format_ratio(served.waiting_ratio.value),
        format_ns(served.step_p50_ns.value),
        format_ns(served.step_p99_ns.value),
        _write(served.gpu_hours_day, "{:,.1f}"),
    )


def _list_service_cells(name: str, served: Service) -> tuple[str, ...]:
    times = (served.first_token_p50_ns, served.first_token_p99_ns, served.token_p50_ns, served.token_p99_ns)
    return (name, *(format_ns(figure.value) for figure in times), _write(served.generation_tok_s, "{:,.0f}"))


def _write(figure: Figure, form: str) -> str:
    return "-" if figure.value is None else form.format(figure.value)


def _list_sections(result: WhatIf) -> Iterator[tuple[str, Sequence[str]]]:
    if result.fit is not None:
        yield "What it rests on", list(_describe_fit(result))
    if result.abstentions:
        told = [
            f"{one.about}: {one.reason}" + (f"; {one.get_it_with}" if one.get_it_with else "")
            for one in result.abstentions
        ]
        yield "What cannot be told", told
    if result.notes:
        yield "Notes", result.notes


def _describe_unpriced(one: Unpriced) -> str:
    return f"{one.about}: {one.reason}" + (f"; {one.get_it_with}" if one.get_it_with else "")


def _describe_fit(result: WhatIf) -> Iterator[str]:
    fit = result.fit
    if fit is None:
        return
    yield f"costs of steps fitted to {fit.observed} ({fit.samples} numbers)"
    if fit.held_out_error_ratio is not None:
        yield f"numbers that the fit did not see are missed by {format_ratio(fit.held_out_error_ratio)} (median)"
    for name, figure in fit.terms.items():
        if figure.value is not None and figure.interval is not None:
            low, high = figure.interval
            yield f"{name.removesuffix('_ns').replace('_', ' ')}: {_cost(figure.value)} ({_cost(low)} to {_cost(high)})"


def _cost(cost_ns: float) -> str:
    return format_ns(cost_ns) if cost_ns >= 10 or cost_ns == 0 else f"{cost_ns:.3g} ns"
