"""One scenario in the tables of every known version: rank 2 of 4 has twice the attention."""

from __future__ import annotations

from pathlib import Path

import pytest

from dprankdiag.pipelines.diagnose import diagnose
from tests.proof.filler import KERNEL, NVTX, PLAIN_SCHEMA, RUNTIME, fill, list_tables, mark_ranges
from tests.proof.scenario import LOCAL_NS, Event, Scenario, attention_of, play
from tests.proof.verdicts import class_of, reasons_of

VERSIONS = (
    "2022.1.3", "2022.2.1", "2022.4.2", "2023.1.2", "2023.2.3", "2023.3.1", "2023.4.1", "2024.5.1", "2024.6.2",
    "2025.1.3", "2025.3.1", "2025.5.1", "2025.5.2", "2026.1.1", "2026.2.1", "2026.4-doc", "legacy-no-metadata",
)  # fmt: skip
SCENARIO = Scenario(factor=attention_of(2, 2.0))


@pytest.fixture(scope="module")
def events() -> list[Event]:
    return play(SCENARIO)


@pytest.fixture
def schemas(fixtures: Path) -> Path:
    if not (fixtures / "nsys").is_dir():
        pytest.skip(f"no schemas in {fixtures}")
    return fixtures / "nsys"


def read_ddl(schemas: Path, version: str) -> str:
    return (schemas / f"schema-{version}.sql").read_text()


def test_every_known_version_is_covered_here(schemas: Path) -> None:
    assert {path.stem.removeprefix("schema-") for path in schemas.glob("schema-*.sql")} == set(VERSIONS)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_verdict_does_not_depend_on_the_version(
    schemas: Path, tmp_path: Path, events: list[Event], version: str
) -> None:
    ddl = read_ddl(schemas, version)
    path = fill(tmp_path / "export.sqlite", events if KERNEL in list_tables(ddl) else (), ddl=ddl)
    diagnosis = diagnose([path]).diagnosis
    if KERNEL not in list_tables(ddl):
        assert (diagnosis.status, diagnosis.findings) == ("inconclusive", ())
        assert "neither GPU kernels nor annotated ranges" in reasons_of(diagnosis)
        return
    assert diagnosis.inputs[0].status == "used"
    assert diagnosis.inputs[0].kernels == len(events)
    assert [(rank.rank, rank.grade) for rank in diagnosis.ranks] == [(number, "sure") for number in range(4)]
    (finding,) = diagnosis.findings
    assert (class_of(finding), finding.ranks, finding.who, finding.severity) == ("load", (2,), "one", "critical")
    shared = 0.75 * LOCAL_NS["attention"] * SCENARIO.layers * diagnosis.time.steps
    assert finding.lost_ns == pytest.approx(shared, rel=0.1)


@pytest.mark.parametrize("version", VERSIONS)
def test_ranges_alone_carry_the_verdict_where_a_version_has_them(
    schemas: Path, tmp_path: Path, events: list[Event], version: str
) -> None:
    ddl = read_ddl(schemas, version)
    path = fill(tmp_path / "export.sqlite", (), mark_ranges(events), ddl=ddl)
    diagnosis = diagnose([path]).diagnosis
    if NVTX not in list_tables(ddl):
        assert diagnosis.status == "inconclusive"
        return
    (finding,) = diagnosis.findings
    assert (class_of(finding), finding.ranks) == ("load", (2,))
    assert "GPU kernels" in {item.cause: item.reason for item in diagnosis.abstentions}["single_point.gpu"]


def test_without_launch_rows_the_same_rank_is_named(tmp_path: Path, events: list[Event]) -> None:
    kept = ";".join(part for part in PLAIN_SCHEMA.split(";") if RUNTIME not in part)
    assert RUNTIME not in list_tables(kept)
    (finding,) = diagnose([fill(tmp_path / "export.sqlite", events, ddl=kept)]).diagnosis.findings
    assert (class_of(finding), finding.ranks) == ("load", (2,))


def test_an_even_scenario_is_healthy(tmp_path: Path) -> None:
    diagnosis = diagnose([fill(tmp_path / "export.sqlite", play(Scenario()))]).diagnosis
    assert (diagnosis.status, diagnosis.findings) == ("healthy", ())
