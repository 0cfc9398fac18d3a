"""What simulated deployments write looks like what real engines wrote: families, types, labels and keys."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dprankdiag.harness.ledger_worlds import LEDGER_WORLDS, LedgerWorld, Tick, simulate_ledger

SHORT = {"seconds": 20.0}
UNSEEN = {f"sglang:num_retracted_{what}_total" for what in ("requests", "input_tokens", "output_tokens")}
"""Counters that appear with the first retraction, which the recordings do not hold."""

SINCE_LONG = {"sglang:queue_time_seconds"}
"""Written by all releases since 0.5.3, but only the newest one's recordings hold requests that queued."""

Families = dict[str, tuple[str, set[frozenset[str]]]]

_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? \S+$")
_LABEL = re.compile(r'(\w+)="(?:[^"\\]|\\.)*"')
_PARTS = ("_sum", "_count", "_bucket")


def read_families(*pages: str) -> Families:
    """Read types and sets of label names of all families of some pages."""
    families: Families = {}
    for line in "\n".join(pages).splitlines():
        if line.startswith("# TYPE "):
            name, kind = line.split()[2:4]
            families.setdefault(name, (kind, set()))
        elif match := _SAMPLE.match(line):
            name = match[1]
            stem = next((name.removesuffix(part) for part in _PARTS if name.endswith(part)), name)
            family = families.get(name) or families[stem]
            family[1].add(frozenset(_LABEL.findall(match[2] or "")))
    return families


def read_recorded(folder: Path) -> Families:
    """Read all pages of a release's recordings."""
    return read_families(
        *(path.read_text("utf-8") for path in sorted(folder.rglob("*.prom")) if "loads" not in path.name)
    )


def last_tick(world: LedgerWorld) -> Tick:
    """Run a world to its end."""
    return list(simulate_ledger(world))[-1]


def list_keys(value: Any, path: str = "") -> set[str]:
    """List the keys of an answer, with the kind of value behind each."""
    if isinstance(value, dict):
        return {key for name, inner in value.items() for key in list_keys(inner, f"{path}.{name}")}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return {key for inner in value for key in list_keys(inner, f"{path}[]")}
    return {path}


@pytest.mark.parametrize(
    "version,names",
    [
        ("0.5.9", ["requests_oldest"]),
        ("0.5.12", ["requests_older", "context_older"]),
        ("0.5.18", ["healthy_older"]),
        ("0.5.23", ["requests", "healthy_switch_off", "healthy_attention_tp", "speculation", "expert", "prefill"]),
    ],
)
def test_sglang_pages_have_the_families_types_and_labels_of_real_ones(
    fixtures: Path, version: str, names: list[str]
) -> None:
    recorded = read_recorded(fixtures / f"sglang-{version}")
    for name in names:
        world = replace(LEDGER_WORLDS[name], version=version, **SHORT)
        for family, (kind, labels) in read_families(last_tick(world).pages["metrics"].decode()).items():
            if family in UNSEEN or (family in SINCE_LONG and version != "0.5.23"):
                continue
            assert family in recorded, f"{name} writes {family}, which {version} does not"
            assert (kind, labels - recorded[family][1]) == (recorded[family][0], set()), f"{name}: {family}"


@pytest.mark.parametrize("version", ["0.5.9", "0.5.12", "0.5.18", "0.5.23"])
def test_load_answers_have_the_keys_of_real_ones(fixtures: Path, version: str) -> None:
    recorded = list_keys(json.loads((fixtures / f"sglang-{version}/count-skew/v1_loads_t1.json").read_text("utf-8")))
    written = json.loads(last_tick(replace(LEDGER_WORLDS["requests"], version=version, **SHORT)).pages["loads"])
    assert list_keys(written) == recorded


@pytest.mark.parametrize("name,folder", [("vllm_requests", "hot-rank"), ("vllm_several_servers", "balanced-api8")])
def test_vllm_pages_have_the_families_types_and_labels_of_real_ones(fixtures: Path, name: str, folder: str) -> None:
    recorded = read_recorded(fixtures / "vllm-0.33.0" / folder)
    written = read_families(last_tick(replace(LEDGER_WORLDS[name], **SHORT)).pages["metrics"].decode())
    for family, (kind, labels) in written.items():
        assert family in recorded, f"{family} is not written by vLLM 0.33.0"
        assert recorded[family][0] == kind
        if family == "vllm:cache_config_info":  # a real one shows more of the configuration
            assert all(any(ours <= theirs for theirs in recorded[family][1]) for ours in labels)
        else:
            assert labels <= recorded[family][1], family


def test_several_api_servers_write_no_birthdays() -> None:
    page = last_tick(replace(LEDGER_WORLDS["vllm_several_servers"], **SHORT)).pages["metrics"].decode()
    assert "_created" not in page
    assert "_created" in last_tick(replace(LEDGER_WORLDS["vllm_healthy"], **SHORT)).pages["metrics"].decode()


def test_behind_an_external_balancer_each_engine_has_a_page_of_its_own() -> None:
    tick = last_tick(replace(LEDGER_WORLDS["vllm_requests_external"], **SHORT))
    for rank in range(8):
        assert set(re.findall(r'engine="(\d+)"', tick.pages[f"rank{rank}"].decode())) == {str(rank)}


def test_each_host_shows_its_own_ranks() -> None:
    tick = last_tick(replace(LEDGER_WORLDS["healthy_nodes"], **SHORT))
    shown = [set(re.findall(r'dp_rank="(\d+)"', tick.pages[f"node{node}"].decode())) for node in (0, 1)]
    assert shown == [{str(rank) for rank in range(8)}, {str(rank) for rank in range(8, 16)}]
