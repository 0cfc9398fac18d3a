"""The coordinator of vLLM: what its own code published, and the rules behind it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dprankdiag.simulate.routers.vllm_coordinator import Coordinator, Published
from tests.simulate.routers.builders import MS

RANKS = 8

# When the steps were reported is not in the recording, which was made on a busy machine. A step each 38 and 34 ms, and
# in lockstep one pause of 60 ms, is what the published counts allow; 30 ms from step to step fit neither run.
LOCKSTEP_MS = (18, 56, 94, 132, 170, 208, 246, 284, 322, 382, 420, 458)
ALONE_MS = tuple(range(20, 20 + 12 * 34, 34))

# Messages are stamped where they are received, and the process wakes up late.
EARLIEST_MS, LATEST_MS = -6, 30


def tell(message: Published) -> dict[str, Any]:
    counts = message.counts and [[waiting, running, round(kv, 2)] for waiting, running, kv in message.counts]
    return {"t_ms": message.at_ns // MS, "counts": counts, "wave": message.wave, "running": message.running}


def report_step(coordinator: Coordinator, at_ms: int, step: int) -> None:
    for engine in range(RANKS):
        counts = (engine % 2, step + engine, 0.01 * (step + engine))
        coordinator.report(at_ms * MS, engine, counts, step=step)


def follow(case: dict[str, Any], steps_ms: Sequence[int]) -> tuple[list[dict[str, Any]], list[float]]:
    """Wake the coordinator when the recording says it published; what it tells, and how late it was, ms."""
    coordinator = Coordinator(RANKS, lockstep=case["lockstep"])
    start, end = case["engines_send"]
    recorded = case["published_to_front_ends"]
    told, late_ms = [], []
    to_report = list(enumerate(steps_ms, start=1))
    waves = [message["t_ms"] for message in recorded if message["counts"] is None]
    for message in recorded:
        at_ms = message["t_ms"]
        while to_report and to_report[0][1] <= at_ms:
            step, step_ms = to_report.pop(0)
            report_step(coordinator, step_ms, step)
        if message["counts"] is None:
            first = at_ms == waves[0]
            sent = (
                coordinator.start_wave(at_ms * MS, start["start_wave"])
                if first
                else coordinator.complete_wave(at_ms * MS, end["wave_complete"])
            )
            assert sent is not None
            told.append(tell(sent))
            continue
        due_ns = coordinator.due_ns
        assert due_ns is not None
        late_ms.append(at_ms - due_ns / MS)
        told.append(tell(coordinator.publish(at_ms * MS)))
    assert not to_report
    return told, late_ms


@pytest.mark.parametrize("index, steps_ms", [(0, LOCKSTEP_MS), (1, ALONE_MS)], ids=["lockstep", "alone"])
def test_the_coordinator_publishes_what_its_own_code_published(
    payloads: Path, index: int, steps_ms: tuple[int, ...]
) -> None:
    case = json.loads((payloads / "vllm-0.33.0" / "coordinator" / "published.json").read_text("utf-8"))[index]
    told, late_ms = follow(case, steps_ms)
    recorded = [
        {
            **message,
            "counts": message["counts"] and [[w, r, round(kv, 2)] for w, r, kv in message["counts"]],
        }
        for message in case["published_to_front_ends"]
    ]
    assert told == recorded
    assert min(late_ms) >= EARLIEST_MS
    assert max(late_ms) <= LATEST_MS


def test_waves_are_told_at_once_and_only_in_lockstep() -> None:
    alone, together = Coordinator(2, lockstep=False), Coordinator(2, lockstep=True)
    assert alone.start_wave(5, 0) is None
    assert alone.complete_wave(6, 0) is None
    assert together.start_wave(5, 0) == Published(5, None, None, 0, True)
    assert together.start_wave(6, 0) is None
    assert together.complete_wave(7, 0) == Published(7, None, None, 1, False)
    assert together.complete_wave(8, 0) is None
    assert together.start_wave(9, 1) == Published(9, None, None, 1, True)


def test_in_lockstep_each_message_puts_off_publishing_until_a_step_is_complete() -> None:
    coordinator = Coordinator(2, lockstep=True)
    coordinator.report(10 * MS, 0, (1, 0, 0.0), step=1)
    assert coordinator.due_ns == 60 * MS
    coordinator.report(40 * MS, 1, (1, 0, 0.0), step=1)
    assert coordinator.due_ns == 90 * MS
    coordinator.report(70 * MS, 0, (2, 0, 0.0), step=2)
    assert coordinator.due_ns == 70 * MS
    message = coordinator.publish(70 * MS)
    assert message.counts == ((1, 0, 0.0), (1, 0, 0.0))
    assert message.stamps_ns == (10 * MS, 40 * MS)
    # What has changed since waits for its own turn.
    assert coordinator.due_ns == 170 * MS


def test_without_changes_a_heartbeat_comes_every_five_seconds() -> None:
    coordinator = Coordinator(2, lockstep=False)
    coordinator.publish(0)
    assert coordinator.due_ns == 5_000 * MS


def test_for_a_balancer_outside_no_counts_are_ever_due() -> None:
    coordinator = Coordinator(2, lockstep=True, external=True)
    coordinator.report(10 * MS, 0, (1, 0, 0.0), step=1)
    assert coordinator.due_ns is None
