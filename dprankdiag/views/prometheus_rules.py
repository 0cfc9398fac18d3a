"""Write the Prometheus rules out: settings put in, every engine series under both its spellings.

Prometheus stores `sglang:x` as `sglang_x` where the engine's client library escapes names, so each metric of an engine
is looked up under both. Copies of one rank (attention TP runs a scheduler per GPU) are folded, never summed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from textwrap import dedent, indent

from dprankdiag.catalog.prometheus_rules import Rule, RuleCatalog, count_seconds

PRESENT = "instance_rank:dprank_rank:present"
PEERS = "instance_rank:dprank_rank:peers"

_COPIES = ("dp_rank", "tp_rank", "moe_ep_rank", "pid")
"""Labels of an engine's series that differ between copies of one rank, once the label `rank` is made."""

_RANKED = {"sglang": 'dp_rank!="",tp_rank!=""', "vllm": 'engine!=""'}
_RANK_LABEL = {"sglang": "dp_rank", "vllm": "engine"}

_SERIES = re.compile(
    r"(?P<function>\w+\()?@(?:(?P<engine>sglang|vllm)\.)?(?P<name>\w+)"
    r"(?:\{(?P<matchers>[^{}]*)\})?(?P<range>\[[^\]]+\])?(?(function)\))"
)
_PLACE = re.compile(r"<<(\w+)>>")
_MACRO = re.compile(r"<<(per_mean|next_gpu):([\w:]+)>>")

_HEADER = """\
# Prometheus rules for data-parallel ranks of SGLang and vLLM, printed by: dprankdiag rules
# What they need, how to change thresholds, what cannot be judged: docs/rules.md
"""


def render_prometheus(catalog: RuleCatalog, settings: Mapping[str, str]) -> str:
    """Write a plain rule file."""
    return f"{_HEADER}groups:\n{_write_groups(catalog, settings)}"


def render_kubernetes(catalog: RuleCatalog, settings: Mapping[str, str], labels: Mapping[str, str]) -> str:
    """Write the same as a PrometheusRule object, with labels its operator selects it by."""
    lines = ["apiVersion: monitoring.coreos.com/v1", "kind: PrometheusRule", "metadata:", "  name: dprankdiag"]
    if labels:
        lines += ["  labels:", *(f"    {json.dumps(key)}: {json.dumps(value)}" for key, value in labels.items())]
    head = "\n".join([*lines, "spec:", "  groups:"])
    return f"{_HEADER}{head}\n{indent(_write_groups(catalog, settings), '  ')}"


def render_settings(catalog: RuleCatalog) -> str:
    """List the settings: key, default and meaning."""
    width = max(len(key) for key in catalog.settings) + 2
    lines = [f"{key:<{width}}{one.default or '(none)'}\n    {one.meaning}" for key, one in catalog.settings.items()]
    return "\n".join(lines) + "\n"


def write_expression(rule: Rule, settings: Mapping[str, str]) -> str:
    """Write the expression of a rule with everything put in."""
    text = dedent(rule.expr).strip() if rule.expr else _join_engines(rule)
    return _put_in(text, settings)


def _put_in(text: str, settings: Mapping[str, str]) -> str:
    values = {
        **settings,
        "targets": settings["target_labels"],
        "rank": f"rank, {settings['target_labels']}",
        "window_s": f"{count_seconds(settings['window']):g}",
    }
    text = _MACRO.sub(lambda found: _MACROS[found[1]](found[2]), text)
    text = _SERIES.sub(lambda found: _write_series(found, settings["selector"]), text)
    return _PLACE.sub(lambda found: values[found[1]], text)


def _join_engines(rule: Rule) -> str:
    parts = [_label_rank(engine, text) for engine, text in rule.engines.items()]
    drop = ", ".join((*_COPIES, *rule.drop))
    text = f"{rule.fold} without ({drop}) (\n{indent(_or(parts), '  ')}\n)"
    if rule.absent is not None:
        text = f"(\n{indent(text, '  ')}\n  or {rule.absent} * {PRESENT}\n)"
    if rule.peers:
        text += f"\n* ignoring (peers) group_left (peers) {PEERS}"
    return text


def _label_rank(engine: str, text: str) -> str:
    text = re.sub(r"@(?=\w)", f"@{engine}.ranked_", text)
    inner = indent(dedent(text).strip(), "    ")
    return (
        f'label_replace(\n  label_replace(\n{inner},\n    "rank", "$1", "{_RANK_LABEL[engine]}", "(.+)"\n  ),\n'
        f'  "engine", "{engine}", "", ""\n)'
    )


def _or(parts: list[str]) -> str:
    return "\nor\n".join(parts)


def _write_series(found: re.Match[str], selector: str) -> str:
    """Write one metric under both spellings; those of a rule of one engine must carry rank labels."""
    engine, name = found["engine"], found["name"]
    ranked = _RANKED[engine] if name.startswith("ranked_") else ""
    matchers = ",".join(part for part in (ranked, found["matchers"], selector) if part)
    chosen = (f"{{{matchers}}}" if matchers else "") + (found["range"] or "")
    function, end = (found["function"], ")") if found["function"] else ("", "")
    name = name.removeprefix("ranked_")
    one, other = (f"{function}{engine}{mark}{name}{chosen}{end}" for mark in ":_")
    if len(one) + len(other) < 80:
        return f"({one} or {other})"
    line = found.string[found.string.rfind("\n", 0, found.start()) + 1 : found.start()]
    break_at = "\n" + " " * (len(line) - len(line.lstrip()) + 2)
    return f"({break_at}{one}{break_at}or {other}{break_at[:-2]})"


def _divide_by_mean(series: str) -> str:
    return f"{series}\n/ ignoring (<<rank>>) group_left () avg without (<<rank>>) ({series})"


def _add_next_gpu(series: str) -> str:
    """Add the label `next`: the number in `le` plus one, by its last digits, as PromQL cannot count in labels."""
    steps = [(f"([0-9]*){digit}", f"${{1}}{digit + 1}") for digit in range(9)]
    steps += [("()9", "10"), *((f"([0-9]*){tens}9", f"${{1}}{tens + 1}0") for tens in range(9))]
    steps += [(f"(){hundreds or ''}99", f"{hundreds + 1}00") for hundreds in range(9)]
    text = series
    for pattern, number in steps:
        text = f'label_replace(\n{text}, "next", "{number}$2", "le", "{pattern}((?:\\\\.0)?)")'
    return text


_MACROS = {"per_mean": _divide_by_mean, "next_gpu": _add_next_gpu}


def _write_groups(catalog: RuleCatalog, settings: Mapping[str, str]) -> str:
    parts = []
    for group in catalog.groups:
        rules = "\n".join(_write_rule(rule, settings) for rule in group.rules)
        parts.append(f"- name: {group.name}\n  interval: {settings['interval']}\n  rules:\n{rules}")
    return "\n".join(parts)


def _write_rule(rule: Rule, settings: Mapping[str, str]) -> str:
    expression = indent(write_expression(rule, settings), "    ")
    if rule.record:
        return f"  # {rule.says}\n  - record: {rule.record}\n    expr: |-\n{indent(expression, '  ')}\n"
    page = rule.page or f"causes/{rule.cause}.md"
    annotations = {
        "summary": rule.summary,
        "description": _put_in(rule.description, settings),
        "runbook_url": f"{settings['docs_url'].rstrip('/')}/{page}",
    }
    cause = {"cause": rule.cause} if rule.cause else {}
    hold = _put_in(rule.hold, settings)
    return (
        f"  - alert: {rule.alert}\n    expr: |-\n{indent(expression, '  ')}\n    for: {hold}\n"
        f"    labels:\n{_write_map({'severity': rule.severity, **cause, **rule.labels})}"
        f"    annotations:\n{_write_map(annotations)}"
    )


def _write_map(values: Mapping[str, str]) -> str:
    return "".join(f"      {key}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in values.items())
