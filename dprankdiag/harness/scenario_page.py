"""The page of all scenarios: picture, cause, what each view shows, what cures it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import numpy as np

from dprankdiag.harness.scenario import Label, Scenario
from dprankdiag.harness.scenario_trace import take_ranks
from dprankdiag.harness.scenarios import SCENARIOS
from dprankdiag.model.schema import Columns
from dprankdiag.simulate.world_tables import MODES, Outcome
from dprankdiag.units import format_bytes, format_ns

_SHADES = " ·░▒▓█"
_COLUMNS = 60
_KINDS = {"extend": "p", "mixed": "p", "decode": "d", "verify": "v", "idle": "-"}
_VIEWS = {"loads": "load endpoint", "metrics": "metrics", "trace": "trace", "ledger": "router's ledger"}

_INTRODUCTION = """# Scenarios

Each pattern from its cause to what is seen of it. A deployment is served event by event: requests come, a router
chooses by the ledger it believes, ranks schedule as their engine does and meet in every step. The same requests are
served again with the cure. This page is written by the program. `dprankdiag harness make NAME --json` tells the numbers
of one scenario, and `dprankdiag harness make NAME -o DIR` records some of its steps.

The pictures show the work of each rank before the gather, step by step (`·░▒▓█`, of the greatest in the picture), under
a line that tells the kind of step: `p` some rank computes a prompt, `d` all decode; capital letters without a graph.
Beside it stands the share of the time that the rank waits for the slowest.
"""


def render_page() -> str:
    """Run all scenarios and write the page, Markdown."""
    return "\n".join([_INTRODUCTION, *(_render(scenario) for scenario in SCENARIOS.values())])


def _render(scenario: Scenario) -> str:
    outcome, cured = scenario.serve(), scenario.serve(cured=True)
    return "\n".join([*_tell(scenario, outcome), *_tell_numbers(scenario, outcome, cured)])


def _tell(scenario: Scenario, outcome: Outcome) -> Iterator[str]:
    yield f"## {scenario.title}\n"
    yield f"`{scenario.name}`, {'SGLang' if scenario.engine == 'sglang' else 'vLLM'}. {scenario.why}\n"
    yield "```text"
    yield from draw(take_ranks(outcome, scenario.window), outcome)
    yield "```\n"
    yield "| where | what shows |"
    yield "|---|---|"
    for view, shown in scenario.shows.items():
        yield f"| {_VIEWS[view]} | {shown} |"
    yield ""
    yield f"To be found in its trace: {_say(scenario.trace)}. " + (
        f"By metrics alone: nothing, for {scenario.metrics_lack}.\n"
        if scenario.metrics is None
        else f"By metrics alone: {_say(scenario.metrics)}.\n"
    )
    yield f"**Cure.** {scenario.cure}\n"


def _tell_numbers(scenario: Scenario, outcome: Outcome, cured: Outcome) -> Iterator[str]:
    head, _, derivation = (inspect.getdoc(scenario.figures) or "").partition("\n\n")
    yield f"**Numbers.** {' '.join((derivation or head).split())}\n"
    yield "| number | value |"
    yield "|---|---:|"
    for name, value in scenario.figures(outcome, cured).items():
        yield f"| `{name}` | {_format(name, value)} |"
    yield ""


def _format(name: str, value: int | float) -> str:
    if "_ns" in name:
        return format_ns(value)
    if name.endswith("_bytes"):
        return format_bytes(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


def _say(label: Label) -> str:
    if label.cause is None:
        return "nothing, no rank holds the others back"
    if not label.ranks:
        return f"`{label.cause}`, nobody to blame"
    return f"`{label.cause}`, {'rank' if len(label.ranks) == 1 else 'ranks'} {', '.join(map(str, label.ranks))}"


def draw(ranks: Columns, outcome: Outcome) -> Iterator[str]:
    """Draw the work of each rank before the gather, in the first steps of a window.

    Args:
        ranks: columns of the ranks in the steps, `(steps, ranks)` each.
        outcome: that they are taken from.
    """
    own = ranks["own_ns"][:_COLUMNS]
    steps = ranks["step"][:_COLUMNS, 0]
    place = np.searchsorted(outcome.steps["step"], steps)
    total = outcome.steps["total_ns"][place]
    yield f"{'':7} {_draw_kinds(ranks, outcome.steps['graph'][place])}"
    for rank in range(own.shape[1]):
        level = own[:, rank] / max(int(own.max()), 1)
        strip = "".join(_SHADES[round(float(it) * (len(_SHADES) - 1))] for it in level)
        waits = ranks["waiting_ns"][:_COLUMNS, rank].sum() / total.sum()
        yield f"rank {rank:<2} {strip} waits {waits:4.0%}"


def _draw_kinds(ranks: Columns, graph: np.ndarray[tuple[int], np.dtype[np.int64]]) -> str:
    drawn = ""
    for modes, replayed in zip(ranks["mode"][:_COLUMNS], graph, strict=True):
        kinds = {_KINDS[MODES[mode]] for mode in modes.tolist()}
        kind = next(it for it in "pvd-" if it in kinds)
        drawn += kind if replayed else kind.upper()
    return drawn
