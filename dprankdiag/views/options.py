"""Other ways to serve one load, as figures and tables with their words."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dprankdiag.model.whatif import Figure, Option, Service, WhatIf
from dprankdiag.units import format_ns, format_ratio
from dprankdiag.views import words
from dprankdiag.views.figures.intervals import Bar, Sense
from dprankdiag.views.panels import Panel

SENSES: dict[Sense, str] = {
    "better": "saves time",
    "worse": "takes longer",
    "neither": "may be nothing",
    "bound": "saves at most so much",
}
SHARES = {"request_time": "the time from arrival to last token of the same requests", "step_time": "the measured steps"}
NAMES = {"policy": "policy", "load": "even load", "fault": "no fault", "layout": "layout", "experts": "experts"}

Write = Callable[[float], str]


def _count(form: str) -> Write:
    return form.format


SERVED: dict[str, tuple[str, Write]] = {
    "imbalance_ratio": ("imbalance", _count("{:.2f}")),
    "waiting_ratio": ("waiting", format_ratio),
    "step_p50_ns": ("step p50", format_ns),
    "step_p99_ns": ("step p99", format_ns),
    "first_token_p50_ns": ("TTFT p50", format_ns),
    "first_token_p99_ns": ("TTFT p99", format_ns),
    "token_p50_ns": ("TPOT p50", format_ns),
    "token_p99_ns": ("TPOT p99", format_ns),
    "generation_tok_s": ("tokens/s", _count("{:,.0f}")),
    "gpu_hours_day": ("GPU-h/day", _count("{:,.1f}")),
}
"""Field of `model.whatif.Service` → its column and how its value is written."""

COLUMNS = ("option", "saves", *(name for name, _ in SERVED.values()))


def make_gains_panel(result: WhatIf) -> Panel:
    """Show what each option saves, with its interval."""
    key, title = "gains", "What each option saves"
    told = [option for option in result.options if _bound(option.gain_ratio) is not None and not option.is_current]
    columns = ("option", "what", "saves", "kind", "rests on", "as good as")
    rows = [
        (
            option.key,
            option.title,
            describe_gain(option),
            NAMES[option.kind],
            option.basis,
            ", ".join(option.tied_with) or words.ABSENT,
        )
        for option in result.options
    ]
    if not told:
        return Panel(key, title, "", None, f"No gain could be told: {result.headline}.", columns, rows, columns[2:3])
    from dprankdiag.views.figures.intervals import draw_intervals

    level = format_ratio(result.interval_level)
    of = " or ".join(dict.fromkeys(SHARES[option.gain_of] for option in told))
    says = f"Share of {of} that would be saved; bars reach over the {level} interval."
    if any(option.basis == "bound" for option in told):
        says += " Of options that rest on a bound nothing of their kind can save more."
    if unknown := [option.key for option in result.options if option not in told and not option.is_current]:
        says += f" Not drawn, because no gain could be told: {', '.join(unknown)}."
    bars = [_make_bar(option) for option in told]
    return Panel(key, title, says, draw_intervals(bars, "saves (%)", SENSES), "", columns, rows, columns[2:3])


def _bound(figure: Figure) -> tuple[float, float] | None:
    """Return the ends of a number, both the number itself where its interval is not known."""
    if figure.interval is not None:
        return figure.interval
    return None if figure.value is None else (figure.value, figure.value)


def _make_bar(option: Option) -> Bar:
    low, high = _bound(option.gain_ratio) or (0.0, 0.0)
    sense: Sense = "better" if low > 0 else "worse" if high < 0 else "neither"
    if option.basis == "bound" and sense == "better":
        sense = "bound"
    value = option.gain_ratio.value
    text = f"{option.title}: {describe_gain(option)}"
    return Bar(option.key, None if value is None else 100 * value, 100 * low, 100 * high, sense, text)


def describe_gain(option: Option) -> str:
    """Say what an option saves."""
    if option.is_current:
        return "in use"
    value, interval = option.gain_ratio.value, option.gain_ratio.interval
    bounds = "" if interval is None else f"{format_ratio(interval[0])} to {format_ratio(interval[1])}"
    if value is None:
        return f"between {bounds}" if bounds else "not told"
    most = "at most " if option.basis == "bound" else ""
    return f"{most}{format_ratio(value)} ({bounds})" if bounds else f"{most}{format_ratio(value)}"


def list_served(result: WhatIf) -> list[list[str | tuple[str, str]]]:
    """List what each way to serve makes of the load; what hovering over a number shows is its interval."""
    runs = [] if result.measured == Service() else [("as measured", words.ABSENT, result.measured)]
    if result.replayed is not None:
        runs.append(("as it is, served again", words.ABSENT, result.replayed))
    runs += [(option.key, describe_gain(option), option.served) for option in result.options]
    level = format_ratio(result.interval_level)
    return [[name, saves, *_list_cells(served, level)] for name, saves, served in runs]


def _list_cells(served: Service, level: str) -> Iterator[str | tuple[str, str]]:
    for field, (_, write) in SERVED.items():
        figure: Figure = getattr(served, field)
        if figure.value is None:
            yield words.ABSENT
        elif figure.interval is None:
            yield write(figure.value)
        else:
            low, high = figure.interval
            yield write(figure.value), f"{level} interval: {write(low)} to {write(high)}"
