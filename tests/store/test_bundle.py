import zipfile
from pathlib import Path

import numpy as np
import pytest

from dprankdiag.errors import DamagedInput, InputError
from dprankdiag.model.bundle import make_document, publish_numbers
from dprankdiag.model.schema import Columns
from dprankdiag.store.bundle import is_bundle, load_bundle, pack_bundle, parse_diagnosis, save_bundle
from dprankdiag.views import json, text
from tests import builders

TABLES: dict[str, Columns] = {
    "segments": {
        "rank": np.array([0, 1, 2], np.int16),
        "busy_ns": np.array([2**53 + 1, -5, 0], np.int64),
        "share": np.array([0.5, np.nan, 1.0]),
        "is_late": np.array([True, False, True]),
        "family": np.array(["attention", "gemm", "µ"]),
    },
    "empty": {"rank": np.empty(0, np.int16)},
}


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    path = tmp_path / "run.dprank"
    save_bundle(path, builders.diagnosis(), TABLES)
    return path


def test_a_bundle_returns_the_published_diagnosis(bundle: Path) -> None:
    diagnosis, _ = load_bundle(bundle)
    assert make_document(diagnosis) == make_document(builders.diagnosis())


def test_every_view_of_a_loaded_bundle_equals_the_view_of_the_saved_diagnosis(bundle: Path) -> None:
    diagnosis, _ = load_bundle(bundle)
    assert text.render(diagnosis, {}) == text.render(builders.diagnosis(), {})
    assert json.render(diagnosis, {}) == json.render(builders.diagnosis(), {})


@pytest.mark.parametrize("ratio", [0.3749999999, 1 / 3, float("nan")])
def test_numbers_are_rounded_before_anyone_sees_them(tmp_path: Path, ratio: float) -> None:
    finding = builders.finding(
        window_lost_ratio=ratio, interval=(ratio, np.float64(ratio)), lost_ns=np.int64(2**53 + 1)
    )
    shown = publish_numbers(builders.diagnosis(findings=(finding,)))
    save_bundle(tmp_path / "x.dprank", shown, {})
    loaded, _ = load_bundle(tmp_path / "x.dprank")
    assert loaded.findings == shown.findings
    assert text.render(loaded, {}) == text.render(shown, {})
    assert make_document(shown) == make_document(builders.diagnosis(findings=(finding,)))


def test_tables_come_back_with_their_types_and_values(bundle: Path) -> None:
    _, tables = load_bundle(bundle)
    assert set(tables) == set(TABLES)
    for name in ("rank", "busy_ns", "share", "is_late"):
        np.testing.assert_array_equal(tables["segments"][name], TABLES["segments"][name])
        assert tables["segments"][name].dtype == TABLES["segments"][name].dtype
    assert tables["segments"]["family"].tolist() == ["attention", "gemm", "µ"]
    assert len(tables["empty"]["rank"]) == 0


def test_equal_content_gives_equal_bytes() -> None:
    reordered = dict(reversed(TABLES.items()))
    assert pack_bundle(builders.diagnosis(), TABLES) == pack_bundle(builders.diagnosis(), reordered)


def test_saving_leaves_nothing_but_the_bundle(bundle: Path) -> None:
    assert [entry.name for entry in bundle.parent.iterdir()] == [bundle.name]


def test_a_failed_save_leaves_the_old_bundle_alone(bundle: Path) -> None:
    before = bundle.read_bytes()
    with pytest.raises(AttributeError):
        save_bundle(bundle, builders.diagnosis(), {"broken": {"rank": None}})  # type: ignore[dict-item]
    assert bundle.read_bytes() == before


def test_an_undecided_diagnosis_without_tables_can_be_saved(tmp_path: Path) -> None:
    path = tmp_path / "x.dprank"
    save_bundle(path, builders.undecided_diagnosis(), {})
    diagnosis, tables = load_bundle(path)
    assert diagnosis.status == "inconclusive"
    assert tables == {}


def test_a_bundle_is_known_by_its_content_under_another_name(bundle: Path, tmp_path: Path) -> None:
    renamed = bundle.rename(tmp_path / "renamed.zip")
    assert is_bundle(renamed)


def test_other_files_and_folders_are_no_bundles(tmp_path: Path) -> None:
    other = tmp_path / "trace.sqlite"
    other.write_bytes(b"SQLite format 3\0")
    assert not is_bundle(other)
    assert not is_bundle(tmp_path)
    assert not is_bundle(tmp_path / "absent.sqlite")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04rubbish", b"\0" * 4096])
def test_rubbish_is_reported_in_one_line_with_its_path(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.dprank"
    path.write_bytes(content)
    with pytest.raises(DamagedInput) as caught:
        load_bundle(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_truncated_bundle_is_damaged(bundle: Path) -> None:
    content = bundle.read_bytes()
    bundle.write_bytes(content[: len(content) // 2])
    with pytest.raises(DamagedInput):
        load_bundle(bundle)


def test_a_flipped_byte_is_noticed(bundle: Path) -> None:
    content = bytearray(bundle.read_bytes())
    content[200] ^= 0xFF
    bundle.write_bytes(bytes(content))
    with pytest.raises(InputError):
        load_bundle(bundle)


def test_another_zip_is_not_a_bundle(tmp_path: Path) -> None:
    path = tmp_path / "x.dprank"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(InputError, match=r"without diagnosis\.json"):
        load_bundle(path)


def test_a_missing_file_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        load_bundle(tmp_path / "absent.dprank")


@pytest.mark.parametrize(
    "content, message",
    [
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[]", "not a diagnosis"),
        (b"{}", "not a diagnosis"),
        (b'{"schema_version": 99}', "schema version 99"),
        (b'{"schema_version": 1, "status": "fine"}', "not a diagnosis"),
    ],
)
def test_what_is_not_a_diagnosis_is_refused_with_a_reason(content: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_diagnosis(content)
