"""From a cause to what to do about it: the gain to expect of each remedy, its command, and which comes first."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import get_args

from dprankdiag.catalog.causes import Action, Cause
from dprankdiag.catalog.commands import can_try, choose_command, load_commands
from dprankdiag.catalog.experiments import list_experiments
from dprankdiag.model.diagnosis import Diagnosis, Finding, Interval, Remedy
from dprankdiag.model.serving import UNKNOWN_SERVING, Serving, ServingEngine

DOCUMENTED = "documented"
"""Basis of a remedy whose gain nobody computed."""

_PRODUCER = re.compile(r"(sglang|vllm)(?: v?(\d\S*))?")
_PROCESSES: tuple[tuple[ServingEngine, re.Pattern[str]], ...] = (
    ("sglang", re.compile(r"sglang::|sglang\.launch_server")),
    ("vllm", re.compile(r"(?i:vllm::)|\bvllm\b|\bEngineCore_DP\d")),
)
"""Titles of ranks' processes.

Source: sglang 0.5.23 `managers/scheduler.py`; vLLM 0.33.0 `v1/engine/core.py`, `v1/executor/multiproc_executor.py`.
"""

_PART = "it cures part of this, and how much was not replayed"
_LOOKS = "it shows more and cures nothing"
_NOT_OFFERED = "this release has no such setting"


@dataclass(frozen=True, slots=True)
class Gain:
    """What undoing all of a finding gains, or why that is not known."""

    ratio: float | None
    interval: Interval | None
    basis: str
    why_unknown: str | None = None


UNTRUSTED = Gain(None, None, DOCUMENTED, "the replay errs too much to give lost time")
NOT_REPLAYED = Gain(None, None, DOCUMENTED, "no replay without it is possible from this input")
NO_STEPS = Gain(None, None, DOCUMENTED, "the input holds no steps that could be replayed without it")


def list_remedies(cause: Cause, whole: Gain) -> tuple[Remedy, ...]:
    """List the catalogue's actions; those that remove all that the replay undoes gain what it gains."""
    return tuple(_make_remedy(action, whole) for action in cause.remedies)


def _make_remedy(action: Action, whole: Gain) -> Remedy:
    if action.whole and whole.ratio is not None:
        return Remedy(action.key, action.text, whole.ratio, whole.basis, whole.interval)
    unknown = _LOOKS if not action.cures else whole.why_unknown or _PART
    return Remedy(action.key, action.text, None, DOCUMENTED, why_no_gain=unknown)


def advise(diagnosis: Diagnosis, said: Serving | None = None) -> Diagnosis:
    """Give every remedy its command on the engine that was seen, the best one first, and add control experiments.

    Args:
        said: the engine, where the user says which it is.
    """
    engines = {finding.engine for finding in diagnosis.findings}
    serving = {engine: said or find_serving(diagnosis, engine) for engine in engines}
    return replace(
        diagnosis, findings=tuple(_advise_finding(item, serving[item.engine]) for item in diagnosis.findings)
    )


def _advise_finding(finding: Finding, serving: Serving) -> Finding:
    """Order remedies: what the engine can do, then by gain, then as the catalogue has them."""
    offered = [item for item in finding.remedies if _is_of(item.key, serving.engine)] or list(finding.remedies)
    told = [_add_command(item, serving) for item in offered]
    ordered = sorted(told, key=lambda item: (item.why_no_gain == _NOT_OFFERED, -(item.gain_ratio or 0.0)))
    return replace(finding, remedies=tuple(ordered), experiments=list_experiments(finding.cause, serving))


def _is_of(key: str, engine: ServingEngine | None) -> bool:
    """Tell whether a remedy is not only of another engine."""
    return can_try(load_commands().get(key, ()), Serving(engine))


def _add_command(remedy: Remedy, serving: Serving) -> Remedy:
    commands = load_commands().get(remedy.key, ())
    if not can_try(commands, serving):
        return replace(remedy, gain_ratio=None, interval=None, basis=DOCUMENTED, why_no_gain=_NOT_OFFERED)
    return replace(remedy, command=choose_command(commands, serving))


def find_serving(diagnosis: Diagnosis, engine: str) -> Serving:
    """Find which engine and release serves, from what its processes are called and who wrote the inputs.

    Args:
        engine: as the ranks of a deployment have it.
    """
    titles = [rank.process or "" for rank in diagnosis.ranks if rank.engine == engine]
    named = {name for name, pattern in _PROCESSES if any(pattern.search(title) for title in titles)}
    written = set(_list_producers(diagnosis))
    names = named or {name for name, _ in written}
    if len(names) != 1:
        return UNKNOWN_SERVING
    name = names.pop()
    releases = {release for other, release in written if other == name and release}
    return Serving(name, releases.pop() if len(releases) == 1 else None)


def _list_producers(diagnosis: Diagnosis) -> Iterator[tuple[ServingEngine, str | None]]:
    """List the engines that wrote inputs, with their releases where they say."""
    for source in diagnosis.inputs:
        told = _PRODUCER.fullmatch(source.producer or "")
        for name in get_args(ServingEngine) if told else ():
            if told and told[1] == name:
                yield name, told[2]
