"""The shape a diagnosis is saved and published in (DESIGN 4.2): plain objects, the contract's keys in its order."""

from __future__ import annotations

import math
from dataclasses import asdict, fields, is_dataclass, replace
from typing import Any

from dprankdiag import __version__
from dprankdiag.model.diagnosis import Diagnosis

SCHEMA_VERSION = 1
"""Raised when a published field changes its meaning; new fields leave it alone."""

TOOL_NAME = "dprankdiag"

SIGNIFICANT_DIGITS = 6
"""Digits a published number keeps, so that machines that differ in the last bit publish the same bytes."""

_TOP_KEYS = (
    "status",
    "headline",
    "inputs",
    "ranks",
    "time",
    "step",
    "interval_level",
    "lost",
    "findings",
    "abstentions",
    "notes",
)
_RANK_KEYS = (
    "engine",
    "rank",
    "level",
    "dp_rank",
    "tp_rank",
    "pp_rank",
    "ep_rank",
    "role",
    "host",
    "device",
    "pid",
    "process",
    "identified_by",
    "grade",
    "work_ns",
    "wait_ns",
    "transfer_ns",
    "idle_ns",
)
_FINDING_KEYS = (
    "id",
    "cause",
    "engine",
    "ranks",
    "layers",
    "who",
    "when",
    "severity",
    "lost_ns",
    "lost_ratio",
    "window_lost_ratio",
    "interval",
    "basis",
    "recoverable_ns",
    "confidence",
    "window",
    "onset_ns",
    "period_ns",
    "summary",
    "evidence",
    "alternatives",
    "remedies",
    "experiments",
)


def describe_tool() -> dict[str, str]:
    """Name the program and version that made a document."""
    return {"name": TOOL_NAME, "version": __version__}


def make_document(diagnosis: Diagnosis) -> dict[str, Any]:
    """Write a diagnosis as one object of the published schema, numbers as published."""
    plain = asdict(diagnosis)
    plain["ranks"] = [{key: rank[key] for key in _RANK_KEYS} for rank in plain["ranks"]]
    plain["findings"] = [{key: finding[key] for key in _FINDING_KEYS} for finding in plain["findings"]]
    plain["time"]["step_kinds"] = dict(sorted(plain["time"]["step_kinds"].items()))
    body = {key: publish_value(plain[key]) for key in _TOP_KEYS}
    return {"schema_version": SCHEMA_VERSION, "tool": describe_tool(), **body}


def publish_numbers(diagnosis: Diagnosis) -> Diagnosis:
    """Round a diagnosis as it is published, so that what is shown of it equals what is shown of the saved one."""
    rounded: Diagnosis = _publish_fields(diagnosis)
    return rounded


def _publish_fields(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        own = {field.name: _publish_fields(getattr(value, field.name)) for field in fields(value)}
        if "interval" in own and own["interval"] is not None and None in own["interval"]:
            own["interval"] = None
        return replace(value, **own)
    if isinstance(value, tuple):
        return tuple(_publish_fields(item) for item in value)
    return value if isinstance(value, dict) else publish_value(value)


def publish_value(value: Any) -> Any:
    """Round floats, make what is not a number null, and turn tuples and numpy scalars into plain JSON values."""
    if isinstance(value, dict):
        return {str(key): _publish_field(str(key), item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [publish_value(item) for item in value]
    if hasattr(value, "item"):
        return publish_value(value.item())
    if isinstance(value, float):
        return _round(value)
    return value


def _publish_field(key: str, value: Any) -> Any:
    """Publish a field; an interval with an open end bounds nothing and is null."""
    published = publish_value(value)
    return None if key == "interval" and published is not None and None in published else published


def _round(value: float) -> float | None:
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.{SIGNIFICANT_DIGITS}g}")
    return 0.0 if rounded == 0 else rounded
