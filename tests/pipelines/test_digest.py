"""What each node digests by itself is judged together as the traces themselves would be."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import current_thread
from typing import Any

import pytest

from dprankdiag.errors import DamagedInput, InputError, UsageError
from dprankdiag.harness.suites import WORLDS, write_world
from dprankdiag.model.diagnosis import Diagnosis
from dprankdiag.model.sources import Reading
from dprankdiag.pipelines import inputs
from dprankdiag.pipelines.diagnose import Options, diagnose, list_kernels
from dprankdiag.pipelines.digest import Digested, digest, name_bundles
from dprankdiag.pipelines.inputs import read_inputs
from dprankdiag.store.bundle import load_bundle, pack_bundle
from dprankdiag.store.digests import read_digests
from tests import builders
from tests.readers.checks import assert_equal

Digest = Callable[[list[Path]], tuple[list[Path], list[Digested]]]


@pytest.fixture
def digest_all(tmp_path: Path) -> Digest:
    def make(paths: list[Path]) -> tuple[list[Path], list[Digested]]:
        found = [digest(path) for path in paths]
        bundles = [tmp_path / name for name in name_bundles(paths)]
        for bundle, one in zip(bundles, found, strict=True):
            bundle.write_bytes(one.content)
        return bundles, found

    return make


def verdict(told: Diagnosis) -> Any:
    """What people act on: the findings with their ranks, and what could not be judged."""
    named = [(item.cause, item.ranks, item.severity, item.who, item.when) for item in told.findings]
    return told.status, named, [(item.cause, item.reason) for item in told.abstentions]


@pytest.mark.parametrize(
    "name, changes",
    [
        ("load_context", {"files": "node", "ranks_per_node": 4}),
        ("slow_gpu", {"files": "node", "ranks_per_node": 2, "host_clock_ns": 3_000_000, "drift_ppm": 12.0}),
        ("one_file_per_rank_clock", {}),
        ("starts_apart", {}),
        ("attention_tp_load", {"files": "node", "ranks_per_node": 4}),
        ("cut_edges", {"files": "node", "ranks_per_node": 4}),
    ],
)
def test_joined_digests_give_the_verdict_of_the_traces(
    name: str, changes: dict[str, Any], tmp_path: Path, digest_all: Digest
) -> None:
    paths = write_world(replace(WORLDS[name], **changes), tmp_path / "traces")
    bundles, found = digest_all(paths)
    told, joined = diagnose(paths).diagnosis, diagnose(bundles).diagnosis
    assert not any(one.is_whole for one in found)
    assert verdict(joined) == verdict(told)
    assert joined.lost.total_ns == pytest.approx(told.lost.total_ns, rel=1e-3)
    assert [source.kind for source in joined.inputs] == ["digest"] * len(paths)
    assert [source.ranks for source in joined.inputs] == [source.ranks for source in told.inputs]
    assert sum(len(one.content) for one in found) < sum(path.stat().st_size for path in paths) / 5


def test_many_digests_are_unpacked_by_threads_to_the_same_end(
    tmp_path: Path, digest_all: Digest, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundles, _ = digest_all(write_world(WORLDS["one_file_per_rank_clock"], tmp_path / "traces"))
    bundles[2].write_bytes(b"PK")
    unpacked: list[str] = []

    def note(path: Path, patterns: str) -> tuple[Reading, ...]:
        unpacked.append(current_thread().name)
        return read_digests(path, patterns)

    monkeypatch.setattr(inputs, "read_digests", note)
    alone = read_inputs(bundles, jobs=1)
    monkeypatch.setattr(inputs, "_WORTH_THREADS_BYTES", 0)
    shared = read_inputs(bundles)
    here = [name == current_thread().name for name in unpacked]
    assert here == [True] * len(bundles) + [False] * len(bundles)
    assert len(alone.readings) == len(bundles) - 1
    assert shared.unusable == alone.unusable
    for one, other in zip(alone.readings, shared.readings, strict=True):
        assert_equal(one, other)


def test_kernels_are_kept_one_by_one_where_collectives_run_beside_work(tmp_path: Path, digest_all: Digest) -> None:
    world = replace(WORLDS["overlap_load"], files="node", ranks_per_node=4)
    paths = write_world(world, tmp_path / "traces")
    bundles, found = digest_all(paths)
    assert all(one.is_whole for one in found)
    assert verdict(diagnose(bundles).diagnosis) == verdict(diagnose(paths).diagnosis)


@pytest.mark.parametrize("name", ["load_context", "healthy"])
def test_a_digest_and_the_trace_of_another_node_are_judged_together(
    name: str, tmp_path: Path, digest_all: Digest
) -> None:
    paths = write_world(replace(WORLDS[name], files="node", ranks_per_node=4), tmp_path / "traces")
    bundles, _ = digest_all(paths[:1])
    assert verdict(diagnose([bundles[0], paths[1]]).diagnosis) == verdict(diagnose(paths).diagnosis)


def test_traces_of_single_ranks_by_the_torch_profiler_can_be_digested(tmp_path: Path, digest_all: Digest) -> None:
    paths = write_world(replace(WORLDS["load_context"], steps=20), tmp_path / "traces", format="torch")
    bundles, _ = digest_all(paths)
    told, joined = diagnose(paths).diagnosis, diagnose(bundles).diagnosis
    assert verdict(joined)[:2] == verdict(told)[:2]


def test_a_node_that_is_missing_is_missed(tmp_path: Path, digest_all: Digest) -> None:
    paths = write_world(replace(WORLDS["load_context"], files="node", ranks_per_node=4), tmp_path / "traces")
    bundles, _ = digest_all(paths)
    (told,) = [diagnose(bundles[1:]).diagnosis]
    assert told.status == "inconclusive"
    assert "not recorded" in " ".join((told.headline, *told.notes, *(item.reason for item in told.abstentions)))


@pytest.fixture
def one_bundle(tmp_path: Path, digest_all: Digest) -> Path:
    (path,) = write_world(replace(WORLDS["load_context"], steps=12), tmp_path / "traces")
    return digest_all([path])[0][0]


def test_a_digest_holds_a_verdict_of_its_own(one_bundle: Path) -> None:
    told, tables = load_bundle(one_bundle)
    assert [finding.ranks for finding in told.findings] == [(3,)]
    assert "rank_steps" in tables


def test_a_digest_beside_its_copy_or_its_trace_is_left_out(one_bundle: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.dprank"
    copy.write_bytes(one_bundle.read_bytes())
    (trace,) = (tmp_path / "traces").iterdir()
    for other in (copy, trace):
        told = diagnose([one_bundle, other]).diagnosis
        assert len(told.ranks) == 8
        (left_out,) = [source for source in told.inputs if source.status == "skipped"]
        assert left_out.path == str(copy if other == copy else one_bundle)
        assert "which is given too; left out" in left_out.warnings[0]


def test_the_same_digest_named_twice_is_refused(one_bundle: Path) -> None:
    with pytest.raises(InputError, match="the same recording twice"):
        diagnose([one_bundle, one_bundle])


def test_a_bundle_without_a_digest_is_refused_with_the_command_that_makes_one(tmp_path: Path) -> None:
    path = tmp_path / "run.dprank"
    path.write_bytes(pack_bundle(builders.diagnosis(), {}))
    with pytest.raises(InputError, match=r"no digest.*dprankdiag digest TRACE"):
        diagnose([path])


def test_a_digest_cut_short_is_damaged(one_bundle: Path) -> None:
    one_bundle.write_bytes(one_bundle.read_bytes()[:-2000])
    with pytest.raises(DamagedInput, match="not a whole bundle"):
        read_digests(one_bundle)


def test_a_digest_that_is_packed_to_fill_the_memory_is_refused(one_bundle: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed.dprank"
    with zipfile.ZipFile(one_bundle) as archive, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as target:
        for name in archive.namelist():
            target.writestr(name, archive.read(name))
        target.writestr("digest/blanks", bytes(50_000_000))
    with pytest.raises(DamagedInput, match="a bundle is not packed"):
        read_digests(packed)


def test_a_digest_made_with_other_kernel_names_is_refused(one_bundle: Path, tmp_path: Path) -> None:
    patterns = tmp_path / "own.toml"
    patterns.write_text('[[rule]]\nfamily = "gemm"\npattern = "zzz"\n', "utf-8")
    with pytest.raises(InputError, match=r"other kernel names.*same --patterns"):
        diagnose([one_bundle], Options(patterns=patterns))


def test_digests_cannot_be_cut_in_time(one_bundle: Path) -> None:
    with pytest.raises(UsageError, match="cannot be cut in time"):
        diagnose([one_bundle], Options(window=(0.0, 1.0)))


def test_a_digest_has_no_kernels_to_list(one_bundle: Path) -> None:
    with pytest.raises(InputError, match="no kernels"):
        list_kernels(one_bundle)


def test_a_digest_cannot_be_digested(one_bundle: Path) -> None:
    with pytest.raises(InputError, match="expected a trace"):
        digest(one_bundle)


def test_what_is_no_trace_is_not_digested(tmp_path: Path) -> None:
    path = tmp_path / "matrix.csv"
    path.write_text("rank,0,1\n0,0,5\n1,9,0\n", "utf-8")
    with pytest.raises(InputError, match="no trace"):
        digest(path)


def test_bundles_are_named_as_the_files_and_by_their_folders_where_those_are_alike() -> None:
    names = name_bundles([Path("a/run.sqlite"), Path("b/run.sqlite"), Path("b/other.json.gz")])
    assert names == ["a-run.dprank", "b-run.dprank", "other.dprank"]
    with pytest.raises(UsageError, match="same name"):
        name_bundles([Path("x/a/run.sqlite"), Path("y/a/run.sqlite")])
