"""What there is to know of a scenario, as objects for programs."""

from __future__ import annotations

from typing import Any

from dprankdiag.harness.scenario import Label, Scenario
from dprankdiag.harness.scenario_trace import trace_scenario
from dprankdiag.harness.scenarios import SCENARIOS


def list_scenarios() -> list[dict[str, str]]:
    """List the scenarios: name, engine, title."""
    return [{"name": it.name, "engine": it.engine, "title": it.title} for it in SCENARIOS.values()]


def describe_scenario(scenario: Scenario) -> dict[str, Any]:
    """Run a scenario with and without its cure, and tell the numbers that follow, and what its recording should say."""
    outcome, cured = scenario.serve(), scenario.serve(cured=True)
    _, facts = trace_scenario(scenario, outcome)
    return {
        "name": scenario.name,
        "title": scenario.title,
        "engine": scenario.engine,
        "why": scenario.why,
        "cure": scenario.cure,
        "figures": {name: _shorten(value) for name, value in scenario.figures(outcome, cured).items()},
        "trace": {
            **_describe_label(scenario.trace),
            "lost_ns": facts.lost_ns,
            "wall_ns": facts.wall_ns,
            "lost_ratio": _shorten(facts.lost_ns / facts.wall_ns),
        },
        "metrics": None if scenario.metrics is None else _describe_label(scenario.metrics),
        "metrics_lack": scenario.metrics_lack or None,
    }


def _shorten(value: int | float) -> int | float:
    """Keep whole numbers, and six digits of others."""
    return value if isinstance(value, int) else float(f"{value:.6g}")


def _describe_label(label: Label) -> dict[str, Any]:
    return {"cause": label.cause, "ranks": list(label.ranks), "who": label.who}
