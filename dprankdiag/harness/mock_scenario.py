"""Serve the engines of a scenario on ports of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from dprankdiag.harness.mock_engine import MockEngine
from dprankdiag.harness.mock_profile import WriteTrace
from dprankdiag.harness.mock_sglang import MockSglang
from dprankdiag.harness.mock_vllm import MockVllm
from dprankdiag.harness.scenario import Deployment, Scenario, Window
from dprankdiag.harness.scenario_trace import build_world, deal_steps
from dprankdiag.harness.served_engine import describe_worker
from dprankdiag.harness.suites import write_world
from dprankdiag.simulate.world_tables import Outcome


@contextmanager
def serve_scenario(
    scenario: Scenario,
    *,
    port: int = 0,
    cured: bool = False,
    release: str | None = None,
    profile_dir: Path | None = None,
    **rest: Any,
) -> Iterator[list[MockEngine]]:
    """Serve a scenario, and start a mock of each of its engines until the block ends.

    Args:
        port: of the first engine, the others follow; 0 takes free ones.
        release: whose pages are shown, where it is not the newest known.
        profile_dir: where the profiler of vLLM engines is told to write; they have none without.
        rest: as `MockEngine` takes it.

    Raises:
        OSError: a port is taken.
    """
    deployment = scenario.deploy(cured)
    outcome = deployment.serve()
    with ExitStack() as stack:
        mocks: list[MockEngine] = []
        for number, worker in enumerate([*deployment.workers, *deployment.decoders]):
            engine = describe_worker(worker, number, release)
            made: dict[str, Any] = {
                "port": port and port + number,
                "profile": trace_steps(scenario, deployment, outcome, number),
                **rest,
            }
            mock: MockEngine
            if engine.name == "vllm":
                mock = MockVllm(outcome, engine, profile_dir=profile_dir, **made)
            else:
                mock = MockSglang(outcome, engine, **made)
            mocks.append(stack.enter_context(mock))
        yield mocks


def trace_steps(scenario: Scenario, deployment: Deployment, outcome: Outcome, worker: int) -> WriteTrace:
    """Make what writes traces of an engine's steps, kernel by kernel."""

    def write(first: int, count: int, folder: Path) -> list[Path]:
        start_ns = int(outcome.steps["start_ns"][outcome.steps["step"] == first][0])
        window = Window(start_ns=start_ns, steps=count, worker=worker, decodes=False)
        world = build_world(scenario, deal_steps(outcome, window, deployment.costs))
        return write_world(world, folder, format="torch")

    return write
