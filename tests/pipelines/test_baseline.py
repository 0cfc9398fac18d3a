"""A baseline that fits, one that does not, and what is none."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dprankdiag.analysis.observations import Observations
from dprankdiag.errors import DamagedInput, UsageError
from dprankdiag.model.reference import Reference
from dprankdiag.pipelines.baseline import attach_references, list_misfits, load_baseline
from dprankdiag.store.bundle import save_bundle
from tests.analysis.builders import annotate, observe_steps
from tests.pipelines.sides import give, use


def steps(**changes: Any) -> Observations:
    seen = annotate(observe_steps(**changes), requests=np.full(changes.get("n_ranks", 8), 16.0))
    return replace(seen, kernels=(use("gemm", [1000] * seen.n_ranks),))


def of_engine(seen: Observations, engine: str) -> Observations:
    return replace(seen, ranks=tuple(replace(rank, engine=engine) for rank in seen.ranks))


def save(seen: Observations, path: Path, keep: tuple[str, ...] = ()) -> Path:
    """Save steps as a bundle, with all tables or only some."""
    side = give(seen)
    save_bundle(path, side.diagnosis, {name: side.tables[name] for name in keep or side.tables})
    return path


def refer(now: Observations, bundle: Path) -> Reference:
    (seen,) = attach_references([now], load_baseline(bundle))
    assert seen.reference is not None
    return seen.reference


def test_a_baseline_of_the_same_deployment_offers_transfers_and_speed(tmp_path: Path) -> None:
    now = replace(steps(seed=2), kernels=(use("gemm", [1250] * 8),))
    found = refer(now, save(steps(seed=1), tmp_path / "day.dprank"))
    assert (found.name, found.misfit, found.unlike_sizes) == ("day.dprank", None, None)
    assert {(item.operation, item.members) for item in found.transfers} == {("all_gather", 8), ("reduce_scatter", 8)}
    assert found.slowness == pytest.approx(np.full(8, 1.25))


def test_transfers_of_other_sizes_are_not_offered_and_speed_is(tmp_path: Path) -> None:
    now = annotate(steps(seed=2), requests=np.full(8, 64.0))
    found = refer(now, save(steps(seed=1), tmp_path / "day.dprank"))
    assert found.unlike_sizes == "decode steps hold 128 rows before, 512 after"
    assert found.transfers == ()
    assert found.slowness is not None


def test_a_baseline_of_other_ranks_does_not_fit_and_says_why(tmp_path: Path) -> None:
    baseline = load_baseline(save(steps(n_ranks=4), tmp_path / "four.dprank"))
    seen = attach_references([steps()], baseline)
    assert list_misfits(seen) == ["the baseline four.dprank does not fit: 4 ranks before, 8 after"]


def test_a_bundle_of_an_earlier_version_is_a_misfit_and_no_error(tmp_path: Path) -> None:
    old = save(steps(), tmp_path / "old.dprank", keep=("steps", "rank_steps", "layers"))
    assert "lacks the tables" in str(refer(steps(), old).misfit)


def test_a_bundle_of_another_schema_is_a_misfit_and_no_error(tmp_path: Path) -> None:
    path = save(steps(), tmp_path / "new.dprank")
    path.write_bytes(path.read_bytes().replace(b'"schema_version": 1', b'"schema_version": 7'))
    with pytest.raises(DamagedInput):
        load_baseline(path)  # the archive's own checksum sees the change first
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("diagnosis.json", '{"schema_version": 7}')
    assert load_baseline(path).misfit == "schema version 7, expected 1"


def test_what_is_no_bundle_is_refused_with_the_mend(tmp_path: Path) -> None:
    trace = tmp_path / "run.sqlite"
    trace.write_bytes(b"SQLite format 3\0")
    with pytest.raises(UsageError, match=r"not a \.dprank bundle") as raised:
        load_baseline(trace)
    assert raised.value.mend == "save one with: dprankdiag analyze TRACE -o FILE.dprank"
    with pytest.raises(UsageError, match="no such file"):
        load_baseline(tmp_path / "absent.dprank")
    broken = tmp_path / "broken.dprank"
    broken.write_bytes(b"PK\x03\x04")
    with pytest.raises(DamagedInput):
        load_baseline(broken)


def test_of_several_groups_each_finds_its_engine(tmp_path: Path) -> None:
    baseline = load_baseline(save(steps(), tmp_path / "one.dprank"))
    first, second = attach_references([steps(seed=1), of_engine(steps(seed=2), "default-2")], baseline)
    assert first.reference is not None
    assert second.reference is not None
    assert first.reference.misfit is None
    assert second.reference.misfit == "it has no group of as many ranks of engine default-2"


def test_groups_that_differ_in_their_transfers_know_of_each_other(tmp_path: Path) -> None:
    baseline = load_baseline(save(steps(seed=1), tmp_path / "day.dprank"))
    groups = (replace(baseline.groups[0], engine="a"), replace(baseline.groups[0], engine="b"))
    two = replace(baseline, groups=groups)
    seen = attach_references([of_engine(steps(seed=2), "a"), of_engine(steps(seed=3, transfer=32_000), "b")], two)
    for item in (item for part in seen if part.reference for item in part.reference.transfers):
        assert item.groups == 2
        assert item.spread == pytest.approx(np.log(2) / np.sqrt(2), rel=0.02)
