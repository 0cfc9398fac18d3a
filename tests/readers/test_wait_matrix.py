from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from dprankdiag.errors import DamagedInput, InputError
from dprankdiag.readers.sniff import sniff
from dprankdiag.readers.wait_matrix import WaitMatrixReader, is_wait_matrix, parse_wait_matrix

HEADED = "waiting_rank,on_0,on_1,on_2\n0,1,2,3\n1,4,5,6\n2,7,8,9\n"
CELLS = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "text",
    [
        HEADED,
        HEADED.replace("waiting_rank,on_0,on_1,on_2", "rank,0,1,2"),
        HEADED.replace("waiting_rank,on_0,on_1,on_2", ",rank0,rank1,rank2"),
        HEADED.replace("waiting_rank,on_0,on_1,on_2", "src\\dst,dst 0,dst 1,dst 2"),
        HEADED.replace("waiting_rank,on_0", '"waiting rank","on_0"'),
        HEADED.replace(",", ";"),
        HEADED.replace(",", "\t"),
        HEADED.replace(",", ", ").replace("\n", "\r\n"),
        "\ufeff# 20 s of decode\n\n" + HEADED,
        HEADED.replace("\n0,", "\nrank 0,").replace("\n1,", "\nrank 1,").replace("\n2,", "\nrank 2,"),
        "waiting_rank,on_2,on_0,on_1\n1,6,4,5\n0,3,1,2\n2,9,7,8\n",
        "0,1,2,3\n1,4,5,6\n2,7,8,9\n",
        "waiting_rank on_0 on_1 on_2\n0 1 2 3\n1 4 5 6\n2 7.0 8e0 9\n",
    ],
)
def test_a_matrix_is_read_however_its_labels_are_spelled(tmp_path: Path, text: str) -> None:
    path = write(tmp_path / "waits.csv", text)
    assert sniff(path) == "wait-matrix"
    matrix = WaitMatrixReader().read(path)
    assert (matrix.waiting, matrix.awaited, matrix.grade) == ((0, 1, 2), (0, 1, 2), "sure")
    np.testing.assert_array_equal(matrix.waits, CELLS)
    assert matrix.source.status == "used"
    assert matrix.source.ranks == (0, 1, 2)


@pytest.mark.parametrize(
    "text", ["1,2,3\n4,5,6\n7,8,9\n", "on_0,on_1,on_2\n1,2,3\n4,5,6\n7,8,9\n", "1 2 3\n4 5 6\n7 8 9"]
)
def test_rows_without_labels_are_ranks_by_order_and_only_assumed(text: str) -> None:
    matrix = parse_wait_matrix(text.encode(), "waits.csv")
    np.testing.assert_array_equal(matrix.waits, CELLS)
    assert matrix.grade == "assumed"


def test_a_row_of_plain_rank_numbers_is_a_heading_and_no_waits() -> None:
    matrix = parse_wait_matrix(b"0,1,2\n1,2,3\n4,5,6\n7,8,9\n", "waits.csv")
    np.testing.assert_array_equal(matrix.waits, CELLS)


def test_some_rows_are_enough_and_the_others_are_said_to_lack() -> None:
    matrix = parse_wait_matrix(b"waiting_rank,on_0,on_1,on_2,on_3,on_4\n0,1,2,3,4,5\n3,1,2,3,4,5\n", "waits.csv")
    assert matrix.waiting == (0, 3)
    assert matrix.waits.shape == (2, 5)
    assert matrix.source.lacked == ("rows of ranks 1, 2, 4",)


@pytest.mark.parametrize("cell", ["", "nan", "NaN", "-", "n/a", "inf", "1e999"])
def test_a_cell_without_a_number_is_absent_and_counted(cell: str) -> None:
    matrix = parse_wait_matrix(HEADED.replace("5", cell).encode(), "waits.csv")
    assert np.isnan(matrix.waits[1, 1])
    assert matrix.source.status == "used"
    assert matrix.source.warnings == ("1 cells are empty or not finite and are taken as absent",)


def test_a_pair_that_never_talks_is_absent_without_a_word() -> None:
    matrix = parse_wait_matrix(HEADED.replace("5", "0").encode(), "waits.csv")
    assert np.isnan(matrix.waits[1, 1])
    assert matrix.source.warnings == ()


def test_a_negative_wait_is_absent_and_named() -> None:
    matrix = parse_wait_matrix(HEADED.replace("5", "-5").encode(), "waits.csv")
    assert np.isnan(matrix.waits[1, 1])
    assert matrix.source.status == "partial"
    assert "line 3, awaited rank 1: -5 is no wait" in matrix.source.warnings[0]


@pytest.mark.parametrize(
    "text, what",
    [
        (HEADED.replace("1,4,5,6", "1,4,5"), "line 3 has 2 waits, expected 3"),
        (HEADED.replace("1,4,5,6", "1,4,5,6,7"), "line 3 has 4 waits, expected 3"),
        (HEADED.replace("5", "5 us"), "line 3, awaited rank 1: '5 us' is no number"),
        (HEADED.replace("5", "1_000"), "no number"),
        (HEADED.replace("\n1,", "\n0,"), "rank 0 has more than one row"),
        (HEADED.replace("on_1", "on_2"), "rank 2 has more than one column"),
        ("waiting_rank,on_0,on_1\n0,0,\n1,0,0\n", "without any wait"),
    ],
)
def test_what_cannot_be_right_is_one_line_that_says_where(tmp_path: Path, text: str, what: str) -> None:
    path = write(tmp_path / "waits.csv", text)
    assert sniff(path) == "wait-matrix"
    with pytest.raises(DamagedInput, match=what) as caught:
        WaitMatrixReader().read(path)
    assert "\n" not in str(caught.value)
    assert caught.value.where == str(path)
    assert caught.value.mend


@pytest.mark.parametrize(
    "text",
    [
        "rank,start\n1,2\n",
        "rank,optimizer_ms\n0,9.98\n1,10.12\n",
        "metric,p50,p90,p99\n0,1,2,3\n1,4,5,6\n",
        "step,rank_0,rank_1,rank_2,rank_3\n0,1,2,3,4\n1,1,2,3,4\n",
        "rank,work_ns,wait_ns\n0,1,2\n1,3,4\n",
        "1,2,3\n4,5,6\n",
        "waiting_rank,on_0,on_1\n",
        "a b c\nd e f\n",
        "restarted at noon\n",
        "",
    ],
)
def test_other_tables_are_no_matrix(tmp_path: Path, text: str) -> None:
    assert not is_wait_matrix(text.encode())
    path = write(tmp_path / "other.csv", text)
    assert not WaitMatrixReader().can_read(path)
    with pytest.raises(InputError):
        sniff(path)
    with pytest.raises(InputError, match="not a receive-wait matrix"):
        WaitMatrixReader().read(path)


def test_bytes_and_other_encodings_are_no_matrix() -> None:
    assert not is_wait_matrix(b"\0" + HEADED.encode())
    assert not is_wait_matrix(HEADED.encode("utf-16"))


def test_a_folder_a_pipe_and_nothing_are_no_matrix(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = WaitMatrixReader()
    assert not any(reader.can_read(path) for path in (tmp_path, tmp_path / "pipe", tmp_path / "absent"))


def test_tables_of_other_reports_are_no_matrices(fixtures: Path) -> None:
    for path in sorted((fixtures.parent / "cases").glob("*.csv")):
        assert WaitMatrixReader().can_read(path) == path.name.startswith("A76"), path.name
