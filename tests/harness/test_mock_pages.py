"""Pages of served worlds beside pages that real engines wrote: families, types, labels, buckets and spelling."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest
from prometheus_client.utils import floatToGoString

from dprankdiag.catalog.engine_series import Kind, SeriesRow, load_series
from dprankdiag.harness import ledger_sglang, ledger_vllm
from dprankdiag.harness.ledger_page import Page
from dprankdiag.harness.served_ledger import NS_PER_S, ServedLedger
from tests.harness.served_worlds import RANKS, serve_sglang, serve_speculating, serve_tight, serve_vllm
from tests.harness.test_ledger_pages import SINCE_LONG, UNSEEN, read_families, read_recorded

SGLANG = ("0.5.9", "0.5.12", "0.5.18", "0.5.23")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_EDGE = re.compile(r'^(\S+)_bucket\{.*?le="([^"]+)"', re.MULTILINE)


@lru_cache
def write_sglang(version: str) -> str:
    """Write pages of worlds that show all there is: long requests, retractions, drafts."""
    pages = []
    for outcome, engine in (serve_sglang(long=True), serve_tight(), serve_speculating()):
        shown = replace(engine, version=version)
        state = ServedLedger(outcome, shown).advance(20 * NS_PER_S)
        pages.append(ledger_sglang.write_metrics(shown, state, range(RANKS)).decode())
    return "\n".join(pages)


@lru_cache
def write_vllm() -> str:
    outcome, engine = serve_vllm()
    return ledger_vllm.write_metrics(
        engine, ServedLedger(outcome, engine).advance(20 * NS_PER_S), range(RANKS)
    ).decode()


def read_real(folder: Path) -> str:
    return "\n".join(path.read_text("utf-8") for path in sorted(folder.rglob("*.prom")) if "loads" not in path.name)


def list_edges(page: str) -> dict[str, set[str]]:
    edges: dict[str, set[str]] = {}
    for name, edge in _EDGE.findall(page):
        edges.setdefault(name, set()).add(edge)
    return edges


def list_values(page: str, rows: tuple[SeriesRow, ...]) -> set[tuple[str, str, str]]:
    """List the values of the labels that the catalogue looks at, by series and label."""
    looked_at = {(name, label) for row in rows for name in row.names for label in row.labels}
    found = set()
    for line in page.splitlines():
        name = re.split(r"[{ ]", line, maxsplit=1)[0].partition(":")[2]
        found |= {(name, label, value) for label, value in _LABEL.findall(line) if (name, label) in looked_at}
    return found


def list_read(page: str, kind: Kind) -> set[str]:
    """List the series of a page that the catalogue reads."""
    names = {name for row in load_series(kind) for name in row.names}
    told = {line.split("{")[0].partition(":")[2] for line in page.splitlines() if not line.startswith("#")}
    return names & told


@pytest.mark.parametrize("version", SGLANG)
def test_sglang_pages_hold_nothing_that_real_ones_do_not(fixtures: Path, version: str) -> None:
    recorded = read_recorded(fixtures / f"sglang-{version}")
    for family, (kind, labels) in read_families(write_sglang(version)).items():
        if family in UNSEEN or (family in SINCE_LONG and version != "0.5.23"):
            continue
        assert family in recorded, f"{version} does not write {family}"
        assert (kind, labels - recorded[family][1]) == (recorded[family][0], set()), family


def test_vllm_pages_hold_nothing_that_real_ones_do_not(fixtures: Path) -> None:
    recorded = read_recorded(fixtures / "vllm-0.33.0/balanced")
    for family, (kind, labels) in read_families(write_vllm()).items():
        assert family in recorded, f"{family} is not written"
        assert recorded[family][0] == kind
        if family != "vllm:cache_config_info":  # a real one shows more of the configuration
            assert labels <= recorded[family][1], family


@pytest.mark.parametrize("version", SGLANG)
def test_all_that_is_read_of_real_sglang_pages_is_on_ours(fixtures: Path, version: str) -> None:
    real = read_real(fixtures / f"sglang-{version}")
    assert list_read(real, "sglang") - list_read(write_sglang(version), "sglang") == set()
    rows = load_series("sglang")
    assert list_values(real, rows) - list_values(write_sglang(version), rows) == set()


def test_all_that_is_read_of_real_vllm_pages_is_on_ours(fixtures: Path) -> None:
    real = read_real(fixtures / "vllm-0.33.0/balanced")
    assert list_read(real, "vllm") - list_read(write_vllm(), "vllm") == set()
    rows = load_series("vllm")
    assert list_values(real, rows) - list_values(write_vllm(), rows) == set()


@pytest.mark.parametrize("engine,folder", [("sglang", "sglang-0.5.23"), ("vllm", "vllm-0.33.0/balanced")])
def test_histograms_have_the_buckets_of_real_ones(fixtures: Path, engine: str, folder: str) -> None:
    written = list_edges(write_sglang("0.5.23") if engine == "sglang" else write_vllm())
    real = list_edges(read_real(fixtures / folder))
    assert written
    assert {name: edges for name, edges in real.items() if name in written} == written


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_each_family_has_one_head_of_help_and_type_before_its_series(engine: str) -> None:
    page = ledger_page(engine)
    heads = [line.split()[1:3] for line in page.splitlines() if line.startswith("#")]
    assert heads[0::2] == [["HELP", name] for _, name in heads[1::2]]
    assert {kind for kind, _ in heads[1::2]} == {"TYPE"}
    assert len({name for _, name in heads}) == len(heads) // 2


def ledger_page(engine: str) -> str:
    if engine == "vllm":
        return write_vllm()
    outcome, shown = serve_sglang(long=True)
    return ledger_sglang.write_metrics(shown, ServedLedger(outcome, shown).advance(9 * NS_PER_S), range(8)).decode()


@pytest.mark.parametrize("value", [0.0, 1.0, 0.000123, 123456.5, 1e6, 1234567.0, 33920950.0, 2.5e11, 1e17])
def test_numbers_are_spelled_as_the_client_of_the_engines_spells_them(value: float) -> None:
    page = Page()
    page.family("a:b", "gauge", [({}, value)])
    assert page.encode().decode().splitlines()[-1] == f"a:b {floatToGoString(value)}"
