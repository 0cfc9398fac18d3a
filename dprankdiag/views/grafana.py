"""Write the Grafana dashboard as JSON that any Grafana since 10 imports."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from dprankdiag.catalog.grafana import Panel, Row

HERE = 'job=~"$job",instance=~"$instance"'
GROUP = 'job=~"$job"'

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_COLUMNS = 24
_TYPES = {
    "text": "text",
    "stat": "stat",
    "table": "table",
    "lines": "timeseries",
    "states": "status-history",
    "bars": "bargauge",
}
_COLORS = ("#d9e2ec", "#9fb3c8", "#486581", "#102a43")
"""Pale to dark: more. Told apart without hue."""


def render(rows: Sequence[Row]) -> str:
    """Write the dashboard; the same rows give the same bytes."""
    board: dict[str, Any] = {
        "id": None,
        "uid": "dprankdiag",
        "title": "Data-parallel ranks (dprankdiag)",
        "description": "Which data-parallel rank of SGLang or vLLM the others wait for, and why.",
        "tags": ["dprankdiag", "sglang", "vllm"],
        "schemaVersion": 39,
        "version": 1,
        "editable": False,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "",
        "annotations": {"list": []},
        "links": [],
        "templating": {"list": _make_variables()},
        "panels": list(_lay_out(rows)),
    }
    return json.dumps(board, indent=2, ensure_ascii=False) + "\n"


def put_in(expr: str) -> str:
    """Put the variables into an expression of the catalogue."""
    return expr.replace("<<here>>", HERE).replace("<<group>>", GROUP)


def _make_variables() -> list[dict[str, Any]]:
    source = {
        "name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "hide": 0,
    }  # fmt: skip
    return [source, _make_label("job", "Job", ".+", ""), _make_label("instance", "Target", ".*", GROUP)]


def _make_label(label: str, title: str, every: str, chosen: str) -> dict[str, Any]:
    query = f"label_values(instance_rank:dprank_rank:peers{{{chosen}}}, {label})"
    return {
        "name": label,
        "label": title,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": label},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": every,
        "hide": 0,
    }


def _lay_out(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Place panels from left to right, a heading above each row."""
    number, top = 0, 0
    for row in rows:
        number, left, height = number + 1, 0, 0
        place = {"x": 0, "y": top, "w": _COLUMNS, "h": 1}
        yield {"id": number, "type": "row", "title": row.title, "collapsed": False, "panels": [], "gridPos": place}
        top += 1
        for panel in row.panels:
            if left + panel.width > _COLUMNS:
                left, top, height = 0, top + height, 0
            number += 1
            place = {"x": left, "y": top, "w": panel.width, "h": panel.height}
            yield {"id": number, "gridPos": place, **_make_panel(panel)}
            left, height = left + panel.width, max(height, panel.height)
        top += height


def _make_panel(panel: Panel) -> dict[str, Any]:
    common = {
        "type": _TYPES[panel.kind],
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": _make_defaults(panel), "overrides": []},
    }
    if panel.kind == "text":
        return common | {"options": {"mode": "markdown", "content": panel.text.strip()}, "targets": []}
    instant = panel.kind in ("stat", "table", "bars")
    targets = [
        {
            "refId": chr(ord("A") + index),
            "datasource": _SOURCE,
            "expr": put_in(target.expr),
            "legendFormat": target.legend,
            "instant": instant,
            "range": not instant,
            "format": "table" if panel.kind == "table" else "time_series",
        }
        for index, target in enumerate(panel.targets)
    ]
    return common | {"targets": targets, "options": _make_options(panel)} | _transform(panel)


def _make_defaults(panel: Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit or "short", "min": 0}
    if panel.steps:
        values = (None, *panel.steps)
        steps = [{"value": value, "color": color} for value, color in zip(values, _COLORS, strict=True)]
        defaults |= {"color": {"mode": "thresholds"}, "thresholds": {"mode": "absolute", "steps": steps}}
    if panel.empty:
        defaults["mappings"] = [{"type": "value", "options": {"0": {"text": panel.empty, "index": 0}}}]
    return defaults


def _make_options(panel: Panel) -> dict[str, Any]:
    if panel.kind == "lines":
        return {
            "legend": {"displayMode": "table", "placement": "right", "calcs": ["lastNotNull"], "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    if panel.kind == "states":
        return {"showValue": "never", "rowHeight": 0.9, "legend": {"displayMode": "list", "placement": "bottom"}}
    if panel.kind in ("stat", "bars"):
        return {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}}
    return {"showHeader": True}


def _transform(panel: Panel) -> dict[str, Any]:
    """Keep the columns of the table that a reader wants, in their order."""
    if panel.kind != "table":
        return {}
    shown = ("alertname", "severity", "cause", "reason", "job", "model_name", "rank", "gpu", "instance")
    hidden = ("Time", "Value", "__name__", "alertstate", "peers", "engine", "engine_type", "pp_rank", "ledger", "le")
    options = {
        "indexByName": {name: index for index, name in enumerate(shown)},
        "excludeByName": dict.fromkeys(hidden, True),
    }
    return {"transformations": [{"id": "organize", "options": options}]}
