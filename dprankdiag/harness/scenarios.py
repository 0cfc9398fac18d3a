"""The scenarios by name."""

from __future__ import annotations

from dprankdiag.harness import scenario_gateway, scenario_loads, scenario_queues, scenario_steps
from dprankdiag.harness.scenario import Scenario

_ALL = (
    scenario_loads.LONG_CONTEXT,
    scenario_loads.PATTERN,
    scenario_loads.BUSY_RANK,
    scenario_loads.BURST,
    scenario_loads.PREFILL,
    scenario_queues.CACHED,
    scenario_queues.STARVED,
    scenario_queues.ROOMS,
    scenario_queues.PREALLOC,
    scenario_queues.THRASH,
    scenario_steps.GRAPHS,
    scenario_steps.TAIL,
    scenario_steps.EXPERTS,
    scenario_steps.EVEN,
    scenario_gateway.POLLED,
)
SCENARIOS: dict[str, Scenario] = {scenario.name: scenario for scenario in _ALL}


def find_scenario(name: str) -> Scenario:
    """Find a scenario.

    Raises:
        ValueError: there is none of this name.
    """
    if name not in SCENARIOS:
        raise ValueError(f"no scenario '{name}'; there are {', '.join(SCENARIOS)}")
    return SCENARIOS[name]
